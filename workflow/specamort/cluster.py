"""A cluster file: where each platform's jobs run, and how much they ask for."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from shlex import quote
from types import SimpleNamespace

import yaml

from . import slurm
from .errors import SpecamortError
from .study import Study, load_yaml, validator

USER_FILE = Path("~/.config/specamort.yaml")
_MARGIN = 1.5

_validate = validator("cluster")


@dataclass(frozen=True)
class Request:
    """One platform's allocation.

    Attributes:
        start_minutes: an engine start, generously.
        step_ms: a decode step at the largest batch, generously.
    """

    partition: str
    cpus: int
    mem_gb: float
    start_minutes: float
    step_ms: float
    gres: str | None = None
    qos: str | None = None
    constraint: str | None = None


@dataclass(frozen=True)
class ControllerRequest:
    """What the workflow's controller asks for: little, and long.

    Attributes:
        minutes: time limit; the controller requeues itself when it is over.
    """

    cpus: int
    mem_gb: float
    minutes: int
    partition: str | None = None
    qos: str | None = None
    gres: None = None


@dataclass(frozen=True)
class Cluster:
    """Attributes:
    modules: environment modules that every job loads.
    container: an Apptainer image that every job runs in, from `envs/gpu.def`.
    """

    name: str
    file: str
    controller: ControllerRequest
    platforms: dict[str, Request]
    modules: tuple[str, ...] = ()
    container: str | None = None

    def prefix(self, home: Path) -> str:
        """What the shell of a job runs before the command itself; `home` is the checkout."""
        load = f"module load {' '.join(map(quote, self.modules))}; " if self.modules else ""
        if not self.container:
            return load
        # the code is the checkout's, whatever the image was built from
        code = quote(f"PYTHONPATH={home}/workflow")
        inside = f"apptainer exec --nv --bind {quote(str(home))} --env {code}"
        return f"{load}{inside} {quote(self.container)} "


def read_cluster(path: str | Path, study: Study) -> Cluster:
    """Read a cluster file that serves every platform of `study`.

    Raises:
        SpecamortError: naming the file and the key at fault.
    """
    raw = load_yaml(path)
    _validate(raw, str(path))
    for name in study.platforms:
        if name not in raw["platforms"]:
            raise SpecamortError(
                f"{path}: platforms.{name}: is missing; {study.file} measures on it"
            )
    container = raw.get("container")
    if container and not Path(container).is_file():
        raise SpecamortError(
            f"{path}: container: {container} is not there; build it with "
            f"`apptainer build {container} envs/gpu.def`"
        )
    return Cluster(
        name=raw["name"],
        file=str(path),
        controller=ControllerRequest(**raw["controller"]),
        platforms={k: Request(**v) for k, v in raw["platforms"].items()},
        modules=tuple(raw.get("modules", ())),
        container=container,
    )


def block_minutes(study: Study, request: Request, rule: str = "measure") -> int:
    """What a job may take: every gamma's engine start and every repetition at full length.

    Tracing starts an engine more for each model; a self-check starts two and decodes little, and
    every job on a node with other software makes its own first.
    """
    if rule == "self_check":
        return ceil(_MARGIN * 2 * request.start_minutes)
    more_starts = 2 + (len(study.models) if rule == "trace" else 0)
    cells = len(study.workloads) * len(study.batches)
    tokens = sum(study.tokens_to_generate(g) for g in study.gammas)
    steps = cells * (study.warmup + study.repetitions) * tokens
    starts = len(study.gammas) + more_starts
    needed = starts * request.start_minutes + steps * request.step_ms / 60_000
    return ceil(_MARGIN * needed)


def requests(study: Study, cluster: Cluster | None, home: Path, rule: str) -> dict[str, Callable]:
    """Resources of a measuring rule, by name, as functions of its wildcards and attempt.

    Time and memory grow with each attempt. A job of the same block that an earlier controller
    left in the queue is waited for: what it measures, the new one finds done. Without a cluster
    file there are none.
    """
    if cluster is None:
        return {}
    account = user_setting("account")

    def ask(value: Callable[[Request], str | int], grows: bool = False) -> Callable:
        def resource(wildcards, attempt):
            wanted = value(cluster.platforms[wildcards.platform])
            return wanted * attempt if grows else wanted

        return resource

    def after_leftovers(wildcards) -> str:
        what = slurm.block_name(rule, *wildcards)
        left = [j.id for j in _leftovers(home, int(time.time() // 60)) if j.what == what]
        return f"--dependency=afterany:{':'.join(left)}" if left else ""

    named = {
        "slurm_account": ask(lambda _: account),
        "slurm_partition": ask(lambda r: r.partition),
        "gres": ask(lambda r: r.gres),
        "qos": ask(lambda r: r.qos),
        "constraint": ask(lambda r: r.constraint),
    }
    given = {
        k: v
        for k, v in named.items()
        if all(v(SimpleNamespace(platform=p), 1) is not None for p in study.platforms)
    }
    return given | {
        "slurm_extra": after_leftovers,
        "cpus_per_task": ask(lambda r: r.cpus),
        "mem_mb": ask(lambda r: ceil(1024 * r.mem_gb), grows=True),
        "runtime": ask(lambda r: block_minutes(study, r, rule), grows=True),
    }


@cache
def _leftovers(home: Path, minute: int) -> list[slurm.Job]:
    """The queue of this minute; none where there is no SLURM, as in a dry run on a laptop."""
    try:
        return slurm.live_jobs(home)
    except SpecamortError:
        return []


def user_setting(key: str) -> str | None:
    """`account` or `mail` from SPECAMORT_ACCOUNT or SPECAMORT_MAIL, else from the user's file."""
    if found := os.environ.get(f"SPECAMORT_{key.upper()}"):
        return found
    path = USER_FILE.expanduser()
    return (yaml.safe_load(path.read_text()) or {}).get(key) if path.is_file() else None
