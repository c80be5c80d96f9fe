"""A trace of a few engine steps, whichever tracer made it."""

import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import SpecamortError, Unreadable
from ...model.kernels import family

# vLLM's own mark around every engine step, under both tracers: requests, and tokens, by phase.
MARK = "execute_context_"
_N = "[0-9]{1,7}"
_STEP = re.compile(rf"{MARK}({_N})\({_N}\)_generation_({_N})\(({_N})\)")
DEVICES = 1024  # more than any machine has
DAY_S = 86_400  # a trace is of seconds: times a day apart are no times of one run
_LONGEST_NAME = 100_000  # characters; real ones, full of templates, have some 10,000


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


def decode_step_tokens(path: Path, marks: Iterable[str]) -> list[int]:
    """Tokens that each decode step computed, from vLLM's marks; steps with prefill are left out.

    Raises:
        SpecamortError: a mark does not say requests and tokens, each below ten million.
    """
    tokens = []
    for mark in marks:
        if "\0" in mark or not (m := _STEP.search(mark)):
            raise SpecamortError(
                f"{path}: a mark of vLLM's reads {mark[:60]!r}, which are no requests and tokens "
                "of a step; trace again"
            )
        prefilling, decoding, computed = map(int, m.groups())
        if decoding and not prefilling:
            tokens.append(computed)
    return tokens


def by_family(path: Path, by_name: dict[str, float]) -> dict[str, float]:
    """Sums by name as sums by family; an empty name is one that is not known.

    Raises:
        SpecamortError: no name is known, or one is damaged or absurdly long.
    """
    if not any(by_name):
        raise SpecamortError(
            f"{path}: no kernel has a name, so none has a family; export the report or trace again"
        )
    families: dict[str, float] = {}
    for name, value in by_name.items():
        if "\0" in name or len(name) > _LONGEST_NAME:
            raise SpecamortError(
                f"{path}: the kernel name {name[:60]!r} is damaged or longer than {_LONGEST_NAME} "
                "characters; export the report or trace again"
            )
        kind = family(name)
        families[kind] = families.get(kind, 0.0) + value
    return families


def require_file(path: Path) -> None:
    """Refuse what is no file or cannot be opened; a pipe would be waited for.

    Raises:
        Unreadable: always then.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise Unreadable(f"{path}: is no file; name a trace")
        path.open("rb").close()
    except (OSError, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) else "no file can have that name"
        raise Unreadable(f"{path}: cannot be read ({why})") from e
