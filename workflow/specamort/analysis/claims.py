"""The study's published figures beside ours: what ours is, and whether the two compare."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import pandas as pd

from ..study.grid import Study
from .decomposition import compared_decode_steps
from .origins import words

NAN = float("nan")


@dataclass(frozen=True)
class Tables:
    """What ours is worked out from, each named as in `tables.NAMES`."""

    cells: pd.DataFrame
    acceptance: pd.DataFrame
    verify_overhead: pd.DataFrame
    predictions: pd.DataFrame
    errors: pd.DataFrame
    residuals: pd.DataFrame
    timing_alpha: pd.DataFrame
    steps: pd.DataFrame


Formula = Callable[[Study, Tables], float]


class Claim(TypedDict):
    """A published number, null where none is printed; `traced`: it rests on their traces."""

    id: str
    value: float | None
    unit: str
    kind: str
    where: str
    traced: NotRequired[bool]


class Published(TypedDict):
    """What `published.yaml` holds; conditions by `timed` and `traced`."""

    conditions: dict[str, dict[str, Any]]
    claims: list[Claim]


def conditions(study: Study, origin: str) -> dict[str, object]:
    """What a study is, by the names that `published.yaml` has for its conditions."""
    return {
        "origin": origin,
        "model": study.model.repo if study.model.source == "huggingface" else None,
        "GPUs": {
            role: sorted(
                p.gpu
                for p in study.platforms.values()
                if p.gpu and (p.role, p.device) == (role, "cuda")
            )
            for role in ("calibration", "heldout")
        },
        "gammas": sorted(study.gammas),
        "batches": sorted(study.batches),
        "context": study.context_tokens,
        "warm-ups": study.warmup,
        "repetitions": study.repetitions,
        "drafter": study.drafter["method"],
        "eager mode": study.engine["enforce_eager"],
        "prefix caching": study.engine["enable_prefix_caching"],
        "model runner": study.engine["model_runner"],
        "traced models": [m.repo for m in study.tracing.models],
        "traced context": study.tracing.context_tokens,
        "traced tokens": list(study.tracing.tokens),
        "tracer": study.tracing.tracer,
    }


def claims(study: Study, published: Published, t: Tables) -> pd.DataFrame:
    """One row per published number, with ours beside it.

    Returns:
        `claim` (its id); `study`, `ours` (in `unit`; NaN where theirs printed none, or this study
        holds no such number); `unit`, `kind`, `where`; `origin`: who measured what ours is worked
        out from; `comparable`: yes only under all of their conditions, else it names those that
        differ.
    """
    origin = words(o for f in vars(t).values() for o in f["origin"])
    ours = conditions(study, origin)
    rows = []
    for c in published["claims"]:
        groups = ("timed", "traced") if c.get("traced") else ("timed",)
        needed = {k: v for g in groups for k, v in published["conditions"][g].items()}
        differ = ", ".join(k for k, v in needed.items() if ours[k] != v)
        rows.append(
            {"claim": c["id"], "study": c["value"], "ours": FORMULAS[c["id"]](study, t)}
            | {"unit": c["unit"], "kind": c["kind"], "where": c["where"], "origin": origin}
            | {"comparable": f"no: other {differ}" if differ else "yes"}
        )
    return pd.DataFrame(rows)


def _of_kind(study: Study, kind: str, frame: pd.DataFrame) -> pd.DataFrame:
    names = [w.name for w in study.workloads.values() if w.kind == kind]
    return frame[frame["workload"].isin(names)]


def _calibration_cell(kind: str, top: bool) -> Formula:
    def find(study: Study, t: Tables) -> float:
        gamma = max(study.gammas) if top else 0
        rows = _of_kind(study, kind, t.cells).query(
            f"platform == {study.calibration.name!r} and batch == {min(study.batches)}"
        )
        return float(rows.loc[rows["gamma"] == gamma, "pot_ms"].median())

    return find


def _error(predictor: str, workload_kind: str, column: str, cells_of: str = "all") -> Formula:
    def find(study: Study, t: Tables) -> float:
        e = t.errors[(t.errors["predictor"] == predictor) & (t.errors["cells_of"] == cells_of)]
        if workload_kind == "all":
            return float(e.loc[e["workload"] == "all", column].max())
        return float(_of_kind(study, workload_kind, e)[column].mean())

    return find


def _speedup(kind: str, how: str, platforms: str | None = None) -> Formula:
    def find(study: Study, t: Tables) -> float:
        rows = _of_kind(study, kind, t.cells)
        rows = rows[rows["gamma"] == max(study.gammas)] if how == "max" else rows
        if platforms == "heldout":
            rows = rows[rows["platform"] != study.calibration.name]
        return float(rows.loc[rows["gamma"] > 0, "speedup"].agg(how))

    return find


def _traced(column: str, other: bool = False) -> Formula:
    """A decode step's time on the calibration platform: the own model's, or the other size's."""

    def find(study: Study, t: Tables) -> float:
        rows = compared_decode_steps(study, t.steps)
        rows = rows[rows["platform"] == study.calibration.name]
        mine = rows["model"] == study.model.name
        return float(rows.loc[~mine if other else mine, column].median())

    return find


def _residual(column: str, how: str) -> Formula:
    """Of the host residual over the repeat cells, all platforms."""
    return lambda study, t: float(_of_kind(study, "repeat", t.residuals)[column].agg(how))


def _traced_share(study: Study, t: Tables) -> float:
    return 100 * _traced("host_ms")(study, t) / _traced("step_ms")(study, t)


def _host_gap(study: Study, t: Tables) -> float:
    """Percent of the own model's host time.

    The study prints 4.0%; its own two times as printed, 5.78 and 5.6 ms, make 3.1%.
    """
    return 100 * abs(_traced("host_ms", other=True)(study, t) / _traced("host_ms")(study, t) - 1)


def _ideal(study: Study, t: Tables) -> float:
    """alpha gamma + 1 at the largest gamma."""
    rows = _of_kind(study, "repeat", t.acceptance)
    return float((rows["alpha"] * rows["gamma"] + 1)[rows["gamma"] == max(study.gammas)].max())


def _under_predicted(study: Study, t: Tables) -> float:
    """Percent of the repeat cells, all platforms, that equation (1) makes faster than measured."""
    rows = _of_kind(study, "repeat", t.predictions.query("predictor == 'equation'"))
    return float(100 * (rows["error_pct"] < 0).mean())


def _timing_alpha_gap(study: Study, t: Tables) -> float:
    """Mean over workloads and gammas of how far a held-out platform's timing alpha is from the
    calibration platform's: the distance between figure 5's curves, in alpha."""
    own = t.timing_alpha["platform"] == study.calibration.name
    both = t.timing_alpha[~own].merge(t.timing_alpha[own], on=["workload", "gamma"])
    return float((both["alpha_timing_x"] - both["alpha_timing_y"]).abs().mean())


def _marginal(study: Study, t: Tables) -> float:
    """Measured speedup that one more accepted token brings on repeat.

    By equation (1) the speedup is (alpha gamma + 1) / (1 + d), so a proposed token adds about
    alpha, and an accepted one, a proposed one over alpha, about 1. Ours is the least-squares
    slope of the cells' speedup over their alpha gamma, gamma 0 among them, since the first
    proposed token has its value too.
    """
    rows = _of_kind(study, "repeat", t.cells)
    accepted = rows["alpha"].fillna(0) * rows["gamma"]
    return float(accepted.cov(rows["speedup"]) / accepted.var()) if len(rows) else NAN


FORMULAS: dict[str, Formula] = {
    "speedup_repeat_max": _speedup("repeat", "max"),
    "speedup_repeat_g6_h200": _speedup("repeat", "max", "heldout"),
    "ideal_repeat_g6": _ideal,
    "shortfall_repeat_g6_pct": lambda s, t: (
        100 * (1 - _speedup("repeat", "max", "heldout")(s, t) / _ideal(s, t))
    ),
    "speedup_open": _speedup("open", "median"),
    "alpha_repeat": lambda s, t: _of_kind(s, "repeat", t.acceptance)["alpha"].min(),
    "alpha_open_max": lambda s, t: _of_kind(s, "open", t.acceptance)["alpha"].max(),
    "t_base_ms": _calibration_cell("repeat", top=False),
    "pot_repeat_g6_ms": _calibration_cell("repeat", top=True),
    "pot_open_ms": _calibration_cell("open", top=True),
    "verify_overhead_g6_pct": lambda s, t: (
        100
        * t.verify_overhead.query(
            f"platform == {s.calibration.name!r} and batch == {min(s.batches)} "
            f"and gamma == {max(s.gammas)}"
        )["d"].max()
    ),
    "verify_overhead_max_pct": lambda s, t: 100 * t.verify_overhead["d"].max(),
    "mape_model_all_pct": _error("equation", "all", "mape_pct"),
    "mape_model_open_pct": _error("equation", "open", "mape_pct"),
    "mape_model_repeat_pct": _error("equation", "repeat", "mape_pct"),
    "under_predicted_repeat_pct": _under_predicted,
    "cells_speculative": _error("equation", "all", "cells"),
    "mape_blind_all_pct": _error("acceptance_blind", "all", "mape_pct"),
    "mape_blind_open_pct": _error("acceptance_blind", "open", "mape_pct"),
    "mape_blind_max_pct": _error("acceptance_blind", "all", "max_pct"),
    "mape_blind_repeat_pct": _error("acceptance_blind", "repeat", "mape_pct"),
    "heldout_h200_mape_pct": _error("timing_alpha", "all", "mape_pct", "held out"),
    "heldout_h200_max_pct": _error("timing_alpha", "all", "max_pct", "held out"),
    "cells_heldout": _error("equation", "all", "cells", "held out"),
    "ratio_transfer_mape_pct": _error("ratio_transfer", "all", "mape_pct", "held out"),
    "timing_alpha_repeat": lambda s, t: _of_kind(s, "repeat", t.timing_alpha)[
        "alpha_timing"
    ].mean(),
    "timing_alpha_gap": _timing_alpha_gap,
    "marginal_speedup_over_alpha": _marginal,
    "host_residual_ms": _residual("host_residual_ms", "mean"),
    "host_residual_of_floor_pct": _residual("of_floor_pct", "mean"),
    "host_residual_of_floor_min_pct": _residual("of_floor_pct", "min"),
    "host_residual_of_floor_max_pct": _residual("of_floor_pct", "max"),
    "nsys_step_8b_ms": _traced("step_ms"),
    "nsys_kernel_8b_ms": _traced("device_ms"),
    "nsys_host_8b_ms": _traced("host_ms"),
    "nsys_host_share_8b_pct": _traced_share,
    "nsys_kernel_1b_ms": _traced("device_ms", other=True),
    "nsys_host_1b_ms": _traced("host_ms", other=True),
    "nsys_kernel_ratio": lambda s, t: (
        _traced("device_ms")(s, t) / _traced("device_ms", other=True)(s, t)
    ),
    "nsys_host_gap_pct": _host_gap,
}
