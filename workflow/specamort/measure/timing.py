"""The timing job: a block of cells, each a warm-up and some timed repetitions.

A block is one platform, one replicate, one device: all gammas one after the other in a recorded
random order. A job's visit to it measures gamma 0 first, then what the block lacks, then gamma 0
again, so that every cell has a baseline from its own device and its own hours.
"""

import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from ..records import record
from ..records.block import Block
from ..study import layout
from ..study.grid import Cell, Platform, Study
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
    order = [0, *random.Random(seed).sample(drafting, len(drafting)), 0]
    cells = sorted(study.cells, key=lambda c: order.index(c.gamma))
    bar = _progress(study, results, progress)
    wanted = {c: study.timing_settings(platform.name, c) for c in cells}
    with Block(block_dir, wanted, provenance(study, platform), progress) as block:
        identity = block.kept[0]["block"]["id"] if block.kept else uuid.uuid4().hex
        about = {"block": {"id": identity, "seed": seed, "gamma_order": order}}
        baselines = {_where(r["cell"]): r for r in block.kept if not r["cell"]["gamma"]}
        paired = {
            Cell(*_where(r["cell"]), r["cell"]["gamma"])
            for r in block.kept
            if r["cell"]["gamma"] and _paired(r, baselines.get(_where(r["cell"])))
        }
        lacking = [c for c in cells if c.gamma and c not in paired]
        base = [Cell(*w, 0) for w in dict.fromkeys((c.workload, c.batch) for c in lacking)]
        visit = uuid.uuid4().hex
        for when, part in (("first", base), (None, lacking), ("last", base)):
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
                    where = cell.workload, cell.batch
                    made = _baseline(made, visit, when, baselines.get(where)) | about
                    block.write(cell, made)
                    baselines[where] = made
                else:
                    block.write(cell, made | about)
                if when != "last" and cell in block.missing:
                    bar.update()
    bar.close()


def _where(cell: dict) -> tuple[str, int]:
    return cell["workload"], cell["batch"]


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
    workload = study.workloads[cell.workload]
    first = replicate * max(study.batches)
    which = study.timing_prompts(cell.workload)
    chosen = prompts(study, engine.tokenizer, which)[first : first + cell.batch]
    batch = [p.token_ids for p in chosen]
    started, before = now(), state(platform)
    runs = []
    for i in range(warmup + repetitions):
        seed = None
        if workload.sampling.get("temperature", 0) > 0:
            seed = study.seed + 1000 * (replicate * (warmup + repetitions) + i)
        run = engine.run(batch, study.tokens_to_generate(cell.gamma), workload.sampling, seed)
        if i != warmup:  # one copy of the text is enough to compare draft lengths
            del run["token_ids"]
        runs.append({"index": i, "warmup": i < warmup, "seed": seed, **run})
    return {
        "prompt": {
            "tokens": study.context_tokens,
            "sha256": [p.sha256 for p in chosen],
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
        "cell": {"platform": platform.name, "replicate": replicate, **asdict(cell)},
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
    """Each cell with an engine of its gamma; one start serves all cells of a gamma."""
    for gamma in dict.fromkeys(c.gamma for c in cells):
        with running(start, model, study, platform, gamma) as engine:
            yield from ((c, engine) for c in cells if c.gamma == gamma)


def _progress(study: Study, results: Path, stream) -> tqdm:
    """A bar over all timed cells of the study, so that its estimate is the study's."""
    wanted = [w.path for job in layout.jobs(study, results, "measure") for w in job.wanted]
    waiting = (p.parent / "partial" / p.name for p in wanted)
    done = sum(p.exists() or q.exists() for p, q in zip(wanted, waiting, strict=True))
    return tqdm(total=len(wanted), initial=done, unit="cell", file=stream, disable=stream is None)
