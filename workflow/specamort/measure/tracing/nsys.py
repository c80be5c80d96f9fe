"""nsys: the command that traces vLLM's process tree, and what its SQLite export says.

Schema: "SQLite Schema Reference" of NVIDIA's Nsight Systems documentation. Tables are created
lazily, times are nanoseconds, names are ids into StringIds.
"""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
from adbc_driver_sqlite import StatementOptions, dbapi

from ...errors import SpecamortError
from ...files import run_command
from ...model.kernels import family
from ...study.tracer import require
from .trace import Trace, decode_step_tokens, union

OPTIONS = {"profiler": "cuda"}  # vLLM's `profiler_config`: it brackets what nsys is to capture
_ACTIVITY = "CUPTI_ACTIVITY_KIND_"
_CHUNK = 65536  # rows in memory at a time
_COPY = -(2**62)  # name id of what has no name: copies and fills


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

    Raises:
        SpecamortError: interrupted, damaged, not an export, without kernels, with whole CUDA
            graphs, or with broken clocks.
    """
    for end in ("-journal", "-wal"):
        left = path.with_name(path.name + end)
        if left.exists() and left.stat().st_size:
            raise SpecamortError(
                f"{path}: its export was interrupted, {left.name} is still beside it; delete both "
                "and export the report again"
            )
    uri = f"{path.resolve().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as db:
            return _read(db, uri, path)
    except (sqlite3.Error, dbapi.Error, pa.ArrowException, OSError) as e:
        raise SpecamortError(
            f"{path}: damaged, cut short or not an nsys export ({str(e).splitlines()[0]}); export "
            "the report again, and trace again if that does not help"
        ) from e


def _read(db: sqlite3.Connection, uri: str, path: Path) -> Trace:
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    if "StringIds" not in tables:
        raise SpecamortError(
            f"{path}: has no table StringIds; it is not an nsys export, or an interrupted one: "
            "export the report again"
        )

    def filled(table: str) -> bool:
        return table in tables and bool(db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone())

    if filled(f"{_ACTIVITY}GRAPH_TRACE"):
        raise SpecamortError(
            f"{path}: holds CUDA graphs as wholes, whose kernels would be missing; trace with "
            "--cuda-graph-trace=node"
        )
    kernels = f"{_ACTIVITY}KERNEL"
    if not filled(kernels):
        raise SpecamortError(
            # NVIDIA's own remedy (release notes, forum 315536)
            f"{path}: holds CUDA calls but none of the kernels they launched; put "
            "CuptiUseRawGpuTimestamps=false into the file that `nsys -z` names, and trace again"
            if filled(f"{_ACTIVITY}RUNTIME")
            else f"{path}: holds no kernel; the traced process did no work on a GPU, nsys did not "
            "follow vLLM's workers (VLLM_WORKER_MULTIPROC_METHOD=spawn), or the export was "
            "interrupted: export the report again, then trace again"
        )
    columns = {row[1] for row in db.execute(f"PRAGMA table_info({kernels})")}
    # short names leave out the template arguments, where FlashAttention 3 and argmax have theirs
    named = [f"NULLIF({c}, 0)" for c in ("demangledName", "shortName") if c in columns]
    names = {kernels: f"COALESCE({', '.join(named)}, 0)"}
    names |= {t: str(_COPY) for k in ("MEMCPY", "MEMSET") if filled(t := f"{_ACTIVITY}{k}")}
    by_name, busy_ns, events = _sums(c for t, n in names.items() for c in _rows(path, uri, t, n))
    families: dict[str, float] = {}
    for i, ns in by_name.items():
        found = db.execute("SELECT value FROM StringIds WHERE id = ?", (i,)).fetchone()
        kind = "copy" if i == _COPY else family((found and found[0]) or "")
        families[kind] = families.get(kind, 0.0) + ns / 1e6
    marked = filled("NVTX_EVENTS")
    step_tokens = decode_step_tokens(_marks(db) if marked else [])
    return Trace(
        tracer="nsys",
        steps=len(step_tokens) if marked else None,
        step_tokens=step_tokens,
        busy_ms=busy_ns / 1e6,
        sum_ms=sum(families.values()),
        family_ms=families,
        events=events,
    )


def _rows(path: Path, uri: str, table: str, name: str) -> Iterator[np.ndarray]:
    """A table in chunks of four rows: start and end in ns, device, and name id.

    Arrow's reader and not `sqlite3`: millions of rows become numbers without becoming objects. To
    both, whatever SQLite says but "row" and "end" is an error.

    Raises:
        SpecamortError: a time or device is missing, or an interval ends before it starts.
    """
    with dbapi.connect(uri) as db, db.cursor() as cursor:
        cursor.adbc_statement.set_options(**{StatementOptions.BATCH_ROWS.value: str(_CHUNK)})
        cursor.execute(f"SELECT start, end, deviceId, {name} FROM {table}")
        for batch in cursor.fetch_record_batch():
            if any(c.type != pa.int64() or c.null_count for c in batch.columns):
                raise SpecamortError(
                    f"{path}: {table} has rows without a time or device; export the report again"
                )
            chunk = np.stack([c.to_numpy() for c in batch.columns])
            if (chunk[1] < chunk[0]).any():
                raise SpecamortError(f"{path}: has kernels that end before they start; trace again")
            yield chunk


def _sums(chunks: Iterator[np.ndarray]) -> tuple[dict[int, float], float, int]:
    """Sum by name id in ns, union added over devices in ns, number of rows; in any order."""
    by_name: dict[int, float] = {}
    edges: dict[int, tuple[bytearray, bytearray]] = {}  # by device; they grow in place
    events = 0
    for start, end, device, name in chunks:
        ids, which = np.unique(name, return_inverse=True)
        for i, ns in zip(ids.tolist(), np.bincount(which, end - start).tolist(), strict=True):
            by_name[i] = by_name.get(i, 0.0) + ns
        for d in np.unique(device).tolist():
            kept = edges.setdefault(d, (bytearray(), bytearray()))
            for edge, times in zip(kept, (start, end), strict=True):
                edge += times[device == d].tobytes()
        events += len(start)
    busy = sum(union(*(np.frombuffer(e, np.int64) for e in pair)) for pair in edges.values())
    return by_name, busy, events


def _marks(db: sqlite3.Connection) -> list[str]:
    """vLLM's marks in time order; their text is in place or an id, by version and registration."""
    columns = {row[1] for row in db.execute("PRAGMA table_info(NVTX_EVENTS)")}
    text = "COALESCE(e.text, s.value)" if "textId" in columns else "e.text"
    join = "LEFT JOIN StringIds s ON s.id = e.textId" if "textId" in columns else ""
    return [
        mark
        for (mark,) in db.execute(
            f"SELECT {text} FROM NVTX_EVENTS e {join} "
            f"WHERE {text} LIKE 'execute_context_%' ORDER BY e.start"
        )
    ]
