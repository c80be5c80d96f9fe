"""Processes that a killed job left behind: they would share the device with the next.

A job marks its process tree by an environment variable, which every process that it or its engine
starts inherits and keeps when the job is killed and they are handed to init.
"""

import os
import time
from pathlib import Path

import psutil

from ..errors import SpecamortError

_MARK = "SPECAMORT_JOB"


def mark() -> None:
    """Mark what this process starts from now on as this job's."""
    pid = os.getpid()
    name = os.environ.get("SLURM_JOB_ID", "local")
    os.environ |= {
        _MARK: f"{name} {pid} {_start_ticks(pid)} {_namespace('self')}",
        "SPT_NOENV": "1",  # setproctitle, which vLLM calls, would write over the environment
    }


def sweep(timeout_s: float = 30) -> list[int]:
    """End this user's processes that carry the mark of a job that is dead; their pids.

    Raises:
        SpecamortError: one does not end, so that the device is not free.
    """
    mine = {os.getpid(), *(p.pid for p in psutil.Process().parents())}
    left = [p for p in psutil.process_iter() if p.pid not in mine and _left_behind(p)]
    for p in left:
        try:
            p.kill()
        except psutil.NoSuchProcess:
            continue
    end = time.monotonic() + timeout_s
    while (alive := [p for p in left if _lives(p)]) and time.monotonic() < end:
        time.sleep(0.1)
    if alive:
        raise SpecamortError(
            f"process {alive[0].pid}, which a killed job of yours left on this machine, does not "
            "end; it would share the device, so nothing is measured until it is gone"
        )
    return [p.pid for p in left]


def _lives(process: psutil.Process) -> bool:
    try:
        # one that nobody reaps, as in a container whose init does not, holds no device
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _left_behind(process: psutil.Process) -> bool:
    try:
        if process.uids().real != os.getuid():
            return False
        _, pid, ticks, namespace = process.environ()[_MARK].rsplit(" ", 3)
        # a job of another container has pids of its own, which mean nothing here
        return namespace == _namespace("self") and _start_ticks(int(pid)) != int(ticks)
    except (psutil.Error, KeyError, ValueError, OSError):
        return False


def _start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; null if it is dead, buried or not.

    Not a time of day, which moves with the clock.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(b") ")[2].split()
    return None if state in (b"Z", b"X") else int(fields[18])


def _namespace(process: str) -> str:
    return os.readlink(f"/proc/{process}/ns/pid")
