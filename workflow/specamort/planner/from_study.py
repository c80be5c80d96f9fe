"""A finished study as calibration and acceptance for the planner."""

from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from ..analysis.law import read_law
from ..analysis.predictions import LAW
from ..analysis.tables import ANEW, NAMES, finished
from ..errors import SpecamortError
from ..model.law import TERMS
from ..study.grid import AXES, Setup, Study
from .acceptance import Acceptance
from .calibration import D_MAX, MS_MAX, MS_MIN, Calibration

# What is read of each table: names, and numbers with the smallest and largest that they can be.
_COUNT = (0, 1e15)
_NAMES = {
    "cells": ("origin", "platform", "workload"),
    "verify_overhead": ("platform",),
    "law": ("by",),
    "errors": ("cells_of", "predictor", "workload"),
    "acceptance": ("workload",),
    "survival": ("platform", "workload"),
}
_NUMBERS: dict[str, dict[str, tuple[float, float]]] = {
    "cells": {"batch": _COUNT, "gamma": _COUNT}
    | dict.fromkeys(("pot_ms", "pot_ms_low", "pot_ms_high"), (MS_MIN, MS_MAX)),
    "verify_overhead": {"batch": _COUNT, "gamma": _COUNT, "increment_ms": (-MS_MAX, MS_MAX)},
    "law": {"kappa": (0, 1)},
    "errors": {"mape_pct": (0, 100 * D_MAX)},
    "acceptance": {"gamma": _COUNT, "coverage": (0, 1)},
    "survival": dict.fromkeys(("gamma", "position", "drafts", "survived"), _COUNT),
}
# and what may be empty
_OPTIONAL = {"law": {f"h_{t}_ms": (-MS_MAX, MS_MAX) for t in TERMS}}


def chosen_setup(study: Study, name: str | None) -> Setup:
    """The setup of that name, or the only one.

    Raises:
        SpecamortError: there are several, and none or another is named.
    """
    if name is None and len(study.setups) == 1:
        return study.setups[0]
    for setup in study.setups:
        if setup.name == name:
            return setup
    known = ", ".join(s.name for s in study.setups) or "one, without a name"
    said = "name one with --setup" if name is None else f"no setup {name!r:.80}"
    raise SpecamortError(f"{study.file}: {said}; it has {known}")


def read_calibration(
    study: Study, results: Path, platform: str, batch: int, setup: Setup | None = None
) -> Calibration:
    """What a finished study says of a step, for `plan`.

    Args:
        setup: mode, context and drafter; may be left out where the study has one.

    Raises:
        SpecamortError: the study is not finished, or has no such platform or batch; or a table is
            damaged or of another study.
    """
    setup = setup or chosen_setup(study, None)
    study.platform(platform)
    if batch not in study.batches:
        known = ", ".join(map(str, study.batches))
        raise SpecamortError(f"{study.file}: batch {batch} is not in it; it has {known}")
    _require_whole(study, results)
    here = setup.values | {"platform": platform, "batch": batch}
    grid: dict[str, list[Any]] = {
        "workload": list(study.workloads),
        "gamma": list(study.gammas),
    }
    cells = _rows(study, results, "cells", here, grid)
    base = cells[cells["gamma"] == 0]
    d = _rows(study, results, "verify_overhead", here, {"gamma": list(study.gammas)})
    chosen = setup.values | {"chosen": True}
    law = read_law(_rows(study, results, "law", chosen, {"chosen": [True]}))
    held_out = setup.values | {"cells_of": "held out", "workload": "all", "predictor": LAW}
    errors = _rows(
        study, results, "errors", held_out, {"workload": ["all"] if study.heldout else []}
    )
    synthetic = " (synthetic)" if (cells["origin"] == "synthetic").any() else ""
    return Calibration(
        t_base_ms=float(base["pot_ms"].median()),
        t_base_range_ms=(float(base["pot_ms_low"].min()), float(base["pot_ms_high"].max())),
        increment_ms={
            int(g): float(v) for g, v in zip(d["gamma"], d["increment_ms"], strict=True) if g
        },
        law=law,
        batch=batch,
        batches=study.batches,
        gammas=study.gammas,
        eager=study.at(setup.name).engine["enforce_eager"],
        error=float(errors["mape_pct"].max()) / 100 if len(errors) else 0.0,
        source=f"study {study.name}{synthetic}, {platform}, N = {batch}"
        + f", {setup.name}" * bool(setup.name),
    )


def _require_whole(study: Study, results: Path) -> None:
    """Tables are written together: where one is damaged, none is trusted.

    Raises:
        SpecamortError: one is not there, or not as it was written.
    """
    for name in NAMES:
        if "origin" not in finished(study, results, name):
            file = results / "tables" / f"{name}.csv"
            raise SpecamortError(f"{file}: has no column origin; {ANEW}")


def read_acceptance(
    study: Study, results: Path, workload: str, setup: Setup | None = None
) -> Acceptance:
    """A workload's acceptance as the study counted it, by position of its longest drafts.

    Args:
        setup: as of `read_calibration`.

    Raises:
        SpecamortError: the study is not finished, or has no such workload; or a table is damaged
            or of another study.
    """
    if workload not in study.workloads:
        known = ", ".join(study.workloads)
        raise SpecamortError(f"{study.file}: no workload {workload!r}; it has {known}")
    top = max(study.gammas)
    setup = setup or chosen_setup(study, None)
    here = setup.values | {"workload": workload, "gamma": top}
    coverage = _rows(study, results, "acceptance", here, {"gamma": [top]}).iloc[0]["coverage"]
    here |= {"platform": study.calibration.name}
    rows = _rows(study, results, "survival", here, {"position": list(range(1, top + 1))})
    rows = rows.sort_values("position")
    drafts = int(rows["drafts"].min())
    # a table that was edited may have acceptance rise along a draft
    shares = (rows["survived"] / max(drafts, 1)).clip(upper=1).cummin()
    return Acceptance(
        tuple(float(s) for s in shares),
        coverage=float(coverage),
        drafts=drafts,
        measured_to=top,
        source=f"workload {workload} of study {study.name}",
    )


def _rows(
    study: Study, results: Path, table: str, where: dict[str, Any], grid: dict[str, list[Any]]
) -> pd.DataFrame:
    """A table's rows that have the values of `where`: one for each point of the grid.

    Raises:
        SpecamortError: the table is not that of this study as its file is now, or damaged.
    """
    frame, file = finished(study, results, table), results / "tables" / f"{table}.csv"
    optional = _OPTIONAL.get(table, {})
    needed = [*(a.name for a in AXES), *_NAMES[table], *_NUMBERS[table], *optional]
    if missing := [c for c in needed if c not in frame]:
        raise SpecamortError(f"{file}: has no column {', '.join(missing)}; {ANEW}")
    for column in _NAMES[table]:
        if {*map(type, frame[column])} - {str}:
            raise SpecamortError(f"{file}: {column}: holds something other than names; {ANEW}")
    for column, (low, high) in (_NUMBERS[table] | optional).items():
        numbers = pd.to_numeric(frame[column], errors="coerce")
        there = frame[column].notna() if column in optional else slice(None)
        if frame[column].dtype == bool or not numbers[there].between(low, high).all():
            raise SpecamortError(
                f"{file}: {column}: holds something other than numbers from {low:g} to {high:g}; "
                f"{ANEW}"
            )
        frame[column] = numbers
    rows = frame[(frame[list(where)] == pd.Series(where)).all(axis=1)]
    found = list(rows[list(grid)].itertuples(index=False, name=None))
    if sorted(found) != sorted(product(*grid.values())):
        said = ", ".join(f"{k} {v}" for k, v in where.items())
        raise SpecamortError(
            f"{file}: {', '.join(grid)}: has other rows of {said} than {study.file} asks for; "
            f"{ANEW}"
        )
    return rows
