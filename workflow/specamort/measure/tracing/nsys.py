"""nsys: the command that traces vLLM's process tree, and what its SQLite export says.

Schema: "SQLite Schema Reference" of NVIDIA's Nsight Systems documentation. Tables are created
lazily, times are nanoseconds, names are ids into StringIds.
"""

import math
import re
import sqlite3
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
from adbc_driver_sqlite import StatementOptions, dbapi

from ...errors import SpecamortError
from ...files import run_command
from ...study.tracer import require
from .trace import DAY_S, DEVICES, MARK, Trace, by_family, decode_step_tokens, require_file, union

OPTIONS = {"profiler": "cuda"}  # vLLM's `profiler_config`: it brackets what nsys is to capture
_ACTIVITY = "CUPTI_ACTIVITY_KIND_"
_KERNEL = f"{_ACTIVITY}KERNEL"
_COPIES = f"{_ACTIVITY}MEMCPY", f"{_ACTIVITY}MEMSET"
_GRAPHS = f"{_ACTIVITY}GRAPH_TRACE"
# whose rows are read
_TABLES = _KERNEL, *_COPIES, _GRAPHS, "StringIds", "NVTX_EVENTS"
_INTERVAL = "start", "end", "deviceId"
_PUSH_POP = 59  # NVTX's number for a range that begins and ends on one thread
_CHUNK = 65536  # rows in memory at a time
Edges = dict[int, tuple[bytearray, bytearray]]  # starts and ends by device; they grow in place


def profile_command(output: Path, program: list[str]) -> list[str]:
    """Trace `program` and its children: one report, OUTPUT.N.nsys-rep, for each bracketed range.

    vLLM's workers are processes of their own: they are followed across fork, and CUDA graphs are
    taken apart into their kernels.
    """
    return [
        require(),
        "profile",
        "--trace=cuda,nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        "--trace-fork-before-exec=true",
        "--cuda-graph-trace=node",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=repeat",
        "--force-overwrite=true",
        f"--output={output}",
        *program,
    ]


def reports(output: Path) -> list[Path]:
    """The reports of `profile_command` in the order of their ranges, however nsys numbers them.

    Raises:
        SpecamortError: a worker was killed before nsys had finished one.
    """
    unfinished = sorted(output.parent.glob(f"{output.name}*.qdstrm"))
    if unfinished:
        raise SpecamortError(
            f"{unfinished[0]}: nsys did not finish this report; the engine was killed while it "
            "was traced, run the job again"
        )
    name = re.compile(re.escape(output.name) + r"(?:[._-]?(\d+))?\.nsys-rep")
    found = [(m[1], p) for p in output.parent.iterdir() if (m := name.fullmatch(p.name))]
    if all(number for number, _ in found):
        return [p for _, p in sorted(found, key=lambda f: int(f[0]))]
    return sorted((p for _, p in found), key=lambda p: p.stat().st_mtime_ns)


def export(report: Path) -> Path:
    """A report's SQLite export, beside it."""
    target = report.with_suffix(".sqlite")
    run_command(
        *(require(), "export", "--type=sqlite", "--force-overwrite=true"),
        *(f"--output={target}", str(report)),
        timeout_s=3600,
    )
    return target


def read(path: Path) -> Trace:
    """Device activity in an export.

    Rows are read in chunks, in any order; of each only its start and end stay in memory, 16 bytes.
    A kernel whose name is not known counts as `other`.

    Raises:
        Unreadable: not a file, or not given by the filesystem.
        SpecamortError: interrupted, damaged, not an export, without kernels or their names, with
            whole CUDA graphs, or with times, devices or marks that cannot be.
    """
    require_file(path)
    # as files that nobody writes: no locks, which a shared filesystem may lack, and nothing left
    uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    try:
        for end in ("-journal", "-wal"):
            left = path.with_name(path.name + end)
            if left.exists() and left.stat().st_size:
                raise SpecamortError(
                    f"{path}: its export was interrupted, {left.name} is still beside it; delete "
                    "both and export the report again"
                )
        with closing(sqlite3.connect(uri, uri=True)) as db, ThreadPoolExecutor(1) as beside:
            _require_whole(db, path)
            checked = beside.submit(_check, uri)
            found = _read(db, uri, path, _filled(db, path))
            checked.result()
            return found
    except (sqlite3.Error, dbapi.Error, pa.ArrowException, OSError) as e:
        raise SpecamortError(
            f"{path}: damaged, cut short or not an nsys export ({_said(e)}); export the report "
            "again, and trace again if that does not help"
        ) from e


def _said(e: Exception) -> str:
    return (str(e).splitlines() or [type(e).__name__])[-1]


def _require_whole(db: sqlite3.Connection, path: Path) -> None:
    """SQLite reads zeros where a last page is cut, and never looks behind it."""
    size = math.prod(db.execute(f"PRAGMA page_{of}").fetchone()[0] for of in ("count", "size"))
    with path.open("rb") as f:
        f.seek(size)
        if path.stat().st_size < size or any(f.read(_CHUNK)):
            raise sqlite3.DatabaseError(f"it should have {size} bytes")


def _check(uri: str) -> None:
    """Hold the pages of what is read against each other: zeros in one may read as fewer rows.

    Raises:
        sqlite3.DatabaseError: they do not fit.
    """
    with closing(sqlite3.connect(uri, uri=True)) as db:
        for table in ("sqlite_master", *_tables(db).intersection(_TABLES)):
            (said,) = db.execute(f"PRAGMA quick_check({table})").fetchone()
            if said != "ok":
                raise sqlite3.DatabaseError(said)


def _tables(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _filled(db: sqlite3.Connection, path: Path) -> set[str]:
    """The tables to read that hold rows.

    Raises:
        SpecamortError: what is there is no whole export of kernels.
    """
    tables = _tables(db)
    if "StringIds" not in tables:
        raise SpecamortError(
            f"{path}: has no table StringIds; it is not an nsys export, or an interrupted one: "
            "export the report again"
        )
    _columns(db, path, "StringIds", ("id", "value"))

    def filled(table: str) -> bool:
        return table in tables and bool(db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone())

    if filled(_GRAPHS):
        raise SpecamortError(
            f"{path}: holds CUDA graphs as wholes, whose kernels would be missing; trace with "
            "--cuda-graph-trace=node"
        )
    if not filled(_KERNEL):
        raise SpecamortError(
            # NVIDIA's own remedy (release notes, forum 315536)
            f"{path}: holds CUDA calls but none of the kernels they launched; put "
            "CuptiUseRawGpuTimestamps=false into the file that `nsys -z` names, and trace again"
            if filled(f"{_ACTIVITY}RUNTIME")
            else f"{path}: holds no kernel; the traced process did no work on a GPU, nsys did not "
            "follow vLLM's workers (VLLM_WORKER_MULTIPROC_METHOD=spawn), or the export was "
            "interrupted: export the report again, then trace again"
        )
    return {t for t in _TABLES if filled(t)}


def _columns(db: sqlite3.Connection, path: Path, table: str, needed: Iterable[str]) -> set[str]:
    columns = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
    for missing in sorted(set(needed) - columns):
        raise SpecamortError(
            f"{path}: {table} has no column {missing}, so it is not an nsys export; export the "
            "report again"
        )
    return columns


def _read(db: sqlite3.Connection, uri: str, path: Path, filled: set[str]) -> Trace:
    edges: Edges = {}
    # short names leave out the template arguments, where FlashAttention 3 and argmax have theirs
    columns = _columns(db, path, _KERNEL, _INTERVAL)
    named = [f"NULLIF({c}, 0)" for c in ("demangledName", "shortName") if c in columns]
    rows = _rows(path, uri, _KERNEL, f"COALESCE({', '.join([*named, '0', '0'])})")
    by_id, events = _sums(rows, edges)
    copies = 0.0
    for table in filled.intersection(_COPIES):
        _columns(db, path, table, _INTERVAL)
        by_nothing, number = _sums(_rows(path, uri, table, "0"), edges)
        copies += sum(by_nothing.values())
        events += number
    marked = "NVTX_EVENTS" in filled
    marks = _marks(db, path) if marked else []
    busy_ns = _busy(path, edges, [at for *interval, _ in marks for at in interval])
    by_name: dict[str, float] = {}
    for i, ns in by_id.items():
        name = _name(db, path, i)
        by_name[name] = by_name.get(name, 0.0) + ns
    families = by_family(path, by_name)
    if copies:
        families["copy"] = families.get("copy", 0.0) + copies
    step_tokens = decode_step_tokens(path, [text for *_, text in marks])
    return Trace(
        tracer="nsys",
        steps=len(step_tokens) if marked else None,
        step_tokens=step_tokens,
        busy_ms=busy_ns / 1e6,
        sum_ms=sum(families.values()) / 1e6,
        family_ms={k: ns / 1e6 for k, ns in families.items()},
        events=events,
    )


def _rows(path: Path, uri: str, table: str, name: str) -> Iterator[np.ndarray]:
    """A table in chunks of four rows: start and end in ns, device, and name id.

    Arrow's reader and not `sqlite3`: millions of rows become numbers without becoming objects. To
    both, whatever SQLite says but "row" and "end" is an error, a later row of another type too.

    Raises:
        SpecamortError: a time, a device or a name is none.
    """
    with dbapi.connect(uri) as db, db.cursor() as cursor:
        cursor.adbc_statement.set_options(**{StatementOptions.BATCH_ROWS.value: str(_CHUNK)})
        cursor.execute(f"SELECT {', '.join(_INTERVAL)}, {name} FROM {table}")
        for batch in cursor.fetch_record_batch():
            for key, c in zip((*_INTERVAL, "name id"), batch.columns, strict=True):
                if c.type != pa.int64() or c.null_count:
                    raise SpecamortError(
                        f"{path}: {table} has a row whose {key} is no whole number; export the "
                        "report again"
                    )
            start, end, device, _ = chunk = np.stack([c.to_numpy() for c in batch.columns])
            # CUPTI's 0 is a time that it could not take
            if (end < start).any() or not start.all():
                raise SpecamortError(
                    f"{path}: {table} has a start of 0, or an end before its start; trace again"
                )
            if device.min() < 0 or device.max() >= DEVICES:
                raise SpecamortError(
                    f"{path}: {table} has a deviceId that is none of 0 to {DEVICES - 1}; export "
                    "the report again"
                )
            yield chunk


def _sums(chunks: Iterator[np.ndarray], edges: Edges) -> tuple[dict[int, float], int]:
    """Sum by name id in ns, and number of rows; their starts and ends are added to `edges`."""
    by_id: dict[int, float] = {}
    events = 0
    for start, end, device, name in chunks:
        ids, which = np.unique(name, return_inverse=True)
        for i, ns in zip(ids.tolist(), np.bincount(which, end - start).tolist(), strict=True):
            by_id[i] = by_id.get(i, 0.0) + ns
        for d in np.unique(device).tolist():
            kept = edges.setdefault(d, (bytearray(), bytearray()))
            for edge, times in zip(kept, (start, end), strict=True):
                edge += times[device == d].tobytes()
        events += len(start)
    return by_id, events


def _busy(path: Path, edges: Edges, marks: list[int]) -> float:
    """Union of intervals in ns, added over devices, if marks are near them. Spoils `edges`."""
    pairs = [tuple(np.frombuffer(e, np.int64) for e in pair) for pair in edges.values()]
    first = min([*marks, *(int(start.min()) for start, _ in pairs)])
    last = max([*marks, *(int(end.max()) for _, end in pairs)])
    if last - first > DAY_S * 1e9:
        raise SpecamortError(
            f"{path}: start and end of its rows lie more than a day apart, so some are wrong; "
            "export the report again, then trace again"
        )
    return sum(union(start, end) for start, end in pairs)


def _name(db: sqlite3.Connection, path: Path, i: int) -> str:
    """The name of an id, empty where there is none."""
    found = db.execute("SELECT value FROM StringIds WHERE id = ?", (i,)).fetchall()
    if len(found) > 1 or any(not isinstance(value, str | None) for (value,) in found):
        raise SpecamortError(
            f"{path}: StringIds has several values of id {i}, or one that is no text; export the "
            "report again"
        )
    return (found and found[0][0]) or ""


def _marks(db: sqlite3.Connection, path: Path) -> list[tuple[int, int, str]]:
    """Start, end and text of vLLM's marks in time order.

    A text is in place or an id, by version and registration; a range that was open has no end.

    Raises:
        SpecamortError: one is there twice, damaged, or without time or text.
    """
    columns = _columns(db, path, "NVTX_EVENTS", ("start", "end", "text"))
    text_id, kind, domain, thread = (
        c if c in columns else "NULL" for c in ("textId", "eventType", "domainId", "globalTid")
    )

    def may_be_mark(text: str) -> str:  # a number or zeros may have been one
        other = f"typeof({text}) NOT IN ('text', 'null') OR instr({text}, char(0))"
        return f"({text} GLOB '{MARK}*' OR {other})"

    rows = db.execute(
        f"""
        SELECT start, COALESCE("end", start),
            COALESCE(text, (SELECT value FROM StringIds WHERE id = {text_id})), {domain}, {thread}
        FROM NVTX_EVENTS WHERE {may_be_mark("text")} OR text IS NULL AND (
            {text_id} IN (SELECT id FROM StringIds WHERE {may_be_mark("value")})
            OR {kind} = {_PUSH_POP} AND ifnull({text_id} NOT IN (SELECT id FROM StringIds), 1)
        ) ORDER BY start
        """
    ).fetchall()
    marks = [row for row in rows if row[2] is not None]
    domains = {domain for *_, domain, _ in marks}
    if (
        any(text is None and domain in domains for _, _, text, domain, _ in rows)
        or any([type(c) for c in row[:3]] != [int, int, str] for row in marks)
        or len(set(marks)) < len(marks)
    ):
        raise SpecamortError(
            f"{path}: NVTX_EVENTS has a range that is there twice, or whose start, end or text is "
            "none; export the report again, then trace again"
        )
    return [row[:3] for row in marks]
