"""One pass over an nsys export at the speed of SQLite itself: sums by name, union of intervals.

SQLite answers either, but only by sorting millions of rows. Exports are in time order, so each
row can be dealt with as it comes; the loop is compiled, and the tables' halves run side by side.
An export that is not in order goes back to SQL (`nsys.read`).
"""

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from ctypes.util import find_library
from pathlib import Path

import numpy as np

_DEVICES = 64
_ROW = 100
_READONLY_NOMUTEX = 0x1 | 0x8000  # a connection is one thread's, and locks cost as much as rows
_EARLIEST, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class OutOfOrder(Exception):
    """Rows are not in time order, or there is no compiler or SQLite library to do without."""


def scan(path: Path, tables: dict[str, str], names: int) -> tuple[np.ndarray, int, int]:
    """Sum intervals by name, and their union by device.

    Args:
        tables: name of a table -> the column, or constant, that holds its rows' name id.
        names: ids are below this.

    Returns:
        Sum by name id in ns, union added over devices in ns, number of rows; a negative number of
        rows if one ends before it starts.

    Raises:
        OutOfOrder: see there.
    """
    merge, library = _compiled()
    parts = min(os.cpu_count() or 1, 8)
    bounds = _bounds(library, path, list(tables), parts)

    def one(part: int, stop: np.ndarray | None = None):
        state = np.zeros((3, _DEVICES), np.int64)  # union, reach; then first and last start
        state[1], state[2, :2] = _EARLIEST, (_LATEST, _EARLIEST)
        sums = np.zeros(names, np.int64)
        clip = stop is not None
        with _Statements(library, path, tables, bounds[part], bounds[part + 1]) as statements:
            end = stop if clip else np.zeros(_DEVICES, np.int64)
            rows = merge(statements, clip, end, sums, state)
        if rows == -1:
            raise OutOfOrder
        return sums, state, rows

    with ThreadPoolExecutor(parts) as pool:
        done = list(pool.map(one, range(parts)))
    if min(rows for *_, rows in done) < 0:
        return np.zeros(names), 0, -1
    total = sum(state[0] for _, state, _ in done)
    _, reach, (_, last, *_) = done[0][1]
    for part, (_, state, rows) in enumerate(done[1:], 1):
        if state[2, 0] < last:
            raise OutOfOrder
        if rows:  # what of this part the parts before it cover already
            total = total - one(part, reach)[1][0]
        reach, last = np.maximum(reach, state[1]), max(last, state[2, 1])
    sums, rows = sum(s for s, *_ in done), sum(n for *_, n in done)
    return sums, int(total.sum()), rows


class _Statements:
    """Open cursors over one part of every table, as the addresses that the compiled loop takes."""

    def __init__(self, library, path: Path, tables: dict[str, str], low: list, high: list):
        self._library, self._database = library, _open(library, path)
        self._cursors = []
        for (table, name), a, b in zip(tables.items(), low, high, strict=True):
            sql = f"SELECT start, end, deviceId, {name} FROM {table} WHERE rowid >= {a}"
            self._cursors.append(_prepare(library, self._database, f"{sql} AND rowid < {b}"))

    def __enter__(self) -> np.ndarray:
        return np.array(self._cursors, np.int64)

    def __exit__(self, *_) -> None:
        for cursor in self._cursors:
            self._library.sqlite3_finalize(cursor)
        self._library.sqlite3_close(self._database)


def _open(library, path: Path) -> int:
    database = ctypes.c_size_t()
    if library.sqlite3_open_v2(str(path).encode(), ctypes.byref(database), _READONLY_NOMUTEX, None):
        raise OutOfOrder
    return database.value


def _prepare(library, database: int, sql: str) -> int:
    cursor = ctypes.c_size_t()
    if library.sqlite3_prepare_v2(database, sql.encode(), -1, ctypes.byref(cursor), None):
        raise OutOfOrder
    return cursor.value


def _bounds(library, path: Path, tables: list[str], parts: int) -> list[list[int]]:
    """Row ids at which each table is cut, so that a part of every table is of the same time."""
    database = _open(library, path)

    def ask(sql: str) -> int | None:
        cursor = _prepare(library, database, sql)
        found = library.sqlite3_step(cursor) == _ROW
        value = library.sqlite3_column_int64(cursor, 0) if found else None
        library.sqlite3_finalize(cursor)
        return value

    def first_from(table: str, last: int, at: int) -> int:
        low, high = 1, last
        while low < high:
            middle = (low + high) // 2
            begun = ask(f"SELECT start FROM {table} WHERE rowid >= {middle} LIMIT 1")
            low, high = (low, middle) if begun is None or begun >= at else (middle + 1, high)
        return low

    lasts = [1 + (ask(f"SELECT MAX(rowid) FROM {t}") or 0) for t in tables]
    cuts = [[1] * len(tables)]
    for part in range(1, parts):
        middle = 1 + part * (lasts[0] - 1) // parts
        at = ask(f"SELECT start FROM {tables[0]} WHERE rowid >= {middle} LIMIT 1")
        at = _LATEST if at is None else at
        found = [first_from(t, last, at) for t, last in zip(tables, lasts, strict=True)]
        cuts.append([max(a, b) for a, b in zip(cuts[-1], found, strict=True)])
    library.sqlite3_close(database)
    return [*cuts, lasts]


def _compiled():
    global _MERGE
    if _MERGE is None:
        _MERGE = _compile()
    return _MERGE


_MERGE = None


def _compile():
    try:
        from numba import njit

        library = ctypes.CDLL(find_library("sqlite3"))
    except (ImportError, OSError, TypeError) as e:
        raise OutOfOrder from e
    # addresses as integers: the compiled loop holds them in an array
    word, step, column = ctypes.c_size_t, library.sqlite3_step, library.sqlite3_column_int64
    step.argtypes, step.restype = [word], ctypes.c_int
    column.argtypes, column.restype = [word, ctypes.c_int], ctypes.c_int64
    library.sqlite3_finalize.argtypes = library.sqlite3_close.argtypes = [word]
    library.sqlite3_prepare_v2.argtypes = [word, ctypes.c_char_p, ctypes.c_int] + [
        ctypes.c_void_p
    ] * 2

    @njit(nogil=True)
    def merge(cursors, clip, stop, sums, state):
        """Rows of all cursors by start; -1: out of order, -2: a row ends before it starts.

        With `clip`, only what begins before `stop` of its device, and up to there.
        """
        n, rows, limit = len(cursors), 0, stop.max()
        row = np.empty((n, 4), np.int64)
        alive = np.zeros(n, np.bool_)
        for i in range(n):
            alive[i] = step(cursors[i]) == 100
            if alive[i]:
                for j in range(4):
                    row[i, j] = column(cursors[i], j)
        while True:
            i = -1
            for k in range(n):
                if alive[k] and (i < 0 or row[k, 0] < row[i, 0]):
                    i = k
            if i < 0:
                return rows
            start, end, device = row[i, 0], row[i, 1], row[i, 2]
            if end < start:
                return -2
            if device >= 64 or row[i, 3] >= len(sums) or start < state[2, 1]:
                return -1
            if clip and start >= limit:
                return rows
            state[2, 0], state[2, 1] = min(start, state[2, 0]), start
            rows += 1
            sums[row[i, 3]] += end - start
            if clip:
                end = min(end, stop[device])
            begin = max(start, state[1, device])
            if end > begin:
                state[0, device] += end - begin
                state[1, device] = end
            alive[i] = step(cursors[i]) == 100
            if alive[i]:
                for j in range(4):
                    row[i, j] = column(cursors[i], j)

    return merge, library
