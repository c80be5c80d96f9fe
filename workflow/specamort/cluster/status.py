"""How far a study is: from its records and SLURM's queue."""

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pandas as pd

from ..errors import SpecamortError
from ..records import record
from ..records.types import Record
from ..study import layout
from ..study.grid import Study
from ..study.layout import job_name, jobs
from .slurm import Job


def blocks(
    study: Study, live: list[Job], failed: dict[str, list[Path]], results: Path | None = None
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
    for mine in jobs(study, results):
        what = job_name(mine.kind.rule, study.name, mine.platform, mine.replicate)
        there = _records(study, mine)
        job = queue.get(what)
        state = "to submit"
        if len(there) == len(mine.wanted) and not job:
            state = "done"
        elif job:
            state = "queued" if job.state in ("PENDING", "REQUEUED") else "running"
        elif what in failed:
            state = "failed"
        ids = [r["provenance"]["job_id"] for r in there] + [p.stem for p in failed.get(what, [])]
        rows.append(
            {
                "job": mine.name,
                "state": state,
                "cells": len(mine.wanted),
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
    parts = [f"{table['done'].sum()} of {cells} cells done"]
    left = table["cells"] - table["done"]
    for state in ("running", "queued", "failed", "to submit"):
        if number := left[table["state"] == state].sum():
            parts.append(f"{number} {state}")
    lines = [", ".join(parts)]
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


def _records(study: Study, job: layout.Job) -> list[Record]:
    """A job's records that hold, each in its place or waiting for the rest of its block."""
    found: dict[Path, Record] = {}
    for wanted in job.wanted:
        for place in wanted.places:
            if wanted.path not in found:
                with suppress(SpecamortError):
                    found[wanted.path] = record.held(wanted, study, place)
    astray = record.strays(found)
    return [r for path, r in found.items() if path not in astray]


def _seconds(records: list[Record]) -> float | None:
    """Time that records took: from the start of each job that made some to its last record."""
    spans: dict[tuple, tuple[datetime, datetime]] = {}
    for p in (r["provenance"] for r in records):
        job = p["host"], p["job_id"], p.get("job_started")
        start = datetime.fromisoformat(p.get("job_started", p["started"]))
        end = datetime.fromisoformat(p["finished"])
        first, last = spans.get(job, (start, end))
        spans[job] = min(first, start), max(last, end)
    return sum((end - start).total_seconds() for start, end in spans.values()) if spans else None


def _bar(share: float, width: int = 12) -> str:
    full = round(share * width)
    return "█" * full + "░" * (width - full)


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
