"""How far a study is: from its records and SLURM's queue."""

import os
from contextlib import suppress
from pathlib import Path

import pandas as pd

from ..errors import SpecamortError
from ..records import record
from ..study.grid import Study
from ..study.layout import Wanted, job_name, jobs
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
        there = [r for w in mine.wanted if (r := _record(study, w))]
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


def _record(study: Study, wanted: Wanted) -> dict | None:
    """A record that holds, in its place or waiting for the rest of its block."""
    for place in (wanted.path, wanted.path.parent / "partial" / wanted.path.name):
        with suppress(SpecamortError):
            return record.read_held(place, study, wanted.kind, wanted.settings)
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
