"""Before anything is queued: does this site have what the cluster file names?

Each check is a line, `pass` or `fix` with what to do. Runs on a login node, needs no GPU.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ..checks import Check
from ..errors import SpecamortError
from ..files import run_command
from ..records.software import versions
from ..study import tracer
from ..study.grid import Study
from ..study.layout import jobs
from ..study.model_files import is_there, model_dir
from ..study.prompt_check import check_prompts
from .cluster_file import USER_FILE, Cluster, ControllerRequest, Request, user_setting
from .resources import block_minutes, memory_mb
from .slurm import Limit, Site, is_here, read_site

_SHARED = {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "panfs", "wekafs", "fuse.glusterfs"}
_SPACE_GB = 20
_PAUSE_S = 20


def preflight(study: Study, cluster: Cluster, results: Path) -> list[Check]:
    """Every check, in the order a person would mend them."""
    try:
        site = read_site()
    except SpecamortError as e:
        slurm = [Check("SLURM", str(e))]
    else:
        slurm = [*check_site(study, cluster, site, user_setting("account"))]
    return [*slurm, *_here(study, results), *_tracer(study, cluster)]


def require_site(study: Study, cluster: Cluster, patience_s: float = 0) -> None:
    """Nothing is submitted to a site that does not have what the cluster file names.

    Args:
        patience_s: how long to ask again while SLURM is here and does not answer.

    Raises:
        SpecamortError: what is wrong, each with its mending.
    """
    end = time.monotonic() + patience_s
    while True:
        try:
            site = read_site()
            break
        except SpecamortError as e:
            if time.monotonic() >= end or not is_here():
                raise
            print(f"specamort: {e}; waiting until SLURM answers", flush=True)
            time.sleep(_PAUSE_S)
    checks = check_site(study, cluster, site, user_setting("account"))
    if wrong := [f"{c.what}: {c.fix}" for c in checks if c.fix]:
        raise SpecamortError("; ".join(wrong) + "; nothing was submitted")


def check_site(study: Study, cluster: Cluster, site: Site, account: str | None) -> Iterator[Check]:
    """Account, partitions, GPUs and QOS against what the site has."""
    yours = ", ".join(sorted(site.accounts or [])) or "none"
    if account is None:
        yield Check(
            "no SLURM account",
            f"put `account: YOURS` into {USER_FILE} or set SPECAMORT_ACCOUNT (yours are: {yours})",
        )
    elif not site.accounts:
        yield Check(f"account {account} (sacctmgr does not say yours: not checked, sbatch decides)")
    elif account not in site.accounts:
        yield Check(f"account {account}", f"SLURM does not know it as yours; yours are: {yours}")
    else:
        yield Check(f"account {account}")
    wanted = {f"platforms.{p}": cluster.platforms[p] for p in study.platforms}
    for key, request in ({"controller": cluster.controller} | wanted).items():
        name, there = key.removeprefix("platforms."), f"{cluster.file}: {key}"
        if request.partition and request.partition not in site.partitions:
            has = ", ".join(sorted(site.partitions)) or "none"
            yield Check(
                f"{name}: partition {request.partition}",
                f"not at this site, which has {has}; change {there}.partition",
            )
            continue
        yield Check(f"{name}: partition {request.partition or 'of the site'}")
        if request.gres:
            kind = request.gres.rsplit(":", 1)[0]
            has = site.partitions[request.partition]
            found = any(g == kind or g.startswith(f"{kind}:") for g in has)
            wrong = f"{request.partition} offers {', '.join(sorted(has))}; change {there}.gres"
            yield Check(f"{name}: gres {request.gres}", None if found else wrong)
        if request.qos:
            allowed = (site.accounts or {}).get(account or "", set())
            wrong = f"{account} may use {', '.join(sorted(allowed)) or 'none'}; change {there}.qos"
            good = not allowed or request.qos in allowed
            yield Check(f"{name}: QOS {request.qos}", None if good else wrong)
        if limit := site.limits.get(request.partition or ""):
            yield from _within(study, name, there, request, limit)


def _within(
    study: Study, name: str, there: str, request: Request | ControllerRequest, limit: Limit
) -> Iterator[Check]:
    """What is asked for first against the most that the partition gives; later never more."""
    if isinstance(request, Request):
        rules = {j.kind.rule for j in jobs(study) if j.platform == name}
        minutes = max(block_minutes(study, request, rule) for rule in rules)
        shorter = f"lower {there}.start_minutes or .step_ms if they are too generous, or shorten"
        shorter += f" the study (gammas, repetitions, output_tokens in {study.file})"
    else:
        minutes, shorter = request.minutes, f"lower {there}.minutes"
    asked = [
        (minutes, limit.minutes, "minutes", shorter),
        (request.cpus, limit.cpus, "CPUs", f"lower {there}.cpus"),
        (memory_mb(request), limit.mem_mb, "MB of memory", f"lower {there}.mem_gb"),
    ]
    for number, most, unit, mend in asked:
        if most:
            over = f"{request.partition} gives {most} at most; {mend}, or change {there}.partition"
            yield Check(f"{name}: {number} {unit}", over if number > most else None)


def _here(study: Study, results: Path) -> Iterator[Check]:
    try:
        yield Check(f"environment: {versions()['vllm']}")
    except SpecamortError as e:
        yield Check("environment", str(e))
    missing = f"run `specamort model --study {study.file}` here, where there is a network"
    for model in study.models.values():
        yield Check(f"model {model_dir(model)}", None if is_there(model) else missing)
    if all(map(is_there, study.models.values())):
        try:
            yield from map(Check, check_prompts(study))
        except SpecamortError as e:
            yield Check("prompts", str(e))
    place = next(p for p in (results.resolve(), *results.resolve().parents) if p.exists())
    kind = run_command("stat", "-f", "-c", "%T", str(place)).strip()
    local = f"is on {kind}, which the nodes may not see; put the clone on a shared filesystem"
    yield Check(f"shared filesystem {place}", None if kind in _SHARED else local)
    yield _space(place)


def _tracer(study: Study, cluster: Cluster) -> Iterator[Check]:
    """nsys, as a job would find it: after the cluster file's modules."""
    if study.tracing.tracer != "nsys":
        return
    if cluster.container:
        yield Check("nsys: must be inside the container (not checked)")
        return
    try:
        answer = run_command("bash", "-lc", f"{cluster.prefix(Path.cwd())}nsys --version")
    except SpecamortError:
        fix = f"not found; add its module to {cluster.file}: modules, or set tracing.tracer: kineto"
        yield Check("nsys", fix)
        return
    try:
        yield Check(f"nsys: {tracer.new_enough(answer)}")
    except SpecamortError as e:
        yield Check("nsys", str(e))


def _space(place: Path) -> Check:
    """Room within the user's quota: the filesystem itself is asked to set it aside for a moment."""
    free = shutil.disk_usage(place).free / 1e9
    full = f"a study with its model wants {_SPACE_GB} GB; free some of it there, or move the clone"
    if free < _SPACE_GB:
        return Check(f"disk: {free:.1f} GB free in {place}", full)
    try:
        with tempfile.NamedTemporaryFile(dir=place) as f:
            run_command("fallocate", "-l", f"{_SPACE_GB}GB", f.name)
    except (SpecamortError, OSError) as e:
        if "not supported" in str(e):
            return Check(f"disk: {free:.0f} GB free (your quota cannot be asked here)")
        return Check(f"disk: {_SPACE_GB} GB in {place} ({e})", full)
    return Check(f"disk: {_SPACE_GB} GB within your quota, {free:.0f} GB free")
