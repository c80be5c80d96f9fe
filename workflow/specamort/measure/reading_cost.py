"""What reading the engine's counters costs: one cell with its statistics on, then off."""

from pathlib import Path

from ..records import record
from ..study import layout
from ..study.grid import Platform, Study
from .engine import Engine
from .provenance import provenance
from .timing import StartEngine, cell_record, run_cell, running


def reading_cost(
    study: Study, platform: Platform, model: Path, results: Path, start: StartEngine = Engine
) -> None:
    """The largest gamma's first cell with the engine's statistics on, then off."""
    source = provenance(study, platform)
    cell = study.reading_cost_cell
    pair = {}
    for name in ("on", "off"):
        with running(start, model, study, platform, cell.gamma, statistics=name == "on") as engine:
            measured = run_cell(
                study, platform, engine, cell, 0, study.warmup, 3 * study.repetitions
            )
        pair[name] = cell_record("reading_cost", study, platform, 0, cell, source, measured)
    for name, measured in pair.items():
        record.write(
            layout.folder(results, "reading_cost", platform.name) / f"{name}.json", measured
        )
