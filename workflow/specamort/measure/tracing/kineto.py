"""A trace by torch's own profiler (Kineto), which vLLM writes for each worker."""

import gzip
import json
import zlib
from pathlib import Path

import numpy as np

from ...errors import SpecamortError
from ...model.kernels import family
from .trace import Trace, decode_step_tokens, union

_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}


def options(directory: Path) -> dict:
    """vLLM's `profiler_config` for traces in `directory`."""
    return {
        "profiler": "torch",
        "torch_profiler_dir": str(directory.resolve()),
        "torch_profiler_with_stack": False,
    }


def read(path: Path) -> Trace:
    """Device activity in a trace file, from the first decode step on.

    The prefill before it would cancel in a difference of two traces, but its noise would not. On a
    GPU the device's are its kernels and copies; without one, the worker's operators, of
    nested ones the outermost.

    Raises:
        SpecamortError: truncated, not a Kineto trace, without activity, or with broken clocks.
    """
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as f:
            events = json.load(f)["traceEvents"]
    except (EOFError, zlib.error, json.JSONDecodeError, UnicodeDecodeError) as e:
        raise SpecamortError(
            f"{path}: cut short; the worker ended before it wrote its trace, trace again"
        ) from e
    except (OSError, KeyError, TypeError) as e:
        raise SpecamortError(f"{path}: not a Kineto trace ({type(e).__name__}: {e})") from e
    spans = [e for e in events if e.get("ph") == "X"]
    device = [e for e in spans if e.get("cat") in _DEVICE]
    if not device:
        device = _outermost([e for e in spans if e.get("cat") == "cpu_op"])
    if not device:
        raise SpecamortError(f"{path}: shows no device activity; was the engine idle?")
    # not every mark: on a GPU Kineto repeats each as gpu_user_annotation
    marks = (e for e in spans if e.get("cat") == "user_annotation")
    decode = [e for e in marks if decode_step_tokens([e["name"]])]
    first = min((e["ts"] for e in decode), default=float("inf"))
    device = [e for e in device if e["ts"] >= first]
    step_tokens = decode_step_tokens([e["name"] for e in decode])
    if not device:
        return Trace("kineto", len(step_tokens), step_tokens, 0.0, 0.0, {}, 0)
    # microseconds; a device in a GPU trace is its `pid`, on a CPU all threads are one device
    start = np.array([float(e["ts"]) for e in device])
    length = np.array([float(e["dur"]) for e in device])
    if (length < 0).any():
        raise SpecamortError(f"{path}: has events that end before they start; trace again")
    of = np.array([e["pid"] if e["cat"] in _DEVICE else 0 for e in device], dtype=object)
    base = start.min()  # epoch microseconds lose digits in sums
    busy = sum(
        union(start[of == d] - base, start[of == d] - base + length[of == d]) for d in set(of)
    )
    families: dict[str, float] = {}
    for e, ms in zip(device, length / 1e3, strict=True):
        families[family(e["name"])] = families.get(family(e["name"]), 0.0) + float(ms)
    return Trace(
        "kineto",
        len(step_tokens),
        step_tokens,
        busy / 1e3,
        float(length.sum()) / 1e3,
        families,
        len(device),
    )


def _outermost(operators: list[dict]) -> list[dict]:
    """Operators that are not inside another of their thread."""
    found, end, thread = [], 0.0, None
    for e in sorted(operators, key=lambda e: (str(e["tid"]), e["ts"], -e["dur"])):
        if e["tid"] != thread or e["ts"] >= end:
            found.append(e)
            thread, end = e["tid"], e["ts"] + e["dur"]
    return found
