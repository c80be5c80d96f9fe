"""What a measuring job writes: a JSON record with schema version and provenance."""

import json
import os
import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, cast

import fastjsonschema

from .. import files
from ..errors import SpecamortError, Unreadable
from ..files import atomic
from ..study import layout
from ..study.grid import Study
from ..study.layout import Wanted
from ..study.schema import compiled
from ..study.settings import Settings, digest
from .consistency import contradiction
from .software import SOFTWARE
from .types import Record

SCHEMA_VERSION = 3

_validate = compiled("record")
_AGAIN = "move it away and run again to measure it anew"


def envelope(study: Study, kind: str, settings: Settings, provenance: dict) -> dict:
    """What every record begins with."""
    # the clock may have been set back meanwhile, and what was measured is no worse for it
    started, finished = provenance["started"], provenance["finished"]
    times = {"finished": max(started, finished, key=datetime.fromisoformat)}
    if "job_started" in provenance:
        times["job_started"] = min(started, provenance["job_started"], key=datetime.fromisoformat)
    return {
        "kind": kind,
        "origin": study.origin,
        "study": study.name,
        "settings": settings,
        "settings_hash": digest(settings),
        "provenance": provenance | times,
    }


def write(path: Path, record: dict[str, Any]) -> None:
    """Validate and write one record atomically; one that is there already is set aside first.

    Not so one by the same job whose repetitions it begins with: a baseline that grows.

    Raises:
        SpecamortError: it would not be read again as a record, or the disk refuses.
    """
    text = json.dumps({"schema_version": SCHEMA_VERSION, **record})
    try:
        _parsed(text)
    except SpecamortError as e:
        raise SpecamortError(
            f"{path}: is not written, since no measurement gives {e}; run again, and report it if "
            "it comes back"
        ) from e
    with atomic(path, _supersede) as temporary:
        temporary.write_text(text, encoding="utf-8")


def move(source: Path, target: Path) -> None:
    """Move a record within `raw/`; another that is in its place is set aside first.

    Raises:
        FileNotFoundError: there is none.
    """
    content = source.read_bytes()
    with suppress(FileNotFoundError):
        if target.read_bytes() != content:
            set_aside(target)
    os.replace(source, target)


def _supersede(new: Path, path: Path) -> None:
    with suppress(FileNotFoundError):  # there is none, or another job moved it away
        if not _grows(path, new):
            set_aside(path)
    os.replace(new, path)


def _grows(old: Path, new: Path) -> bool:
    """Whether a record of the same job holds all repetitions of the old one, and more."""
    try:
        before, after = (json.loads(p.read_bytes()) for p in (old, new))
        runs, job = before["repetitions"], ("host", "job_id", "job_started")
        one, other = ([r["provenance"].get(k) for k in job] for r in (before, after))
        more = len(after["repetitions"]) > len(runs)
        return more and one == other and runs == after["repetitions"][: len(runs)]
    except (ValueError, LookupError, TypeError, AttributeError):  # damaged, or without any
        return False


def set_aside(path: Path) -> None:
    """Move a record from below `raw/` to a folder of its own, `raw/superseded/TIME-ID/`.

    Raises:
        FileNotFoundError: there is none; another job was faster.
    """
    raw = _raw(path)
    when = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}-{uuid.uuid4().hex[:8]}"
    target = raw / "superseded" / when / path.relative_to(raw)
    target.parent.mkdir(parents=True)
    try:
        path.replace(target)
    except FileNotFoundError:
        with suppress(OSError):
            os.removedirs(target.parent)
        raise


def _raw(path: Path) -> Path:
    """The study's `raw`, though a platform or a parent of the checkout may have that name too."""
    kinds = {k.folder.split("/")[0] for k in layout.KINDS.values()}
    found = [p for p in path.parents if p.name == "raw"]
    mine = [p for p in found if path.relative_to(p).parts[0] in kinds]
    return (mine or found)[0]


def held(wanted: Wanted, study: Study, path: Path | None = None) -> Record:
    """Read a record that the study's numbers may rest on.

    Args:
        path: where it is, if not in its place.

    Raises:
        SpecamortError: as `read`; or it is of another kind, study, replicate or origin (a
            rehearsal's in a study's place), or made with other settings than the study file has.
    """
    path = path or wanted.path
    found = read(path)

    def require(key: str, value: object, asked: object) -> None:
        if value != asked:
            raise SpecamortError(
                f"{path}: {key}: is {value!r:.60}, its place is that of {asked!r}; move it away "
                "and run again"
            )

    require("kind", found["kind"], wanted.kind)
    if found["origin"] not in (study.origin, "synthetic"):
        raise SpecamortError(
            f"{path}: its origin is {found['origin']}, the study's records are {study.origin}; "
            "move it away and run again"
        )
    require("study", found["study"], study.name)
    if found["settings_hash"] != digest(wanted.settings):
        raise SpecamortError(
            f"{path}: settings: measured with other settings than {study.file} has now; run its "
            "rule again (it keeps the old record under raw/superseded)"
        )
    if "cell" in found:
        require("cell.replicate", found["cell"]["replicate"], wanted.replicate)
    if found["kind"] == "reading_cost":
        for i, run in enumerate(found["repetitions"]):
            said = "null" if run["counters"] is None else "read"
            require(f"repetitions.{i}.counters", said, "read" if wanted.statistics else "null")
    return for_study(found, study)


def for_study(found: Record, study: Study) -> Record:
    """A record with what the study file, as it is now, says of its platform's quiet."""
    platform = study.platforms.get(found["settings"]["platform"]["name"])
    if platform and platform.shared_above is not None:
        found["shared_above"] = platform.shared_above
    return found


def read_held(path: Path, study: Study, kind: str, settings: Settings) -> Record:
    return held(Wanted(path, kind, settings), study)


def strays(found: Mapping[Path, Record]) -> dict[Path, str]:
    """Of one job's records those that are not from where most of them are, and why, as a sentence.

    Else a block's baseline, or half of a pair, is of something else.
    """
    sources = {path: tuple(_source(r).items()) for path, r in found.items()}
    usual = Counter(sources.values()).most_common(1)
    return {
        path: f"{path}: {key}: is {value!r:.60}, of the records beside it {common!r:.60}; move it "
        "away and run again"
        for path, source in sources.items()
        for (key, value), (_, common) in zip(source, usual[0][0], strict=True)
        if value != common
    }


def _source(r: Record) -> dict[str, str | None]:
    """What records of one job have in common."""
    p = r["provenance"]
    same: dict[str, str | None] = {"origin": r["origin"]}
    if r["kind"] == "timing":
        same["block.id"] = r["block"]["id"]
    same["provenance.device.uuid"] = p["device"]["uuid"]
    same |= {f"provenance.{k}": p[k] for k in SOFTWARE}
    if r["kind"] == "reading_cost":  # else a block may be finished by a later job
        same |= {f"provenance.{k}": p[k] for k in ("host", "job_id")}
        same["provenance.job_started"] = p.get("job_started")
    return same


def read(path: Path) -> Record:
    """Read one record.

    Raises:
        Unreadable: the filesystem does not give it.
        SpecamortError: it is truncated, foreign, of another schema version, or no measurement can
            have given its numbers.
    """
    try:
        return _parsed(files.read_text(path))
    except Unreadable:
        raise
    except SpecamortError as e:
        said = str(e).removeprefix(f"{path}: ")
        raise SpecamortError(f"{path}: {said}; {_AGAIN}") from e


def _parsed(text: str) -> Record:
    """
    Raises:
        SpecamortError: what is wrong, without the file.
    """
    odd: list[str] = []

    def number(text: str) -> object:
        if isfinite(value := float(text)):
            return value
        odd.append(text)
        return ...  # of no JSON type, so that the schema names its key

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            twice = Counter(k for k, _ in pairs).most_common(1)[0][0]
            raise SpecamortError(f"truncated or not a record (the key {twice!r:.60} stands twice)")
        return made

    try:
        try:
            raw = json.loads(
                text, parse_float=number, parse_constant=number, object_pairs_hook=once
            )
        except ValueError as e:
            raise SpecamortError("truncated or not a record") from e
        version = raw.get("schema_version") if isinstance(raw, dict) else None
        if version not in (None, SCHEMA_VERSION):
            raise SpecamortError(
                f"schema_version is {version!r:.60}, this specamort reads {SCHEMA_VERSION}"
            )
        record = cast(Record, _validate(raw))
        if odd:
            raise SpecamortError(f"holds {odd[0]:.60}, which is no finite number")
        if "\\u" in text:  # half a character can be read, but never be written again
            json.dumps(raw, ensure_ascii=False).encode()
        if why := contradiction(record):
            raise SpecamortError(why)
        return record
    except fastjsonschema.JsonSchemaValueException as e:
        said = e.message.removeprefix("data").removeprefix(".")
        if odd:
            said += f" and finite, not {odd[0]:.60}"
        said = "".join(c if c.isprintable() else "?" for c in said)
        raise SpecamortError(f"not a specamort record: {said:.300}") from e
    except UnicodeEncodeError as e:
        raise SpecamortError("holds half a character (a lone surrogate)") from e
    except RecursionError as e:
        raise SpecamortError("not a specamort record: it is nested too deeply") from e
