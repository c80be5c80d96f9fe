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


def fake(**changed):
    one = {
        "NVMLError": NVMLError,
        "NVMLError_NotSupported": NotSupported,
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
        "nvmlDeviceGetHandleByUUID": lambda u: u,
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


def test_the_visible_device_is_the_one_asked(nvml, monkeypatch):
    nvml(nvmlDeviceGetCount=lambda: 8, nvmlDeviceGetUUID=lambda g: g)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert gpu.inspect("H100")["device"]["uuid"] == "gpu3"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-abc")
    assert gpu.inspect("H100")["device"]["uuid"] == "GPU-abc"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(SpecamortError, match="sees 2 GPUs"):
        gpu.inspect("H100")


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
