"""Before anything is queued: does this site have what the cluster file names?

Each check is a line, `pass` or `fix` with what to do. Runs on a login node, needs no GPU.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .cluster import Cluster, user_setting
from .engine import versions
from .errors import SpecamortError
from .models import model_dir
from .study import Study

_SHARED = {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "panfs", "wekafs", "fuse.glusterfs"}
_FREE_GB = 5


@dataclass(frozen=True)
class Check:
    what: str
    fix: str | None = None

    def __str__(self) -> str:
        return f"fix   {self.what}: {self.fix}" if self.fix else f"pass  {self.what}"


@dataclass(frozen=True)
class Site:
    """What SLURM says of itself: partition -> gres strings, account -> QOS of this user."""

    partitions: dict[str, set[str]]
    accounts: dict[str, set[str]]


def preflight(study: Study, cluster: Cluster, results: Path) -> list[Check]:
    """Every check, in the order a person would mend them."""
    try:
        site = read_site()
    except SpecamortError as e:
        slurm = [Check("SLURM", str(e))]
    else:
        slurm = [*check_site(study, cluster, site, user_setting("account"))]
    return [*slurm, *_here(study, results)]


def read_site() -> Site:
    """Ask sinfo and sacctmgr.

    Raises:
        SpecamortError: one of them is not here or does not answer.
    """
    partitions: dict[str, set[str]] = {}
    for line in _ask("sinfo", "-h", "-o", "%R|%G").splitlines():
        name, gres = line.split("|", 1)
        partitions.setdefault(name, set()).update(g.split("(")[0] for g in gres.split(","))
    accounts: dict[str, set[str]] = {}
    user = os.environ.get("USER") or os.environ.get("LOGNAME") or _ask("id", "-un").strip()
    listed = _ask("sacctmgr", "-nP", "show", "assoc", f"user={user}", "format=account,qos")
    for line in listed.splitlines():
        account, qos = line.split("|", 1)
        accounts.setdefault(account, set()).update(filter(None, qos.split(",")))
    return Site(partitions, accounts)


def check_site(study: Study, cluster: Cluster, site: Site, account: str | None) -> Iterator[Check]:
    """Account, partitions, GPUs and QOS against what the site has."""
    if account is None:
        yield Check("account", "put `account: YOURS` into ~/.config/specamort.yaml")
    elif account not in site.accounts:
        yours = ", ".join(sorted(site.accounts)) or "none"
        yield Check(f"account {account}", f"SLURM does not know it as yours; yours are: {yours}")
    else:
        yield Check(f"account {account}")
    for name in study.platforms:
        request, key = cluster.platforms[name], f"{cluster.file}: platforms.{name}"
        partition = f"{name}: partition {request.partition}"
        if request.partition not in site.partitions:
            has = ", ".join(sorted(site.partitions))
            yield Check(partition, f"not at this site, which has {has}; change {key}.partition")
            continue
        yield Check(partition)
        if request.gres:
            kind = request.gres.rsplit(":", 1)[0]
            has = site.partitions[request.partition]
            found = any(g == kind or g.startswith(f"{kind}:") for g in has)
            wrong = f"{request.partition} offers {', '.join(sorted(has))}; change {key}.gres"
            yield Check(f"{name}: gres {request.gres}", None if found else wrong)
        if request.qos:
            allowed = site.accounts.get(account or "", set())
            wrong = f"{account} may use {', '.join(sorted(allowed)) or 'none'}; change {key}.qos"
            good = not allowed or request.qos in allowed
            yield Check(f"{name}: QOS {request.qos}", None if good else wrong)


def _here(study: Study, results: Path) -> Iterator[Check]:
    try:
        yield Check(f"environment: {versions()['vllm']}")
    except SpecamortError as e:
        yield Check("environment", str(e))
    model = model_dir(study.model)
    missing = f"run `specamort model --study {study.file}` here, where there is a network"
    yield Check(f"model {model}", None if (model / "config.json").is_file() else missing)
    place = next(p for p in (results.resolve(), *results.resolve().parents) if p.exists())
    kind = _ask("stat", "-f", "-c", "%T", str(place)).strip()
    local = f"is on {kind}, which the nodes may not see; put the clone on a shared filesystem"
    yield Check(f"shared filesystem {place}", None if kind in _SHARED else local)
    free = shutil.disk_usage(place).free / 1e9
    full = f"{free:.1f} GB free; a study with its model wants {_FREE_GB} GB beside it"
    yield Check(f"disk: {free:.0f} GB free", None if free > _FREE_GB else full)


def _ask(*command: str) -> str:
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except FileNotFoundError as e:
        raise SpecamortError(f"{command[0]} is not here; run this on a login node") from e
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as e:
        said = (e.stderr or "no answer in 30 s").strip().splitlines()[-1:]
        raise SpecamortError(f"{command[0]} fails: {''.join(said)}") from e
    return run.stdout
