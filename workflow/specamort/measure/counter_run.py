"""The study's separate counter run: acceptance of the speculative cells, untimed."""

from pathlib import Path

from ..records.block import Block
from ..study import layout
from ..study.grid import Platform, Study
from .engine import Engine
from .provenance import provenance
from .timing import StartEngine, cell_record, engines, run_cell


def counter_run(
    study: Study,
    platform: Platform,
    model: Path,
    results: Path,
    progress=None,
    start: StartEngine = Engine,
) -> None:
    """Counter runs: the speculative cells once per replicate's prompts, untimed."""
    block_dir = layout.folder(results, "counter_run", platform.name)
    wanted = {c: study.counter_settings(platform.name, c) for c in study.cells if c.gamma}
    with Block(block_dir, wanted, provenance(study, platform), progress) as block:
        for cell, engine in engines(study, platform, model, block.missing, start):
            runs = [
                run_cell(study, platform, engine, cell, r, 0, 1) for r in range(study.replicates)
            ]
            runs[0]["repetitions"] = [
                {**run["repetitions"][0], "index": i} for i, run in enumerate(runs)
            ]
            runs[0]["device_state"]["after"] = runs[-1]["device_state"]["after"]
            runs[0]["times"]["finished"] = runs[-1]["times"]["finished"]
            block.write(
                cell, cell_record("counter_run", study, platform, 0, cell, block.source, runs[0])
            )
