"""What SLURM says: its site, this user's jobs of a study, and what they have cost."""

import hashlib
import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import SpecamortError
from ..files import run_command


@dataclass(frozen=True)
class Limit:
    """The most that a job of a partition may ask for; null where the site does not say."""

    minutes: int | None = None
    cpus: int | None = None
    mem_mb: int | None = None


@dataclass(frozen=True)
class Site:
    """Partition -> its gres strings; account -> this user's QOS (null: sacctmgr does not say)."""

    partitions: dict[str, set[str]]
    accounts: dict[str, set[str]] | None
    limits: dict[str, Limit] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """A job of a study. `what` is its rule and wildcards, as in `layout.job_name`."""

    id: str
    state: str
    what: str
    node: str
    elapsed_s: int


@dataclass(frozen=True)
class ControllerJob:
    """A controller in the queue, and who submitted it."""

    id: str
    user: str
    mine: bool
    running: bool


def read_site() -> Site:
    """Ask sinfo and sacctmgr. A sacctmgr that fails or says nothing leaves the account unknown.

    Raises:
        SpecamortError: sinfo is not here or does not answer; either says what cannot be read.
    """
    partitions: dict[str, set[str]] = {}
    limits: dict[str, Limit] = {}
    # -e: nodes of different sizes are not shown as one
    told = _rows("sinfo", r"([^|]+)\|([^|]*)(?:\|(.*))?", "-h", "-e", "-o", "%R|%G|%l|%c|%m")
    for name, gres, more in told:
        partitions.setdefault(name, set()).update(g.split("(")[0] for g in gres.split(","))
        limits[name] = _larger(limits.get(name), *[*(more or "").split("|"), "", ""][:3])
    accounts: dict[str, set[str]] = {}
    asked = ("-nP", "show", "assoc", f"user={_user()}", "format=account,qos")
    try:
        said = run_command("sacctmgr", *asked)
    except SpecamortError:
        return Site(partitions, None, limits)
    for account, qos in _parsed("sacctmgr", r"([^|]+)\|([^|]*)", said):
        accounts.setdefault(account, set()).update(filter(None, qos.split(",")))
    return Site(partitions, accounts or None, limits)


def _larger(one: Limit | None, time: str, cpus: str, memory: str) -> Limit:
    """A partition's limit with one more of its kinds of nodes.

    Args:
        time: [days-]hours:minutes:seconds, or `infinite`.
        cpus, memory: a node's; memory in MB.
    """
    seconds = _seconds(time)
    whole = [int(n[1]) if (n := re.fullmatch(r"(\d+)\+?", v)) else 0 for v in (cpus, memory)]
    new = (seconds // 60 if seconds else None, *(n or None for n in whole))
    old = (one.minutes, one.cpus, one.mem_mb) if one else (None, None, None)
    return Limit(*(max(filter(None, pair), default=None) for pair in zip(old, new, strict=True)))


def _checkout_id(checkout: Path) -> str:
    return hashlib.sha256(os.fsencode(checkout.resolve())).hexdigest()[:8]


def controller_name(study: str, checkout: Path) -> str:
    """Name of the controller's job; two clones with one study are told apart."""
    return f"specamort-{study}-{_checkout_id(checkout)}"


def block_name(what: str, checkout: Path) -> str:
    """Name of a block's job, from its comment (`layout.job_name`)."""
    plain = what.removeprefix("rule_").replace("_wildcards_", "-")
    return f"specamort-{plain}-{_checkout_id(checkout)}"


def live_jobs(checkout: Path) -> list[Job]:
    """Jobs that are queued or running for a Snakemake in the checkout `checkout`.

    Raises:
        SpecamortError: squeue is not here, does not answer, or says what cannot be read.
    """
    # a comment of somebody's may hold what divides the fields, and so may a folder
    row = r"([^|]+)\|(\w+)\|(rule_[^|]*|.*?)\|(.*)\|([^|]*)\|([^|]*)"
    asked = ("-h", "-u", str(os.getuid()), "-o", "%i|%T|%k|%Z|%N|%M")
    return [
        Job(number, state, what, node, _seconds(elapsed) or 0)
        for number, state, what, directory, node, elapsed in _rows("squeue", row, *asked)
        if what.startswith("rule_") and Path(directory).resolve() == checkout.resolve()
    ]


def states(ids: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """SLURM's state of this user's jobs by id, of those that have ended too.

    Args:
        ids: jobs to ask sacct about when squeue has forgotten them.

    Returns:
        What squeue says, and what sacct says of those that squeue does not know: where slurmdbd was
        away that may be RUNNING for ever.

    Raises:
        SpecamortError: squeue is not here, does not answer, or says what cannot be read.
    """
    row = r"([^|]+)\|(\w+)[^|]*"
    mine = str(os.getuid())
    queue = dict(_rows("squeue", row, "-h", "-t", "all", "-u", mine, "-o", "%i|%T"))
    told: dict[str, str] = {}
    if lost := [i for i in ids if i not in queue]:
        with suppress(SpecamortError):
            # it says `CANCELLED by 1000`
            told |= dict(_rows("sacct", row, "-nXP", "-j", ",".join(lost), "-o", "JobIDRaw,State"))
    return queue, told


def step_states(job: str) -> set[str]:
    """States of a job and of its steps; none while sacct does not say."""
    with suppress(SpecamortError):
        return {s for (s,) in _rows("sacct", r"(\w+).*", "-nP", "-j", job, "-o", "State")}
    return set()


def controller(study: str, checkout: Path) -> ControllerJob | None:
    """The study's controller in this checkout, whoever submitted it, if queued or running.

    Raises:
        SpecamortError: squeue is not here, does not answer, or says what cannot be read.
    """
    wanted = controller_name(study, checkout)
    row = r"(\d+)\|([^|]*)\|([^|]*)\|([^|]*)\|(.*)"
    told = _rows("squeue", row, "-h", "-n", wanted, "-o", "%i|%U|%u|%T|%j")
    for number, uid, user, state, name in told:
        if name == wanted:
            return ControllerJob(number, user, int(uid) == os.getuid(), state == "RUNNING")
    return None


def gpu_hours(jobs: Iterable[str]) -> float | None:
    """GPU-hours of some job ids, every run of a requeued job counted; null without sacct."""
    ids = ",".join(sorted(set(jobs)))
    if not ids:
        return 0.0
    try:
        told = _rows("sacct", r"(\d+)\|(.*)", "-nXPD", "-j", ids, "-o", "ElapsedRaw,AllocTRES")
    except SpecamortError:
        return None
    seconds = 0
    for elapsed, tres in told:
        if gpus := re.search(r"gres/gpu=(\d+)", tres):
            seconds += int(elapsed) * int(gpus[1])
    return seconds / 3600


def failed_jobs(checkout: Path) -> dict[str, list[Path]]:
    """Logs of attempts by job (`layout.job_name`), the last one last; a log's stem is its job id.

    The executor deletes the log of a job that succeeds, so those that are left failed or still run.
    """
    dated = []
    for log in (checkout / ".snakemake" / "slurm_logs").glob("rule_*/*/*.log"):
        with suppress(FileNotFoundError):  # its job has just succeeded
            dated.append((log.stat().st_mtime, log))
    found: dict[str, list[Path]] = {}
    for _, log in sorted(dated):
        found.setdefault(f"{log.parts[-3]}_wildcards_{log.parts[-2]}", []).append(log)
    return found


def is_here() -> bool:
    return shutil.which("squeue") is not None


def _rows(tool: str, row: str, *arguments: str) -> list[tuple[str, ...]]:
    return _parsed(tool, row, run_command(tool, *arguments))


def _parsed(tool: str, row: str, said: str) -> list[tuple[str, ...]]:
    """The lines that are rows; sites print a word of their own before them.

    Raises:
        SpecamortError: there are lines, and none is a row.
    """
    lines = [line for line in said.splitlines() if line.strip()]
    rows = [m.groups() for line in lines if (m := re.fullmatch(row, line.strip()))]
    if lines and not rows:
        raise SpecamortError(
            f"{tool} says {lines[0][:80]!r}, which is not what SLURM's {tool} says; see what "
            f"`{tool}` is here"
        )
    return rows


def _user() -> str:
    return os.environ.get("USER") or os.environ.get("LOGNAME") or run_command("id", "-un").strip()


def _seconds(elapsed: str) -> int | None:
    """SLURM's [days-][hours:]minutes:seconds; null for anything else, as `INVALID`."""
    if not (found := re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", elapsed)):
        return None
    days, hours, minutes, seconds = (int(n or 0) for n in found.groups())
    return ((24 * days + hours) * 60 + minutes) * 60 + seconds
