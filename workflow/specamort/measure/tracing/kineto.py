"""A trace by torch's own profiler (Kineto), which vLLM writes for each worker."""

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from ...errors import SpecamortError, Unreadable
from .trace import (
    DAY_S,
    DEVICES,
    MARK,
    Trace,
    by_family,
    decode_step_tokens,
    require_file,
    union,
)

_DEVICE, _OPERATOR, _NOTE = "device", "operator", "note"
_KINDS = dict.fromkeys(("kernel", "gpu_memcpy", "gpu_memset"), _DEVICE)
# not every mark: on a GPU Kineto repeats each as gpu_user_annotation
_KINDS |= {"cpu_op": _OPERATOR, "user_annotation": _NOTE}
_READ = 2**20  # characters at a time
_LONGEST = 2**24  # characters of one value or space; an event has some hundreds
_SPACE = re.compile(r"[ \t\n\r]*")
_BEHIND = set(" \t\n\r,:]}")
_DECODER = json.JSONDecoder()


class _Spans(NamedTuple):
    """Columns; start and length in microseconds. In a GPU trace a device is its `pid`."""

    name: tuple[str, ...]
    start: np.ndarray
    length: np.ndarray
    pid: tuple
    tid: tuple


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
    nested ones the outermost. The file is read an event at a time.

    Raises:
        Unreadable: not a file, or not given by the filesystem.
        SpecamortError: truncated, not a Kineto trace, without marks or activity, or with names,
            times or devices that cannot be.
    """
    require_file(path)
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as f:
            found = _by_kind(path, _events(path, _Json(f)))
    except (EOFError, zlib.error, gzip.BadGzipFile, ValueError, RecursionError) as e:
        raise SpecamortError(
            f"{path}: cut short, damaged or not a Kineto trace ({getattr(e, 'msg', e)}); if the "
            "worker ended before it wrote its trace, trace again"
        ) from e
    except OSError as e:
        raise Unreadable(f"{path}: cannot be read ({e.strerror})") from e
    on_gpu = bool(found[_DEVICE])
    spans = _spans(path, found[_DEVICE] or found[_OPERATOR])
    if not spans.name:
        raise SpecamortError(f"{path}: shows no device activity; was the engine idle?")
    if on_gpu and not set(spans.pid) <= set(range(DEVICES)):
        raise SpecamortError(
            f"{path}: traceEvents has a kernel whose pid is no device of 0 to {DEVICES - 1}; trace "
            "again"
        )
    notes = _spans(path, found[_NOTE])
    marks = [m for m in zip(notes.start, notes.name, notes.tid, strict=True) if MARK in m[1]]
    if not marks or len(set(marks)) < len(marks):
        raise SpecamortError(
            f"{path}: holds none of vLLM's marks of a step, or one of them twice; trace a worker "
            "of vLLM again"
        )
    times = [t for of in (spans, notes) for t in (of.start, of.start + of.length)]
    if np.ptp(np.concatenate(times)) > DAY_S * 1e6:
        raise SpecamortError(
            f"{path}: ts and dur of its traceEvents span more than a day, so some are wrong; trace "
            "again"
        )
    by_mark = [decode_step_tokens(path, [name]) for _, name, _ in marks]
    tokens = [n for found in by_mark for n in found]
    first = min((m[0] for m, n in zip(marks, by_mark, strict=True) if n), default=np.inf)
    kept = spans.start >= first
    if not on_gpu:
        kept &= _outermost(spans)
    if tokens and not kept.any():
        raise SpecamortError(f"{path}: shows no device activity in its decode steps; trace again")
    # on a CPU all threads are one device
    of = np.array(spans.pid if on_gpu else [0] * len(kept))
    start = spans.start - spans.start.min()  # epoch microseconds lose digits in sums
    busy = sum(
        union(start[mine], start[mine] + spans.length[mine])
        for d in np.unique(of[kept])
        for mine in [kept & (of == d)]
    )
    by_name: dict[str, float] = {}
    for name, us in compress(zip(spans.name, spans.length.tolist(), strict=True), kept.tolist()):
        by_name[name] = by_name.get(name, 0.0) + us
    families = by_family(path, by_name) if by_name else {}
    return Trace(
        "kineto",
        len(tokens),
        tokens,
        busy / 1e3,
        float(spans.length[kept].sum()) / 1e3,
        {k: us / 1e3 for k, us in families.items()},
        int(kept.sum()),
    )


class _Json:
    """JSON that is read value by value, so that a long list is never in memory as a whole.

    Raises:
        ValueError: it is none, ends too soon, or one value is absurdly long.
    """

    def __init__(self, stream: TextIO):
        self.stream, self.text, self.at = stream, "", 0

    def peek(self) -> str:
        """The next character that is no space, empty at the end."""
        if (here := self.text[self.at : self.at + 1]) > " ":
            return here
        while True:
            at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]
            if at < len(self.text):
                self.at = at
                return self.text[at]
            if not self._more():
                return ""

    def take(self, *wanted: str) -> str:
        if (found := self.peek()) not in wanted:
            raise ValueError(f"{found or 'the end'} where {' or '.join(wanted)} belongs")
        self.at += 1
        return found

    def value(self) -> Any:
        self.peek()
        while True:
            try:
                found, end = _DECODER.raw_decode(self.text, self.at)
                # a number may go on behind what is read, as 1 and 1. do
                if self.text[end : end + 1] in _BEHIND or not self._more():
                    self.at = end
                    return found
            except json.JSONDecodeError:
                if not self._more():
                    raise

    def items(self, opening: str, closing: str) -> Iterator[None]:
        """Stops before each item of the list or object that is next."""
        self.take(opening)
        if self.peek() == closing:
            self.take(closing)
            return
        while True:
            yield
            if self.take(",", closing) == closing:
                return

    def _more(self) -> bool:
        left = self.text[self.at :]
        if len(left) > _LONGEST:
            raise ValueError(f"a value or a space of more than {_LONGEST} characters")
        new = self.stream.read(max(_READ, len(left)))
        if new:
            self.text, self.at = left + new, 0
        return bool(new)


def _events(path: Path, text: _Json) -> Iterator[Any]:
    """Items of the list `traceEvents` of the one object that a trace is."""
    there = False
    for _ in text.items("{", "}"):
        key = text.value()
        text.take(":")
        if key != "traceEvents":
            text.value()
            continue
        if there or text.peek() != "[":
            raise SpecamortError(f"{path}: traceEvents is no list, or there twice; trace again")
        there = True
        for _ in text.items("[", "]"):
            yield text.value()
    if text.peek():
        raise ValueError("more behind its end")
    if not there:
        raise SpecamortError(f"{path}: not a Kineto trace, it has no traceEvents; trace again")


def _by_kind(path: Path, events: Iterator[Any]) -> dict[str, list[tuple]]:
    """Name, `ts`, `dur`, `pid` and `tid` of the spans that are read, as they are."""
    found: dict[str, list[tuple]] = {kind: [] for kind in (_DEVICE, _OPERATOR, _NOTE)}
    same: dict[str, str] = {}  # one string for all events of a name
    for e in events:
        if type(e) is not dict or type(e.get("ph")) is not str:
            raise SpecamortError(
                f"{path}: traceEvents has an item that is no event with a ph; trace again"
            )
        if e["ph"] != "X":
            continue  # no span: it may lack the rest
        name, cat = e.get("name"), e.get("cat")
        if type(name) is not str or type(cat) is not str:
            raise SpecamortError(
                f"{path}: traceEvents has a span whose name or cat is no text; trace again"
            )
        if kind := _KINDS.get(cat):
            name = same.setdefault(name, name)
            found[kind].append((name, e.get("ts"), e.get("dur"), e.get("pid"), e.get("tid")))
    return found


def _spans(path: Path, rows: list[tuple]) -> _Spans:
    name, start, length, pid, tid = zip(*rows, strict=True) if rows else [()] * 5
    for key, values in (("pid", pid), ("tid", tid)):
        if not set(map(type, values)) <= {int, str}:
            raise SpecamortError(
                f"{path}: traceEvents has a span whose {key} is no whole number or text; trace "
                "again"
            )
    return _Spans(name, _times(path, "ts", start), _times(path, "dur", length), pid, tid)


def _times(path: Path, key: str, values: tuple) -> np.ndarray:
    if set(map(type, values)) <= {int, float}:
        with suppress(OverflowError):
            times = np.array(values, float)
            if ((times >= 0) & (times < 2**53)).all():  # not so where one is NaN
                return times
    raise SpecamortError(
        f"{path}: traceEvents has a span whose {key} is no number of microseconds from 0 to 2**53; "
        "trace again"
    )


def _outermost(spans: _Spans) -> np.ndarray:
    """Which operators are not inside another of their thread."""
    found = np.zeros(len(spans.start), bool)
    thread = list(zip(spans.pid, spans.tid, strict=True))
    start, end = spans.start.tolist(), (spans.start + spans.length).tolist()
    free: dict[tuple, float] = {}  # by thread, when the last of those found ends
    for i in np.lexsort((-spans.length, spans.start)).tolist():
        if start[i] >= free.get(thread[i], 0.0):
            found[i], free[thread[i]] = True, end[i]
    return found
