"""A trace of a few engine steps, whichever tracer made it, and what one decode step is made of.

Decomposition by differencing (study section "The amortized term is directly a host floor"): two
runs that differ only in generated tokens; what the longer has more, divided by its added steps,
is one step, free of load, warm-up and prefill. `step = device + host-exposed`.
"""

import re
from dataclasses import dataclass
from functools import cache

import numpy as np

from .errors import SpecamortError

# vLLM's own mark around every engine step, under both tracers: requests, and tokens, by phase.
STEP = re.compile(r"execute_context_(\d+)\(\d+\)_generation_(\d+)\((\d+)\)")

# By what a kernel or operator is called; the first that fits.
FAMILIES = {
    "attention": r"attention|attn|flash(?!infer)|fmha|kv_?cache|reshape_and_cache|paged"
    r"|scheduler_metadata|prepare_varlen|reduce_segments",
    "sampling": r"argmax|maxops|maxnan|softmax|sampl|(?<!s)top_?[kp]|min_p_|multinomial|gumbel"
    r"|exponential|temperature|penalt|bincount|reject|\bexpand_kernel|logit|log_p|residual_mass"
    r"|cumsum|devicescan|scan_by_key|sort",
    "gemm": r"gemm|gemv|(?:::|_)(?:b|add|baddb)?mm(?![a-z])|matmul|(?:::|_)linear(?![a-z])"
    r"|cublas|xmma|nvjet|splitkreduce",
    "norm": r"norm(?!al_)|rsqrt|::mean|::pow",
    "copy": r"memcpy|memset|(?<!fused__to_)copy|fused_(?:_to_copy|clone)_\d|::to\b|::clone"
    r"|index_select|indexselect|index_elementwise|_gather|slot_mapping|\bfill",
}
_FAMILIES = [(name, re.compile(pattern, re.IGNORECASE)) for name, pattern in FAMILIES.items()]
# Templates that say in their arguments what they do, first things first, so the leftmost word
# decides; any other's arguments are only types.
_WRAPPER = re.compile(r"cutlass::(device_kernel|Kernel)|elementwise|reduce_kernel|DeviceReduce")
# Inductor names its kernels after all operators around them, of which these are never inside.
_INDUCTOR = re.compile(r"triton_(poi|per|red)_fused_")
_NEVER_FUSED = ("attention", "gemm")
_ROUND = re.compile(r"\([^()]*\)|\[[^][]*\]|\{[^{}]*\}")
_ANGLE = re.compile(r"<[^<>]*>")


# A copy may slip on a word, and sequences of a batch then end a step apart; few such steps among
# many full ones hardly move the difference of two runs.
_SHORT_SHARE = 0.05


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


@cache
def family(name: str) -> str:
    """Family of a kernel (demangled, as either tracer spells it) or operator, `other` if none."""
    whole = _without(_ROUND, name)  # parameters, casts, lambdas
    called = _without(_ANGLE, whole)
    if _WRAPPER.search(called):
        hits = [(m.start(), f) for f, pattern in _FAMILIES if (m := pattern.search(whole))]
        return min(hits, default=(0, "other"))[1]
    left_out = _NEVER_FUSED if _INDUCTOR.match(called) else ()
    fits = (f for f, pattern in _FAMILIES if f not in left_out and pattern.search(called))
    return next(fits, "other")


def _without(brackets: re.Pattern[str], text: str) -> str:
    """Text without what stands in brackets, however deep."""
    while (shorter := brackets.sub("", text)) != text:
        text = shorter
    return text


def union(start: np.ndarray, end: np.ndarray) -> float:
    """Length of the union of intervals, in their unit. Sorts in place, and spoils `start`.

    Once sorted, each for itself, the n-th end is the latest of n intervals that all ended before
    the next one started, or it is later than that start.
    """
    if not len(start):
        return 0.0
    start.sort(kind="stable")  # linear on what a tracer wrote in order of time
    end.sort(kind="stable")
    whole = end[-1] - start[0]
    idle = np.subtract(start[1:], end[:-1], out=start[1:])
    return float(whole - idle.clip(0, out=idle).sum())


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
    if len(short_drafts) > _SHORT_SHARE * seen:
        raise SpecamortError(
            f"{len(short_drafts)} of {seen} traced steps computed other than {rows} tokens "
            f"({min(short_drafts)} to {max(short_drafts)}): drafts were not full; trace a "
            "workload whose drafts are"
        )
