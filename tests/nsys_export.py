"""SQLite exports as nsys writes them, in several schema versions, with the right answer beside.

Columns after NVIDIA's "SQLite Schema Reference" of each release. The answer is computed here by
counting covered nanoseconds, not by the method under test.
"""

import random
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

# version: columns a kernel row has; the rest of a row is zeros
_COMMON = "start end deviceId contextId streamId correlationId globalPid demangledName shortName"
_SHAPE = "registersPerThread gridX gridY gridZ blockX blockY blockZ staticSharedMemory"
_SHAPE += " dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId"
VERSIONS = {
    "2023.1": f"{_COMMON} launchType cacheConfig {_SHAPE} sharedMemoryExecuted",
    "2024.3": f"{_COMMON} mangledName launchType cacheConfig {_SHAPE} sharedMemoryExecuted "
    "graphNodeId sharedMemoryLimitConfig",
    "2026.2": f"{_COMMON} greenContextId mangledName launchType cacheConfig {_SHAPE} "
    "sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig",
}
KERNELS = {
    "sm90_xmma_gemm_bf16": "gemm",
    "nvjet_tst_64x8": "gemm",
    "flash_fwd_splitkv_kernel": "attention",
    "reshape_and_cache_flash_kernel": "attention",
    "rms_norm_kernel": "norm",
    "argmax_kernel": "sampling",
    "act_and_mul_kernel": "other",
}
_MEMORY = "start end deviceId contextId streamId correlationId globalPid bytes copyKind"


@dataclass
class Answer:
    busy_ns: int = 0
    sum_ns: int = 0
    events: int = 0
    family_ns: dict[str, int] = field(default_factory=dict)


def write(
    path: Path,
    version: str = "2026.2",
    steps: int = 4,
    rows: int = 1,
    devices: int = 1,
    processes: int = 1,
    overlap: float = 0.2,
    shuffled: bool = False,
    per_step: int = 20,
    marks: str | None = "text",
    seed: int = 0,
) -> Answer:
    """An export of a prefill and `steps` decode steps, and what is in it.

    Args:
        overlap: share of kernels that start before the one before them has ended.
        shuffled: rows out of time order, as after a merge of streams.
        marks: how vLLM's marks are stored: `text`, `textId`, or not at all.
    """
    rng = random.Random(seed)
    db = sqlite3.connect(path)
    db.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
    db.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
    names = {n: 1000 + i for i, n in enumerate(KERNELS)}
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, n) for n, i in names.items()])
    columns = VERSIONS[version].split()
    _table(db, "CUPTI_ACTIVITY_KIND_KERNEL", columns)
    _table(db, "CUPTI_ACTIVITY_KIND_MEMCPY", _MEMORY.split())
    answer, spans, kernels, copies = Answer(), {}, [], []
    clock = dict.fromkeys(range(devices), 10**15)
    marked = []
    for step in range(steps + 1):
        begin = max(clock.values())
        for d in range(devices):
            clock[d] = begin
            for i in range(per_step):
                name = rng.choice(list(KERNELS))
                start = clock[d] + rng.randrange(0, 900)
                if rng.random() < overlap:
                    start = clock[d] - rng.randrange(1, 1500)
                end = start + rng.randrange(1000, 9000)
                clock[d] = max(end, clock[d])
                pid = 2**48 + 7 + i % processes
                given = {"start": start, "end": end, "deviceId": d, "globalPid": pid}
                given |= {"shortName": names[name], "demangledName": names[name]}
                kernels.append(tuple(given.get(c, 0) for c in columns))
                spans.setdefault(d, []).append((start, end))
                _add(answer, KERNELS[name], end - start)
            start = clock[d]
            copies.append((start, start + 500, d, 1, 7, 0, 2**48 + 7, 64, 2))
            spans[d].append((start, start + 500))
            _add(answer, "copy", 500)
            clock[d] = start + 500
        phase = f"0(0)_generation_1({rows})" if step else "1(256)_generation_0(0)"
        marked.append((begin, max(clock.values()), f"execute_context_{phase}"))
    kernels.sort()
    if shuffled:
        rng.shuffle(kernels)
    for table, made in (("KERNEL", kernels), ("MEMCPY", copies)):
        blanks = ", ".join("?" * len(made[0]))
        db.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_{table} VALUES ({blanks})", made)
    if marks:
        _table(db, "NVTX_EVENTS", ["start", "end", "eventType", "text", "textId"])
        for i, (start, end, mark) in enumerate(marked):
            where = (mark, None) if marks == "text" else (None, 5000 + i)
            db.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?)", (start, end, *where))
            if marks == "textId":
                db.execute("INSERT INTO StringIds VALUES (?, ?)", (5000 + i, mark))
    db.commit()
    db.close()
    answer.busy_ns = sum(map(covered, spans.values()))
    return answer


def covered(spans: list[tuple[int, int]]) -> int:
    """Nanoseconds inside at least one span, from the count of open spans at every edge."""
    edges = sorted([(s, 1) for s, _ in spans] + [(e, -1) for _, e in spans])
    total, open_spans, since = 0, 0, 0
    for at, change in edges:
        if open_spans:
            total += at - since
        open_spans, since = open_spans + change, at
    return total


def _add(answer: Answer, family: str, ns: int) -> None:
    answer.sum_ns += ns
    answer.events += 1
    answer.family_ns[family] = answer.family_ns.get(family, 0) + ns


def _table(db: sqlite3.Connection, name: str, columns: list[str]) -> None:
    made = ", ".join(f"{c} {'TEXT' if c == 'text' else 'INTEGER'}" for c in columns)
    db.execute(f"CREATE TABLE {name} ({made})")
