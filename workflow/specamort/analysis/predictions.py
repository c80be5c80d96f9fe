"""Every predictor on every speculative cell, and how far off each is.

The calibration platform is the only source of alpha, coverage, tau, beta, the law's host terms and
the transferred speedups; a held-out platform gives its baseline and its own microbenchmark.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..model import equation
from ..model.law import Law
from ..study.grid import Study
from .calibration import with_calibrated
from .cells import Floats, block_draws, interval
from .origins import words
from .repetitions import CELL, counted

# Predictors that took a time from the calibration platform's own cells: no test of them there.
FITTED = [
    *("ratio_transfer", "ratio_transfer_batch", "timing_alpha"),
    *("equation_host", "exact_divisor_host"),
]
KEY = ["workload", "batch", "gamma"]
LAW = "law"


@dataclass(frozen=True)
class Calibrated:
    """All that is taken from the calibration platform.

    Attributes:
        acceptance: `calibration.acceptance`.
        host: `calibration.host_terms`.
        law: `law.law`.
        law_by: dial or cells; by cells it is no test on the calibration platform's own.
    """

    acceptance: pd.DataFrame
    host: pd.DataFrame
    law: Law
    law_by: str = "cells"

    @property
    def fitted(self) -> list[str]:
        return FITTED + [LAW] * (self.law_by == "cells")


def predictions(
    study: Study,
    table: pd.DataFrame,
    d: pd.DataFrame,
    calibrated: Calibrated,
    blocks: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Every speculative cell under every predictor, with the signed error in percent.

    Rows of the calibration platform are a consistency check, but for the law where the dial
    calibrated it; rows of the others are held out.

    `ratio_transfer` is the study's: one measured speedup of the calibration platform per workload
    and gamma. The study does not say how it pools batches; here it is the median of the batches'
    speedups, which like every other value of a cell is a median, gives each batch one vote where
    a ratio of pooled times would favour the slower batch, and is the mean for the study's two.
    `ratio_transfer_batch` takes the speedup of the cell's own batch.

    A prediction is made for every block from the baseline of the cell's own visit, and held against
    the block's own pot; a cell's value and its error are the medians over blocks.

    Args:
        blocks: `cells.block_medians`; by default a cell's values are those of its only block.

    Returns:
        `origin`, the cell, `t_base_ms`, `d` (share of a step), `increment_ms` (ms), `pot_ms`,
        `pot_ms_low`, `pot_ms_high`, `noise_pct` (% of pot_ms), `predictor`, `predicted_ms` (ms),
        `predicted_speedup` (over gamma 0), `held_out`, `calibrated_on`, `error_pct` (signed, % of
        pot_ms).
    """
    name = study.calibration.name
    spec = _predicted_from(study, table, d, calibrated)
    if blocks is None:
        blocks = table[CELL].assign(
            replicate=0, block_pot_ms=table["pot_ms"], block_pot_ms_base=table["t_base_ms"]
        )
    drafting = blocks[blocks["gamma"] > 0].pivot(index=CELL, columns="replicate")
    by_block = drafting.reindex(pd.MultiIndex.from_frame(spec[CELL]))
    pot, base = (by_block[c].to_numpy(dtype=float).T for c in ("block_pot_ms", "block_pot_ms_base"))
    kept = ["origin", *KEY, "platform", "t_base_ms", "d", "increment_ms"]
    kept += ["pot_ms", "pot_ms_low", "pot_ms_high", "noise_pct"]
    long = pd.concat(
        spec[kept].assign(
            predictor=k,
            predicted_ms=np.nanmedian(v, axis=0),
            predicted_speedup=np.nanmedian(base / v, axis=0),
            error_pct=np.nanmedian(equation.percentage_error(v, pot), axis=0),
        )
        for k, v in _by_predictor(spec, base, calibrated).items()
    )
    long["held_out"] = long["platform"] != name
    long["calibrated_on"] = name
    circular = long["predictor"].isin(calibrated.fitted) & ~long["held_out"]
    return long[~circular].reset_index(drop=True)


def _predicted_from(
    study: Study, table: pd.DataFrame, d: pd.DataFrame, calibrated: Calibrated
) -> pd.DataFrame:
    """Speculative cells with all that `_by_predictor` reads of them."""
    spec = with_calibrated(table, calibrated.acceptance, d)
    return _with_transferred(spec, study.calibration.name)


def _by_predictor(spec: pd.DataFrame, base: Floats, calibrated: Calibrated) -> dict[str, Floats]:
    """Each predictor's pot in ms; `base` is t_base of the cells of `spec`, or draws x cells."""

    def column(name: str) -> Floats:
        return spec[name].to_numpy(dtype=float)

    over, gamma, alpha = column("d"), column("gamma"), column("alpha")
    coverage, tau = column("coverage"), column("tau")
    increment, batch, verify = column("increment_ms"), column("batch"), column("verify_share")
    beta = _first_beta(calibrated.acceptance, spec["workload"])
    geometric = [equation.tokens_geometric(b, int(g)) for b, g in zip(beta, gamma, strict=True)]
    terms = calibrated.host.set_index("form")
    h = {f: terms.loc[f, "h0_ms"] + terms.loc[f, "h1_ms"] * gamma for f in terms.index}

    def by_law(one: Law) -> equation.Number:
        step = one.step_ms(base, increment, batch, gamma, coverage, verify)
        return (step + column("draft_ms")) / tau

    predicted: dict[str, equation.Number] = {
        LAW: by_law(calibrated.law),
        "law_uncalibrated": by_law(Law()),
        "equation": equation.pot(base, over, alpha, gamma),
        "exact_divisor": equation.pot_exact_divisor(base, over, coverage, tau),
        "equation_host": equation.pot_host(base, over, h["equation"], 1, alpha * gamma + 1),
        "exact_divisor_host": equation.pot_host(base, over, h["exact_divisor"], coverage, tau),
        "acceptance_blind": equation.pot_acceptance_blind(base, over, gamma),
        "geometric": equation.verify_ms(base, over) / np.array(geometric),
        "ratio_transfer": equation.pot_ratio_transfer(base, column("speedup_pooled")),
        "ratio_transfer_batch": equation.pot_ratio_transfer(base, column("speedup_batch")),
        "timing_alpha": equation.pot(base, over, column("alpha_timing"), gamma),
    }
    return {k: np.asarray(v, dtype=float) for k, v in predicted.items()}


def _with_transferred(spec: pd.DataFrame, name: str) -> pd.DataFrame:
    """Speculative cells with what the calibration platform `name` was timed at.

    Returns:
        The columns of `spec`, and `alpha_timing` (share; mean over batches), `speedup_pooled`
        (median over batches), `speedup_batch` (of the cell's own batch).
    """
    own = spec[spec["platform"] == name]
    own = own.assign(
        alpha_timing=equation.alpha_from_timing(
            own["pot_ms"], own["t_base_ms"], own["d"], own["gamma"]
        )
    )
    by_gamma = own.groupby(["workload", "gamma"])
    every_batch = pd.MultiIndex.from_frame(spec[["workload", "gamma"]])
    each_batch = pd.MultiIndex.from_frame(spec[KEY])
    return spec.assign(
        alpha_timing=by_gamma["alpha_timing"].mean().reindex(every_batch).to_numpy(),
        speedup_pooled=by_gamma["speedup"].median().reindex(every_batch).to_numpy(),
        speedup_batch=own.set_index(KEY)["speedup"].reindex(each_batch).to_numpy(),
    )


def _first_beta(calibrated: pd.DataFrame, workloads: pd.Series) -> list[float]:
    """One beta per workload, from the smallest gamma: geometric acceptance knows no other."""
    first = calibrated.sort_values("gamma").groupby("workload")["beta"].first().fillna(0)
    return [first[w] for w in workloads]


def errors(predicted: pd.DataFrame) -> pd.DataFrame:
    """Mean absolute, maximum and mean signed percentage error, by predictor and workload.

    Over the held-out cells, and over all cells for those predictors that exist for all.

    Returns:
        `cells_of` (all or held out), `predictor`, `workload` (or all), `origin`, `cells` (number),
        `mape_pct`, `max_pct`, `signed_pct` (%), `noise_pct`: mean noise floor of the cells (%).
    """
    everywhere = predicted["predictor"].isin(predicted.loc[~predicted["held_out"], "predictor"])
    sets = pd.concat(
        [
            predicted[everywhere].assign(cells_of="all"),
            predicted[predicted["held_out"]].assign(cells_of="held out"),
        ]
    )
    return (
        pd.concat([sets, sets.assign(workload="all")])
        .groupby(["cells_of", "predictor", "workload"])
        .agg(
            origin=("origin", words),
            cells=("error_pct", "size"),
            mape_pct=("error_pct", lambda e: e.abs().mean()),
            max_pct=("error_pct", lambda e: e.abs().max()),
            signed_pct=("error_pct", "mean"),
            noise_pct=("noise_pct", "mean"),
        )
        .reset_index()
    )


def advantages(
    study: Study,
    reps: pd.DataFrame,
    table: pd.DataFrame,
    d: pd.DataFrame,
    calibrated: Calibrated,
) -> pd.DataFrame:
    """By how much the law's held-out error is below each other predictor's, with an interval.

    A paired bootstrap: in every draw the held-out platforms' blocks and repetitions are resampled,
    baselines with them, and all predictors are judged on the same draw. What the calibration
    platform gave stays.

    Args:
        reps: `repetitions.repetitions`.

    Returns:
        One row per rival: `origin`, `calibrated_on`, `cells` (number), `predictor`, `mape_pct` and
        `law_mape_pct` with the ends of their intervals (%), `advantage_pct`: rival less law (points
        of percent), with the ends of its interval, and `decided`: the interval is above or below 0.
    """
    name = study.calibration.name
    spec = _predicted_from(study, table, d, calibrated)
    spec = spec[spec["platform"] != name]
    drawn = {
        cell: (np.median(pot, 1), np.median(base, 1))
        for cell, pot, base in block_draws(counted(reps), study.seed)
    }
    keys = list(spec[CELL].itertuples(index=False, name=None))
    rows: list[dict[str, object]] = []
    if keys:
        pot, base = (np.stack([drawn[k][i] for k in keys], axis=1) for i in (0, 1))
        whole = _by_predictor(spec, spec["t_base_ms"].to_numpy(), calibrated)
        each = _by_predictor(spec, base, calibrated)
        measured = spec["pot_ms"].to_numpy()
        mape = {k: float(100 * np.abs(v / measured - 1).mean()) for k, v in whole.items()}
        draws = {k: 100 * np.abs(v / pot - 1).mean(axis=1) for k, v in each.items()}
        for rival in (k for k in whole if k != LAW):
            gap = interval("advantage_pct", draws[rival] - draws[LAW])
            rows.append(
                {"origin": words(spec["origin"]), "calibrated_on": name}
                | {"cells": len(keys), "predictor": rival}
                | {"mape_pct": mape[rival]}
                | interval("mape_pct", draws[rival])
                | {"law_mape_pct": mape[LAW]}
                | interval("law_mape_pct", draws[LAW])
                | {"advantage_pct": mape[rival] - mape[LAW]}
                | gap
                | {"decided": gap["advantage_pct_low"] > 0 or gap["advantage_pct_high"] < 0}
            )
    columns = ["origin", "calibrated_on", "cells", "predictor"]
    for value in ("mape_pct", "law_mape_pct", "advantage_pct"):
        columns += [value, f"{value}_low", f"{value}_high"]
    return pd.DataFrame(rows, columns=[*columns, "decided"])
