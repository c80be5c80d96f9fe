"""The edge between records and analysis: read every record of a study, write every table."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from .. import files
from ..errors import SpecamortError
from ..model.roofline import vendor_verify_overhead
from ..records import record
from ..records.software import SOFTWARE
from ..records.types import Record
from ..study import layout
from ..study.grid import Study
from . import calibration, cells, cross_checks, decomposition, predictions, repetitions, shortfall
from .claims import Tables, claims

NAMES = [
    *(
        "repetitions",
        "cells",
        "acceptance",
        "verify_overhead",
        "predictions",
        "errors",
        "residuals",
        "shortfall",
    ),
    *("timing_alpha", "counter_agreement", "reading_cost", "divergence", "claims", "provenance"),
    *("trace_pairs", "steps", "device_verify_overhead", "host_terms", "vendor_verify_overhead"),
]


def table_paths(results: Path) -> list[Path]:
    """Every table that `write_tables` makes."""
    parquet = [results / "tables" / "repetitions.parquet", results / "tables" / "cells.parquet"]
    return [results / "tables" / f"{n}.csv" for n in NAMES] + parquet


def read_table(results: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(results / "tables" / f"{name}.csv")


def records(study: Study, results: Path, rule: str) -> list[Record]:
    """Every record that a rule's jobs write, in their order, each in its place and as it is wanted.

    Raises:
        SpecamortError: one is missing, truncated, foreign, or made with other settings.
    """
    wanted = [w for job in layout.jobs(study, results, rule) for w in job.wanted]
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda w: record.read_held(w.path, study, w.kind, w.settings), wanted))


def timing_records(study: Study, results: Path) -> list[Record]:
    """Every timing record of the study.

    Raises:
        SpecamortError: as `records`; or a record is of another cell, a block of more than one
            device or software, or two sequences had one prompt.
    """
    found = records(study, results, "measure")
    places = [(j, c) for j in layout.jobs(study, results, "measure") for c in study.cells]
    for (job, cell), r in zip(places, found, strict=True):
        wanted = {"platform": job.platform, "replicate": job.replicate} | vars(cell)
        if r["cell"] != wanted:
            path = layout.folder(results, "measure", job.platform, job.replicate) / f"{cell}.json"
            raise SpecamortError(f"{path}: holds another cell; move it away and run again")
    _require_whole_blocks(study, results, found)
    _require_own_prompts(study, found)
    return found


def _require_whole_blocks(study: Study, results: Path, records: list[Record]) -> None:
    """One device and one software a block: else its baseline is of something else."""
    blocks = pd.DataFrame(
        [
            {"platform": r["cell"]["platform"], "replicate": r["cell"]["replicate"]}
            | {"device": r["provenance"]["device"]["uuid"]}
            | {k: str(r["provenance"][k]) for k in SOFTWARE}
            for r in records
        ]
    )
    kinds = blocks.groupby(["platform", "replicate"]).nunique().reset_index()
    for row in kinds.to_dict("records"):
        if mixed := [k for k in ("device", *SOFTWARE) if row[k] > 1]:
            where = layout.folder(results, "measure", row["platform"], row["replicate"])
            raise SpecamortError(
                f"{where}: records of more than one {', '.join(mixed)} in one block; move the "
                "block away and run again"
            )


def _require_own_prompts(study: Study, records: list[Record]) -> None:
    """No two sequences of a workload, of whatever replicate, had one prompt."""
    seen: dict[tuple[str, str, str], tuple[int, int]] = {}
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
    made = _every_table(study, results)
    for name, frame in made.items():
        files.write_text(results / "tables" / f"{name}.csv", frame.to_csv(index=False))
    for name in ("repetitions", "cells"):
        with files.atomic(results / "tables" / f"{name}.parquet") as path:
            made[name].to_parquet(path, index=False)


def _every_table(study: Study, results: Path) -> dict[str, pd.DataFrame]:
    """By name, from the study's records; docs/tables.md says what their columns hold."""
    timed = timing_records(study, results)
    reps = repetitions.repetitions(timed)
    table = cells.cells(reps, study.seed)
    benches: dict[str, calibration.PlatformBench] = {
        p: {
            **r["microbenchmark"],
            "origin": r["origin"],
            "exclusions": repetitions.device_exclusions(r),
        }
        for p, r in zip(study.platforms, records(study, results, "microbench"), strict=True)
    }
    d = calibration.verify_overhead(study, benches)
    calibrated = calibration.acceptance(study, table)
    host = calibration.host_terms(study, table, calibrated, d)
    predicted = predictions.predictions(study, table, calibrated, d, host)
    pairs = decomposition.pairs(records(study, results, "trace"))
    steps = decomposition.steps(pairs)
    counters = records(study, results, "counter_run")
    cost = cross_checks.reading_cost(*records(study, results, "reading_cost"))
    out = {
        "repetitions": reps,
        "cells": table,
        "acceptance": calibrated,
        "verify_overhead": d,
        "predictions": predicted,
        "errors": predictions.errors(predicted),
        "residuals": cross_checks.host_residuals(
            reps, table, d, decomposition.floors(study, steps), study.seed
        ),
        "shortfall": shortfall.shortfall(study, table, d),
        "timing_alpha": cross_checks.timing_alpha(table, d),
        "counter_agreement": cross_checks.counter_agreement(table, counters),
        "reading_cost": pd.DataFrame([{"platform": study.calibration.name} | cost]),
        "divergence": cross_checks.divergence(timed),
        "provenance": _provenance(timed),
        "trace_pairs": pairs,
        "steps": steps,
        "device_verify_overhead": decomposition.device_verify_overhead(study, pairs, d),
        "host_terms": host,
        "vendor_verify_overhead": vendor_verify_overhead(_data("vendor")),
    }
    told = {f.name: out[f.name] for f in fields(Tables)}
    return out | {"claims": claims(study, _data("published"), Tables(**told))}


def _data(name: str) -> Any:
    return yaml.safe_load((Path(__file__).parent / f"{name}.yaml").read_text(encoding="utf-8"))


def _provenance(records: list[Record]) -> pd.DataFrame:
    """One row per block: device and software in words, `started` and `finished` in UTC."""
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


def finished(study: Study, results: Path, name: str) -> pd.DataFrame:
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
