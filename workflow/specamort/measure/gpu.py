"""What the GPU is and how it does, through NVML; a job on the wrong one refuses to measure."""

import os
import time
from contextlib import contextmanager

from ..errors import SpecamortError


def inspect(expected: str) -> dict:
    """Identity and state of the job's one GPU.

    Args:
        expected: what the device's name must contain, as `gpu` in a study file.

    Returns:
        `device` (name, uuid), `driver`, `driver_cuda` (the newest CUDA it serves, 100 major +
        minor), and what `reading` gives.

    Raises:
        SpecamortError: no GPU, several, another kind, a MIG slice, or one someone else is using.
    """
    import pynvml as nvml

    with _nvml(nvml):
        gpu = _the_only(nvml)
        name, uuid = nvml.nvmlDeviceGetName(gpu), nvml.nvmlDeviceGetUUID(gpu)
        if expected.lower() not in name.lower():
            raise SpecamortError(
                f"this platform is {expected}, but the job found {name} ({uuid}); check the "
                "partition and gres in the cluster file"
            )
        if _mig(nvml, gpu):
            raise SpecamortError(
                f"{name} ({uuid}) is partitioned (MIG); a slice is not the device of the study, "
                "ask for a whole one"
            )
        now = _reading(nvml, gpu)
        if now["other_processes"]:
            raise SpecamortError(
                f"{name} ({uuid}) is in use by processes {now['other_processes']}; ask for an "
                "exclusive device"
            )
        driver = nvml.nvmlSystemGetDriverVersion()
        return {
            "device": {"name": name, "uuid": uuid},
            "driver": driver,
            "driver_cuda": nvml.nvmlSystemGetCudaDriverVersion_v2() // 10,
            **now,
        }


def driver_too_old(source: dict) -> str | None:
    """Why torch cannot run on this driver, from `inspect` and torch's `cuda`; null if it can.

    A driver serves every release of its CUDA's major number (NVIDIA's "CUDA Compatibility").
    """
    major, minor = divmod(source["driver_cuda"], 100)
    if source["cuda"] is None:
        return "this torch has no CUDA; install the GPU environment (`make env ENV=gpu`)"
    if major >= int(source["cuda"].split(".")[0]):
        return None
    return (
        f"driver {source['driver']} serves CUDA {major}.{minor}, torch was built for "
        f"{source['cuda']}; ask for a node with a newer driver"
    )


def reading() -> dict:
    """State of the job's one GPU now, for before and after a cell.

    Returns:
        `clocks_mhz`, `power_cap_w`, `temperature_c`, `throttle_reasons` (NVML's bit mask, of this
        moment), `throttled_ns` (NVML's counters of time spent below the asked clocks, by cause;
        null where the GPU does not count), `at_ns` (monotonic) and `other_processes` (pids of
        strangers).
    """
    import pynvml as nvml

    with _nvml(nvml):
        return _reading(nvml, _the_only(nvml))


def _reading(nvml, gpu) -> dict:
    return {
        "clocks_mhz": {
            "sm": nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
            "memory": nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
        },
        "power_cap_w": nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
        "temperature_c": nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
        "throttle_reasons": nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu),
        "throttled_ns": _throttled_ns(nvml, gpu),
        "at_ns": time.monotonic_ns(),
        "other_processes": _strangers(nvml, gpu),
    }


def _throttled_ns(nvml, gpu) -> dict | None:
    causes = {"power": nvml.NVML_PERF_POLICY_POWER, "thermal": nvml.NVML_PERF_POLICY_THERMAL}
    try:
        return {
            k: nvml.nvmlDeviceGetViolationStatus(gpu, v).violationTime for k, v in causes.items()
        }
    except nvml.NVMLError_NotSupported:
        return None


@contextmanager
def _nvml(nvml):
    try:
        nvml.nvmlInit()
        yield
    except nvml.NVMLError as e:
        raise SpecamortError(f"no NVIDIA GPU answers here ({e}); run this on a GPU node") from e


def _the_only(nvml):
    """The device CUDA sees: the only one visible, by CUDA_VISIBLE_DEVICES where that is set."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [v for v in visible.split(",") if v] if visible is not None else None
    count = nvml.nvmlDeviceGetCount() if names is None else len(names)
    if count != 1:
        raise SpecamortError(f"the job sees {count} GPUs; a block measures one, ask for one")
    if names and not names[0].isdigit():
        return nvml.nvmlDeviceGetHandleByUUID(names[0])
    # cgroups hide the others from NVML too, and then the index counts what is left
    index = int(names[0]) if names and nvml.nvmlDeviceGetCount() > 1 else 0
    return nvml.nvmlDeviceGetHandleByIndex(index)


def _mig(nvml, gpu) -> bool:
    try:
        return nvml.nvmlDeviceGetMigMode(gpu)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    except nvml.NVMLError_NotSupported:
        return False


def _strangers(nvml, gpu) -> list[int]:
    """Compute processes on the GPU that are not this job's: not in this process's session."""
    mine = os.getsid(0)
    found = []
    for p in nvml.nvmlDeviceGetComputeRunningProcesses(gpu):
        try:
            if os.getsid(p.pid) != mine:
                found.append(p.pid)
        except ProcessLookupError:
            found.append(p.pid)
    return found
