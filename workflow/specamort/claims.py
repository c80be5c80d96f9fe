"""The study's published figures beside ours: what ours is, and whether the two compare."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from .study import Study

_OTHER = "same quantity, other hardware and model: compare the sign and the shape, not the value"
_ABSOLUTE = "no: milliseconds of another model on other hardware"
_SAME = "yes: the published grid"


@dataclass(frozen=True)
class Tables:
    cells: pd.DataFrame
    acceptance: pd.DataFrame
    overheads: pd.DataFrame
    errors: pd.DataFrame
    residuals: pd.DataFrame
    timing_alpha: pd.DataFrame
    steps: pd.DataFrame


def claims(study: Study, published: list[dict], t: Tables) -> pd.DataFrame:
    """The claims table; `ours` is NaN where this study holds no such number."""
    same_grid = {p.gpu for p in study.platforms.values()} == {"H100", "H200"} and (
        study.model.repo == "meta-llama/Llama-3.1-8B-Instruct"
    )
    rows = []
    for c in published:
        ours = _OURS.get(c["id"], lambda *_: float("nan"))(study, t)
        other = _ABSOLUTE if c["unit"] == "ms" else _OTHER
        rows.append(
            {"claim": c["id"], "study": c["value"], "ours": ours, "unit": c["unit"]}
            | {"kind": c["kind"], "where": c["where"], "comparable": _SAME if same_grid else other}
        )
    return pd.DataFrame(rows)


def _of_kind(study: Study, kind: str, frame: pd.DataFrame) -> pd.DataFrame:
    names = [w.name for w in study.workloads.values() if w.kind == kind]
    return frame[frame["workload"].isin(names)]


def _calibration_cell(kind: str, top: bool) -> Callable[[Study, Tables], float]:
    def find(study: Study, t: Tables) -> float:
        gamma = max(study.gammas) if top else 0
        rows = _of_kind(study, kind, t.cells).query(
            f"platform == {study.calibration.name!r} and batch == {min(study.batches)}"
        )
        return rows.loc[rows["gamma"] == gamma, "pot_ms"].median()

    return find


def _error(predictor: str, workload_kind: str, column: str, cells_of: str = "all"):
    def find(study: Study, t: Tables) -> float:
        e = t.errors[(t.errors["predictor"] == predictor) & (t.errors["cells_of"] == cells_of)]
        if workload_kind == "all":
            return e.loc[e["workload"] == "all", column].max()
        return _of_kind(study, workload_kind, e)[column].mean()

    return find


def _speedup(kind: str, how: str, platforms: str | None = None):
    def find(study: Study, t: Tables) -> float:
        rows = _of_kind(study, kind, t.cells)
        rows = rows[rows["gamma"] == max(study.gammas)] if how == "max" else rows
        if platforms == "heldout":
            rows = rows[rows["platform"] != study.calibration.name]
        return rows.loc[rows["gamma"] > 0, "speedup"].agg(how)

    return find


def _traced(column: str, other: bool = False):
    """A decode step's time on the calibration platform: the own model's, or the other size's."""

    def find(study: Study, t: Tables) -> float:
        rows = t.steps.query(
            f"platform == {study.calibration.name!r} and batch == 1 and gamma == 0 "
            f"and context_tokens == {study.profile.context_tokens}"
        )
        mine = rows["model"] == study.model.name
        return rows.loc[~mine if other else mine, column].median()

    return find


_OURS: dict[str, Callable[[Study, Tables], float]] = {
    "speedup_repeat_max": _speedup("repeat", "max"),
    "speedup_repeat_g6_h200": _speedup("repeat", "max", "heldout"),
    "speedup_open": _speedup("open", "median"),
    "alpha_repeat": lambda s, t: _of_kind(s, "repeat", t.acceptance)["alpha"].min(),
    "alpha_open_max": lambda s, t: _of_kind(s, "open", t.acceptance)["alpha"].max(),
    "t_base_ms": _calibration_cell("repeat", top=False),
    "pot_repeat_g6_ms": _calibration_cell("repeat", top=True),
    "pot_open_ms": _calibration_cell("open", top=True),
    "verify_overhead_g6_pct": lambda s, t: (
        100
        * t.overheads.query(
            f"platform == {s.calibration.name!r} and batch == {min(s.batches)} "
            f"and gamma == {max(s.gammas)}"
        )["d"].max()
    ),
    "verify_overhead_max_pct": lambda s, t: 100 * t.overheads["d"].max(),
    "mape_model_all_pct": _error("equation", "all", "mape_pct"),
    "mape_model_open_pct": _error("equation", "open", "mape_pct"),
    "mape_model_repeat_pct": _error("equation", "repeat", "mape_pct"),
    "mape_blind_all_pct": _error("acceptance_blind", "all", "mape_pct"),
    "mape_blind_open_pct": _error("acceptance_blind", "open", "mape_pct"),
    "mape_blind_max_pct": _error("acceptance_blind", "all", "max_pct"),
    "mape_blind_repeat_pct": _error("acceptance_blind", "repeat", "mape_pct"),
    "heldout_h200_mape_pct": _error("timing_alpha", "all", "mape_pct", "held out"),
    "heldout_h200_max_pct": _error("timing_alpha", "all", "max_pct", "held out"),
    "ratio_transfer_mape_pct": _error("ratio_transfer", "all", "mape_pct", "held out"),
    "timing_alpha_repeat": lambda s, t: _of_kind(s, "repeat", t.timing_alpha)[
        "alpha_timing"
    ].mean(),
    "host_residual_ms": lambda s, t: _of_kind(s, "repeat", t.residuals)["host_residual_ms"].mean(),
    "host_residual_of_floor_pct": lambda s, t: _of_kind(s, "repeat", t.residuals)[
        "of_floor_pct"
    ].mean(),
    "nsys_step_8b_ms": _traced("step_ms"),
    "nsys_kernel_8b_ms": _traced("device_ms"),
    "nsys_host_8b_ms": _traced("host_ms"),
    "nsys_kernel_1b_ms": _traced("device_ms", other=True),
    "nsys_host_1b_ms": _traced("host_ms", other=True),
}
