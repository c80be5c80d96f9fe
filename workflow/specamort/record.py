"""What a measuring job writes: a JSON record with schema version and provenance."""

import json
import os
from pathlib import Path

import fastjsonschema

from .errors import SpecamortError
from .study import compiled

SCHEMA_VERSION = 1

_validate = compiled("record")


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees all of it or none, whatever kills the writer.

    Raises:
        SpecamortError: the disk refuses; nothing is left at `path` that was not there before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except OSError as e:
        temporary.unlink(missing_ok=True)
        raise SpecamortError(
            f"{path}: cannot be written ({e.strerror}); free space there and run again, "
            "what is already measured stays"
        ) from e


def write(path: Path, record: dict) -> None:
    """Validate and write one record atomically."""
    record = {"schema_version": SCHEMA_VERSION, **record}
    _validate(record)
    write_text(path, json.dumps(record))


def read(path: Path) -> dict:
    """Read one record.

    Raises:
        SpecamortError: the file is truncated, foreign, or of another schema version.
    """
    again = "move it away and run again to measure it anew"
    try:
        record = json.loads(path.read_text())
    except OSError as e:
        raise SpecamortError(f"{path}: cannot be read ({e.strerror})") from e
    except ValueError as e:
        raise SpecamortError(f"{path}: truncated or not a record; {again}") from e
    version = record.get("schema_version") if isinstance(record, dict) else None
    if version not in (None, SCHEMA_VERSION):
        raise SpecamortError(
            f"{path}: schema_version is {version}, this specamort reads {SCHEMA_VERSION}; {again}"
        )
    try:
        return _validate(record)
    except fastjsonschema.JsonSchemaValueException as e:
        raise SpecamortError(f"{path}: not a specamort record ({e.message}); {again}") from e
