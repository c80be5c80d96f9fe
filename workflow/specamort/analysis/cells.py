"""Repetitions to cells: medians over blocks, counters, bootstrap intervals.

Pure functions of data frames.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..errors import SpecamortError
from .origins import words
from .repetitions import CELL, COUNTS, counted

RESAMPLES = 1000
LEVEL = 0.95

Floats = NDArray[np.float64]


def cells(reps: pd.DataFrame, seed: int) -> pd.DataFrame:
    """One row per cell: median pot, speedup over the block's own baseline, counters, intervals.

    A block's value is the median over its timed repetitions; a cell's is the median over
    blocks. Intervals are percentile bootstraps that resample blocks, then repetitions in them.

    Returns:
        The cell, `origin`; `timed` (repetitions), `blocks`, `blocks_left_out` (blocks);
        `pot_ms`, `t_base_ms` (ms), `speedup` (over gamma 0); `pot_ms` and `speedup` with the ends
            of their intervals, `_low` and `_high`;
        `drafts`, `drafted`, `accepted`, `accepted_first`, `decode_steps`, `decode_tokens`: the
            counters of `repetitions`, summed;
        what `ratios` gives; `ideal` (speedup): gamma + 1.

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
    counts = timed.groupby(CELL)[[*COUNTS, "accepted_first"]].sum()
    repeated = timed.groupby(CELL).agg(origin=("origin", words), timed=("pot_ms", "size"))
    left_out = reps[reps["left_out"]].groupby(CELL)["replicate"].nunique().rename("blocks_left_out")
    table = repeated.join(
        [_medians(timed), counts, _intervals(timed, seed), left_out]
    ).reset_index()
    table["blocks_left_out"] = table["blocks_left_out"].fillna(0).astype(int)
    table["ideal"] = table["gamma"] + 1
    return pd.concat([table, ratios(table)], axis=1)


def _medians(timed: pd.DataFrame) -> pd.DataFrame:
    """By cell, over its blocks: `pot_ms`, `t_base_ms` (ms), `speedup`, `blocks` (number)."""
    medians = timed.groupby([*CELL, "replicate"])["pot_ms"].median().rename("block_pot_ms")
    by_block = medians.reset_index()
    base = by_block[by_block["gamma"] == 0].drop(columns="gamma")
    by_block = by_block.merge(
        base, on=["platform", "workload", "batch", "replicate"], suffixes=("", "_base")
    )
    by_block["speedup"] = by_block["block_pot_ms_base"] / by_block["block_pot_ms"]
    return by_block.groupby(CELL).agg(
        pot_ms=("block_pot_ms", "median"),
        t_base_ms=("block_pot_ms_base", "median"),
        speedup=("speedup", "median"),
        blocks=("replicate", "nunique"),
    )


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

    Blocks are drawn with replacement, repetitions within them; a block's baseline is its own.
    """
    rng = np.random.default_rng(seed)
    draws: dict[tuple[Any, ...], dict[Any, Floats]] = {}
    for (*key, replicate), g in timed.groupby([*CELL, "replicate"]):
        blocks = draws.setdefault(tuple(key), {})
        blocks[replicate] = resampled_median(g["pot_ms"].to_numpy(), rng)
    draw = np.arange(RESAMPLES)[:, None]
    for cell, spec in draws.items():
        own = draws.get((*cell[:-1], 0), {})
        paired = sorted(spec.keys() & own.keys())
        if not paired:
            continue
        chosen = rng.integers(len(paired), size=(RESAMPLES, len(paired)))
        pot = np.stack([spec[r] for r in paired], axis=1)[draw, chosen]
        base = np.stack([own[r] for r in paired], axis=1)[draw, chosen]
        yield cell, pot, base


def resampled_median(values: Floats, rng: np.random.Generator) -> Floats:
    chosen = rng.integers(values.size, size=(RESAMPLES, values.size))
    medians: Floats = np.median(values[chosen], axis=1)
    return medians


def interval(name: str, draws: Floats) -> dict[str, float]:
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {f"{name}_low": low, f"{name}_high": high}
