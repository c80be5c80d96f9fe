"""Where a record comes from: code, engine, device, host and job."""

import hmac
import os
import platform as machine
import subprocess
import time
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.metadata import distributions, version
from pathlib import Path

from .. import files
from ..errors import SpecamortError
from ..records.software import versions
from ..study import tracer
from ..study.grid import Platform, Study
from ..study.settings import digest
from . import gpu

_MEASURING = ("study", "records", "model", "measure")


_BEGAN = datetime.now(UTC), time.monotonic()


def now() -> str:
    """The time, which does not step back in a job when its machine's clock does."""
    at, then = _BEGAN
    return (at + timedelta(seconds=time.monotonic() - then)).isoformat(timespec="seconds")


def provenance(study: Study, platform: Platform) -> dict:
    """All that a record says of its origin but the times; see the record schema."""
    return {
        "config_hash": digest(Path(study.file).read_text(encoding="utf-8")),
        "code_version": _code_version(),
        "code_hash": _code_hash(),
        "packages": _packages(),
        "nsys": _nsys() if study.tracing.tracer == "nsys" else None,
        **versions(),
        "cuda": _torch_cuda(),
        "python": machine.python_version(),
        "host": _anonymous(machine.node()),
        "job_id": os.environ.get("SLURM_JOB_ID"),
        "job_started": now(),
        **(_cpu() if platform.device == "cpu" else gpu.inspect(platform.gpu)),
    }


def state(platform: Platform) -> dict:
    """The device's state now, for before and after a cell."""
    if platform.device == "cuda":
        return gpu.reading()
    from . import cpu

    return cpu.reading()


@cache
def _code_hash() -> str:
    """Of the code that measures, as it runs: other edits, and commits, change no measurement."""
    package = Path(__file__).parent.parent
    files = sorted(p for part in _MEASURING for p in (package / part).rglob("*.py"))
    return digest([[str(p.relative_to(package)), p.read_text(encoding="utf-8")] for p in files])


def _torch_cuda() -> str | None:
    """The CUDA that torch was built for; null for a CPU build."""
    import torch

    return torch.version.cuda


@cache
def _packages() -> str:
    """Hash of every installed distribution and its version."""
    return digest(sorted(f"{d.name}=={d.version}" for d in distributions()))


def _nsys() -> str | None:
    try:
        return tracer.require_version()
    except SpecamortError:
        return None


def _code_version() -> str:
    here = Path(__file__).parent
    git = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(
            git, capture_output=True, encoding="utf-8", errors="replace", check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return version("specamort")
    return f"{version('specamort')}+{found}"


def _machine_id() -> str:
    try:
        return files.read_text(Path("/etc/machine-id")).strip()
    except SpecamortError:
        return ""


def _anonymous(name: str) -> str:
    """A name that is the same in every record of a machine, and tells nobody which machine it is.

    Keyed, since names of hosts can be guessed; machine-id(5) asks for the same.
    """
    return hmac.new(_machine_id().encode(), name.encode(), "sha256").hexdigest()[:16]


def _cpu() -> dict:
    import cpuinfo
    import psutil

    frequency = psutil.cpu_freq()
    return {
        "device": {
            "name": cpuinfo.get_cpu_info().get("brand_raw", machine.processor()),
            "uuid": _anonymous(_machine_id() or machine.node()),
        },
        "driver": f"{machine.system()} {machine.release()}",
        "clocks_mhz": {"cpu": frequency.current} if frequency else {},
    }
