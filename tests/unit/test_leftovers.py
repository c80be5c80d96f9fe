import subprocess
import sys

import pytest

psutil = pytest.importorskip("psutil")

from specamort.measure import leftovers  # noqa: E402

# A process that writes to the log and sleeps; `parent` starts one and is killed or waits.
CHILD = "import sys, time; f = open(sys.argv[1], 'a'); print('up', flush=True); time.sleep(60)"
PARENT = (
    "import subprocess, sys, time\n"
    "c = subprocess.Popen([sys.executable, '-c', *sys.argv[1:3]], stdout=subprocess.PIPE)\n"
    "c.stdout.readline(); print(c.pid, flush=True); time.sleep(60)"
)


def job(log):
    """A stand-in for a measuring job and its engine: (job, engine's pid)."""
    command = [sys.executable, "-c", PARENT, CHILD, str(log), "--study", "s", "--log", "l"]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE)
    return parent, int(parent.stdout.readline())


def test_only_what_a_killed_job_left_is_ended(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    alive, its_engine = job(logs / "alive.log")
    killed, left_behind = job(logs / "killed.log")
    elsewhere, stranger = job(tmp_path / "other.log")
    reader = subprocess.Popen(["tail", "-F", str(logs / "killed.log")])
    try:
        for parent in (killed, elsewhere):
            parent.kill()
            parent.wait()
        assert leftovers.sweep(logs) == [left_behind]
        assert psutil.pid_exists(its_engine) and psutil.pid_exists(stranger)
        assert reader.poll() is None
    finally:
        reader.kill()
        alive.kill()
        for pid in (its_engine, left_behind, stranger):
            if psutil.pid_exists(pid):
                psutil.Process(pid).kill()
