"""Repetitions to cells: medians over blocks, counters, bootstrap intervals.

Pure functions of data frames.
"""

from collections.abc import Iterable, Iterator
from math import pi
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..errors import SpecamortError
from .origins import words
from .repetitions import CELL, COUNTS, PAIR, counted, texts

RESAMPLES = 1000
LEVEL = 0.95
_HALF_WIDTH = NormalDist().inv_cdf((1 + LEVEL) / 2)  # of a normal interval, in standard errors

Floats = NDArray[np.float64]


def cells(reps: pd.DataFrame, seed: int) -> pd.DataFrame:
    """One row per cell: median pot, speedup over the visit's own baseline, counters, intervals.

    A block's value is the median over its timed repetitions, or that of the baseline of the same
    visit over it; a cell's is the median over blocks. Intervals are percentile bootstraps of the
    same statistics, which resample blocks, then the repetitions of the cell and of its baseline.

    Returns:
        The cell, `origin`; `timed` (repetitions), `blocks`, `blocks_left_out` (blocks), `visits`:
            of jobs to those blocks; `texts` (different ones, which the counters rest on);
        `pot_ms`, `t_base_ms` (ms), `speedup` (over gamma 0); `pot_ms` and `speedup` with the ends
            of their intervals, `_low` and `_high`;
        `drift_pct`: gamma 0 last over gamma 0 first in a visit, less one, median over visits (%);
        `noise_pct`: noise floor (% of pot), see `_noise`;
        `drafts`, `drafted`, `accepted`, `accepted_first`, `decode_steps`, `decode_tokens`: the
            counters of `repetitions`, summed over different texts;
        what `ratios` gives; `verify_share`: of the engine's decode steps, those that verify;
        `ideal` (speedup): gamma + 1;
        `draft_ms`: what a step's drafts take, by warm-ups; 0 where they were not timed.

    Raises:
        SpecamortError: all blocks of a cell are left out.
    """
    timed = counted(reps)
    kept = pd.MultiIndex.from_frame(timed[CELL])
    empty = reps[~pd.MultiIndex.from_frame(reps[CELL]).isin(kept)]
    if len(empty):
        platform, workload, batch, gamma = empty.iloc[0][CELL]
        raise SpecamortError(
            f"{empty[CELL].drop_duplicates().shape[0]} cells were throttled or shared in every "
            f"block, or their baseline was ({platform} {workload}-n{batch}-g{gamma} first); run "
            "`specamort remeasure` and then the study again"
        )
    each = texts(timed).groupby(CELL)
    counts = each[[*COUNTS, "accepted_first"]].sum().join(each.size().rename("texts"))
    repeated = timed.groupby(CELL).agg(origin=("origin", words), timed=("pot_ms", "size"))
    table = repeated.join(
        [_medians(timed), counts, _intervals(timed, seed), _verify_share(timed), _noise(timed)]
    )
    table["blocks_left_out"] = reps.groupby(CELL)["replicate"].nunique() - table["blocks"]
    table = table.reset_index()
    table["ideal"] = table["gamma"] + 1
    where = ["platform", "workload", "batch"]
    drift = _drift(timed).groupby(where)["drift_pct"].median().reset_index()
    table = table.merge(drift, on=where, how="left")
    table = pd.concat([table, ratios(table)], axis=1)
    independent = 1 - (1 - table["coverage"].clip(upper=1)) ** table["batch"]
    took = reps[~reps["left_out"]].groupby(CELL)["draft_ms"].median().fillna(0)
    table = table.merge(took.reset_index(), on=CELL, how="left")
    return table.assign(verify_share=table["verify_share"].fillna(independent))


def block_medians(timed: pd.DataFrame) -> pd.DataFrame:
    """One row per cell, replicate and visit: `block_pot_ms`, and `block_pot_ms_base`, its own.

    Args:
        timed: `repetitions.counted`.
    """
    key = [*CELL, "replicate", "visit"]
    medians = timed.groupby(key)["pot_ms"].median().rename("block_pot_ms").reset_index()
    base = medians[medians["gamma"] == 0].drop(columns="gamma")
    return medians.merge(base, on=PAIR, suffixes=("", "_base"))


def _medians(timed: pd.DataFrame) -> pd.DataFrame:
    """By cell, over its blocks: `pot_ms`, `t_base_ms` (ms), `speedup`, `blocks`, `visits` (number).

    A baseline of several visits is one value of its block, their median; what else was measured in
    the block was measured in one of them.
    """
    by_visit = block_medians(timed)
    by_visit["speedup"] = by_visit["block_pot_ms_base"] / by_visit["block_pot_ms"]
    columns = ["block_pot_ms", "block_pot_ms_base", "speedup"]
    by_block = by_visit.groupby([*CELL, "replicate"])[columns].median().reset_index()
    found = by_block.groupby(CELL).agg(
        pot_ms=("block_pot_ms", "median"),
        t_base_ms=("block_pot_ms_base", "median"),
        speedup=("speedup", "median"),
        blocks=("replicate", "nunique"),
    )
    block = ["platform", "workload", "batch", "replicate"]
    visits = by_visit.groupby(block)["visit"].nunique().rename("visits").reset_index()
    return found.join(by_block.merge(visits, on=block).groupby(CELL)["visits"].sum())


def _drift(timed: pd.DataFrame) -> pd.DataFrame:
    """By visit, workload and batch: `drift_pct`; NaN where a visit has no last gamma 0."""
    base = timed[timed["gamma"] == 0]
    ends = base.groupby([*PAIR, "when"])["pot_ms"].median().unstack("when")
    ends = ends.reindex(columns=["first", "last"])
    return (100 * (ends["last"] / ends["first"] - 1)).rename("drift_pct").reset_index()


def _noise(timed: pd.DataFrame) -> pd.Series:
    """By cell `noise_pct`, its noise floor in percent of pot: half the width of a 95% interval.

    Of what a cell is over its own baseline, as far as chance within the blocks goes: the variance
    of the cell's median, that of its baseline's (pi / 2 times the variance of a mean: a median of
    normal draws; scatter is taken about the means of gamma 0 first and last), and a twelfth of the
    squared drift between the two (the cell's moment lies anywhere between them, evenly). Blocks are
    averaged, and their number divides. NaN where repetitions or a last gamma 0 are lacking.
    """
    key = [*CELL, "replicate", "visit"]
    at_once = timed.groupby([*key, "when"])["pot_ms"].transform("mean")
    by_visit = timed.assign(squares=(timed["pot_ms"] - at_once) ** 2).groupby(key)
    own = by_visit.agg(
        pot_ms=("pot_ms", "median"),
        squares=("squares", "sum"),
        n=("pot_ms", "size"),
        times=("when", "nunique"),
    ).reset_index()
    free = (own["n"] - own["times"]).replace(0, np.nan)
    own["variance"] = pi / 2 * own["squares"] / free / own["n"] / own["pot_ms"] ** 2
    base = own.loc[own["gamma"] == 0, [*PAIR, "variance"]]
    both = own.merge(base, on=PAIR, suffixes=("", "_base")).merge(_drift(timed), on=PAIR)
    both["variance"] += both["variance_base"].where(both["gamma"] > 0, 0.0)
    both["variance"] += (both["drift_pct"] / 100) ** 2 / 12
    by_cell = both.groupby(CELL)["variance"]
    error: pd.Series = (by_cell.mean() / by_cell.size()) ** 0.5
    return (100 * _HALF_WIDTH * error).rename("noise_pct")


def _verify_share(timed: pd.DataFrame) -> pd.Series:
    """Of the decode steps of the whole batch, those that verified a draft; NaN if not counted."""
    each = texts(timed).dropna(subset="verify_steps")
    each = each.assign(decode=each["engine_steps"] - 1)  # the first step is the prefill
    sums = each.groupby(CELL)[["verify_steps", "decode"]].sum()
    return (sums["verify_steps"] / sums["decode"]).rename("verify_share")


def ratios(counts: pd.DataFrame) -> pd.DataFrame:
    """Of rows that hold counters, summed; NaN without a draft.

    Returns:
        `alpha`: accepted share of the drafted tokens; `coverage`: drafts per decode step; `tau`:
            tokens per decode step; `beta`: share of drafts whose first token is accepted.
    """
    drafted, drafts = counts["drafted"].replace(0, np.nan), counts["drafts"].replace(0, np.nan)
    return pd.DataFrame(
        {
            "alpha": counts["accepted"] / drafted,
            "coverage": counts["drafts"] / counts["decode_steps"],
            "tau": counts["decode_tokens"] / counts["decode_steps"],
            "beta": counts["accepted_first"] / drafts,
        }
    )


def _intervals(timed: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Bootstrap intervals by cell: `pot_ms_low`, `_high` (ms), `speedup_low`, `_high`."""
    rows = [
        dict(zip(CELL, cell, strict=True))
        | interval("pot_ms", np.median(pot, axis=1))
        | interval("speedup", np.median(base / pot, axis=1))
        for cell, pot, base in block_draws(timed, seed)
    ]
    return pd.DataFrame(rows).set_index(CELL)


def block_draws(timed: pd.DataFrame, seed: int) -> Iterator[tuple[tuple[Any, ...], Floats, Floats]]:
    """By cell, resampled blocks' pot and baseline: arrays of RESAMPLES x blocks.

    Blocks are drawn with replacement, repetitions within them; a block's baseline is that of the
    cell's own visit, and where it has several, as at gamma 0, the median over them. Cells of a
    platform that have the same blocks have them drawn together, and those of a visit one draw of
    their baseline: differences between cells, and predictors, are paired.
    """
    rng = np.random.default_rng(seed)
    draws: dict[tuple[Any, ...], dict[Any, dict[Any, Floats]]] = {}
    for (*key, replicate, visit), g in timed.groupby([*CELL, "replicate", "visit"]):
        blocks = draws.setdefault(tuple(key), {})
        drawn = resampled_median(g["pot_ms"].to_numpy(), rng)
        blocks.setdefault(replicate, {})[visit] = drawn
    chosen: dict[tuple[Any, ...], NDArray[np.int64]] = {}
    row = np.arange(RESAMPLES)[:, None]
    for cell, spec in draws.items():
        each = sorted(spec)
        together = cell[0], *each
        if together not in chosen:
            chosen[together] = rng.integers(len(each), size=(RESAMPLES, len(each)))
        own = draws[(*cell[:-1], 0)]
        pot = np.stack([_middle(spec[r].values()) for r in each], axis=1)
        base = np.stack([_middle(own[r][v] for v in spec[r]) for r in each], axis=1)
        yield cell, pot[row, chosen[together]], base[row, chosen[together]]


def _middle(visits: Iterable[Floats]) -> Floats:
    median: Floats = np.median(np.stack(list(visits)), axis=0)
    return median


def resampled_median(values: Floats, rng: np.random.Generator) -> Floats:
    chosen = rng.integers(values.size, size=(RESAMPLES, values.size))
    medians: Floats = np.median(values[chosen], axis=1)
    return medians


def interval(name: str, draws: Floats) -> dict[str, float]:
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {f"{name}_low": low, f"{name}_high": high}
