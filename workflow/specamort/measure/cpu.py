"""What a machine's cores do beside this job; read before and after a cell, as a GPU's state is."""

import ctypes
import time
from functools import cache

import psutil

_SET_CHILD_SUBREAPER = 36  # prctl(2)


def reading() -> dict:
    """What all cores have done since the machine started; see `records.types.CpuReading`.

    Returns:
        `at_ns` (monotonic); `steal_s`: time that the hypervisor gave to others (proc(5)), 0 where
        the kernel does not tell; `others_s`: busy time less that of this job, which is this
        process, what it started, and what of those has ended; `cores`.
    """
    _adopt_orphans()
    own = _job_s()
    spent = psutil.cpu_times()
    # a guest's time is in user's already; waiting for a disk takes no core
    busy = sum(getattr(spent, k, 0.0) for k in ("user", "nice", "system", "irq", "softirq"))
    return {
        "at_ns": time.monotonic_ns(),
        "steal_s": round(getattr(spent, "steal", 0.0), 3),
        "others_s": round(busy - own, 3),
        "cores": psutil.cpu_count() or 1,
    }


@cache
def _adopt_orphans() -> None:
    """Keep what the job's processes leave when they end: its CPU time would be gone with them.

    An engine that is shut down ends without waiting for its workers. As this process' children they
    stay in the table of processes, time and all, until it ends itself.
    """
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _job_s() -> float:
    """CPU time of this process and its descendants, and of those that ended and were waited for."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])  # own and ended children's, user and system
        except psutil.NoSuchProcess:
            continue  # its parent has waited for it, and has its time
    return total
