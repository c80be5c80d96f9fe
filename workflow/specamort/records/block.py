"""A block: records that must come from one device and one software, kept until it is whole."""

import platform
import uuid
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, TextIO

from .. import files
from ..errors import SpecamortError, Unreadable
from ..study.grid import Cell, TraceCell
from ..study.layout import places
from ..study.settings import Settings, digest
from . import record
from .software import SOFTWARE
from .types import Provenance, Record, Source


class Block:
    """Records that must come from one device, in one directory: kept, missing, written.

    While a block is not whole its records wait in `partial/`: the workflow never sees half a
    block, and a killed job loses only the cell under way. The latest job to open a block owns
    it; an earlier one that is still alive (requeued by SLURM while its node did not answer, or
    submitted by a controller that is gone) finds that out before it writes, and stops. They move
    files one at a time, by name, and none over another: no record is lost.

    Args:
        wanted: settings of every cell; a record with others is set aside.
        source: provenance of this job; a block of another device or software is begun anew.
    """

    def __init__(
        self,
        block_dir: Path,
        wanted: dict[Any, Settings],
        source: Source,
        progress: TextIO | None,
    ):
        self._block_dir, self._partial = block_dir, block_dir / "partial"
        self._claim = self._partial / "claim"
        self._wanted = {c: digest(s) for c, s in wanted.items()}
        self._progress = progress
        self.source = source
        self.kept: list[Record] = []
        self.missing: list[Any] = []

    def __enter__(self) -> "Block":
        """Raises SpecamortError where a record is there and cannot be read; nothing is moved."""
        self._owner = f"job {self.source['job_id']} on {platform.node()}, {uuid.uuid4().hex}"
        with self._alone():
            files.write_text(self._claim, self._owner)
            kept, moved = _keep(self._block_dir, self._wanted, self.source)
            self.missing = [c for c in self._wanted if c not in kept]
            if self.missing:
                # Snakemake deletes what a job that fails has in its place
                self._move(self._block_dir, self._partial)
        for path, why in moved:
            print(f"specamort: {path}: {why}; kept in raw/superseded", file=self._progress)
        self.kept = list(kept.values())
        return self

    def write(self, cell: Cell | TraceCell | str, content: dict[str, Any]) -> None:
        with self._alone():
            if self._owner_now() != self._owner:
                raise self._taken()
            record.write(self._partial / f"{cell}.json", content)

    def __exit__(self, failed: object, *_: object) -> None:
        if failed:
            return
        with self._alone():
            self._finish()

    def _finish(self) -> None:
        if self._owner_now() != self._owner:
            if all((self._block_dir / f"{c}.json").exists() for c in self._wanted):
                return  # the other finished it
            raise self._taken()
        self._move(self._partial, self._block_dir)
        # by name, and the directory only if it is empty: what else is there is another's
        for path in (self._claim, *files.temporaries(self._partial)):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self._partial.rmdir()

    def _alone(self) -> AbstractContextManager[None]:
        return files.locked(self._block_dir / ".lock")

    def _move(self, source: Path, target: Path) -> None:
        for cell in self._wanted:
            name = f"{cell}.json"
            with suppress(FileNotFoundError):  # there is none, or the other job was faster
                record.move(source / name, target / name)

    def _owner_now(self) -> str | None:
        try:
            return files.read_text(self._claim)
        except Unreadable as e:
            if isinstance(e.__cause__, FileNotFoundError):
                return None
            raise

    def _taken(self) -> SpecamortError:
        owner = (self._owner_now() or "a job that finished it").split(",")[0]
        return SpecamortError(
            f"{self._block_dir}: is now measured by {owner}; this job stops, what it measured is "
            "kept"
        )


def _keep(
    block_dir: Path, wanted: dict[Any, str], source: Source
) -> tuple[dict[Any, Record], list[tuple[Path, str]]]:
    """The block's records that still hold, and the paths of those moved aside, with the reason.

    Args:
        wanted: the settings' hash of every cell.
        source: provenance of the job that opens the block; its device and software must be theirs.

    Raises:
        SpecamortError: the filesystem fails; nothing is moved.
    """
    kept: dict[Any, tuple[Path, Record]] = {}
    stale = []
    for cell, expected in wanted.items():
        for path in places(block_dir / f"{cell}.json"):
            try:
                found = record.read(path)
            except Unreadable as e:
                if isinstance(e.__cause__, FileNotFoundError):
                    continue  # the other job has moved it
                raise SpecamortError(
                    f"{e}; nothing is measured or moved, run again when the filesystem answers"
                ) from e
            except SpecamortError as e:
                stale.append((path, str(e)))
                continue
            if found["settings_hash"] != expected:
                stale.append((path, "measured with other settings"))
            elif cell in kept:
                stale.append((path, "there is another record of this cell"))
            else:
                kept[cell] = path, found
    reasons = (_moved_on(found["provenance"], source) for _, found in kept.values())
    if why := next(filter(None, reasons), None):
        stale += [(path, why) for path, _ in kept.values()]
        kept = {}
    for path, _ in stale:
        with suppress(FileNotFoundError):
            record.set_aside(path)
    return {cell: found for cell, (_, found) in kept.items()}, stale


def _moved_on(then: Provenance, now: Source) -> str | None:
    """Why records of then cannot share a block with measurements of now."""
    if then["device"]["uuid"] != now["device"]["uuid"]:
        return "the block moved to another device and is measured anew"
    changed = [f"{k} {then[k]} is now {now[k]}" for k in SOFTWARE if then[k] != now[k]]
    return f"{', '.join(changed)}: the block is measured anew" if changed else None
