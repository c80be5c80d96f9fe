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
from hashlib import sha256
from pathlib import Path
from typing import Any

from tqdm import tqdm

from . import record
from .engine import Engine
from .errors import SpecamortError
from .gpu import marks
from .provenance import SOFTWARE, now, provenance, state
from .study import Cell, Platform, Study, digest
from .workloads import prompts

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

    Records of another device or of other settings are moved to `superseded/`, never overwritten.
    """
    home = block_dir(results, platform.name, replicate)
    seed = f"{study.seed}-{platform.name}-{replicate}"
    order = random.Random(seed).sample(study.gammas, len(study.gammas))
    cells = [c for g in order for c in study.cells if c.gamma == g]
    bar = _progress(study, results, progress)
    with Block(home, study, platform, cells, study.settings, progress) as block:
        identity = block.kept[0]["block"]["id"] if block.kept else uuid.uuid4().hex
        about = {"block": {"id": identity, "seed": seed, "gamma_order": order}}
        for cell, engine in _engines(study, platform, model, block.missing, start):
            bar.set_description(f"{platform.name} r{replicate} {cell}")
            measured = _cell(
                study, platform, engine, cell, replicate, study.warmup, study.repetitions
            )
            block.write(
                cell,
                _record("timing", study, platform, replicate, cell, block.source, measured) | about,
            )
            bar.update()
    bar.close()


def count(
    study: Study,
    platform: Platform,
    model: Path,
    results: Path,
    progress=None,
    start: StartEngine = Engine,
) -> None:
    """Counter runs: the speculative cells once per replicate's prompts, untimed."""
    home = results / "raw" / "counter" / platform.name
    cells = [c for c in study.cells if c.gamma]
    with Block(home, study, platform, cells, study.counter_settings, progress) as block:
        for cell, engine in _engines(study, platform, model, block.missing, start):
            runs = [_cell(study, platform, engine, cell, r, 0, 1) for r in range(study.replicates)]
            runs[0]["repetitions"] = [
                {**run["repetitions"][0], "index": i} for i, run in enumerate(runs)
            ]
            block.write(cell, _record("counter", study, platform, 0, cell, block.source, runs[0]))


def overhead(
    study: Study, platform: Platform, model: Path, results: Path, start: StartEngine = Engine
) -> None:
    """The largest gamma's first cell with the engine's statistics on, then off."""
    source = provenance(study, platform)
    cell = study.reading_cost_cell
    pair = {}
    for name in ("on", "off"):
        with _running(start, model, study, platform, cell.gamma, statistics=name == "on") as engine:
            measured = _cell(study, platform, engine, cell, 0, study.warmup, 3 * study.repetitions)
        pair[name] = _record("overhead", study, platform, 0, cell, source, measured)
    for name, one in pair.items():
        record.write(results / "raw" / "overhead" / platform.name / f"{name}.json", one)


def set_marked_aside(results: Path) -> list[Path]:
    """Move records of throttled or shared cells aside, so that they are measured again."""
    raw = results / "raw"
    moved = []
    for path in sorted(raw.rglob("*.json")):
        if path.is_relative_to(raw / "superseded"):
            continue
        if marks(record.read(path).get("device_state")):
            record.set_aside(path)
            moved.append(path)
    return moved


class Block:
    """Records that must come from one device, in one directory: kept, missing, written.

    While a block is not whole its records wait in `partial/`: the workflow never sees half a
    block, and a killed job loses only the cell under way. The latest job to open a block owns
    it; an earlier one that is still alive (requeued by SLURM while its node did not answer, or
    submitted by a controller that is gone) finds that out before it writes, and stops.
    """

    def __init__(
        self,
        home: Path,
        study: Study,
        platform: Platform,
        cells: list,
        settings: Callable[[str, Any], dict],
        progress,
    ):
        self._home, self._partial = home, home / "partial"
        self._claim = self._partial / "claim"
        self.source = provenance(study, platform)
        wanted = {c: digest(settings(platform.name, c)) for c in cells}
        kept, moved = _keep(home, wanted, self.source)
        for path, why in moved:
            print(f"specamort: {path}: {why}; kept in raw/superseded", file=progress)
        self.kept = list(kept.values())
        self.missing = [c for c in cells if c not in kept]

    def __enter__(self) -> "Block":
        self._owner = f"job {self.source['job_id']} on {self.source['host']}, {uuid.uuid4().hex}"
        record.write_text(self._claim, self._owner)
        for path in self._home.glob("*-g*.json"):
            path.replace(self._partial / path.name)
        return self

    def write(self, cell: Cell, one: dict) -> None:
        self._still_ours()
        record.write(self._partial / f"{cell}.json", one)

    def __exit__(self, failed, *_) -> None:
        if failed:
            return
        self._still_ours()
        for path in self._partial.glob("*-g*.json"):
            path.replace(self._home / path.name)
        shutil.rmtree(self._partial)  # a killed write may have left its beginning there

    def _still_ours(self) -> None:
        owner = self._claim.read_text() if self._claim.exists() else "a job that finished it"
        if owner != self._owner:
            raise SpecamortError(
                f"{self._home}: is now measured by {owner.split(',')[0]}; this job stops, "
                "what it measured is kept"
            )


def _cell(
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
            "sha256": [sha256(repr(p).encode()).hexdigest() for p in batch],
        },
        "engine": engine.used,
        "device_state": {"before": before, "after": state(platform)},
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
    wanted = study.counter_settings if kind == "counter" else study.settings
    settings = wanted(platform.name, cell)
    return {
        "kind": kind,
        "origin": study.origin,
        "study": study.name,
        "cell": {"platform": platform.name, "replicate": replicate, **asdict(cell)},
        "settings": settings,
        "settings_hash": digest(settings),
        "provenance": source | measured.pop("times"),
        **measured,
    }


@contextmanager
def _running(start: StartEngine, *args, **options) -> Iterator[Engine]:
    engine = start(*args, **options)
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
    home: Path, wanted: dict[Any, str], source: dict
) -> tuple[dict[Any, dict], list[tuple[Path, str]]]:
    """The block's records that still hold, and the paths of those moved aside, with the reason.

    Args:
        wanted: the settings' hash of every cell.
        source: provenance of the job that opens the block; its device and software must be theirs.
    """
    kept: dict[Any, tuple[Path, dict]] = {}
    stale = []
    for cell, expected in wanted.items():
        for path in _places(home, cell):
            try:
                found = record.read(path)
            except SpecamortError as e:
                stale.append((path, str(e)))
                continue
            if cell in kept and found == kept[cell][1]:
                path.unlink()  # Snakemake restores what a failed job was to update
            elif found["settings_hash"] != expected:
                stale.append((path, "measured with other settings"))
            elif cell in kept:
                stale.append((path, "there is another record of this cell"))
            else:
                kept[cell] = path, found
    reasons = (_moved_on(found["provenance"], source) for _, found in kept.values())
    if why := next(filter(None, reasons), None):
        stale += [(path, why) for path, _ in kept.values()]
        kept = {}
    for path, _ in stale:
        record.set_aside(path)
    return {cell: found for cell, (_, found) in kept.items()}, stale


def _moved_on(then: dict, now: dict) -> str | None:
    """Why records of then cannot share a block with measurements of now."""
    if then["device"]["uuid"] != now["device"]["uuid"]:
        return "the block moved to another device and is measured anew"
    changed = [f"{k} {then[k]} is now {now[k]}" for k in SOFTWARE if then[k] != now[k]]
    return f"{', '.join(changed)}: the block is measured anew" if changed else None


def _places(home: Path, cell: Any) -> list[Path]:
    """Where the cell's record is: in its place, or waiting for the rest of its block."""
    name = f"{cell}.json"
    return [p for p in (home / name, home / "partial" / name) if p.exists()]


def _timing_paths(results: Path) -> list[Path]:
    """Every timing record, in its place or in `partial/`."""
    return sorted((results / "raw" / "timing").glob("*/r*/**/*-g*.json"))


def _progress(study: Study, results: Path, stream) -> tqdm:
    """A bar over all timed cells of the study, so that its estimate is the study's."""
    done = len(_timing_paths(results))
    total = len(study.platforms) * study.replicates * len(study.cells)
    return tqdm(
        total=total, initial=min(done, total), unit="cell", file=stream, disable=stream is None
    )
