"""Every job of a study and every record it writes: rule, wildcards, place, settings, said once.

Rules, writers, tables and status read it; a path or a job's name is written nowhere else.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .grid import Study
from .settings import Settings

RESULTS = Path("results")


@dataclass(frozen=True)
class JobKind:
    """A measuring rule.

    Attributes:
        rule: its name in the workflow.
        kind: of the records it writes.
        folder: of its records below `raw/`, with wildcards.
        wildcards: in the order in which the executor names a job by them.
        platforms: names of those it runs on.
        cells: what it writes a record for; a record's name is the cell's.
        settings: all that a record of a platform's cell depends on.
    """

    rule: str
    kind: str
    folder: str
    platforms: Callable[[Study], Iterable[str]]
    cells: Callable[[Study], Iterable[Any]]
    settings: Callable[[Study, str, Any], Settings]
    wildcards: tuple[str, ...] = ("study", "platform")


def _every_platform(study: Study) -> Iterable[str]:
    return study.platforms


def _calibration(study: Study) -> Iterable[str]:
    return [study.calibration.name]


KINDS = {
    k.rule: k
    for k in (
        JobKind(
            rule="self_check",
            kind="self_check",
            folder="self_check/{platform}",
            platforms=lambda s: s.self_checked,
            cells=lambda s: ["passed"],
            settings=lambda s, p, c: s.self_check_settings(p),
        ),
        JobKind(
            rule="measure",
            kind="timing",
            folder="timing/{platform}/r{replicate}",
            platforms=_every_platform,
            cells=lambda s: s.cells,
            settings=lambda s, p, c: s.timing_settings(p, c),
            wildcards=("study", "platform", "replicate"),
        ),
        JobKind(
            rule="microbench",
            kind="microbenchmark",
            folder="microbenchmark/{platform}",
            platforms=_every_platform,
            cells=lambda s: s.benched,
            settings=lambda s, p, c: s.microbench_settings(p, c),
        ),
        JobKind(
            rule="trace",
            kind="trace",
            folder="trace/{platform}",
            platforms=_every_platform,
            cells=lambda s: s.trace_cells,
            settings=lambda s, p, c: s.trace_settings(p, c),
        ),
        JobKind(
            rule="counter_run",
            kind="counter_run",
            folder="counter_run/{platform}",
            platforms=_calibration,
            cells=lambda s: [c for c in s.cells if c.gamma],
            settings=lambda s, p, c: s.counter_settings(p, c),
        ),
        JobKind(
            rule="reading_cost",
            kind="reading_cost",
            folder="reading_cost/{platform}",
            platforms=_calibration,
            cells=lambda s: ["on", "off"],
            settings=lambda s, p, c: s.timing_settings(p, s.reading_cost_cell),
        ),
        JobKind(
            rule="dial",
            kind="dial",
            folder="dial/{platform}",
            platforms=lambda s: s.platforms if s.dial_cells else [],
            cells=lambda s: s.dial_cells,
            settings=lambda s, p, c: s.dial_settings(p, c),
        ),
    )
}


@dataclass(frozen=True)
class Wanted:
    """A record that a study needs.

    Attributes:
        replicate: of a cell's record; 0 where the job has none.
        statistics: whether the engine's were on.
    """

    path: Path
    kind: str
    settings: Settings
    replicate: int = 0
    statistics: bool = True

    @property
    def places(self) -> tuple[Path, Path]:
        return places(self.path)


@dataclass(frozen=True)
class Job:
    """One job of the workflow. `name` is what a person calls it."""

    kind: JobKind
    platform: str
    replicate: int | None
    wanted: tuple[Wanted, ...]

    @property
    def name(self) -> str:
        if self.replicate is None:
            return f"{self.platform} {self.kind.rule.replace('_', ' ')}"
        return f"{self.platform} r{self.replicate}"


def places(path: Path) -> tuple[Path, Path]:
    """Where a record may be: in its place, or waiting for the rest of its block."""
    return path, path.parent / "partial" / path.name


def outputs(study: Study, rule: str) -> list[str]:
    """The rule's records as paths with its wildcards."""
    kind = KINDS[rule]
    folder = f"{RESULTS}/{{study}}/raw/{kind.folder}"
    return [f"{folder}/{cell}.json" for cell in kind.cells(study)]


def folder(results: Path, rule: str, platform: str, replicate: int | None = None) -> Path:
    """Where a job's records lie."""
    return results / "raw" / KINDS[rule].folder.format(platform=platform, replicate=replicate)


def jobs(study: Study, results: Path | None = None, rule: str | None = None) -> list[Job]:
    """Every measuring job, or those of a rule, in the order a person expects.

    Args:
        results: where the records lie, if not in the study's own folder.
    """
    found = []
    for kind in KINDS.values() if rule is None else [KINDS[rule]]:
        replicates = range(study.replicates) if "replicate" in kind.wildcards else [None]
        found += [
            _job(study, results or study.results, kind, p, r)
            for p in kind.platforms(study)
            for r in replicates
        ]
    return found


def job_name(rule: str, study: str, platform: str, replicate: int | None = None) -> str:
    """A job's comment in SLURM's queue, as the executor writes it."""
    wildcards = [study, platform] + ([] if replicate is None else [str(replicate)])
    return f"rule_{rule}_wildcards_{'_'.join(wildcards)}"


def _job(study: Study, results: Path, kind: JobKind, platform: str, replicate: int | None) -> Job:
    where = folder(results, kind.rule, platform, replicate)
    wanted = tuple(
        Wanted(
            where / f"{c}.json",
            kind.kind,
            kind.settings(study, platform, c),
            replicate=replicate or 0,
            statistics=c != "off",
        )
        for c in kind.cells(study)
    )
    return Job(kind, platform, replicate, wanted)
