"""The step-time law calibrated, on the calibration platform alone, and held against every cell.

By the dial where the study has one: no cell of a workload is seen then. Else by the calibration
platform's own cells. Pure functions of data frames.
"""

from dataclasses import replace

import numpy as np
import pandas as pd

from ..model import equation
from ..model.law import TERMS, Law, Points, candidates, chosen
from ..study.grid import Study
from .calibration import with_verify_overhead
from .cells import Floats
from .origins import merged, words

_STEP = ["t_base_ms", "increment_ms", "batch", "gamma", "coverage", "verify_share"]


def points(
    study: Study, table: pd.DataFrame, verify_overhead: pd.DataFrame, dialled: pd.DataFrame
) -> pd.DataFrame:
    """What calibrates the law: a step's time per point, all of the calibration platform.

    By the dial, a point is a batch and a draft length: its acceptances together, since a step does
    not depend on them (`dial.slopes`), over gamma 0 of the same engine and the same rounds. Without
    one it is a speculative cell.

    Args:
        table: `cells.cells`.
        verify_overhead: `calibration.verify_overhead`.
        dialled: `dial.cells`; empty without a dial.

    Returns:
        `origin`, `platform`, `by` (dial or cells), `batch`, `gamma`, `coverage`, `verify_share`
        (shares), `t_base_ms`, `increment_ms`, `step_ms`: without what drafts take (ms).
    """
    name = study.calibration.name
    if len(dialled):
        own = dialled[(dialled["platform"] == name) & (dialled["gamma"] > 0)]
        own = own.groupby(["platform", "batch", "gamma"], as_index=False).agg(
            origin=("origin", words),
            coverage=("coverage", "mean"),
            t_base_ms=("t_base_ms", "first"),
            step_ms=("step_ms", "median"),
            draft_ms=("draft_ms", "median"),
        )
        own = own.assign(by="dial", verify_share=own["coverage"])
        where = ["platform", "batch", "gamma"]
        made = merged(own, verify_overhead[["origin", *where, "increment_ms"]], on=where)
    else:
        spec = with_verify_overhead(table, verify_overhead)
        own = spec[spec["platform"] == name]
        made = own.assign(by="cells", step_ms=own["pot_ms"] * own["tau"])
    made["step_ms"] -= made["draft_ms"]
    return made[["origin", "platform", "by", *_STEP, "step_ms"]].reset_index(drop=True)


def idle_ms(study: Study, machinery: pd.DataFrame) -> float:
    """What an engine that could speculate takes more for a step of the calibration platform, ms.

    The mean over batches where the interval of each leaves out 0, else 0: not known from 0.

    Args:
        machinery: `dial.machinery`.
    """
    own = machinery[machinery["platform"] == study.calibration.name]
    known = len(own) and (own["machinery_ms_low"] > 0).all()
    return float(own["machinery_ms"].mean()) if known else 0.0


def law(calibrating: pd.DataFrame, idle_ms: float = 0.0) -> tuple[Law, pd.DataFrame]:
    """The law that the points of `points` decide, and every choice that was looked at.

    Args:
        idle_ms: the term of every step where the points do not tell it: those of a dial, which are
            over steps of an engine that could speculate too.

    Returns:
        The law, and one row per choice: `origin`, `calibrated_on`, `by`, `points` (number),
        `kappa` (share), `kappa_fitted`, `h_step_ms`, `h_verify_ms`, `h_gamma_ms`, `h_token_ms`
        (ms; NaN where the term is not taken), `left_out_pct` (%), `chosen`.
    """
    by_dial = (calibrating["by"] == "dial").any()
    found = candidates(_points(calibrating), TERMS[1:] if by_dial else TERMS)
    if idle_ms:
        found = [
            (names, free, replace(one, h_ms={"step": idle_ms, **one.h_ms}))
            for names, free, one in found
        ]
    best = chosen(found)
    head = {
        "origin": words(calibrating["origin"]),
        "calibrated_on": words(calibrating["platform"]),
        "by": words(calibrating["by"]),
        "points": len(calibrating),
    }
    rows = [
        head
        | {"kappa": one.kappa, "kappa_fitted": free}
        | {f"h_{t}_ms": one.h_ms.get(t, np.nan) for t in TERMS}
        | {"left_out_pct": one.left_out_pct, "chosen": one is best}
        for _, free, one in found
    ]
    return best, pd.DataFrame(rows).sort_values("left_out_pct", ignore_index=True)


def read_law(table: pd.DataFrame) -> Law:
    """The chosen law of a table that `law` made."""
    row = table[table["chosen"]].iloc[0]
    h = {t: float(row[f"h_{t}_ms"]) for t in TERMS if not pd.isna(row[f"h_{t}_ms"])}
    return Law(float(row["kappa"]), h, float(row["left_out_pct"]))


def dial_predictions(
    study: Study, dialled: pd.DataFrame, verify_overhead: pd.DataFrame, best: Law
) -> pd.DataFrame:
    """The law on every cell of the dial: figure 8's surface.

    Returns:
        The columns of `dial.cells`; `increment_ms`, `predicted_ms` (pot, ms) and `error_pct`
        (signed, % of pot_ms), NaN where nothing is drafted; `held_out`, `calibrated_on`.
    """
    where = ["platform", "batch", "gamma"]
    made = merged(dialled, verify_overhead[["origin", *where, "increment_ms"]], on=where)
    made = made.assign(verify_share=made["coverage"])
    # the base is of an engine that could speculate, as the step is
    of_draft = replace(best, h_ms={k: v for k, v in best.h_ms.items() if k != "step"})
    step = of_draft.step_ms(*(made[c] for c in _STEP)) + made["draft_ms"]
    made["predicted_ms"] = (step / made["tau"]).where(made["gamma"] > 0)
    made["error_pct"] = equation.percentage_error(made["predicted_ms"], made["pot_ms"])
    made["held_out"] = made["platform"] != study.calibration.name
    made["calibrated_on"] = study.calibration.name
    return made.drop(columns="verify_share")


def _points(t: pd.DataFrame) -> Points:
    def column(name: str) -> Floats:
        return t[name].to_numpy(dtype=float)

    return Points(
        step=column("step_ms"),
        t_base=column("t_base_ms"),
        increment=column("increment_ms"),
        batch=column("batch"),
        gamma=column("gamma"),
        coverage=column("coverage"),
        verify=column("verify_share"),
    )
