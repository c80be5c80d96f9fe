"""A block: records that must come from one device and one software, kept until it is whole."""

import shutil
import uuid
from pathlib import Path
from typing import Any, TextIO

from .. import files
from ..errors import SpecamortError
from ..study.grid import Cell, TraceCell
from ..study.settings import Settings, digest
from . import record
from .software import SOFTWARE
from .types import Provenance, Record, Source


class Block:
    """Records that must come from one device, in one directory: kept, missing, written.

    While a block is not whole its records wait in `partial/`: the workflow never sees half a
    block, and a killed job loses only the cell under way. The latest job to open a block owns
    it; an earlier one that is still alive (requeued by SLURM while its node did not answer, or
    submitted by a controller that is gone) finds that out before it writes, and stops.

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
        self.source = source
        kept, moved = _keep(block_dir, {c: digest(s) for c, s in wanted.items()}, source)
        for path, why in moved:
            print(f"specamort: {path}: {why}; kept in raw/superseded", file=progress)
        self.kept = list(kept.values())
        self.missing = [c for c in wanted if c not in kept]

    def __enter__(self) -> "Block":
        self._owner = f"job {self.source['job_id']} on {self.source['host']}, {uuid.uuid4().hex}"
        files.write_text(self._claim, self._owner)
        for path in self._block_dir.glob("*-g*.json"):
            path.replace(self._partial / path.name)
        return self

    def write(self, cell: Cell | TraceCell, content: dict[str, Any]) -> None:
        self._still_ours()
        record.write(self._partial / f"{cell}.json", content)

    def __exit__(self, failed: object, *_: object) -> None:
        if failed:
            return
        self._still_ours()
        for path in self._partial.glob("*-g*.json"):
            path.replace(self._block_dir / path.name)
        shutil.rmtree(self._partial)  # a killed write may have left its beginning there

    def _still_ours(self) -> None:
        owner = files.read_text(self._claim) if self._claim.exists() else "a job that finished it"
        if owner != self._owner:
            raise SpecamortError(
                f"{self._block_dir}: is now measured by {owner.split(',')[0]}; this job stops, "
                "what it measured is kept"
            )


def _keep(
    block_dir: Path, wanted: dict[Any, str], source: Source
) -> tuple[dict[Any, Record], list[tuple[Path, str]]]:
    """The block's records that still hold, and the paths of those moved aside, with the reason.

    Args:
        wanted: the settings' hash of every cell.
        source: provenance of the job that opens the block; its device and software must be theirs.
    """
    kept: dict[Any, tuple[Path, Record]] = {}
    stale = []
    for cell, expected in wanted.items():
        for path in _places(block_dir, cell):
            try:
                found = record.read(path)
            except SpecamortError as e:
                stale.append((path, str(e)))
                continue
            if cell in kept and found == kept[cell][1]:
                path.unlink()  # Snakemake restores what a failed job was to update
            elif found["settings_hash"] != expected:
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
        record.set_aside(path)
    return {cell: found for cell, (_, found) in kept.items()}, stale


def _moved_on(then: Provenance, now: Source) -> str | None:
    """Why records of then cannot share a block with measurements of now."""
    if then["device"]["uuid"] != now["device"]["uuid"]:
        return "the block moved to another device and is measured anew"
    changed = [f"{k} {then[k]} is now {now[k]}" for k in SOFTWARE if then[k] != now[k]]
    return f"{', '.join(changed)}: the block is measured anew" if changed else None


def _places(block_dir: Path, cell: Any) -> list[Path]:
    """Where the cell's record is: in its place, or waiting for the rest of its block."""
    name = f"{cell}.json"
    return [p for p in (block_dir / name, block_dir / "partial" / name) if p.exists()]
