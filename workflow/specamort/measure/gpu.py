"""What the GPU is and how it does, through NVML; a job on the wrong one refuses to measure."""

import os
import re
import time
from contextlib import contextmanager
from itertools import takewhile

from ..errors import SpecamortError


def inspect(expected: str) -> dict:
    """Identity and state of the job's one GPU.

    Args:
        expected: `gpu` in a study file; see `is_of`.

    Returns:
        `device` (name, uuid), `driver`, `driver_cuda` (the newest CUDA it serves, 100 major +
        minor), and what `reading` gives.

    Raises:
        SpecamortError: no GPU, several, another kind, a MIG slice, or one someone else is using.
    """
    import pynvml as nvml

    with _nvml(nvml):
        gpu = _the_only(nvml)
        name, uuid = nvml.nvmlDeviceGetName(gpu), _uuid(nvml, gpu)
        if "mig" in _words(name) or _mig(nvml, gpu):
            raise SpecamortError(
                f"{name} ({uuid}) is partitioned (MIG); a slice is not the device of the study, "
                "ask for a whole one"
            )
        if not is_of(name, expected):
            raise SpecamortError(
                f"this platform is {expected}, but the job found {name} ({uuid}); check the "
                "partition and gres in the cluster file, or name it as found in the study file's "
                "gpu"
            )
        now = _quiet(nvml, gpu)
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


_PATIENCE_S = 10

# NVIDIA's names of the same chip on other boards, which have other clocks and memory
_BOARDS = ("sxm", "pcie", "nvl")

# What a name may hold besides the model: whose it is, and its memory. Any other word, as Ti, Ada,
# Laptop or a virtual GPU's profile, makes another model of it.
_NO_MODEL = re.compile(r"nvidia|tesla|geforce|[rg]tx|gpu|graphics|generation|\d+gb?|hbm\d?\w?")


def is_of(name: str, expected: str) -> bool:
    """Whether the device `name`, as NVML tells it, is the `expected` one.

    Every word of `expected` is one of the name's, and the name has no other word of a model: H200
    is not GH200, A10 not A100, RTX 4060 not RTX 4060 Ti. A board (SXM, PCIe, NVL) is held only
    where it is asked for.
    """
    words, wanted = _words(name), _words(expected)
    board = {w for w in wanted if _board(w)}
    if board and _board_of(words) not in {_board(w) for w in board}:
        return False
    versions = {w for w in words if _board(w) and w not in _BOARDS}
    if any(w not in _BOARDS and versions and w not in versions for w in board):
        return False
    more = [w for w in words - wanted if not _board(w) and not _NO_MODEL.fullmatch(w)]
    return bool(wanted) and wanted - board <= words and not more


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))


def _board(word: str) -> str | None:
    """The board that a word names: sxm for SXM, SXM4 and SXM5."""
    return next((b for b in _BOARDS if re.fullmatch(rf"{b}\d*", word)), None)


def _board_of(words: set[str]) -> str:
    """A name without a board is an SXM module's from Hopper on, else a PCIe card's."""
    named = next(filter(None, map(_board, sorted(words))), None)
    return named or ("sxm" if any(re.fullmatch(r"[hb]\d{2,3}", w) for w in words) else "pcie")


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
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # an index is the same to both
    handles = []
    for i in range(nvml.nvmlDeviceGetCount()):
        try:
            handles.append(nvml.nvmlDeviceGetHandleByIndex(i))
        except nvml.NVMLError_NoPermission:  # counted, but another job's
            continue
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        handles = [g for name in _listed(visible) for g in _named(nvml, handles, name)]
    if len(handles) != 1:
        raise SpecamortError(
            f"the job sees {len(handles)} GPUs"
            + ("" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})")
            + "; a block measures one, ask for one"
        )
    return handles[0]


def _listed(visible: str) -> list[str]:
    """The devices in CUDA_VISIBLE_DEVICES; CUDA ends the list at the first that is none."""
    names = [v.strip() for v in visible.split(",")]
    return list(takewhile(lambda v: re.fullmatch(r"\d+|(GPU|MIG)-\S+", v, re.I), names))


def _named(nvml, handles: list, name: str) -> list:
    """The devices by an index, a UUID, or a UUID's beginning."""
    if name.upper().startswith("MIG"):
        raise SpecamortError(
            f"CUDA_VISIBLE_DEVICES is {name}, a MIG slice; a slice is not the device of the study, "
            "ask for a whole one"
        )
    if not name.isdigit():
        found = [g for g in handles if _uuid(nvml, g).lower().startswith(name.lower())]
        return found or _missing(name)
    # cgroups hide the others from NVML too, and then the index counts what is left
    index = int(name) if len(handles) > 1 else 0
    return [handles[index]] if index < len(handles) else _missing(name)


def _missing(name: str):
    raise SpecamortError(
        f"CUDA_VISIBLE_DEVICES names {name}, which NVML does not show here; ask for a GPU again"
    )


def _uuid(nvml, gpu) -> str:
    uuid = nvml.nvmlDeviceGetUUID(gpu)
    return uuid.decode() if isinstance(uuid, bytes) else uuid


def _mig(nvml, gpu) -> bool:
    try:
        return nvml.nvmlDeviceGetMigMode(gpu)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    except nvml.NVMLError_NotSupported:
        return False


def _quiet(nvml, gpu) -> dict:
    """A reading, once the device is rid of processes that have just been ended."""
    end = time.monotonic() + _PATIENCE_S
    while (now := _reading(nvml, gpu))["other_processes"] and time.monotonic() < end:
        time.sleep(0.5)
    return now


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
