"""A cluster file: where each platform's jobs run, and how much they ask for."""

import os
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import yaml

from ..errors import SpecamortError
from ..study.grid import Study
from ..study.schema import validator
from ..study.yaml_file import load_yaml

USER_FILE = Path("~/.config/specamort.yaml")


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

    def prefix(self, checkout: Path) -> str:
        """What the shell of a job runs before the command itself; `checkout` is the checkout."""
        load = f"module load {' '.join(map(quote, self.modules))}; " if self.modules else ""
        if not self.container:
            return load
        # the code is the checkout's, whatever the image was built from
        code = quote(f"PYTHONPATH={checkout}/workflow")
        inside = f"apptainer exec --nv --bind {quote(str(checkout))} --env {code}"
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


def user_setting(key: str) -> str | None:
    """`account` or `mail` from SPECAMORT_ACCOUNT or SPECAMORT_MAIL, else from the user's file."""
    if found := os.environ.get(f"SPECAMORT_{key.upper()}"):
        return found
    path = USER_FILE.expanduser()
    return (
        (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get(key)
        if path.is_file()
        else None
    )
