"""The timing job: a block of cells, each a warm-up and some timed repetitions.

A block is one platform, one replicate, one device: all gammas one after the other in a recorded
random order, mode by mode. A job's visit to it measures a mode's gamma 0 first, then what the block
lacks, then gamma 0 again, so that every cell has a baseline from its own device and its own hours.
"""

import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from ..records import record
from ..records.block import Block
from ..study import layout
from ..study.grid import Cell, Platform, Study, told
from ..study.prompts import prompts
from .engine import Engine
from .provenance import now, provenance, state

StartEngine = Callable[..., Engine]


def measure_block(
    study: Study,
    platform: Platform,
    replicate: int,
    model: Path,
    results: Path,
    progress=None,
    start: StartEngine = Engine,
) -> None:
    """Measure what a block still lacks, one record per cell.

    Records of another device or of other settings are moved to `superseded/`, never overwritten;
    those of gamma 0 grow by the repetitions of each visit. A cell whose own visit's gamma 0 is gone
    is measured again. A visit that is killed before its last gamma 0 has its first.
    """
    block_dir = layout.folder(results, "measure", platform.name, replicate)
    seed = f"{study.seed}-{platform.name}-{replicate}"
    drafting = [g for g in study.gammas if g]
    shuffled = random.Random(seed)
    order = [0, *shuffled.sample(drafting, len(drafting)), 0]
    setups = list(dict.fromkeys(study.baselines.values()))
    setups = shuffled.sample(setups, len(setups))
    cells = sorted(study.cells, key=lambda c: order.index(c.gamma))
    bar = _progress(study, results, progress)
    wanted = {c: study.timing_settings(platform.name, c) for c in cells}
    with Block(block_dir, wanted, provenance(study, platform), progress) as block:
        identity = block.kept[0]["block"]["id"] if block.kept else uuid.uuid4().hex
        about = {"block": {"id": identity, "seed": seed, "gamma_order": order}}
        if len(setups) > 1:
            about["block"]["setup_order"] = setups
        kept = {_cell(r): r for r in block.kept}
        baselines = {c: r for c, r in kept.items() if not c.gamma}
        lacking = [
            c
            for c in cells
            if c.gamma and not (c in kept and _paired(kept[c], baselines.get(_base(study, c))))
        ]
        visit = uuid.uuid4().hex
        for when, part in _visit(study, setups, lacking):
            for cell, engine in engines(study, platform, model, part, start):
                bar.set_description(f"{platform.name} r{replicate} {cell}")
                measured = run_cell(
                    study, platform, engine, cell, replicate, study.warmup, study.repetitions
                )
                made = cell_record(
                    "timing", study, platform, replicate, cell, block.source, measured
                )
                for run in made["repetitions"]:
                    run |= {"visit": visit} | ({"when": when} if when else {})
                if when:
                    made = _baseline(made, visit, when, baselines.get(cell)) | about
                    block.write(cell, made)
                    baselines[cell] = made
                else:
                    block.write(cell, made | about)
                if when != "last" and cell in block.missing:
                    bar.update()
    bar.close()


def _visit(
    study: Study, setups: list[str], lacking: list[Cell]
) -> Iterator[tuple[str | None, list[Cell]]]:
    """A visit's parts in their order: gamma 0 first, what is lacking, gamma 0 last; by setup."""
    for setup in setups:
        own = [c for c in lacking if study.baselines[c.setup] == setup]
        base = list(dict.fromkeys(_base(study, c) for c in own))
        yield from (("first", base), (None, own), ("last", base))


def _base(study: Study, cell: Cell) -> Cell:
    return Cell(cell.workload, cell.batch, 0, study.baselines[cell.setup])


def _cell(r: dict) -> Cell:
    c = r["cell"]
    return Cell(c["workload"], c["batch"], c["gamma"], c.get("setup", ""))


def _paired(r: dict, baseline: dict | None) -> bool:
    """Whether a cell's own visit measured gamma 0 too."""
    visits = {v["visit"] for v in baseline["visits"]} if baseline else set()
    return r["repetitions"][0]["visit"] in visits


def _baseline(made: dict, visit: str, when: str, before: dict | None) -> dict:
    """A record of gamma 0 with what earlier visits, or this one at its start, measured."""
    runs, visits = (before[k] if before else [] for k in ("repetitions", "visits"))
    now = {k: made["provenance"][k] for k in ("started", "finished")}
    now |= {"visit": visit, "when": when, "device_state": made.pop("device_state")}
    later = [r | {"index": len(runs) + r["index"]} for r in made["repetitions"]]
    return made | {"repetitions": runs + later, "visits": [*visits, now]}


def run_cell(
    study: Study,
    platform: Platform,
    engine: Engine,
    cell: Cell,
    replicate: int,
    warmup: int,
    repetitions: int,
) -> dict:
    study = study.at(cell.setup)
    workload = study.workloads[cell.workload]
    first = replicate * max(study.batches)
    which = study.timing_prompts(cell.workload)
    chosen = prompts(study, engine.tokenizer, which)[first : first + cell.batch]
    batch = [p.token_ids for p in chosen]
    ragged = {}
    if workload.kind == "file":
        ragged["lengths"] = [len(p.token_ids) for p in chosen]
        ragged["categories"] = [p.category for p in chosen]
    started, before = now(), state(platform)
    runs = []
    for i in range(warmup + repetitions):
        seed = None
        if workload.sampling.get("temperature", 0) > 0:
            seed = study.seed + 1000 * (replicate * (warmup + repetitions) + i)
        engine.time_drafts = i == warmup - 1 and cell.gamma > 0
        run = engine.run(batch, study.tokens_to_generate(cell.gamma), workload.sampling, seed)
        if i != warmup:  # one copy of the text is enough to compare draft lengths
            del run["token_ids"]
        runs.append({"index": i, "warmup": i < warmup, "seed": seed, **run})
    return {
        "prompt": {
            "tokens": study.context_tokens,
            "sha256": [p.sha256 for p in chosen],
            **ragged,
        },
        "engine": engine.used,
        "device_state": {"before": before, "after": state(platform)},
        "repetitions": runs,
        "times": {"started": started, "finished": now()},
    }


def cell_record(
    kind: str,
    study: Study,
    platform: Platform,
    replicate: int,
    cell: Cell,
    source: dict,
    measured: dict,
) -> dict:
    wanted = study.counter_settings if kind == "counter_run" else study.timing_settings
    settings = wanted(platform.name, cell)
    return record.envelope(study, kind, settings, source | measured.pop("times")) | {
        "cell": {"platform": platform.name, "replicate": replicate, **told(cell)},
        **measured,
    }


@contextmanager
def running(start: StartEngine, *args, **options) -> Iterator[Engine]:
    engine = start(*args, **options)
    try:
        yield engine
    finally:
        engine.close()


def engines(
    study: Study, platform: Platform, model: Path, cells: list[Cell], start: StartEngine
) -> Iterator[tuple[Cell, Engine]]:
    """Each cell with an engine of its setup and gamma; one start serves all cells of both."""
    for setup, gamma in dict.fromkeys((c.setup, c.gamma) for c in cells):
        with running(start, model, study.at(setup), platform, gamma) as engine:
            yield from ((c, engine) for c in cells if (c.setup, c.gamma) == (setup, gamma))


def _progress(study: Study, results: Path, stream) -> tqdm:
    """A bar over all timed cells of the study, so that its estimate is the study's."""
    wanted = [w.path for job in layout.jobs(study, results, "measure") for w in job.wanted]
    waiting = (p.parent / "partial" / p.name for p in wanted)
    done = sum(p.exists() or q.exists() for p, q in zip(wanted, waiting, strict=True))
    return tqdm(total=len(wanted), initial=done, unit="cell", file=stream, disable=stream is None)
