"""The measuring jobs: timed blocks, counter runs, and what reading the counters costs.

A block is one platform, one replicate, one device: all gammas one after the other in a recorded
random order, so that every cell has a baseline from its own device and its own hour.
"""

import random
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from tqdm import tqdm

from . import record
from .engine import Engine
from .errors import SpecamortError
from .provenance import now, provenance
from .study import Cell, Platform, Study, digest
from .workloads import prompt

StartEngine = Callable[..., Engine]


def block_dir(results: Path, platform: str, replicate: int) -> Path:
    return results / "raw" / "timing" / platform / f"r{replicate}"


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

    A finished cell goes to `partial/` at once and to its place when the block is whole, so that
    the workflow never sees half a block and a killed job loses only the cell under way. Records
    of another device or of other settings are moved to `superseded/`, never overwritten.
    """
    home = block_dir(results, platform.name, replicate)
    partial = home / "partial"
    source = provenance(study, platform)
    kept, moved = _keep(study, platform, home, source["device"]["uuid"])
    for path in moved:
        print(f"specamort: {path}: no longer holds, kept in raw/superseded", file=progress)
    seed = f"{study.seed}-{platform.name}-{replicate}"
    order = random.Random(seed).sample(study.gammas, len(study.gammas))
    block = {
        "id": next((r["block"]["id"] for r in kept.values()), uuid.uuid4().hex),
        "seed": seed,
        "gamma_order": order,
    }
    missing = [c for g in order for c in study.cells if c.gamma == g and c not in kept]
    bar = _progress(study, results, progress)
    for cell, engine in _engines(study, platform, model, missing, start):
        bar.set_description(f"{platform.name} r{replicate} {cell}")
        measured = _cell(study, engine, cell, replicate, study.warmup, study.repetitions)
        record.write(
            partial / f"{cell}.json",
            _record("timing", study, platform, replicate, cell, source, measured)
            | {"block": block},
        )
        bar.update()
    bar.close()
    for cell in study.cells:
        if (partial / f"{cell}.json").exists():
            (partial / f"{cell}.json").replace(home / f"{cell}.json")
    shutil.rmtree(partial, ignore_errors=True)  # a killed write may have left its beginning there


def count(
    study: Study, platform: Platform, model: Path, results: Path, start: StartEngine = Engine
) -> None:
    """Counter runs: the speculative cells once per replicate's prompts, untimed."""
    source = provenance(study, platform)
    cells = [c for c in study.cells if c.gamma]
    for cell, engine in _engines(study, platform, model, cells, start):
        runs = [_cell(study, engine, cell, r, 0, 1) for r in range(study.replicates)]
        runs[0]["repetitions"] = [
            {**run["repetitions"][0], "index": i} for i, run in enumerate(runs)
        ]
        record.write(
            results / "raw" / "counter" / platform.name / f"{cell}.json",
            _record("counter", study, platform, 0, cell, source, runs[0]),
        )


def overhead(
    study: Study, platform: Platform, model: Path, results: Path, start: StartEngine = Engine
) -> None:
    """The largest gamma's first cell with the engine's statistics on, then off."""
    source = provenance(study, platform)
    cell = Cell(next(iter(study.workloads)), min(study.batches), max(study.gammas))
    for name in ("on", "off"):
        engine = start(model, study, platform, cell.gamma, statistics=name == "on")
        measured = _cell(study, engine, cell, 0, study.warmup, 3 * study.repetitions)
        engine.close()
        record.write(
            results / "raw" / "overhead" / platform.name / f"{name}.json",
            _record("overhead", study, platform, 0, cell, source, measured),
        )


def _cell(
    study: Study, engine: Engine, cell: Cell, replicate: int, warmup: int, repetitions: int
) -> dict:
    workload = study.workloads[cell.workload]
    first = replicate * max(study.batches)
    prompts = [
        prompt(engine.tokenizer, workload, first + i, study.context_tokens)
        for i in range(cell.batch)
    ]
    started = now()
    runs = []
    for i in range(warmup + repetitions):
        seed = None
        if workload.sampling.get("temperature", 0) > 0:
            seed = study.seed + 1000 * (replicate * (warmup + repetitions) + i)
        run = engine.run(prompts, study.tokens_to_generate(cell.gamma), workload.sampling, seed)
        if i != warmup:  # one copy of the text is enough to compare draft lengths
            del run["token_ids"]
        runs.append({"index": i, "warmup": i < warmup, "seed": seed, **run})
    return {
        "prompt": {
            "tokens": study.context_tokens,
            "sha256": [sha256(repr(p).encode()).hexdigest() for p in prompts],
        },
        "repetitions": runs,
        "times": {"started": started, "finished": now()},
    }


def _record(
    kind: str,
    study: Study,
    platform: Platform,
    replicate: int,
    cell: Cell,
    source: dict,
    measured: dict,
) -> dict:
    settings = study.settings(platform.name, cell)
    return {
        "kind": kind,
        "origin": "measured",
        "study": study.name,
        "cell": {"platform": platform.name, "replicate": replicate, **asdict(cell)},
        "settings": settings,
        "settings_hash": digest(settings),
        "provenance": source | measured.pop("times"),
        **measured,
    }


@contextmanager
def _running(start: StartEngine, *args) -> Iterator[Engine]:
    engine = start(*args)
    try:
        yield engine
    finally:
        engine.close()


def _engines(
    study: Study, platform: Platform, model: Path, cells: list[Cell], start: StartEngine
) -> Iterator[tuple[Cell, Engine]]:
    """Each cell with an engine of its gamma; one start serves all cells of a gamma."""
    for gamma in dict.fromkeys(c.gamma for c in cells):
        with _running(start, model, study, platform, gamma) as engine:
            yield from ((c, engine) for c in cells if c.gamma == gamma)


def _keep(
    study: Study, platform: Platform, home: Path, device: str
) -> tuple[dict[Cell, dict], list[Path]]:
    """The block's records that still hold, and the paths of those moved aside."""
    kept, stale = {}, []
    for cell in study.cells:
        expected = digest(study.settings(platform.name, cell))
        for path in _places(home, cell):
            try:
                found = record.read(path)
            except SpecamortError:
                found = None
            if found and found["settings_hash"] == expected:
                kept[cell] = found
            else:
                stale.append(path)
    if any(r["provenance"]["device"]["uuid"] != device for r in kept.values()):
        stale += [path for cell in kept for path in _places(home, cell)]
        kept = {}
    for path in stale:
        _set_aside(path)
    return kept, stale


def _places(home: Path, cell: Cell) -> list[Path]:
    """Where the cell's record is: in its place, or waiting for the rest of its block."""
    name = f"{cell}.json"
    return [p for p in (home / name, home / "partial" / name) if p.exists()]


def _set_aside(path: Path) -> None:
    raw = next(p for p in path.parents if p.name == "raw")
    when = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    target = raw / "superseded" / when / path.relative_to(raw)
    target.parent.mkdir(parents=True)
    path.replace(target)


def _progress(study: Study, results: Path, stream) -> tqdm:
    """A bar over all timed cells of the study, so that its estimate is the study's."""
    timing = results / "raw" / "timing"
    done = sum(1 for _ in timing.glob("*/r*/**/*-g*.json"))
    total = len(study.platforms) * study.replicates * len(study.cells)
    return tqdm(
        total=total, initial=min(done, total), unit="cell", file=stream, disable=stream is None
    )
