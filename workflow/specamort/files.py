"""Files written whole or not at all, and the one way to run another program."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import SpecamortError, Unreadable


@contextmanager
def atomic(path: Path, replace: Callable[[Path, Path], None] = os.replace) -> Iterator[Path]:
    """A temporary file that takes the place of `path` when the block ends well.

    A reader sees all of a file or none, whatever kills the writer.

    Raises:
        SpecamortError: the disk refuses; nothing is left at `path` that was not there before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield temporary
        with temporary.open("rb") as f:
            os.fsync(f.fileno())
        replace(temporary, path)
    except OSError as e:
        raise SpecamortError(
            f"{path}: cannot be written ({e.strerror}); free space there and run again, "
            "what is already measured stays"
        ) from e
    finally:
        temporary.unlink(missing_ok=True)


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


def run_command(*command: str, timeout_s: float = 30) -> str:
    """A command's output.

    Raises:
        SpecamortError: it is not here, fails, or does not answer.
    """
    try:
        run = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=True,
        )
    except FileNotFoundError as e:
        raise SpecamortError(f"{command[0]} is not here; run this on a login node") from e
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as e:
        text = (e.stderr or f"no answer in {timeout_s} s").strip().splitlines()[-1:]
        raise SpecamortError(f"{command[0]} fails: {''.join(text)}") from e
    return run.stdout
