"""Setups side by side: modes, contexts and drafters, which share no calibration.

Pure functions of the tables of each.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..study.grid import AXES, Setup, Study
from . import cells
from .origins import words
from .repetitions import CELL

NAMES = [a.name for a in AXES]
_WHERE = ["platform", "workload", "batch"]


def marked(setup: Setup, table: pd.DataFrame) -> pd.DataFrame:
    """A setup's table with a column for each axis before the others."""
    head = pd.DataFrame({k: [v] * len(table) for k, v in setup.values.items()}, table.index)
    return pd.concat([head, table], axis=1)


def of_setup(table: pd.DataFrame, setup: Setup) -> pd.DataFrame:
    """The rows of a setup, without the columns that say so."""
    mine = (table[NAMES] == pd.Series(setup.values)).all(axis=1)
    return table[mine].drop(columns=NAMES).reset_index(drop=True)


def best_baselines(
    study: Study, reps: Mapping[str, pd.DataFrame], tables: Mapping[str, pd.DataFrame]
) -> pd.DataFrame:
    """Every speculative cell against the fastest gamma 0 of all modes at its context.

    That, not its own mode's, is what speculation competes with where the mode can be chosen. Pairs
    are of one visit, as everywhere; which mode is the fastest is decided by the medians.

    Args:
        reps: by the name of a setup, `repetitions.repetitions`.
        tables: the same, `cells.cells`.

    Returns:
        The axes and the cell, `origin`; `pot_ms`; `t_base_ms` and `speedup` over the own mode's
        gamma 0; `best_mode`, `best_base_ms` and `speedup_best`, over that mode's; both speedups
        with the ends of their intervals, `_low` and `_high`.
    """
    rows = []
    for setup in study.setups:
        beside = [s for s in study.setups if s.values["context"] == setup.values["context"]]
        base = pd.concat(
            [reps[s.name].query("gamma == 0").assign(mode=s.values["mode"]) for s in beside]
        ).drop_duplicates([*_WHERE, "mode", "replicate", "visit", "repetition"])
        fastest = _fastest(base)
        base = base.merge(fastest, on=[*_WHERE, "mode"])
        own, mine = reps[setup.name], tables[setup.name]
        best = mine
        if len(study.modes) > 1:
            over = pd.concat([own[own["gamma"] > 0], base[own.columns]], ignore_index=True)
            best = cells.cells(over, study.seed)
        told = best.rename(columns={"t_base_ms": "best_base_ms"}).rename(
            columns=lambda c: c.replace("speedup", "speedup_best")
        )
        shown = [*CELL, "best_base_ms", "speedup_best", "speedup_best_low", "speedup_best_high"]
        both = mine[mine["gamma"] > 0].merge(told[shown], on=CELL)
        both = both.merge(fastest.rename(columns={"mode": "best_mode"}), on=_WHERE)
        kept = ["origin", *CELL, "pot_ms", "t_base_ms", "speedup", "speedup_low", "speedup_high"]
        rows.append(marked(setup, both[[*kept, "best_mode", *shown[4:]]]))
    return pd.concat(rows, ignore_index=True)


def _fastest(base: pd.DataFrame) -> pd.DataFrame:
    """By platform, workload and batch, the mode whose gamma 0 is the fastest in the median."""
    timed = base[~base["warmup"] & ~base["left_out"]]
    medians = timed.groupby([*_WHERE, "mode"])["pot_ms"].median().reset_index()
    return medians.loc[medians.groupby(_WHERE)["pot_ms"].idxmin(), [*_WHERE, "mode"]]


def crossovers(table: pd.DataFrame) -> pd.DataFrame:
    """The batch from which on speculation stops paying, by platform, workload and draft length.

    Where the speedup falls through 1 between two batches that were measured, linear in the
    logarithm of the batch; its ends are where the ends of the speedups' intervals do.

    Args:
        table: `cells.cells`.

    Returns:
        `origin`, `platform`, `workload`, `gamma`; `crossover_batch` (sequences) and its ends `_low`
        and `_high`, NaN where there is none among the batches; `pays`: at no batch, at every batch,
        or below (the crossover).
    """
    rows = []
    spec = table[table["gamma"] > 0].sort_values("batch")
    for key, own in spec.groupby(["platform", "workload", "gamma"]):
        paying = own["speedup"] > 1
        rows.append(
            {"origin": words(own["origin"])}
            | dict(zip(["platform", "workload", "gamma"], key, strict=True))
            | {
                f"crossover_batch{end}": _falls_through_1(own["batch"], own[f"speedup{end}"])
                for end in ("", "_low", "_high")
            }
            | {"pays": "every batch" if paying.all() else "below" if paying.iloc[0] else "none"}
        )
    columns = ["origin", "platform", "workload", "gamma", "crossover_batch"]
    columns += ["crossover_batch_low", "crossover_batch_high", "pays"]
    return pd.DataFrame(rows, columns=columns)


def _falls_through_1(batches: pd.Series, speedups: pd.Series) -> float:
    """The first such batch; NaN if none.

    >>> _falls_through_1(pd.Series([1, 4]), pd.Series([1.5, 0.5]))
    2.0
    """
    at, value = np.log2(batches.to_numpy(dtype=float)), speedups.to_numpy(dtype=float) - 1
    for i in range(len(value) - 1):
        if value[i] > 0 >= value[i + 1]:
            share = value[i] / (value[i] - value[i + 1])
            return float(2 ** (at[i] + share * (at[i + 1] - at[i])))
    return float("nan")
