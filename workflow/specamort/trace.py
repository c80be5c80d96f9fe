"""A trace of a few engine steps, whichever tracer made it, and what one decode step is made of.

Decomposition by differencing (study section "The amortized term is directly a host floor"): two
runs that differ only in generated tokens; what the longer has more, divided by its added steps,
is one step, free of load, warm-up and prefill. `step = device + host-exposed`.
"""

import re
from dataclasses import dataclass

import numpy as np

from .errors import SpecamortError

# vLLM's own mark around every engine step, under both tracers: requests, and tokens, by phase.
STEP = re.compile(r"execute_context_(\d+)\(\d+\)_generation_(\d+)\((\d+)\)")

# First match wins; CUDA kernels and the CPU build's operators by their names.
FAMILIES = {
    "attention": r"attention|attn|flash|fmha|kv_cache|reshape_and_cache|paged|scheduler_metadata",
    "sampling": r"argmax|softmax|sampl|top_?k|multinomial|penalt|reject|logits_proc|cumsum|sort",
    "gemm": r"gemm|gemv|_mm\b|::mm\b|matmul|addmm|linear|cutlass|cublas|xmma|nvjet|splitkreduce",
    "norm": r"norm|rsqrt|::mean|::pow",
    "copy": r"memcpy|memset|copy|::to\b|::clone|index_select|slot_mapping|\bfill",
}
_FAMILIES = [(name, re.compile(pattern, re.IGNORECASE)) for name, pattern in FAMILIES.items()]


@dataclass(frozen=True)
class Trace:
    """Device activity of one run.

    Attributes:
        steps: decode steps (no request in prefill), null where the tracer has no marks.
        rows: tokens that each decode step computed.
        busy_ms: union of the device's busy intervals, added over devices.
        sum_ms: their sum; larger where kernels overlap.
        family_ms: the sum by family of kernel.
        events: number of intervals.
    """

    tracer: str
    steps: int | None
    rows: list[int]
    busy_ms: float
    sum_ms: float
    family_ms: dict[str, float]
    events: int


def family(name: str) -> str:
    """Family of a kernel or operator, `other` if none."""
    return next((f for f, pattern in _FAMILIES if pattern.search(name)), "other")


def union(start: np.ndarray, end: np.ndarray) -> float:
    """Length of the union of intervals, in their unit."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    begin = np.maximum(start[1:], reach[:-1])
    return float(end[0] - start[0] + np.maximum(end[1:] - begin, 0).sum()) if len(start) else 0.0


def decode_rows(marks: list[str]) -> list[int]:
    """Tokens that each decode step computed, from vLLM's marks; steps with prefill are left out."""
    found = (STEP.search(mark) for mark in marks)
    return [int(m[3]) for m in found if m and m[1] == "0" and m[2] != "0"]


def per_step(short: dict, long: dict, rows: int) -> dict:
    """One decode step from a pair of runs.

    Args:
        short, long: `decode_steps` (engine steps after the first token), `wall_ms` (from the first
            token to the last) and `trace` (the fields of a `Trace`, null for an untraced run).
        rows: tokens a step must have computed: batch (gamma + 1).

    Returns:
        `step_ms`; with traces also `device_ms`, `device_sum_ms`, `host_ms` and `family_ms`.

    Raises:
        SpecamortError: the step counts do not add up, or noise exceeds the difference.
    """
    steps = long["decode_steps"] - short["decode_steps"]
    if steps <= 0:
        raise SpecamortError(
            f"the longer run has {long['decode_steps']} decode steps, the shorter "
            f"{short['decode_steps']}; there is no step to take apart, give profile.tokens two "
            "lengths"
        )

    def difference(what: str, a: float, b: float) -> float:
        if b < a:
            raise SpecamortError(
                f"{what} of {long['decode_steps']} steps is {b:.3f} ms, of "
                f"{short['decode_steps']} steps {a:.3f} ms: noise is larger than the step; give "
                "profile.tokens a longer run"
            )
        return (b - a) / steps

    found = {"step_ms": difference("wall time", short["wall_ms"], long["wall_ms"])}
    if long["trace"] is None:
        return found
    for run in (short, long):
        _check_steps(run, rows)
    a, b = short["trace"], long["trace"]
    found["device_ms"] = difference("device time", a["busy_ms"], b["busy_ms"])
    found["device_sum_ms"] = difference("summed device time", a["sum_ms"], b["sum_ms"])
    found["host_ms"] = found["step_ms"] - found["device_ms"]
    if found["host_ms"] < 0:
        raise SpecamortError(
            f"the device is busy {found['device_ms']:.3f} ms in a step of {found['step_ms']:.3f} "
            "ms: the trace and the clock are of different runs, or of several devices"
        )
    # a family that is hardly there may come out below zero by noise; the sum above may not
    found["family_ms"] = {
        k: (b["family_ms"].get(k, 0.0) - a["family_ms"].get(k, 0.0)) / steps
        for k in sorted(b["family_ms"].keys() | a["family_ms"].keys())
    }
    return found


def _check_steps(run: dict, rows: int) -> None:
    seen = run["trace"]["steps"]
    if seen is None:
        return
    if seen != run["decode_steps"]:
        raise SpecamortError(
            f"the trace shows {seen} decode steps, the engine made {run['decode_steps']}: it is of "
            "another run, or cut short; trace again"
        )
    short_drafts = [n for n in run["trace"]["rows"] if n != rows]
    if short_drafts:
        raise SpecamortError(
            f"{len(short_drafts)} of {seen} traced steps computed other than {rows} tokens "
            f"({min(short_drafts)} to {max(short_drafts)}): drafts were not full; trace a "
            "workload whose drafts are"
        )
