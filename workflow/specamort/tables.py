"""The edge between records and analysis: read every record of a study, write every table."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import pandas as pd
import yaml

from . import analysis, decomposition, record
from .claims import Tables, claims
from .errors import SpecamortError
from .measure import block_dir
from .plan import Acceptance, Calibration
from .provenance import SOFTWARE
from .roofline import vendor_overheads
from .study import Study

NAMES = [
    *("repetitions", "cells", "acceptance", "overheads", "predictions", "errors", "residuals"),
    *("timing_alpha", "counter_agreement", "reading_cost", "divergence", "claims", "provenance"),
    *("trace_pairs", "steps", "device_overheads", "host_terms", "vendor_overheads"),
]


def table_paths(results: Path) -> list[Path]:
    """Every table that `write_tables` makes."""
    parquet = [results / "tables" / "repetitions.parquet", results / "tables" / "cells.parquet"]
    return [results / "tables" / f"{n}.csv" for n in NAMES] + parquet


def read_table(results: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(results / "tables" / f"{name}.csv")


def timing_records(study: Study, results: Path) -> list[dict]:
    """Every timing record of the study, each in its place and with its settings.

    Raises:
        SpecamortError: one is missing, truncated, foreign, or measured with other settings.
    """

    def load(where: tuple) -> dict:
        platform, replicate, cell = where
        path = block_dir(results, platform, replicate) / f"{cell}.json"
        found = record.read_held(path, study, "timing", study.settings(platform, cell))
        wanted = {"platform": platform, "replicate": replicate} | cell.__dict__
        if found["cell"] != wanted:
            raise SpecamortError(f"{path}: holds another cell; move it away and run again")
        return found

    places = [
        (p, r, c) for p in study.platforms for r in range(study.replicates) for c in study.cells
    ]
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(load, places))
    _require_whole_blocks(study, results, found)
    _require_own_prompts(study, found)
    return found


def _require_whole_blocks(study: Study, results: Path, records: list[dict]) -> None:
    """One device and one software a block: else its baseline is of something else."""
    blocks = pd.DataFrame(
        [
            {"platform": r["cell"]["platform"], "replicate": r["cell"]["replicate"]}
            | {"device": r["provenance"]["device"]["uuid"]}
            | {k: str(r["provenance"][k]) for k in SOFTWARE}
            for r in records
        ]
    )
    kinds = blocks.groupby(["platform", "replicate"]).nunique()
    for (platform, replicate), row in kinds.iterrows():
        if mixed := [k for k in kinds if row[k] > 1]:
            raise SpecamortError(
                f"{block_dir(results, platform, replicate)}: records of more than one "
                f"{', '.join(mixed)} in one block; move the block away and run again"
            )


def _require_own_prompts(study: Study, records: list[dict]) -> None:
    """No two sequences of a workload, of whatever replicate, had one prompt."""
    seen: dict[tuple, tuple] = {}
    for r in records:
        c = r["cell"]
        for i, sha256 in enumerate(r["prompt"]["sha256"]):
            mine = (c["replicate"], i)
            first = seen.setdefault((c["platform"], c["workload"], sha256), mine)
            if first != mine:
                raise SpecamortError(
                    f"{study.name}: on {c['platform']}, {c['workload']}, sequence {i} of replicate "
                    f"{c['replicate']} has the prompt of sequence {first[1]} of replicate "
                    f"{first[0]}; replicates must differ, measure the block anew"
                )


def write_tables(study: Study, results: Path) -> None:
    """All of a study's tables, CSV each and Parquet for the two long ones."""
    raw = results / "raw"

    def held(path: Path, kind: str, settings: dict) -> dict:
        return record.read_held(path, study, kind, settings)

    records = timing_records(study, results)
    reps = analysis.repetitions(records)
    table = analysis.cells(reps, study.seed)
    benches = {
        p: r["microbenchmark"] | {"origin": r["origin"], "marks": analysis.device_marks(r)}
        for p in study.platforms
        for r in (
            held(
                raw / "microbenchmark" / f"{p}.json", "microbenchmark", study.microbench_settings(p)
            ),
        )
    }
    d = analysis.overheads(study, benches)
    calibrated = analysis.acceptance(study, table)
    host = analysis.host_terms(study, table, calibrated, d)
    predicted = analysis.predictions(study, table, calibrated, d, host)
    pairs = decomposition.pairs(
        held(raw / "trace" / p / f"{c}.json", "trace", study.trace_settings(p, c))
        for p in study.platforms
        for c in study.trace_cells
    )
    steps = decomposition.steps(pairs)
    own = study.calibration.name
    counters = [
        held(raw / "counter" / own / f"{c}.json", "counter", study.counter_settings(own, c))
        for c in study.cells
        if c.gamma
    ]
    cost = analysis.reading_cost(
        *(
            held(
                raw / "overhead" / own / f"{state}.json",
                "overhead",
                study.settings(own, study.reading_cost_cell),
            )
            for state in ("on", "off")
        )
    )
    out = {
        "repetitions": reps,
        "cells": table,
        "acceptance": calibrated,
        "overheads": d,
        "predictions": predicted,
        "errors": analysis.errors(predicted),
        "residuals": analysis.host_residuals(
            reps, table, d, decomposition.floors(study, steps), study.seed
        ),
        "timing_alpha": analysis.timing_alpha(table, d),
        "counter_agreement": analysis.counter_agreement(table, counters),
        "reading_cost": pd.DataFrame([{"platform": own} | cost]),
        "divergence": analysis.divergence(records),
        "provenance": _provenance(records),
        "trace_pairs": pairs,
        "steps": steps,
        "device_overheads": decomposition.device_overheads(study, pairs, d),
        "host_terms": host,
        "vendor_overheads": vendor_overheads(_data("vendor")),
    }
    told = {f.name: out[f.name] for f in fields(Tables)}
    out["claims"] = claims(study, _data("published"), Tables(**told))
    for name, frame in out.items():
        record.write_text(results / "tables" / f"{name}.csv", frame.to_csv(index=False))
    for name in ("repetitions", "cells"):
        with record.atomic(results / "tables" / f"{name}.parquet") as path:
            out[name].to_parquet(path, index=False)


def _data(name: str):
    return yaml.safe_load((Path(__file__).parent / f"{name}.yaml").read_text())


def _provenance(records: list[dict]) -> pd.DataFrame:
    """One row per block: device, software, when."""
    rows = [
        {
            "platform": r["cell"]["platform"],
            "replicate": r["cell"]["replicate"],
            "origin": r["origin"],
            "device": p["device"]["name"],
            "device_uuid": p["device"]["uuid"],
            **{k: p[k] for k in ("driver", "vllm", "torch", "host", "job_id", "code_version")},
            "config_hash": p["config_hash"],
            "gamma_order": " ".join(map(str, r["block"]["gamma_order"])),
            "started": p["started"],
            "finished": p["finished"],
        }
        for r in records
        for p in (r["provenance"],)
    ]
    by_block = pd.DataFrame(rows).groupby(["platform", "replicate"])
    first = by_block.first()
    first["started"], first["finished"] = by_block["started"].min(), by_block["finished"].max()
    return first.reset_index()


def read_calibration(study: Study, results: Path, platform: str, batch: int) -> Calibration:
    """What a finished study says of a step, for `plan`.

    Raises:
        SpecamortError: the study is not finished, or has no such platform or batch.
    """
    study.platform(platform)
    if batch not in study.batches:
        known = ", ".join(map(str, study.batches))
        raise SpecamortError(f"{study.file}: batch {batch} is not in it; it has {known}")
    cells = _finished(study, results, "cells").query("platform == @platform and batch == @batch")
    base = cells.query("gamma == 0")
    d = read_table(results, "overheads").query("platform == @platform and batch == @batch")
    host = read_table(results, "host_terms").set_index("form").loc["exact_divisor"]
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
        _finished(study, results, "acceptance").query("workload == @workload").sort_values("gamma")
    )
    survival: list[float] = []
    before = 0.0
    for r in rows.itertuples():
        accepted = r.accepted / r.drafts if r.drafts else 0.0
        share = (accepted - before) / (r.gamma - len(survival))
        share = min(max(share, 0.0), *survival[-1:], 1.0)
        survival += [share] * (r.gamma - len(survival))
        before = accepted
    last = rows.iloc[-1]
    return Acceptance(
        tuple(survival),
        coverage=min(float(last["coverage"]), 1.0),
        drafts=int(rows["drafts"].min()),
        measured_to=int(last["gamma"]),
        source=f"workload {workload} of study {study.name}",
    )


def _finished(study: Study, results: Path, name: str) -> pd.DataFrame:
    if study.rehearses:
        raise SpecamortError(
            f"{study.file}: is a rehearsal, stand-ins measured it; plan with {study.rehearses}"
        )
    try:
        return read_table(results, name)
    except OSError as e:
        raise SpecamortError(
            f"{results / 'tables'}: holds no tables; run the study first, or give --t-base-ms"
        ) from e
