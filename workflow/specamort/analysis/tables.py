"""The edge between records and analysis: read every record of a study, write every table."""

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from .. import files
from ..errors import SpecamortError
from ..model.roofline import vendor_verify_overhead
from ..records import record
from ..records.types import Record
from ..study import layout
from ..study.grid import Setup, Study
from . import (
    calibration,
    cells,
    cross_checks,
    decomposition,
    dial,
    law,
    predictions,
    repetitions,
    setups,
    shortfall,
)
from .claims import Tables, claims
from .origins import words

ANEW = "write the tables anew with `specamort analyse`"
NAMES = [
    *("repetitions", "cells", "acceptance", "survival", "verify_overhead", "baseline_increments"),
    *("predictions", "errors", "law", "advantages", "dial_repetitions", "dial", "dial_slopes"),
    *("machinery", "residuals", "shortfall", "timing_alpha", "counter_agreement", "reading_cost"),
    *("divergence", "claims", "provenance", "trace_pairs", "steps", "device_verify_overhead"),
    *("host_terms", "vendor_verify_overhead", "best_baselines", "crossovers"),
    *("requests", "categories"),
]


def table_paths(results: Path) -> list[Path]:
    """Every table that `write_tables` makes."""
    parquet = [results / "tables" / "repetitions.parquet", results / "tables" / "cells.parquet"]
    return [results / "tables" / f"{n}.csv" for n in NAMES] + parquet


def read_table(results: Path, name: str) -> pd.DataFrame:
    """A table as `write_tables` wrote it.

    Raises:
        SpecamortError: the file is missing, empty, cut short, or no table.
    """
    path = results / "tables" / f"{name}.csv"
    try:
        text = files.read_text(path)
        # a platform may be called null, or 12
        columns = ["platform", "workload", "model", "calibrated_on", "mode", "drafter"]
        columns += ["best_mode", "category"]
        names = dict.fromkeys(columns, str)
        return pd.read_csv(StringIO(text), dtype=names, keep_default_na=False, na_values=[""])
    except SpecamortError as e:
        raise SpecamortError(f"{e}; {ANEW}") from e
    except ValueError as e:
        raise SpecamortError(f"{path}: is empty, cut short or no table; {ANEW}") from e


def records(study: Study, results: Path, rule: str) -> dict[Path, Record]:
    """Every record that a rule's jobs write, in their order, each in its place and as it is wanted.

    Raises:
        SpecamortError: as `record.held`; or one is not from the device, software and block of most
            of its job.
    """
    jobs = layout.jobs(study, results, rule)
    with ThreadPoolExecutor() as pool:
        wanted = [w for job in jobs for w in job.wanted]
        read = pool.map(lambda w: record.held(w, study), wanted)
        found = dict(zip((w.path for w in wanted), read, strict=True))
    for job in jobs:
        for why in record.strays({w.path: found[w.path] for w in job.wanted}).values():
            raise SpecamortError(why)
    return found


def timing_records(study: Study, results: Path) -> list[Record]:
    """Every timing record of the study.

    Raises:
        SpecamortError: as `records`; or two sequences had one prompt.
    """
    found = records(study, results, "measure")
    _require_own_prompts(found)
    return list(found.values())


def _require_own_prompts(found: dict[Path, Record]) -> None:
    """No two sequences of a workload, of whatever replicate, had one prompt."""
    seen: dict[tuple[str, str, str], tuple[int, int]] = {}
    for path, r in found.items():
        c = r["cell"]
        for i, sha256 in enumerate(r["prompt"]["sha256"]):
            mine = (c["replicate"], i)
            first = seen.setdefault((c["platform"], c["workload"], sha256), mine)
            if first != mine:
                raise SpecamortError(
                    f"{path}: prompt.sha256.{i}: is that of sequence {first[1]} of replicate "
                    f"{first[0]}; replicates must differ, measure the block anew"
                )


def _every_record(study: Study, results: Path) -> dict[str, list[Record]]:
    """By rule, all that the tables rest on.

    Raises:
        SpecamortError: as `records` and `timing_records`; or some were measured and others not.
    """
    found = {k: records(study, results, k) for k in layout.KINDS if k != "self_check"}
    _require_own_prompts(found["measure"])
    every = {path: r for of_rule in found.values() for path, r in of_rule.items()}
    usual = Counter(r["origin"] for r in every.values()).most_common(1)[0][0]
    for path, r in every.items():
        if r["origin"] != usual:
            raise SpecamortError(
                f"{path}: origin: is {r['origin']}, most of the study's records are {usual}; move "
                "it away and run again"
            )
    return {rule: list(of_rule.values()) for rule, of_rule in found.items()}


def write_tables(study: Study, results: Path) -> None:
    """All of a study's tables, CSV each and Parquet for the two long ones."""
    made = _every_table(study, results)
    for name, frame in made.items():
        files.write_text(results / "tables" / f"{name}.csv", frame.to_csv(index=False))
    for name in ("repetitions", "cells"):
        with files.atomic(results / "tables" / f"{name}.parquet") as path:
            made[name].to_parquet(path, index=False)


def _every_table(study: Study, results: Path) -> dict[str, pd.DataFrame]:
    """By name, from the study's records; docs/tables.md says what their columns hold.

    Each setup is a study of its own, calibrated on its own cells; what setups share, their gamma 0
    above all, is in the rows of each.
    """
    found = _every_record(study, results)
    each = {s.name: _tables(study.at(s.name), _of_setup(study, found, s)) for s in study.setups}
    made = {
        name: pd.concat(
            [setups.marked(s, each[s.name][name]) for s in study.setups], ignore_index=True
        )
        for name in next(iter(each.values()))
    }
    reps, table = (
        {name: of_one[t] for name, of_one in each.items()} for t in ("repetitions", "cells")
    )
    return made | {"best_baselines": setups.best_baselines(study, reps, table)}


def _of_setup(
    study: Study, found: dict[str, list[Record]], setup: Setup
) -> dict[str, list[Record]]:
    """By rule, the records that a setup's tables rest on."""
    mode = setup.values["mode"] if len(study.modes) > 1 else ""
    contexts = setup.values["context"], study.tracing.context_tokens

    def mine(r: Record) -> bool:
        if r["kind"] in ("timing", "counter_run"):
            named = setup.name if r["cell"]["gamma"] else setup.baseline
            return r["cell"].get("setup", "") == named
        if r["kind"] == "dial":
            return r["dial"].get("setup", "") == setup.baseline
        if r["kind"] == "trace":
            return r["trace"].get("mode", "") == mode and r["trace"]["context_tokens"] in contexts
        if r["kind"] == "microbenchmark":
            return bool(r["microbenchmark"]["context"] == setup.values["context"])
        return True

    return {rule: [r for r in records if mine(r)] for rule, records in found.items()}


def _tables(study: Study, found: dict[str, list[Record]]) -> dict[str, pd.DataFrame]:
    """Of a study at one point on every axis."""
    timed = found["measure"]
    reps = repetitions.repetitions(timed)
    table = cells.cells(reps, study.seed)
    benches: dict[str, calibration.PlatformBench] = {
        p: {
            **r["microbenchmark"],
            "origin": r["origin"],
            "exclusions": repetitions.device_exclusions(r),
        }
        for p, r in zip(study.platforms, found["microbench"], strict=True)
    }
    d = calibration.verify_overhead(study, benches)
    calibrated = calibration.acceptance(study, table)
    host = calibration.host_terms(study, table, calibrated, d)
    dial_reps = dial.repetitions(found["dial"])
    dialled = dial.cells(dial_reps, study.seed)
    calibrating = law.points(study, table, d, dialled)
    machinery = dial.machinery(dial_reps, study.seed)
    best, laws = law.law(calibrating, law.idle_ms(study, machinery))
    by_platform = predictions.Calibrated(calibrated, host, best, words(calibrating["by"]))
    blocks = cells.block_medians(repetitions.counted(reps))
    predicted = predictions.predictions(study, table, d, by_platform, blocks)
    pairs = decomposition.pairs(found["trace"])
    steps = decomposition.steps(pairs)
    asked = repetitions.requests(timed)
    cost = cross_checks.reading_cost(*found["reading_cost"])
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
        "counter_agreement": cross_checks.counter_agreement(table, found["counter_run"]),
        "reading_cost": pd.DataFrame([{"platform": study.calibration.name} | cost]),
        "divergence": cross_checks.divergence(timed),
        "provenance": _provenance(timed),
        "trace_pairs": pairs,
        "steps": steps,
        "device_verify_overhead": decomposition.device_verify_overhead(study, pairs, d),
        "host_terms": host,
        "vendor_verify_overhead": vendor_verify_overhead(_data("vendor")),
        "law": laws,
        "advantages": predictions.advantages(study, reps, table, d, by_platform),
        "dial_repetitions": dial_reps,
        "dial": law.dial_predictions(study, dialled, d, best),
        "dial_slopes": dial.slopes(dial_reps, study.seed),
        "machinery": machinery,
        "baseline_increments": calibration.rows_from_baselines(table),
        "survival": repetitions.survival(timed),
        "crossovers": setups.crossovers(table),
        "requests": asked,
        "categories": repetitions.categories(asked),
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
            **{k: _utc(p[k]) for k in ("started", "finished")},
        }
        for r in records
        for p in (r["provenance"],)
    ]
    by_block = pd.DataFrame(rows).groupby(["platform", "replicate"])
    first = by_block.first()
    first["started"], first["finished"] = by_block["started"].min(), by_block["finished"].max()
    return first.reset_index()


def _utc(time: str) -> str:
    return datetime.fromisoformat(time).astimezone(UTC).isoformat()


def finished(study: Study, results: Path, name: str) -> pd.DataFrame:
    """A table of a study that was measured.

    Raises:
        SpecamortError: as `read_table`; or it is a rehearsal, or not finished.
    """
    if study.rehearses:
        raise SpecamortError(
            f"{study.file}: is a rehearsal, stand-ins measured it; plan with {study.rehearses}"
        )
    if not os.path.isdir(results / "tables"):
        raise SpecamortError(
            f"{results / 'tables'}: holds no tables; run the study first, or give --t-base-ms"
        )
    return read_table(results, name)
