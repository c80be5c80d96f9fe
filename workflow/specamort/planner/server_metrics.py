"""What a server does now, from its /metrics: live, saved, or as Prometheus answered."""

import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import SpecamortError
from ..records.metric_names import PER_POSITION, SPECULATION, STEPS
from .acceptance import Acceptance


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
    **choice: str | None,
) -> Counters:
    """Two scrapes of a server, `window_s` apart, by difference; `choice` as for `parse`."""
    before = parse(fetch(url), url, **choice)
    sleep(window_s)
    return difference(before, parse(fetch(url), url, **choice), window_s)


def fetch(url: str) -> str:
    """The text of a server's /metrics.

    Raises:
        SpecamortError: nothing answers there.
    """
    address = url if "://" in url else f"http://{url}"
    if not address.rstrip("/").endswith("/metrics"):
        address = address.rstrip("/").removesuffix("/v1") + "/metrics"
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            text: str = answer.read().decode()
    except (urllib.error.URLError, OSError, ValueError) as e:
        why = getattr(e, "reason", e)
        raise SpecamortError(
            f"{address}: no answer ({why}); is the server up, and the port right?"
        ) from e
    return text


def read_file(path: Path, **choice: str | None) -> Counters:
    try:
        return parse(path.read_text(encoding="utf-8"), str(path), **choice)
    except (OSError, UnicodeDecodeError) as e:
        raise SpecamortError(f"{path}: cannot be read ({e}); name a saved scrape") from e


def parse(text: str, source: str, model: str | None = None, engine: str | None = None) -> Counters:
    """One scrape's counters.

    Args:
        model: which, where the server has several.
        engine: which, or `all` to add them up, where it has several.

    Raises:
        SpecamortError: not vLLM, no speculation, not a number, or a choice to make.
    """
    samples = [s for s in _samples(text, source) if s[0].startswith("vllm:")]
    if not samples:
        raise SpecamortError(f"{source}: holds no metric of vLLM; is this its /metrics?")
    samples = _choose(samples, "model_name", model, source, "--model")
    if engine != "all":
        samples = _choose(samples, "engine", engine, source, "--engine", " (or `--engine all`)")
    totals: dict[str, float] = {}
    positions: dict[int, float] = {}
    for name, labels, value in samples:
        if name not in (*_NEEDED.values(), _PER_POSITION):
            continue
        if not math.isfinite(value):
            raise SpecamortError(f"{source}: {name} is {value}, not a number; scrape again")
        if name == _PER_POSITION:
            k = int(labels["position"])
            positions[k] = positions.get(k, 0.0) + value
        else:
            totals[name] = totals.get(name, 0.0) + value
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
        per_position=tuple(positions[k] for k in sorted(positions)),
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
        SpecamortError: nothing was drafted.
    """
    if counted.drafts <= 0:
        raise SpecamortError(
            f"{counted.source}: no draft was counted {counted.over}; send it traffic, or watch for "
            "longer (--window)"
        )
    # a request's decode step emits one token and those accepted; the first token is prefill's
    steps = counted.generated - counted.first_tokens - counted.accepted
    coverage = min(counted.drafts / steps, 1.0) if steps > 0 else 1.0
    gamma = len(counted.per_position) or round(counted.drafted / counted.drafts)
    drafts = int(counted.drafts)
    source = f"{counted.source}, {counted.drafts:.0f} drafts {counted.over}"
    if counted.per_position:
        survival = tuple(min(n / counted.drafts, 1.0) for n in counted.per_position)
        acceptance = Acceptance(survival, coverage, drafts, measured_to=gamma, source=source)
    else:
        alpha = counted.accepted / counted.drafted
        acceptance = Acceptance.of(alpha, gamma, coverage, drafts, source)
    return ServerMetrics(
        gamma=gamma,
        acceptance=acceptance,
        tpot_ms=1e3 * counted.tpot_sum / counted.tpot_count if counted.tpot_count else None,
        batch=max(steps, 0.0) / counted.steps if counted.steps else 0.0,
    )


def _samples(text: str, source: str) -> list[_Sample]:
    """Every sample, from Prometheus' text or a query's JSON."""
    if text.lstrip().startswith("{"):
        try:
            results = json.loads(text)["data"]["result"]
            return [(r["metric"]["__name__"], r["metric"], float(r["value"][1])) for r in results]
        except (ValueError, KeyError, TypeError, IndexError) as e:
            raise SpecamortError(
                f"{source}: not the answer of a Prometheus instant query ({type(e).__name__}: {e})"
            ) from e
    from prometheus_client.parser import text_string_to_metric_families

    try:
        return [
            (s.name, s.labels, s.value)
            for family in text_string_to_metric_families(text)
            for s in family.samples
        ]
    except ValueError as e:
        raise SpecamortError(f"{source}: not a scrape of Prometheus metrics ({e})") from e


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
            f"{source}: has {label} {', '.join(there)}; choose one with {option}{more}"
        )
    if wanted is not None and wanted not in there:
        raise SpecamortError(f"{source}: has no {label} {wanted}; it has {', '.join(there)}")
    return [s for s in samples if wanted is None or s[1].get(label, wanted) == wanted]
