"""Checks of one measurement against another, none of which feeds a prediction.

Counter runs, what reading the counters costs, alpha from timing, texts across draft lengths, and
host residuals.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from ..model import equation
from ..records.types import Record
from .calibration import with_verify_overhead
from .cells import block_draws, block_medians, interval, resampled_median
from .origins import merged, words
from .repetitions import CELL, counted, device_exclusions, one_of_each_text, run_counters


def host_residuals(
    reps: pd.DataFrame, table: pd.DataFrame, d: pd.DataFrame, floors: pd.DataFrame, seed: int
) -> pd.DataFrame:
    """h per decode step of every speculative cell, from its own counters (a diagnosis).

    The median over blocks of each block's own, over the baseline of the same visit, with its
    bootstrap interval, and in percent of two traced host times (ms): `floor_ms`, the study's, one
    for every platform, and `own_floor_ms`, the platform's own at the study's context.

    Args:
        floors: `decomposition.floors`.

    Returns:
        `origin`, the cell, `t_base_ms`, `d`, `coverage` (shares), `tau` (tokens per step),
        `pot_ms`, `host_residual_ms` and its ends `_low` and `_high` (ms per step), `floor_ms`,
        `of_floor_pct`, `own_floor_ms`, `of_own_floor_pct`.
    """
    spec = merged(with_verify_overhead(table, d), floors, on=["platform"])
    timed, given = counted(reps), spec.set_index(CELL)[["d", "coverage", "tau"]]
    blocks = block_medians(timed).merge(given.reset_index(), on=CELL)
    blocks["host_residual_ms"] = equation.host_residual_ms(
        *(blocks[c] for c in ("block_pot_ms", "block_pot_ms_base", "d", "coverage", "tau"))
    )
    spec = spec.merge(blocks.groupby(CELL)["host_residual_ms"].median().reset_index(), on=CELL)
    intervals = [
        dict(zip(CELL, cell, strict=True))
        | interval(
            "host_residual_ms",
            np.median(equation.host_residual_ms(pot, base, *given.loc[cell]), axis=1),
        )
        for cell, pot, base in block_draws(timed, seed)
        if cell in given.index
    ]
    spec = spec.merge(pd.DataFrame(intervals), on=CELL)
    shares = ["floor_ms", "of_floor_pct", "own_floor_ms", "of_own_floor_pct"]
    for floor, share in (shares[:2], shares[2:]):
        spec[share] = 100 * spec["host_residual_ms"] / spec[floor]
    kept = ["origin", *CELL, "t_base_ms", "d", "coverage", "tau", "pot_ms", "host_residual_ms"]
    return spec[[*kept, "host_residual_ms_low", "host_residual_ms_high", *shares]]


def timing_alpha(table: pd.DataFrame, d: pd.DataFrame) -> pd.DataFrame:
    """Equation (1) inverted per platform: the study's figure 5, a cross-check only.

    Means over batch sizes; `_low` and `_high` come from the ends of the speedup's interval, which
    is all of a cell's time that the inversion needs, over the block's own baseline.

    Returns:
        `platform`, `workload`, `gamma`, `origin`, `alpha_timing`, `alpha_timing_low`,
        `alpha_timing_high`, `alpha`, the counters' (shares).
    """
    spec = with_verify_overhead(table, d)
    for end in ("", "_low", "_high"):
        spec[f"alpha_timing{end}"] = equation.alpha_from_timing(
            1.0, spec[f"speedup{end}"], spec["d"], spec["gamma"]
        )
    means = ["alpha_timing", "alpha_timing_low", "alpha_timing_high", "alpha"]
    by_gamma = spec.groupby(["platform", "workload", "gamma"])
    table = by_gamma["origin"].agg(words).to_frame().join(by_gamma[means].mean())
    return table.reset_index()


def counter_agreement(table: pd.DataFrame, records: Iterable[Record]) -> pd.DataFrame:
    """In-line alpha beside the untimed counter runs', and the counting error between them.

    Returns:
        `origin`, the cell, `alpha`, `alpha_counter_run` (shares); `z`: the difference over its
        binomial standard error (one draft token of a text, one trial), and `agree`, both empty
        where neither drafted: there is nothing to compare; `exclusions` (words), the counter
        run's.
    """
    rows = [
        {k: v for k, v in r["cell"].items() if k in CELL}
        | {"origin": r["origin"], "exclusions": device_exclusions(r)}
        | {
            k: sum(run_counters(x)[k] for x in one_of_each_text(r["repetitions"]))
            for k in ("drafted", "accepted")
        }
        for r in records
    ]
    both = merged(table, pd.DataFrame(rows), on=CELL, suffixes=("", "_counter_run"))
    out = both[["origin", *CELL, "alpha"]].copy()
    out["alpha_counter_run"] = both["accepted_counter_run"] / both["drafted_counter_run"]
    n, m = both["drafted"], both["drafted_counter_run"]
    p = (both["accepted"] + both["accepted_counter_run"]) / (n + m)
    error = np.sqrt(p * (1 - p) * (1 / n + 1 / m))
    gap = out["alpha"] - out["alpha_counter_run"]
    out["z"] = np.where(gap == 0, 0.0, gap / error.where(error > 0))
    nothing = (n == 0) & (m == 0)
    out["z"] = out["z"].mask(nothing)
    out["agree"] = (out["z"].abs() <= 3).astype(object).mask(nothing, None)
    out["exclusions"] = both["exclusions"]
    return out


def reading_cost(on: Record, off: Record) -> dict[str, object]:
    """Step time with the engine's statistics on over off, minus one, in percent, with interval.

    Returns:
        `origin`, `pot_on_ms`, `pot_off_ms` (ms), `cost_pct` and its ends `_low` and `_high` (% of
        pot_off_ms), `exclusions` (words).
    """
    pots = {}
    for name, r in (("on", on), ("off", off)):
        pots[name] = np.array(
            [
                np.mean([s["arrival_pot_ms"] for s in run["sequences"]])
                for run in r["repetitions"]
                if not run["warmup"]
            ]
        )
    rng = np.random.default_rng(0)
    ratio = 100 * (resampled_median(pots["on"], rng) / resampled_median(pots["off"], rng) - 1)
    return {
        "origin": words([on["origin"], off["origin"]]),
        "pot_on_ms": float(np.median(pots["on"])),
        "pot_off_ms": float(np.median(pots["off"])),
        "cost_pct": float(100 * (np.median(pots["on"]) / np.median(pots["off"]) - 1)),
        **{k: float(v) for k, v in interval("cost_pct", ratio).items()},
        "exclusions": words(map(device_exclusions, (on, off))),
    }


def divergence(records: Iterable[Record]) -> pd.DataFrame:
    """Where a greedy text at gamma first differs from its block's text at gamma 0.

    Sampled workloads are left out: their texts may differ.

    Returns:
        One row per sequence: `origin`, `platform`, `replicate`, `workload`, `batch`, `gamma`,
        `sequence` (number), `tokens` (of its text), `first_difference` (index of a token, NaN where
        the texts agree as far as both go).
    """
    texts = {}
    for r in records:
        if r["settings"]["workload"]["sampling"].get("temperature", 0) == 0:
            timed = next(x for x in r["repetitions"] if not x["warmup"])
            c = r["cell"]
            where = (c["platform"], c["replicate"], c["workload"], c["batch"])
            texts[where, c["gamma"]] = r["origin"], timed.get("token_ids", [])
    rows = []
    for (where, gamma), (origin, ids) in texts.items():
        if gamma == 0 or (where, 0) not in texts:
            continue
        base_origin, base_ids = texts[where, 0]
        for i, (a, b) in enumerate(zip(base_ids, ids, strict=False)):
            first = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
            rows.append((words([origin, base_origin]), *where, gamma, i, len(b), first))
    columns = [
        *("origin", "platform", "replicate", "workload", "batch", "gamma"),
        *("sequence", "tokens", "first_difference"),
    ]
    return pd.DataFrame(rows, columns=columns)
