"""nsys: the command that traces vLLM's process tree, and what its SQLite export says.

Schema: "SQLite Schema Reference" of NVIDIA's Nsight Systems documentation. Tables are created
lazily, times are nanoseconds, names are ids into StringIds.
"""

import shutil
import sqlite3
from pathlib import Path

from . import nsys_scan
from .errors import SpecamortError
from .slurm import ask
from .trace import Trace, decode_rows, family

OPTIONS = {"profiler": "cuda"}  # vLLM's `profiler_config`: it brackets what nsys is to capture
_DEVICE_TABLES = ("KERNEL", "MEMCPY", "MEMSET")


def require() -> str:
    """Path of nsys.

    Raises:
        SpecamortError: it is not on the PATH; says what to do.
    """
    found = shutil.which("nsys")
    if not found:
        raise SpecamortError(
            "nsys is not on the PATH; load its module (`modules:` in the cluster file) or set "
            "`profile.tracer: kineto` in the study file"
        )
    return found


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
    """The reports of `profile_command`, in the order of their ranges.

    Raises:
        SpecamortError: a worker was killed before nsys had finished one.
    """
    unfinished = sorted(output.parent.glob(f"{output.name}*.qdstrm"))
    if unfinished:
        raise SpecamortError(
            f"{unfinished[0]}: nsys did not finish this report; the engine was killed while it "
            "was traced, run the job again"
        )
    found = output.parent.glob(f"{output.name}.*.nsys-rep")
    return sorted(found, key=lambda p: int(p.name.split(".")[-2]))


def export(report: Path) -> Path:
    """A report's SQLite export, beside it."""
    target = report.with_suffix(".sqlite")
    ask(
        *(require(), "export", "--type=sqlite", "--force-overwrite=true"),
        *(f"--output={target}", str(report)),
        timeout_s=3600,
    )
    return target


def read(path: Path) -> Trace:
    """Device activity in an export, aggregated inside SQLite.

    Raises:
        SpecamortError: truncated, not an export, without kernels, or with broken clocks.
    """
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
            db.execute("PRAGMA mmap_size = 1099511627776")
            return _read(db, path)
    except sqlite3.DatabaseError as e:
        raise SpecamortError(
            f"{path}: cut short or not an nsys export ({e}); export the report again"
        ) from e


def _read(db: sqlite3.Connection, path: Path) -> Trace:
    present = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    tables = [t for k in _DEVICE_TABLES if (t := f"CUPTI_ACTIVITY_KIND_{k}") in present]
    if "StringIds" not in present:
        raise SpecamortError(f"{path}: has no table StringIds; it is not an nsys export")
    if "CUPTI_ACTIVITY_KIND_KERNEL" not in tables:
        whole = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE" in present
        raise SpecamortError(
            f"{path}: holds CUDA graphs as wholes; trace with --cuda-graph-trace=node"
            if whole
            else f"{path}: holds no kernel; the traced process did no work on a GPU, or nsys did "
            "not follow vLLM's workers (VLLM_WORKER_MULTIPROC_METHOD=spawn)"
        )
    (names,) = db.execute("SELECT 1 + MAX(id) FROM StringIds").fetchone()
    ids = {
        t: "shortName" if t.endswith("KERNEL") else str(names) for t in tables
    }  # copies: unnamed
    try:
        by_id, busy_ns, events = nsys_scan.scan(path, ids, names + 1)
        by_name = {int(i): int(by_id[i]) for i in by_id.nonzero()[0]}
    except nsys_scan.OutOfOrder:
        by_name, busy_ns, events = _in_sql(db, ids)
    if events < 0:
        raise SpecamortError(f"{path}: has kernels that end before they start; trace again")
    families: dict[str, float] = {}
    for i, ns in by_name.items():
        found = db.execute("SELECT value FROM StringIds WHERE id = ?", (i,)).fetchone()
        kind = family(found[0]) if found else "copy"
        families[kind] = families.get(kind, 0.0) + ns / 1e6
    rows = decode_rows(_marks(db, present))
    return Trace(
        tracer="nsys",
        steps=len(rows) if "NVTX_EVENTS" in present else None,
        rows=rows,
        busy_ms=busy_ns / 1e6,
        sum_ms=sum(families.values()),
        family_ms=families,
        events=events,
    )


def _in_sql(db: sqlite3.Connection, ids: dict[str, str]) -> tuple[dict[int, int], int, int]:
    """As `nsys_scan.scan`, for an export in any order."""
    intervals = " UNION ALL ".join(
        f"SELECT deviceId, start, end, {i} AS id FROM {t}" for t, i in ids.items()
    )
    by_name, events = {}, 0
    for i, ns, n, shortest in db.execute(
        f"SELECT id, SUM(end - start), COUNT(*), MIN(end - start) FROM ({intervals}) GROUP BY id"
    ):
        if shortest < 0:
            return {}, 0, -1
        by_name[i] = ns
        events += n
    (busy,) = db.execute(
        "SELECT SUM(MAX(0, end - MAX(start, IFNULL(reach, start)))) FROM (SELECT start, end, "
        "MAX(end) OVER (PARTITION BY deviceId ORDER BY start "
        "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reach "
        f"FROM ({intervals}))"
    ).fetchone()
    return by_name, busy or 0, events


def _marks(db: sqlite3.Connection, present: set[str]) -> list[str]:
    """vLLM's marks in time order; their text is in place or an id, by version and registration."""
    if "NVTX_EVENTS" not in present:
        return []
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
