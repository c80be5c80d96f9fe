"""What SLURM says: its site, this user's jobs of a study, and what they have cost."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import SpecamortError
from ..files import run_command


@dataclass(frozen=True)
class Site:
    """Partition -> its gres strings; account -> this user's QOS (null: sacctmgr does not say)."""

    partitions: dict[str, set[str]]
    accounts: dict[str, set[str]] | None


@dataclass(frozen=True)
class Job:
    """A job of a study. `what` is its rule and wildcards, as in `layout.job_name`."""

    id: str
    state: str
    what: str
    node: str
    elapsed_s: int


def read_site() -> Site:
    """Ask sinfo and sacctmgr.

    Raises:
        SpecamortError: sinfo is not here or does not answer.
    """
    partitions: dict[str, set[str]] = {}
    for line in run_command("sinfo", "-h", "-o", "%R|%G").splitlines():
        name, gres = line.split("|", 1)
        partitions.setdefault(name, set()).update(g.split("(")[0] for g in gres.split(","))
    try:
        listed = run_command(
            "sacctmgr", "-nP", "show", "assoc", f"user={_user()}", "format=account,qos"
        )
    except SpecamortError:
        return Site(partitions, None)
    accounts: dict[str, set[str]] = {}
    for line in listed.splitlines():
        account, qos = line.split("|", 1)
        accounts.setdefault(account, set()).update(filter(None, qos.split(",")))
    return Site(partitions, accounts)


def controller_name(study: str) -> str:
    return f"specamort-{study}"


def live_jobs(checkout: Path) -> list[Job]:
    """Jobs that are queued or running for a Snakemake in the checkout `checkout`."""
    listed = run_command("squeue", "-h", "-u", _user(), "-o", "%i|%T|%k|%Z|%N|%M")
    found = []
    for line in listed.splitlines():
        number, state, what, directory, node, elapsed = line.split("|")
        if what.startswith("rule_") and Path(directory).resolve() == checkout.resolve():
            found.append(Job(number, state, what, node, _seconds(elapsed)))
    return found


def controller(study: str) -> str | None:
    """Id of the study's controller, if one is queued or running."""
    name = controller_name(study)
    return run_command("squeue", "-h", "-u", _user(), "-n", name, "-o", "%i").split("\n")[0] or None


def gpu_hours(jobs: Iterable[str]) -> float | None:
    """GPU-hours of some job ids, every run of a requeued job counted; null without sacct."""
    ids = ",".join(sorted(set(jobs)))
    if not ids:
        return 0.0
    try:
        listed = run_command("sacct", "-nXPD", "-j", ids, "-o", "ElapsedRaw,AllocTRES")
    except SpecamortError:
        return None
    seconds = 0
    for line in listed.splitlines():
        elapsed, tres = line.split("|")
        if gpus := re.search(r"gres/gpu=(\d+)", tres):
            seconds += int(elapsed) * int(gpus[1])
    return seconds / 3600


def failed_jobs(checkout: Path) -> dict[str, list[Path]]:
    """Logs of attempts by job (`layout.job_name`), the last one last; a log's stem is its job id.

    The executor deletes the log of a job that succeeds, so those that are left failed or still run.
    """
    found: dict[str, list[Path]] = {}
    logs = (checkout / ".snakemake" / "slurm_logs").glob("rule_*/*/*.log")
    for log in sorted(logs, key=lambda p: p.stat().st_mtime):
        found.setdefault(f"{log.parts[-3]}_wildcards_{log.parts[-2]}", []).append(log)
    return found


def _user() -> str:
    return os.environ.get("USER") or os.environ.get("LOGNAME") or run_command("id", "-un").strip()


def _seconds(elapsed: str) -> int:
    """SLURM's [days-][hours:]minutes:seconds."""
    days, _, clock = elapsed.rpartition("-")
    total = 0
    for part in clock.split(":"):
        total = 60 * total + int(part)
    return 86400 * int(days or 0) + total
