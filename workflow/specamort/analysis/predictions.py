"""Every predictor on every speculative cell, and how far off each is.

The calibration platform's cells are the only source of alpha, coverage, tau, beta and the
transferred speedups; a held-out platform gives its baseline and its own d, nothing else.
"""

import numpy as np
import pandas as pd

from ..model import equation
from ..study.grid import Study
from .calibration import with_calibrated
from .origins import words

# Predictors that took a time from the calibration platform's own cells: no test of them there.
FITTED = [
    *("ratio_transfer", "ratio_transfer_batch", "timing_alpha"),
    *("equation_host", "exact_divisor_host"),
]
KEY = ["workload", "batch", "gamma"]


def predictions(
    study: Study,
    table: pd.DataFrame,
    calibrated: pd.DataFrame,
    d: pd.DataFrame,
    host: pd.DataFrame,
) -> pd.DataFrame:
    """Every speculative cell under every predictor, with the signed error in percent.

    Rows of the calibration platform are a consistency check; rows of the others are held out.

    `ratio_transfer` is the study's: one measured speedup of the calibration platform per workload
    and gamma. The study does not say how it pools batches; here it is the median of the batches'
    speedups, which like every other value of a cell is a median, gives each batch one vote where
    a ratio of pooled times would favour the slower batch, and is the mean for the study's two.
    `ratio_transfer_batch` takes the speedup of the cell's own batch.

    Args:
        host: `calibration.host_terms`.

    Returns:
        `origin`, the cell, `t_base_ms`, `d` (share of a step), `pot_ms`, `pot_ms_low`,
        `pot_ms_high`, `predictor`, `predicted_ms` (ms), `held_out`, `calibrated_on`, `error_pct`
        (signed, % of pot_ms).
    """
    name = study.calibration.name
    spec = _with_transferred(with_calibrated(table, calibrated, d), name)
    predicted = _by_predictor(spec, calibrated, host)
    kept = ["origin", *KEY, "platform", "t_base_ms", "d", "pot_ms", "pot_ms_low", "pot_ms_high"]
    long = pd.concat([spec[kept].assign(predictor=k, predicted_ms=v) for k, v in predicted.items()])
    long["held_out"] = long["platform"] != name
    long["calibrated_on"] = name
    long["error_pct"] = equation.percentage_error(long["predicted_ms"], long["pot_ms"])
    circular = long["predictor"].isin(FITTED) & ~long["held_out"]
    return long[~circular].reset_index(drop=True)


def _by_predictor(
    spec: pd.DataFrame, calibrated: pd.DataFrame, host: pd.DataFrame
) -> dict[str, equation.Number]:
    """Each predictor's pot in ms, cell by cell."""
    base, over, gamma, alpha = spec["t_base_ms"], spec["d"], spec["gamma"], spec["alpha"]
    beta = _first_beta(calibrated, spec["workload"])
    terms = host.set_index("form")
    h = {f: terms.loc[f, "h0_ms"] + terms.loc[f, "h1_ms"] * gamma for f in terms.index}
    return {
        "equation": equation.pot(base, over, alpha, gamma),
        "exact_divisor": equation.pot_exact_divisor(base, over, spec["coverage"], spec["tau"]),
        "equation_host": equation.pot_host(base, over, h["equation"], 1, alpha * gamma + 1),
        "exact_divisor_host": equation.pot_host(
            base, over, h["exact_divisor"], spec["coverage"], spec["tau"]
        ),
        "acceptance_blind": equation.pot_acceptance_blind(base, over, gamma),
        "geometric": np.array(
            [equation.pot_geometric(*x) for x in zip(base, over, beta, gamma, strict=True)]
        ),
        "ratio_transfer": equation.pot_ratio_transfer(base, spec["speedup_pooled"]),
        "ratio_transfer_batch": equation.pot_ratio_transfer(base, spec["speedup_batch"]),
        "timing_alpha": equation.pot(base, over, spec["alpha_timing"], gamma),
    }


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
        `mape_pct`, `max_pct`, `signed_pct` (%).
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
        )
        .reset_index()
    )
