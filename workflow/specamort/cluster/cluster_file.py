"""A cluster file: where each platform's jobs run, and how much they ask for."""

import os
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from ..errors import SpecamortError
from ..study.grid import Study
from ..study.schema import validator
from ..study.yaml_file import load_yaml

STRICT = "set -euo pipefail; "  # Snakemake's own, which a prefix takes the place of
USER_FILE = Path("~/.config/specamort.yaml")


_validate, _validate_user = validator("cluster"), validator("user")


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
        load = f"module load {' '.join(map(quote, self.modules))} || exit; " if self.modules else ""
        load += STRICT  # after modules, whose scripts use what is not set
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
    path = str(path)  # Snakemake's `--config cluster=7` is a number
    raw = load_yaml(path)
    _validate(raw, path)
    for name in study.platforms:
        if name not in raw["platforms"]:
            raise SpecamortError(
                f"{path}: platforms.{name}: is missing; {study.file} measures on it"
            )
    for key in ("gres", "qos", "constraint"):
        without = [name for name in study.platforms if key not in raw["platforms"][name]]
        if 0 < len(without) < len(study.platforms):
            raise SpecamortError(
                f"{path}: platforms.{without[0]}.{key}: is missing; give it for every platform or "
                "for none"
            )
    container = raw.get("container")
    if container is not None and not os.path.isfile(container):
        raise SpecamortError(
            f"{path}: container: {container} is no image that is there; build it with "
            f"`apptainer build {quote(container)} envs/gpu.def`"
        )
    return Cluster(
        name=raw["name"],
        file=path,
        controller=ControllerRequest(**raw["controller"]),
        platforms={k: Request(**v) for k, v in raw["platforms"].items()},
        modules=tuple(raw.get("modules", ())),
        container=container,
    )


def user_setting(key: str) -> str | None:
    """`account` or `mail` from SPECAMORT_ACCOUNT or SPECAMORT_MAIL, else from the user's file.

    Raises:
        SpecamortError: what is said there cannot be one.
    """
    variable = f"SPECAMORT_{key.upper()}"
    if found := os.environ.get(variable):
        _validate_user({key: found}, f"the environment's {variable}")
        return found
    path = os.path.expanduser(USER_FILE)
    if not os.path.lexists(path):
        return None
    found = load_yaml(path)
    own: dict[str, str] = {} if found is None else found
    _validate_user(own, path)
    return own.get(key)
