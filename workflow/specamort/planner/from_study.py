"""A finished study as calibration and acceptance for the planner."""

from pathlib import Path

from ..analysis.tables import finished, read_table
from ..errors import SpecamortError
from ..study.grid import Study
from .acceptance import Acceptance
from .calibration import Calibration


def read_calibration(study: Study, results: Path, platform: str, batch: int) -> Calibration:
    """What a finished study says of a step, for `plan`.

    Raises:
        SpecamortError: the study is not finished, or has no such platform or batch.
    """
    study.platform(platform)
    if batch not in study.batches:
        known = ", ".join(map(str, study.batches))
        raise SpecamortError(f"{study.file}: batch {batch} is not in it; it has {known}")
    cells = finished(study, results, "cells").query("platform == @platform and batch == @batch")
    base = cells.query("gamma == 0")
    d = read_table(results, "verify_overhead").query("platform == @platform and batch == @batch")
    host = read_table(results, "host_terms").query("form == 'exact_divisor'").iloc[0]
    errors = read_table(results, "errors").query(
        "cells_of == 'held out' and workload == 'all' and predictor == 'exact_divisor_host'"
    )
    synthetic = " (synthetic)" if (cells["origin"] == "synthetic").any() else ""
    return Calibration(
        t_base_ms=float(base["pot_ms"].median()),
        t_base_range_ms=(float(base["pot_ms_low"].min()), float(base["pot_ms_high"].max())),
        d={int(g): float(v) for g, v in zip(d["gamma"], d["d"], strict=True) if g},
        h0_ms=float(host["h0_ms"]),
        h1_ms=float(host["h1_ms"]),
        batches=study.batches,
        gammas=study.gammas,
        eager=study.engine["enforce_eager"],
        error=float(errors["mape_pct"].max()) / 100 if len(errors) else 0.0,
        source=f"study {study.name}{synthetic}, {platform}, N = {batch}",
    )


def read_acceptance(study: Study, results: Path, workload: str) -> Acceptance:
    """A workload's acceptance as the study counted it at each of its draft lengths.

    Raises:
        SpecamortError: the study is not finished, or has no such workload.
    """
    if workload not in study.workloads:
        known = ", ".join(study.workloads)
        raise SpecamortError(f"{study.file}: no workload {workload!r}; it has {known}")
    rows = (
        finished(study, results, "acceptance").query("workload == @workload").sort_values("gamma")
    )
    survival: list[float] = []
    before = 0.0
    for gamma, accepted, drafts in zip(
        rows["gamma"], rows["accepted"], rows["drafts"], strict=True
    ):
        per_draft = accepted / drafts if drafts else 0.0
        share = (per_draft - before) / (gamma - len(survival))
        share = min(max(share, 0.0), *survival[-1:], 1.0)
        survival += [share] * (gamma - len(survival))
        before = per_draft
    last = rows.iloc[-1]
    return Acceptance(
        tuple(survival),
        coverage=min(float(last["coverage"]), 1.0),
        drafts=int(rows["drafts"].min()),
        measured_to=int(last["gamma"]),
        source=f"workload {workload} of study {study.name}",
    )
