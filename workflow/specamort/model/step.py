"""One decode step from a pair of runs that differ only in length.

Differencing (study section "The amortized term is directly a host floor"): what the longer run has
more, divided by its added steps, is one step, free of load, warm-up and prefill.
"""

from typing import NotRequired, TypedDict

# A copy may slip on a word, and sequences of a batch then end a step apart; few such steps among
# many full ones hardly move the difference of two runs.
_SHORT_SHARE = 0.05


class Activity(TypedDict):
    """What a tracer saw of one run: the fields of a `measure.tracing.trace.Trace`."""

    tracer: str
    steps: int | None
    step_tokens: list[int]
    busy_ms: float
    sum_ms: float
    family_ms: dict[str, float]
    events: int


class Run(TypedDict):
    """One run of a pair.

    Attributes:
        decode_steps: engine steps after the first token.
        wall_ms: from the first token to the last.
        trace: null for an untraced run.
    """

    decode_steps: int
    wall_ms: float
    trace: Activity | None


class Step(TypedDict):
    """One decode step in ms; all but its wall time only from traces."""

    step_ms: float
    device_ms: NotRequired[float]
    device_sum_ms: NotRequired[float]
    host_ms: NotRequired[float]
    family_ms: NotRequired[dict[str, float]]


def per_step(short: Run, long: Run, tokens_per_step: int) -> Step:
    """One decode step from a pair of runs.

    Args:
        tokens_per_step: tokens a step must have computed: batch (gamma + 1).

    Raises:
        ValueError: the step counts do not add up, or noise exceeds the difference.

    270 ms more for 15 steps more:

    >>> short: Run = {"decode_steps": 1, "wall_ms": 30.0, "trace": None}
    >>> long: Run = {"decode_steps": 16, "wall_ms": 300.0, "trace": None}
    >>> per_step(short, long, tokens_per_step=1)
    {'step_ms': 18.0}
    """
    if long["decode_steps"] <= short["decode_steps"]:
        raise ValueError(
            f"the longer run has {long['decode_steps']} decode steps, the shorter "
            f"{short['decode_steps']}; there is no step to take apart, give tracing.tokens two "
            "lengths"
        )
    counts = short["decode_steps"], long["decode_steps"]
    step_ms = _difference("wall time", counts, short["wall_ms"], long["wall_ms"])
    a, b = short["trace"], long["trace"]
    if a is None or b is None:
        return {"step_ms": step_ms}
    _check_steps(a, short["decode_steps"], tokens_per_step)
    _check_steps(b, long["decode_steps"], tokens_per_step)
    device_ms = _difference("device time", counts, a["busy_ms"], b["busy_ms"])
    device_sum_ms = _difference("summed device time", counts, a["sum_ms"], b["sum_ms"])
    if step_ms < device_ms:
        raise ValueError(
            f"the device is busy {device_ms:.3f} ms in a step of {step_ms:.3f} "
            "ms: the trace and the clock are of different runs, or of several devices"
        )
    return {
        "step_ms": step_ms,
        "device_ms": device_ms,
        "device_sum_ms": device_sum_ms,
        "host_ms": step_ms - device_ms,
        # a family that is hardly there may come out below zero by noise; the sum above may not
        "family_ms": {
            k: (b["family_ms"].get(k, 0.0) - a["family_ms"].get(k, 0.0)) / (counts[1] - counts[0])
            for k in sorted(b["family_ms"].keys() | a["family_ms"].keys())
        },
    }


def _difference(what: str, counts: tuple[int, int], a: float, b: float) -> float:
    """A step's part of what the longer run took more; `counts` are the two runs' steps."""
    if b < a:
        raise ValueError(
            f"{what} of {counts[1]} steps is {b:.3f} ms, of {counts[0]} steps {a:.3f} ms: noise is "
            "larger than the step; give tracing.tokens a longer run"
        )
    return (b - a) / (counts[1] - counts[0])


def _check_steps(trace: Activity, decode_steps: int, tokens_per_step: int) -> None:
    seen = trace["steps"]
    if seen is None:
        return
    if seen != decode_steps:
        raise ValueError(
            f"the trace shows {seen} decode steps, the engine made {decode_steps}: it is of "
            "another run, or cut short; trace again"
        )
    short_drafts = [n for n in trace["step_tokens"] if n != tokens_per_step]
    if len(short_drafts) > _SHORT_SHARE * seen:
        raise ValueError(
            f"{len(short_drafts)} of {seen} traced steps computed other than {tokens_per_step} "
            f"tokens ({min(short_drafts)} to {max(short_drafts)}): drafts were not full; trace a "
            "workload whose drafts are"
        )
