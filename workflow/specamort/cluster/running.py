"""Who runs a study in this clone, one Snakemake at a time, and whether it still does something.

The claim is a lock of the filesystem's, which is gone with its holder; what the file says is for
people. Where the filesystem knows no locks there is none.
"""

import errno
import fcntl
import getpass
import os
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from ..errors import SpecamortError
from ..study.model_files import MODELS
from .slurm import ControllerJob

_HELD: list[TextIO] = []  # as long as this process lives
# a controller that is a job starts Snakemake again before that
_STUCK_MIN = 20
_TAKEN = (errno.EACCES, errno.EAGAIN)


def claim(results: Path, job: str | None = None, patience_s: float = 5) -> None:
    """Take the study for this process and its end.

    Args:
        job: id of the SLURM job that this process runs in.

    Raises:
        SpecamortError: another has it; says who.
    """
    path = _file(results)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        f = path.open("a+", encoding="utf-8")
    except OSError as e:
        raise SpecamortError(
            f"{path}: cannot be written ({e.strerror}); if this clone is another user's, work in "
            "one of your own"
        ) from e
    with suppress(OSError):
        path.chmod(0o666)  # the next may be another member of the group
    end = time.monotonic() + patience_s  # `holder` has it for a moment
    while not _locked(f, fcntl.LOCK_EX):
        if time.monotonic() > end:
            f.close()
            raise SpecamortError(
                f"{results}: {holder(results) or 'another Snakemake'} runs this study in this "
                "clone; wait for it, or work in a clone of your own"
            )
        time.sleep(0.1)
    f.truncate(0)
    f.write(f"{getpass.getuser()} (process {os.getpid()} on {socket.gethostname()}")
    f.write(f", job {job})" if job else ")")
    f.flush()
    _HELD.append(f)


def holder(results: Path) -> str | None:
    """Who runs the study in this clone, if anybody does, this process aside."""
    try:
        with _file(results).open(encoding="utf-8", errors="replace") as f:
            return None if _locked(f, fcntl.LOCK_SH) else f.read().strip() or "another Snakemake"
    except OSError:
        return None


def stuck(results: Path, done: bool, job: ControllerJob | None) -> list[str]:
    """What to tell of a controller that runs while nothing is queued, if it does nothing.

    Args:
        done: every record is there.
        job: the controller's, if it is one.
    """
    written = last_written([results, MODELS])
    if written is None or (idle_min := (time.time() - written) / 60) < _STUCK_MIN:
        return []
    mend = "end it and start it again"
    if job:
        mend = f"scancel {job.id}, then launch again" if job.mine else f"ask {job.user} to end it"
    state = "done, but the controller is" if done else "not done, and the controller may be"
    look = "" if done else "unless its log says what it does, "
    return [
        f"{state} stuck: nothing is queued, and nothing was written for {idle_min:.0f} min; "
        f"{look}{mend}"
    ]


def last_written(folders: Iterable[Path]) -> float | None:
    """When anything below them was last written, in seconds since the epoch.

    0 if they are empty; null while the filesystem does not say.
    """
    latest = 0.0
    try:
        for path in (p for folder in folders for p in folder.rglob("*")):
            with suppress(FileNotFoundError):  # it is gone by now
                latest = max(latest, path.stat().st_mtime)
    except OSError:
        return None
    return latest


def _file(results: Path) -> Path:
    return results / "controller" / "running"


def _locked(f: TextIO, how: int) -> bool:
    """True also where the filesystem knows no locks."""
    try:
        fcntl.lockf(f, how | fcntl.LOCK_NB)
    except OSError as e:
        return e.errno not in _TAKEN
    return True
