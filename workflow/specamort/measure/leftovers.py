"""Engine processes that a killed job left behind: they would share the device with the next."""

from pathlib import Path


def sweep(logs: Path) -> list[int]:
    """Kill processes that write to a log below `logs` though no job of ours is their ancestor.

    A job sends its own and its engine's output to its log, so an open log is the one mark that
    an engine keeps when its job is killed with SIGKILL and it is handed to init.
    """
    import psutil

    def is_job(process: psutil.Process) -> bool:
        return {"--study", "--log"} <= set(process.cmdline())

    killed = []
    for p in psutil.process_iter():
        try:
            written = [f.path for f in p.open_files() if f.mode != "r"]
            ours = any(Path(path).is_relative_to(logs) for path in written)
            if ours and not any(is_job(q) for q in (p, *p.parents())):
                p.kill()
                killed.append(p.pid)
        except psutil.Error:
            continue
    return killed
