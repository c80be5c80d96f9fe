"""What a server does now, from its /metrics: live, saved, or as Prometheus answered."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import length_hint
from pathlib import Path
from typing import Any

from ..errors import SpecamortError
from ..records.metric_names import PER_POSITION, SPECULATION, STEPS
from . import scrape
from .acceptance import LONGEST, Acceptance
from .calibration import MS_MAX
from .scrape import fetch, shown


@dataclass(frozen=True)
class ServerMetrics:
    """What a server does now, from its metrics: see `server.read`.

    Attributes:
        gamma: its draft length.
        tpot_ms: its measured time per output token, null if none was counted.
        batch: requests in a decode step, on average.
    """

    gamma: int
    acceptance: Acceptance
    tpot_ms: float | None
    batch: float


_NEEDED = {
    "drafts": f"{SPECULATION}drafts_total",
    "drafted": f"{SPECULATION}draft_tokens_total",
    "accepted": f"{SPECULATION}accepted_tokens_total",
    "generated": "vllm:generation_tokens_total",
    "first_tokens": "vllm:time_to_first_token_seconds_count",
    "steps": f"{STEPS}_count",
    "tpot_sum": "vllm:request_time_per_output_token_seconds_sum",
    "tpot_count": "vllm:request_time_per_output_token_seconds_count",
}


_PER_POSITION = f"{PER_POSITION}_total"
_COUNT_MAX = 2.0**53  # beyond, a counter cannot count by ones
_LINE_MAX = 2**16
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?(e[+-]?\d+)?|Inf)|NaN", re.ASCII)
_Sample = tuple[str, dict[str, str], float]  # name, labels, value


@dataclass(frozen=True)
class Counters:
    """One scrape, of one model, engines added up. `per_position[k]`: drafts whose token k held."""

    drafts: float
    drafted: float
    accepted: float
    generated: float
    first_tokens: float
    steps: float
    tpot_sum: float
    tpot_count: float
    per_position: tuple[float, ...]
    source: str
    over: str = "since it started"


def watch(
    url: str,
    window_s: float,
    sleep: Callable[[float], object] = time.sleep,
    bearer: str | None = None,
    **choice: str | None,
) -> Counters:
    """Two scrapes of a server, `window_s` apart, by difference; `choice` as for `parse`."""
    _, name = scrape.address(url)
    before = parse(fetch(url, bearer), name, **choice)
    sleep(window_s)
    return difference(before, parse(fetch(url, bearer), name, **choice), window_s)


def read_file(path: Path, **choice: str | None) -> Counters:
    """A saved scrape's counters; `choice` and errors as for `parse`."""
    return parse(scrape.read(path), shown(path), **choice)


def parse(text: str, source: str, model: str | None = None, engine: str | None = None) -> Counters:
    """One scrape's counters.

    Args:
        model: which, where the server has several.
        engine: which, or `all` to add them up, where it has several.

    Raises:
        SpecamortError: not vLLM, no speculation, what no counter can be, or a choice to make.
    """
    samples = [s for s in _samples(text, source) if s[0].startswith("vllm:")]
    if not samples:
        raise SpecamortError(f"{source}: holds no metric of vLLM; is this its /metrics?")
    _each_once(samples, source)
    samples = _choose(samples, "model_name", model, source, "--model")
    if engine != "all":
        samples = _choose(samples, "engine", engine, source, "--engine", " (or `--engine all`)")
    totals: dict[str, float] = {}
    positions: dict[str, float] = {}
    for name, labels, value in samples:
        if name not in (*_NEEDED.values(), _PER_POSITION):
            continue
        whole = name == _NEEDED["tpot_sum"] or value % 1 == 0
        if not (0 <= value <= _COUNT_MAX and whole):  # NaN is not, either
            raise SpecamortError(
                f"{source}: {name} is {shown(value)}, which no counter of a server is; scrape again"
            )
        at, key = (
            (positions, labels.get("position", "none")) if name == _PER_POSITION else (totals, name)
        )
        at[key] = at.get(key, 0.0) + value
    if len(positions) > LONGEST or positions.keys() != {str(k) for k in range(len(positions))}:
        raise SpecamortError(
            f"{source}: {_PER_POSITION} has position {shown(', '.join(positions))}, and they count "
            f"from 0 to at most {LONGEST - 1}; scrape again"
        )
    if _NEEDED["drafts"] not in totals:
        raise SpecamortError(
            f"{source}: the server does not speculate, so there is no acceptance to read; turn it "
            "on with a small gamma for a while, or give --alpha"
        )
    missing = [m for m in _NEEDED.values() if m not in totals]
    if missing:
        raise SpecamortError(f"{source}: has no {missing[0]}; is this a vLLM before V1?")
    values: dict[str, Any] = {field: totals[name] for field, name in _NEEDED.items()}
    return Counters(
        **values,
        per_position=tuple(positions[str(k)] for k in range(len(positions))),
        source=source,
    )


def difference(before: Counters, after: Counters, seconds: float | None = None) -> Counters:
    """What was counted between two scrapes.

    Raises:
        SpecamortError: a counter fell, so the server was restarted in between.
    """
    values = {}
    for field in _NEEDED:
        values[field] = getattr(after, field) - getattr(before, field)
    positions = tuple(b - a for a, b in zip(before.per_position, after.per_position, strict=False))
    if min(*values.values(), *positions, 0) < 0 or len(after.per_position) != len(
        before.per_position
    ):
        raise SpecamortError(
            f"{after.source}: counters fell between the scrapes, the server was restarted; take "
            "two of one run"
        )
    over = "between two scrapes" if seconds is None else f"in {seconds:g} s"
    return Counters(**values, per_position=positions, source=after.source, over=over)


def read(counted: Counters) -> ServerMetrics:
    """What the server did while it was counted.

    Raises:
        SpecamortError: nothing was drafted, or the counters contradict each other.
    """
    if counted.drafts <= 0:
        raise SpecamortError(
            f"{counted.source}: no draft was counted {counted.over}; send it traffic, or watch for "
            "longer (--window)"
        )
    _hold_together(counted)
    steps = _steps(counted)
    coverage = min(counted.drafts / steps, 1.0) if steps > 0 else 1.0
    gamma = len(counted.per_position) or max(round(counted.drafted / counted.drafts), 1)
    drafts = int(counted.drafts)
    source = f"{counted.source}, {counted.drafts:.0f} drafts {counted.over}"
    if counted.per_position:
        shares = (min(n / counted.drafts, 1.0) for n in counted.per_position)
        survival = tuple(accumulate(shares, min))  # a late counter may rise by a step's
        acceptance = Acceptance(survival, coverage, drafts, measured_to=gamma, source=source)
    else:
        alpha = min(counted.accepted / counted.drafted, 1.0)
        acceptance = Acceptance.of(alpha, gamma, coverage, drafts, source)
    return ServerMetrics(
        gamma=gamma,
        acceptance=acceptance,
        tpot_ms=1e3 * counted.tpot_sum / counted.tpot_count if counted.tpot_count else None,
        batch=max(steps, 0.0) / counted.steps,
    )


def _steps(counted: Counters) -> float:
    """Decode steps, of each request its own."""
    # a request's decode step emits one token and those accepted; the first token is prefill's
    return counted.generated - counted.first_tokens - counted.accepted


def _hold_together(counted: Counters) -> None:
    """Hold counters against each other.

    Raises:
        SpecamortError: one counts more than another lets it.
    """
    if counted.steps <= 0:
        raise SpecamortError(
            f"{counted.source}: {_NEEDED['steps']} is 0 {counted.over}, though there were drafts; "
            "scrape again"
        )
    longest = len(counted.per_position) or counted.drafted / counted.drafts
    # counters are not read at one moment: a step or two may be in one and not yet in another
    late = 2 * (longest + 1) * max(_steps(counted) / counted.steps, 1.0)
    # what is accepted beyond a request's end is not generated
    ended = longest * counted.tpot_count + 0.1 * counted.generated
    decoded = counted.drafts + counted.accepted + counted.first_tokens - ended
    along = zip(
        (_NEEDED["drafts"], *(f"{_PER_POSITION} {k}" for k in range(len(counted.per_position)))),
        (counted.drafts, *counted.per_position),
        strict=True,
    )
    limits = [
        (_NEEDED["accepted"], counted.accepted, _NEEDED["drafted"], counted.drafted),
        (_NEEDED["drafts"], counted.drafts, _NEEDED["drafted"], counted.drafted),
        (f"{_NEEDED['drafted']} a draft", longest, "any draft length", LONGEST),
        (_NEEDED["tpot_count"], counted.tpot_count, _NEEDED["generated"], counted.generated),
        ("drafts, accepted and first tokens", decoded, _NEEDED["generated"], counted.generated),
        (_NEEDED["tpot_sum"], counted.tpot_sum, "hours a token", MS_MAX / 1e3 * counted.tpot_count),
        *((*after, *before) for before, after in pairwise(along)),
    ]
    if counted.per_position:
        total = ("the sum of " + _PER_POSITION, sum(counted.per_position))
        accepted = (_NEEDED["accepted"], counted.accepted)
        most = (f"{longest} a draft", longest * counted.drafts)
        limits += [
            (*total, *accepted),
            (*accepted, *total),
            (_NEEDED["drafted"], counted.drafted, *most),
        ]
    for name, value, above, limit in limits:
        if value > 1.01 * limit + late:
            raise SpecamortError(
                f"{counted.source}: {name} ({value:.0f}) is above {above} ({limit:.0f}) "
                f"{counted.over}, which one server's counters cannot be; scrape again"
            )


def _each_once(samples: list[_Sample], source: str) -> None:
    seen = set()
    for name, labels, _ in samples:
        series = (name, *sorted(labels.items()))
        if series in seen:
            raise SpecamortError(
                f"{source}: holds {shown(name)} twice for the same labels; save one scrape"
            )
        seen.add(series)


def _samples(text: str, source: str) -> list[_Sample]:
    """Every sample, from Prometheus' text or a query's JSON."""
    if text.lstrip().startswith("{"):
        return _answered(text, source)
    from prometheus_client.parser import text_fd_to_metric_families

    lines = text.split("\n")
    if max(map(len, lines)) > _LINE_MAX:
        raise SpecamortError(
            f"{source}: holds a line of more than {_LINE_MAX} letters; scrape again"
        )
    unread = iter(lines)
    try:
        return [
            (s.name, s.labels, _float(s.value))
            for family in text_fd_to_metric_families(unread)  # type: ignore[arg-type]
            for s in family.samples
        ]
    except ValueError as e:
        at = len(lines) - length_hint(unread)
        raise SpecamortError(
            f"{source}: line {at} is none of a scrape of Prometheus metrics; scrape again"
        ) from e


def _answered(text: str, source: str) -> list[_Sample]:
    wanted = "save Prometheus' answer to an instant query"
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise SpecamortError(f"{source}: is not whole JSON; {wanted}") from e
    match answer:
        case {"status": "error"}:
            why = shown(answer.get("error"))
            raise SpecamortError(f"{source}: is an error of Prometheus ({why}); {wanted}")
        case {"data": {"result": [*results]}}:
            return [_series(r, f"{source}: data.result[{i}]") for i, r in enumerate(results)]
    raise SpecamortError(f"{source}: not the answer of a Prometheus instant query; {wanted}")


def _series(result: object, source: str) -> _Sample:
    match result:
        case {"metric": {"__name__": str(name), **labels}, "value": [int() | float(), str(number)]}:
            if all(isinstance(v, str) for v in labels.values()) and _NUMBER.fullmatch(number):
                return name, {str(k): str(v) for k, v in labels.items()}, float(number)
    raise SpecamortError(
        f"{source} is not a metric's name and labels as text, and a value of [time, number as "
        "text]; save Prometheus' answer to an instant query"
    )


def _float(value: float) -> float:
    """What the parser gives, which may be an int of any size."""
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _choose(
    samples: list[_Sample],
    label: str,
    wanted: str | None,
    source: str,
    option: str,
    more: str = "",
) -> list[_Sample]:
    """Samples of one value of a label; those without the label stay."""
    there = sorted({s[1][label] for s in samples if label in s[1]})
    if wanted is None and len(there) > 1:
        raise SpecamortError(
            f"{source}: has {label} {shown(', '.join(there))}; choose one with {option}{more}"
        )
    if wanted is not None and wanted not in there:
        raise SpecamortError(
            f"{source}: has no {label} {shown(wanted)} ({option}); it has "
            f"{shown(', '.join(there)) or 'none'}"
        )
    return [s for s in samples if wanted is None or s[1].get(label, wanted) == wanted]
