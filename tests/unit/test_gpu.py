"""The GPU's truth against a stand-in for NVML."""

import sys
from types import SimpleNamespace

import pytest

import synthetic
from specamort.errors import SpecamortError
from specamort.measure import gpu
from specamort.records.exclusions import exclusions


class NVMLError(Exception):
    pass


class NotSupported(NVMLError):
    pass


class NoPermission(NVMLError):
    pass


def fake(**changed):
    one = {
        "NVMLError": NVMLError,
        "NVMLError_NotSupported": NotSupported,
        "NVMLError_NoPermission": NoPermission,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_DEVICE_MIG_ENABLE": 1,
        "NVML_PERF_POLICY_POWER": 0,
        "NVML_PERF_POLICY_THERMAL": 1,
        "nvmlDeviceGetViolationStatus": lambda g, cause: SimpleNamespace(violationTime=10 + cause),
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda i: f"gpu{i}",
        "nvmlDeviceGetName": lambda g: "NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetUUID": lambda g: "GPU-1234",
        "nvmlSystemGetDriverVersion": lambda: "560.1",
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 12060,
        "nvmlDeviceGetClockInfo": lambda g, kind: {1: 1980, 2: 2619}[kind],
        "nvmlDeviceGetEnforcedPowerLimit": lambda g: 700_000,
        "nvmlDeviceGetTemperature": lambda g, kind: 41,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda g: 0,
        "nvmlDeviceGetMigMode": lambda g: (0, 0),
        "nvmlDeviceGetComputeRunningProcesses": lambda g: [],
    }
    return SimpleNamespace(**one | changed)


@pytest.fixture
def nvml(monkeypatch):
    monkeypatch.setattr(gpu, "_PATIENCE_S", 0.1)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(**changed):
        monkeypatch.setitem(sys.modules, "pynvml", fake(**changed))

    return install


def test_the_right_gpu(nvml):
    nvml()
    found = gpu.inspect("H100")
    assert found["device"] == {"name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-1234"}
    assert found["clocks_mhz"] == {"sm": 1980, "memory": 2619}
    assert found["power_cap_w"] == 700


def refuse(*_):
    raise NVMLError("driver not loaded")


def not_supported(*_):
    raise NotSupported


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"nvmlInit": refuse}, "no NVIDIA GPU answers here"),
        (
            {"nvmlDeviceGetName": lambda g: "NVIDIA A100"},
            "this platform is H100, but the job found",
        ),
        ({"nvmlDeviceGetMigMode": lambda g: (1, 1)}, "MIG"),
        ({"nvmlDeviceGetCount": lambda: 2}, "the job sees 2 GPUs"),
        (
            {"nvmlDeviceGetComputeRunningProcesses": lambda g: [SimpleNamespace(pid=2**22 + 1)]},
            r"in use by processes \[4194305\]",
        ),
    ],
)
def test_refused(nvml, change, why):
    nvml(**change)
    with pytest.raises(SpecamortError, match=why):
        gpu.inspect("H100")


def test_a_gpu_without_mig(nvml):
    nvml(nvmlDeviceGetMigMode=not_supported)
    assert gpu.inspect("h100")["device"]["uuid"] == "GPU-1234"


UUIDS = [f"GPU-{i}{i}{i}{i}-abcd" for i in range(8)]


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        ("3", 3),
        (" 3 ", 3),
        ("GPU-2222-abcd", 2),
        ("GPU-2", 2),
        ("gpu-2", 2),
        ("5,-1,6", 5),  # CUDA ends the list at the first that is none
        ("0,1", "sees 2 GPUs"),
        ("GPU-", "sees 0 GPUs"),
        ("", "sees 0 GPUs"),
        ("-1", "sees 0 GPUs"),
        ("NoDevFiles", "sees 0 GPUs"),
        ("8", "names 8, which NVML does not show"),
        ("GPU-9", "names GPU-9, which NVML does not show"),
        ("MIG-GPU-2222-abcd/1/0", "MIG slice"),
        ("MIG-3fae", "MIG slice"),
    ],
)
def test_visible_devices_in_every_form_that_cuda_takes(nvml, monkeypatch, visible, seen):
    nvml(
        nvmlDeviceGetCount=lambda: 8,
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetUUID=lambda g: UUIDS[g],
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if isinstance(seen, int):
        assert gpu.inspect("H100")["device"]["uuid"] == UUIDS[seen]
    else:
        with pytest.raises(SpecamortError, match=seen):
            gpu.inspect("H100")


def test_a_device_that_the_jobs_cgroup_hides_is_not_seen(nvml, monkeypatch):
    def by_index(i):
        if i != 3:
            raise NoPermission
        return "gpu3"

    nvml(
        nvmlDeviceGetCount=lambda: 8,
        nvmlDeviceGetHandleByIndex=by_index,
        nvmlDeviceGetUUID=lambda g: g,
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert gpu.inspect("H100")["device"]["uuid"] == "gpu3"


def test_a_process_that_is_ending_is_waited_for(nvml, monkeypatch):
    there = [SimpleNamespace(pid=2**22 + 1)]
    monkeypatch.setattr(gpu.time, "sleep", lambda s: there.clear())
    nvml(nvmlDeviceGetComputeRunningProcesses=lambda g: list(there))
    assert gpu.inspect("H100")["other_processes"] == []


SXM, PCIE, NVL = "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H100 NVL"
A100, A100_PCIE = "NVIDIA A100-SXM4-80GB", "NVIDIA A100-PCIE-40GB"


@pytest.mark.parametrize(
    ("expected", "taken", "refused"),
    [
        ("H100", [SXM, PCIE, NVL], ["NVIDIA H200", "NVIDIA GH200 480GB", "NVIDIA H800"]),
        ("h200", ["NVIDIA H200", "NVIDIA H200 NVL"], ["NVIDIA GH200 480GB", SXM]),
        ("A10", ["NVIDIA A10"], [A100, A100_PCIE, "NVIDIA A10G"]),
        ("L40", ["NVIDIA L40"], ["NVIDIA L40S"]),
        ("H100 SXM5", [SXM], [PCIE, NVL]),
        ("H100 PCIe", [PCIE], [SXM, NVL]),
        ("H200 NVL", ["NVIDIA H200 NVL"], ["NVIDIA H200"]),
        ("A100 SXM", [A100], [A100_PCIE]),
        ("A100 PCIe", [A100_PCIE, "NVIDIA A100 80GB PCIe"], [A100]),
        ("A100 SXM5", [], [A100]),
        ("A100 80GB", [A100], [A100_PCIE]),
        ("L40S PCIe", ["NVIDIA L40S"], []),
        (SXM, [SXM], [PCIE, NVL]),
        ("RTX 4060", ["NVIDIA GeForce RTX 4060"], ["NVIDIA GeForce RTX 4060 Ti"]),
        ("RTX 4060 Ti", ["NVIDIA GeForce RTX 4060 Ti"], ["NVIDIA GeForce RTX 4060"]),
        ("RTX 3080", [], ["NVIDIA GeForce RTX 3080 Laptop GPU", "NVIDIA GeForce RTX 3080 Ti"]),
        ("RTX 4090", [], ["NVIDIA GeForce RTX 4090 D"]),
        ("RTX 6000", [], ["NVIDIA RTX 6000 Ada Generation", "Quadro RTX 6000", "NVIDIA RTX A6000"]),
        ("RTX 6000 Ada", ["NVIDIA RTX 6000 Ada Generation"], ["Quadro RTX 6000"]),
        ("A40", ["NVIDIA A40"], ["NVIDIA A40-8Q", "GRID A40-48C"]),
        ("H20", ["NVIDIA H20"], ["NVIDIA H20-3e", "NVIDIA H200"]),
        (
            "GH200",
            ["NVIDIA GH200 480GB", "NVIDIA GH200 144G HBM3e"],
            ["NVIDIA H200", "NVIDIA GB200"],
        ),
        (" ", [], [SXM]),
    ],
)
def test_a_gpu_is_known_by_the_words_of_its_name(expected, taken, refused):
    assert [n for n in taken + refused if gpu.is_of(n, expected)] == taken


def test_a_reading_and_a_gpu_that_does_not_count(nvml):
    nvml()
    now = gpu.reading()
    assert now["throttled_ns"] == {"power": 10, "thermal": 11}
    assert now["temperature_c"] == 41 and now["other_processes"] == []
    nvml(nvmlDeviceGetViolationStatus=not_supported)
    assert gpu.reading()["throttled_ns"] is None


def test_marks_of_a_cell():
    quiet = synthetic.reading()
    later = quiet | {"at_ns": quiet["at_ns"] + 1000}

    def of(before, after):
        return exclusions({"before": before, "after": after})

    assert of(quiet, later) == []
    assert of(quiet, later | {"throttle_reasons": 0x1 | 0x2}) == []  # idle, clocks asked for
    for reason in (0x4, 0x8, 0x20, 0x40, 0x80):
        assert of(quiet | {"throttle_reasons": reason}, later) == ["throttled"]
        assert of(quiet, later | {"throttle_reasons": reason}) == ["throttled"]
    held = {"power": quiet["throttled_ns"]["power"] + 10, "thermal": 0}
    assert of(quiet, later | {"throttled_ns": held}) == []
    held["power"] += 1  # 11 of 1000 ns
    assert of(quiet, later | {"throttled_ns": held}) == ["throttled"]
    assert of(quiet | {"throttled_ns": None}, later | {"throttled_ns": held}) == []
    both = later | {"throttle_reasons": 0x40, "other_processes": [7]}
    assert of(quiet, both) == ["throttled", "shared"]
    assert of(None, None) == exclusions(None) == []
