"""A cluster file: where each platform's jobs run, and how much they ask for."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import SimpleNamespace

import yaml

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
class Cluster:
    name: str
    file: str
    platforms: dict[str, Request]


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
    return Cluster(raw["name"], str(path), {k: Request(**v) for k, v in raw["platforms"].items()})


def block_minutes(study: Study, request: Request) -> int:
    """What a block may take: every gamma's engine start and every repetition at full length."""
    cells = len(study.workloads) * len(study.batches)
    tokens = sum(study.tokens_to_generate(g) for g in study.gammas)
    steps = cells * (study.warmup + study.repetitions) * tokens
    needed = len(study.gammas) * request.start_minutes + steps * request.step_ms / 60_000
    return ceil(_MARGIN * needed)


def requests(study: Study, cluster: Cluster) -> dict[str, Callable]:
    """Resources of a measuring rule, by name, as functions of its platform and attempt.

    Time and memory grow with each attempt.
    """
    account = user_setting("account")

    def ask(value: Callable[[Request], str | int], grows: bool = False) -> Callable:
        def resource(wildcards, attempt):
            wanted = value(cluster.platforms[wildcards.platform])
            return wanted * attempt if grows else wanted

        return resource

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
        "mem_mb": ask(lambda r: ceil(1024 * r.mem_gb), grows=True),
        "runtime": ask(lambda r: block_minutes(study, r), grows=True),
    }


def user_setting(key: str) -> str | None:
    """`account` or `mail` from SPECAMORT_ACCOUNT or SPECAMORT_MAIL, else from the user's file."""
    if found := os.environ.get(f"SPECAMORT_{key.upper()}"):
        return found
    path = USER_FILE.expanduser()
    return (yaml.safe_load(path.read_text()) or {}).get(key) if path.is_file() else None


def require_account() -> str:
    """The user's SLURM account.

    Raises:
        SpecamortError: there is none; says where to put it.
    """
    if account := user_setting("account"):
        return account
    raise SpecamortError(
        f"no SLURM account: put `account: YOUR-ACCOUNT` into {USER_FILE} or set SPECAMORT_ACCOUNT "
        "(`sacctmgr show associations user=$USER` lists yours); nothing was submitted"
    )
