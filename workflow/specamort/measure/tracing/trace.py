"""A trace of a few engine steps, whichever tracer made it."""

import re
from dataclasses import dataclass

import numpy as np

# vLLM's own mark around every engine step, under both tracers: requests, and tokens, by phase.
STEP = re.compile(r"execute_context_(\d+)\(\d+\)_generation_(\d+)\((\d+)\)")


@dataclass(frozen=True)
class Trace:
    """Device activity of one run.

    Attributes:
        steps: decode steps (no request in prefill), null where the tracer has no marks.
        step_tokens: tokens that each decode step computed.
        busy_ms: union of the device's busy intervals, added over devices.
        sum_ms: their sum; larger where kernels overlap.
        family_ms: the sum by family of kernel.
        events: number of intervals.
    """

    tracer: str
    steps: int | None
    step_tokens: list[int]
    busy_ms: float
    sum_ms: float
    family_ms: dict[str, float]
    events: int


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


def decode_step_tokens(marks: list[str]) -> list[int]:
    """Tokens that each decode step computed, from vLLM's marks; steps with prefill are left out."""
    found = (STEP.search(mark) for mark in marks)
    return [int(m[3]) for m in found if m and m[1] == "0" and m[2] != "0"]
