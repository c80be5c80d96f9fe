"""The dial's records to tables: step time over the acceptance that was asked for.

Pure functions of records and data frames. One engine serves every draft length and every
acceptance, repetition by repetition in rounds, so all is compared within a round.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from ..records.types import Record
from .cells import RESAMPLES, Floats, interval, resampled_median
from .origins import words
from .repetitions import device_exclusions, run_counters

WHERE = ["platform", "batch"]
DIALLED = [*WHERE, "gamma", "acceptance", "pattern"]
_COUNTERS = ["drafts", "drafted", "accepted", "decode_steps", "decode_tokens"]
_REPETITION = ["origin", *WHERE, "engine", "gamma", "acceptance", "pattern", "round", "pot_ms"]
_REPETITION += ["step_ms", *_COUNTERS, "draft_ms", "exclusions"]
_CELL = ["origin", *DIALLED, "rounds", "t_base_ms", "pot_ms", "step_ms", "step_ms_low"]
_CELL += ["step_ms_high", "alpha", "coverage", "tau", "draft_ms", "exclusions"]
_MACHINERY = ["origin", *WHERE, "plain_ms", "idle_ms", "machinery_ms", "machinery_ms_low"]
_MACHINERY += ["machinery_ms_high", "drift_pct"]
_SLOPE = ["origin", *WHERE, "gamma", "rounds", "slope_pct", "slope_pct_low", "slope_pct_high"]
_SLOPE += ["pattern_pct", "pattern_pct_low", "pattern_pct_high"]
_FEWEST_ROUNDS = 2


def repetitions(records: Iterable[Record]) -> pd.DataFrame:
    """One row per timed repetition of the dial records.

    Returns:
        `origin`, `platform`, `batch`, `gamma`; `engine`: plain (cannot speculate) or dial (could);
        `acceptance` (asked, share per position), `pattern` (geometric or whole);
        `round` (number): of repetitions alike, the how manieth; rounds follow each other in time;
        `pot_ms`, as in `repetitions`; `step_ms`: a decode step, pot tau;
        `drafts`, `drafted`, `accepted`, `decode_steps`, `decode_tokens`: the engine's counters;
        `draft_ms`: what a step's drafts take, 0 where they were not timed;
        `exclusions` (words).
    """
    rows = []
    for r in records:
        head = {"origin": r["origin"], **r["dial"], "exclusions": device_exclusions(r)}
        for run in r["repetitions"]:
            if run["warmup"]:
                continue
            sequences, counters = run["sequences"], run_counters(run)
            tokens = sum(s["tokens"] - 1 for s in sequences)
            took_ms = r["dial"].get("draft_ms", {}).get(str(run["gamma"]))
            pot_ms = sum(s["pot_ms"] or np.nan for s in sequences) / len(sequences)
            rows.append(
                head
                | {k: run[k] for k in ("engine", "gamma", "acceptance", "pattern")}
                | {"pot_ms": pot_ms, "step_ms": pot_ms * tokens / run["decode_steps"]}
                | {k: counters[k] for k in ("drafts", "drafted", "accepted")}
                | {"decode_steps": run["decode_steps"], "decode_tokens": tokens}
                | {"draft_ms": took_ms or 0.0}
            )
    table = pd.DataFrame(rows, columns=_REPETITION)
    alike = table.fillna({"acceptance": -1.0, "pattern": ""}).groupby(
        [*WHERE, "engine", "gamma", "acceptance", "pattern"]
    )
    return table.assign(round=alike.cumcount())


def cells(reps: pd.DataFrame, seed: int) -> pd.DataFrame:
    """One row per draft length, acceptance and pattern of the engine that could speculate.

    Args:
        reps: `repetitions`.

    Returns:
        `origin`, `platform`, `batch`, `gamma`, `acceptance`, `pattern`; `rounds` (repetitions);
        `t_base_ms`: of the same engine with nothing proposed, in the same rounds;
        `pot_ms`, `step_ms`: medians over rounds, with the ends of step_ms' bootstrap interval;
        `alpha`, `coverage` (shares), `tau` (tokens per step): by the counters;
        `draft_ms`: what a step's drafts take;
        `exclusions` (words).
    """
    rng = np.random.default_rng(seed)
    rows = []
    drafting = reps[(reps["engine"] == "dial")]
    idle = drafting[drafting["gamma"] == 0].groupby(WHERE)["step_ms"].median()
    for key, g in drafting.groupby(DIALLED, dropna=False, sort=True):
        counts = g[_COUNTERS].sum()
        rows.append(
            {"origin": words(g["origin"])}
            | dict(zip(DIALLED, key, strict=True))
            | {"rounds": len(g), "t_base_ms": idle.get(key[:2], np.nan)}
            | {"pot_ms": g["pot_ms"].median(), "step_ms": g["step_ms"].median()}
            | interval("step_ms", resampled_median(g["step_ms"].to_numpy(), rng))
            | {"alpha": counts["accepted"] / counts["drafted"] if counts["drafted"] else np.nan}
            | {"coverage": counts["drafts"] / counts["decode_steps"]}
            | {"tau": counts["decode_tokens"] / counts["decode_steps"]}
            | {"draft_ms": g["draft_ms"].median(), "exclusions": words(g["exclusions"])}
        )
    return pd.DataFrame(rows, columns=_CELL)


def machinery(reps: pd.DataFrame, seed: int) -> pd.DataFrame:
    """What an engine that could speculate takes for a step with nothing proposed.

    Against one that cannot, measured before it and after it.

    Returns:
        `origin`, `platform`, `batch`; `plain_ms`, `idle_ms`: a step of the one and of the other;
        `machinery_ms` (their difference) and the ends of its bootstrap interval; `drift_pct`: the
        plain engine after over before, less one, in percent.
    """
    rng = np.random.default_rng(seed)
    rows = []
    idle = reps[reps["gamma"] == 0]
    for key, g in idle.groupby(WHERE):
        plain = g.loc[g["engine"] == "plain", "step_ms"].to_numpy()
        dial = g.loc[g["engine"] == "dial", "step_ms"].to_numpy()
        gap = resampled_median(dial, rng) - resampled_median(plain, rng)
        half = len(plain) // 2
        rows.append(
            {"origin": words(g["origin"])}
            | dict(zip(WHERE, key, strict=True))
            | {"plain_ms": np.median(plain), "idle_ms": np.median(dial)}
            | {"machinery_ms": np.median(dial) - np.median(plain)}
            | interval("machinery_ms", gap)
            | {"drift_pct": 100 * (np.median(plain[half:]) / np.median(plain[:half]) - 1)}
        )
    return pd.DataFrame(rows, columns=_MACHINERY)


def slopes(reps: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Does a step's time depend on what is accepted? It must not, if only the mean matters.

    Within each round step times are taken over their mean, and a line is laid through them over the
    counted acceptance; the slope is the mean over rounds, its interval a bootstrap of rounds. In
    the same way a draft accepted whole or not at all is held against one refused token by token, at
    the same acceptance.

    Returns:
        `origin`, `platform`, `batch`, `gamma`, `rounds` (number); `slope_pct` (% of a step from
        alpha 0 to alpha 1), `pattern_pct` (% of a step, whole over geometric, less one), each with
        the ends of its interval; NaN where nothing tells.
    """
    rng = np.random.default_rng(seed)
    drafting = reps[(reps["engine"] == "dial") & (reps["gamma"] > 0)]
    drafting = drafting.assign(alpha=drafting["accepted"] / drafting["drafted"].replace(0, np.nan))
    rows = []
    for key, g in drafting.groupby([*WHERE, "gamma"]):
        by_round = [one for _, one in g.groupby("round")]
        rows.append(
            {"origin": words(g["origin"])}
            | dict(zip([*WHERE, "gamma"], key, strict=True))
            | {"rounds": len(by_round)}
            | _mean_of_rounds("slope_pct", np.array([_slope_pct(r) for r in by_round]), rng)
            | _mean_of_rounds("pattern_pct", np.array([_pattern_pct(r) for r in by_round]), rng)
        )
    return pd.DataFrame(rows, columns=_SLOPE)


def _slope_pct(one: pd.DataFrame) -> float:
    x = (one["alpha"] - one["alpha"].mean()).to_numpy()
    y = (one["step_ms"] / one["step_ms"].mean() - 1).to_numpy()
    return float(100 * (x * y).sum() / (x * x).sum()) if (x * x).sum() > 0 else np.nan


def _pattern_pct(one: pd.DataFrame) -> float:
    both = one.pivot_table(index="acceptance", columns="pattern", values="step_ms").dropna()
    if not {"whole", "geometric"} <= set(both):
        return np.nan
    return float(100 * (both["whole"] / both["geometric"] - 1).mean())


def _mean_of_rounds(name: str, values: Floats, rng: np.random.Generator) -> dict[str, float]:
    values = values[~np.isnan(values)]
    if len(values) < _FEWEST_ROUNDS:
        mean = float(values.mean()) if len(values) else np.nan
        return {name: mean, f"{name}_low": np.nan, f"{name}_high": np.nan}
    drawn = values[rng.integers(len(values), size=(RESAMPLES, len(values)))].mean(axis=1)
    return {name: float(values.mean())} | interval(name, drawn)
