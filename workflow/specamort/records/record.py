"""What a measuring job writes: a JSON record with schema version and provenance."""

import json
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import fastjsonschema

from ..errors import SpecamortError
from .. import files
from ..files import atomic
from ..study.grid import Study
from ..study.schema import compiled
from ..study.settings import Settings, digest
from .types import Record

SCHEMA_VERSION = 2


_validate = compiled("record")


def envelope(study: Study, kind: str, settings: Settings, provenance: dict) -> dict:
    """What every record begins with."""
    return {
        "kind": kind,
        "origin": study.origin,
        "study": study.name,
        "settings": settings,
        "settings_hash": digest(settings),
        "provenance": provenance,
    }


def write(path: Path, record: dict[str, Any]) -> None:
    """Validate and write one record atomically; one that is there already is set aside first."""
    record = {"schema_version": SCHEMA_VERSION, **record}
    _validate(record)
    with atomic(path, _supersede) as temporary:
        temporary.write_text(json.dumps(record, allow_nan=False), encoding="utf-8")


def move(source: Path, target: Path) -> None:
    """Move a record within `raw/`; another that is in its place is set aside first.

    Raises:
        FileNotFoundError: there is none.
    """
    if source.read_bytes() != (target.read_bytes() if target.exists() else None):
        _supersede(source, target)
    else:
        os.replace(source, target)


def _supersede(new: Path, path: Path) -> None:
    if path.exists():
        with suppress(FileNotFoundError):  # another job moved it away
            set_aside(path)
    os.replace(new, path)


def set_aside(path: Path) -> None:
    """Move a record from below `raw/` to `raw/superseded/TIME/`."""
    raw = next(p for p in path.parents if p.name == "raw")
    when = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    target = raw / "superseded" / when / path.relative_to(raw)
    target.parent.mkdir(parents=True)
    path.replace(target)


def read_held(path: Path, study: Study, kind: str, settings: Settings) -> Record:
    """Read a record that the study's numbers may rest on.

    Raises:
        SpecamortError: as `read`; or it is of another kind, made with other settings than the
            study file has now, or of another origin (a rehearsal's in a study's place).
    """
    found = read(path)
    if found["kind"] != kind:
        raise SpecamortError(
            f"{path}: is a record of kind {found['kind']}, not {kind}; move it away and run again"
        )
    if found["origin"] not in (study.origin, "synthetic"):
        raise SpecamortError(
            f"{path}: its origin is {found['origin']}, the study's records are {study.origin}; "
            "move it away and run again"
        )
    if found["settings_hash"] != digest(settings):
        raise SpecamortError(
            f"{path}: measured with other settings than {study.file} has now; run its rule again "
            "(it keeps the old record under raw/superseded)"
        )
    return found


def read(path: Path) -> Record:
    """Read one record.

    Raises:
        SpecamortError: the file is truncated, foreign, or of another schema version.
    """
    again = "move it away and run again to measure it anew"
    try:
        record = json.loads(files.read_text(path))
    except ValueError as e:
        raise SpecamortError(f"{path}: truncated or not a record; {again}") from e
    version = record.get("schema_version") if isinstance(record, dict) else None
    if version not in (None, SCHEMA_VERSION):
        raise SpecamortError(
            f"{path}: schema_version is {version}, this specamort reads {SCHEMA_VERSION}; {again}"
        )
    try:
        return cast(Record, _validate(record))
    except fastjsonschema.JsonSchemaValueException as e:
        raise SpecamortError(f"{path}: not a specamort record ({e.message}); {again}") from e
