"""What reading the engine's counters costs: one cell with its statistics on, then off."""

from pathlib import Path

from ..records.block import Block
from ..study import layout
from ..study.grid import Platform, Study
from .engine import Engine
from .provenance import provenance
from .timing import StartEngine, cell_record, run_cell, running


def reading_cost(
    study: Study,
    platform: Platform,
    model: Path,
    results: Path,
    progress=None,
    start: StartEngine = Engine,
) -> None:
    """The largest gamma's first cell with the engine's statistics on, then off, by one job."""
    cell = study.reading_cost_cell
    wanted = dict.fromkeys(("on", "off"), study.timing_settings(platform.name, cell))
    folder = layout.folder(results, "reading_cost", platform.name)
    with Block(folder, wanted, provenance(study, platform), progress) as block:
        jobs = {
            (p["host"], p["job_id"], p.get("job_started"))
            for p in (r["provenance"] for r in block.kept)
        }
        if not block.missing and len(jobs) == 1:
            return
        pair = {}
        for name in wanted:
            with running(
                start, model, study.at(cell.setup), platform, cell.gamma, statistics=name == "on"
            ) as engine:
                measured = run_cell(
                    study, platform, engine, cell, 0, study.warmup, 3 * study.repetitions
                )
            pair[name] = cell_record(
                "reading_cost", study, platform, 0, cell, block.source, measured
            )
        for name, one in pair.items():
            block.write(name, one)
