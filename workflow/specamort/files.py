"""Files written whole or not at all, and the one way to run another program."""

import errno
import fcntl
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from .errors import SpecamortError, Unreadable


@contextmanager
def atomic(path: Path, replace: Callable[[Path, Path], None] = os.replace) -> Iterator[Path]:
    """A temporary file that takes the place of `path` when the block ends well.

    A reader sees all of a file or none, whatever kills the writer. What a killed writer leaves is
    one of `temporaries`.

    Raises:
        SpecamortError: the disk refuses; nothing is left at `path` that was not there before.
    """
    # unique among nodes: process ids are not
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex}.tmp"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb") as f:
            os.fsync(f.fileno())
        replace(temporary, path)
    except OSError as e:
        raise _not_written(path, e) from e
    finally:
        with suppress(OSError):
            temporary.unlink()


def _not_written(path: Path, e: OSError) -> SpecamortError:
    return SpecamortError(
        f"{path}: cannot be written ({e.strerror}); free space or give yourself the right to write "
        "there and run again, what is already measured stays"
    )


def temporaries(directory: Path) -> list[Path]:
    """What writers that were killed, or are at work, have begun to write there."""
    return sorted(directory.glob(".*.tmp"))


@contextmanager
def locked(path: Path, patience_s: float = 60) -> Iterator[None]:
    """Hold a lock among processes, on other nodes too where the filesystem knows locks.

    Goes on without where it does not, and when the holder (a node that is gone) does not let go.

    Raises:
        SpecamortError: its directory cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        f = path.open("a", encoding="utf-8")
    except OSError as e:
        raise _not_written(path.parent, e) from e
    with f:
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            try:
                fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as e:
                if e.errno not in (errno.EACCES, errno.EAGAIN):
                    break
                time.sleep(0.01)
        yield


def read_text(path: Path) -> str:
    """A text file's content.

    Raises:
        Unreadable: it is not there, is no file, or the filesystem fails.
        SpecamortError: it is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as e:
        if isinstance(e, UnicodeDecodeError):
            raise SpecamortError(f"{path}: is not text in UTF-8 (byte {e.start})") from e
        why = e.strerror if isinstance(e, OSError) else "no file can have that name"
        raise Unreadable(f"{path}: cannot be read ({why})") from e


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all; see `atomic`."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


# a user's defaults for SLURM's tools, which would hide jobs from us
_FILTERS = ("SQUEUE_", "SACCT_", "SINFO_")


def _memory() -> BinaryIO:
    return open(os.memfd_create("said"), "w+b")


def run_command(*command: str, timeout_s: float = 30) -> str:
    """A command's output.

    Raises:
        SpecamortError: it is not here, fails, or does not answer.
    """
    # files, not pipes: what a command leaves behind may hold a pipe open for ever; and in memory,
    # since SLURM's tools say nothing, and that all is well, where a disk is full
    with _memory() as said, _memory() as complaint:
        try:
            # a session of its own, so that what it starts ends with it
            run = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=complaint,
                start_new_session=True,
                env={k: v for k, v in os.environ.items() if not k.startswith(_FILTERS)},
            )
        except OSError as e:
            raise SpecamortError(f"{command[0]} is not here; run this on a login node") from e
        why = []
        try:
            run.wait(timeout_s)
        except subprocess.TimeoutExpired:
            why = [f"no answer in {timeout_s:g} s"]
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
                run.wait()
        said.seek(0)
        complaint.seek(0)
        if run.returncode:
            lines = complaint.read().decode(errors="replace").strip().splitlines()
            why += lines[-1:] or ([] if why else [f"status {run.returncode}"])
            raise SpecamortError(f"{command[0]} fails: {'; '.join(why)}")
        return said.read().decode(errors="replace")
