"""How far a study is: from its records and SLURM's queue."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pandas as pd

from . import record
from .errors import SpecamortError
from .measure import block_dir
from .self_check import self_check_path
from .slurm import Job, block_name
from .study import Study


def blocks(
    study: Study, results: Path, live: list[Job], failed: dict[str, list[Path]]
) -> pd.DataFrame:
    """One row per measuring job of the study.

    Args:
        live: its queued and running SLURM jobs.
        failed: logs of failed attempts by job name; see `slurm.failed_jobs`.

    Returns:
        Columns job, state (done, running, queued, failed, to submit), cells, done, job_id, node,
        elapsed_s, log, seconds (time that the cells done have taken, null without any), and
        spent_by (ids of the SLURM jobs that took part).
    """
    queue = {j.what: j for j in live}
    rows = []
    for name, what, wanted in _jobs(study, results):
        paths = [path for path, *_ in wanted]
        there = [r for one in wanted if (r := _record(study, *one))]
        job = queue.get(what)
        state = "to submit"
        if len(there) == len(paths) and not job:
            state = "done"
        elif job:
            state = "queued" if job.state in ("PENDING", "REQUEUED") else "running"
        elif what in failed:
            state = "failed"
        ids = [r["provenance"]["job_id"] for r in there] + [p.stem for p in failed.get(what, [])]
        rows.append(
            {
                "job": name,
                "state": state,
                "cells": len(paths),
                "done": len(there),
                "job_id": job.id if job else "",
                "node": job.node if job else "",
                "elapsed_s": job.elapsed_s if job else 0,
                "log": os.path.relpath(failed[what][-1]) if state == "failed" else "",
                "spent_by": {i for i in [*ids, job and job.id] if i},
                "seconds": _seconds(there),
            }
        )
    return pd.DataFrame(rows)


def remaining_hours(table: pd.DataFrame) -> float | None:
    """Device-hours that are left at the pace of the cells done; null before the first.

    A job that has no cell done yet is taken for a job like those that have.
    """
    known = table.dropna(subset="seconds")
    if known.empty:
        return None
    pace = known["seconds"].sum() / known["done"].sum()
    return float((table["cells"] - table["done"]).sum() * pace / 3600)


def overview(table: pd.DataFrame, spent: float | None) -> str:
    """The table a person reads, with the totals above it."""
    cells = table["cells"].sum()
    said = [f"{table['done'].sum()} of {cells} cells done"]
    left = table["cells"] - table["done"]
    for state in ("running", "queued", "failed", "to submit"):
        if number := left[table["state"] == state].sum():
            said.append(f"{number} {state}")
    lines = [", ".join(said)]
    hours = remaining_hours(table)
    if hours:
        lines.append(f"about {_span(3600 * hours)} of device time left at this pace, queue aside")
    if spent is not None:
        lines.append(f"{spent:.2f} GPU-hours so far, by SLURM's accounting")
    shown = pd.DataFrame(
        {
            "job": table["job"],
            "state": table["state"],
            "cells": [
                f"{_bar(d / n)} {d}/{n}" for d, n in zip(table["done"], table["cells"], strict=True)
            ],
            "SLURM": table["job_id"],
            "node": table["node"],
            "since": [_span(s) if s else "" for s in table["elapsed_s"]],
            "log": table["log"],
        }
    )
    shown = shown.loc[:, (shown != "").any()]
    widths = {c: max(len(c), *shown[c].str.len()) for c in shown}
    rows = [list(shown), *shown.itertuples(index=False)]
    lines.append("")
    lines += [
        "  ".join(f"{v:{w}}" for v, w in zip(row, widths.values(), strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def _jobs(study: Study, results: Path) -> Iterator[tuple[str, str, list[tuple]]]:
    """Name, SLURM name and records of every measuring job, in the order a person expects.

    A record is its path, kind and settings, as `record.read_held` takes them.
    """
    raw, own = results / "raw", study.calibration.name
    for p in study.self_checked:
        yield (
            f"{p} self-check",
            block_name("self_check", study.name, p),
            [(self_check_path(results, p), "self_check", study.self_check_settings(p))],
        )
    for p in study.platforms:
        for r in range(study.replicates):
            home = block_dir(results, p, r)
            yield (
                f"{p} r{r}",
                block_name("measure", study.name, p, r),
                [(home / f"{c}.json", "timing", study.settings(p, c)) for c in study.cells],
            )
    for p in study.platforms:
        yield (
            f"{p} microbench",
            block_name("microbench", study.name, p),
            [
                (
                    raw / "microbenchmark" / f"{p}.json",
                    "microbenchmark",
                    study.microbench_settings(p),
                )
            ],
        )
    for p in study.platforms:
        traced = [
            (raw / "trace" / p / f"{c}.json", "trace", study.trace_settings(p, c))
            for c in study.trace_cells
        ]
        yield f"{p} trace", block_name("trace", study.name, p), traced
    counted = [
        (raw / "counter" / own / f"{c}.json", "counter", study.counter_settings(own, c))
        for c in study.cells
        if c.gamma
    ]
    yield f"{own} count", block_name("count", study.name, own), counted
    once = ("overhead", study.settings(own, study.reading_cost_cell))
    pair = [(raw / "overhead" / own / f"{s}.json", *once) for s in ("on", "off")]
    yield f"{own} overhead", block_name("overhead", study.name, own), pair


def _record(study: Study, path: Path, kind: str, settings: dict) -> dict | None:
    """A record that holds, in its place or waiting for the rest of its block."""
    for place in (path, path.parent / "partial" / path.name):
        with suppress(SpecamortError):
            return record.read_held(place, study, kind, settings)
    return None


def _seconds(records: list[dict]) -> float | None:
    """Time that records took: from the start of each job that made some to its last record."""
    if not records:
        return None
    times = pd.DataFrame(
        [
            {
                "job": (p["host"], p["job_id"], p.get("job_started")),
                "start": pd.Timestamp(p.get("job_started", p["started"])),
                "end": pd.Timestamp(p["finished"]),
            }
            for p in (r["provenance"] for r in records)
        ]
    )
    by_job = times.groupby("job")
    return (by_job["end"].max() - by_job["start"].min()).dt.total_seconds().sum()


def _bar(share: float, width: int = 12) -> str:
    full = round(share * width)
    return "█" * full + "░" * (width - full)


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
