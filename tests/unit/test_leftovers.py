import os
import signal
import subprocess
import sys
import time

import pytest

psutil = pytest.importorskip("psutil")

from specamort.measure import leftovers  # noqa: E402

# Starts a process that tells its pid and sleeps, and waits; marked, it is a job and its engine.
JOB = """
import subprocess, sys, time
from specamort.measure import leftovers
leftovers._MARK = sys.argv[3]
if sys.argv[1] == "marked":
    leftovers.mark()
child = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
detached = sys.argv[2] == "detached"
subprocess.Popen([sys.executable, "-c", child], start_new_session=detached)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def name(monkeypatch):
    """A mark of this test's own: others run beside it."""
    monkeypatch.setattr(leftovers, "_MARK", f"SPECAMORT_TEST_{os.getpid()}")
    return leftovers._MARK


@pytest.fixture
def start(name):
    """Start a stand-in for a job: (job, pid of its engine)."""
    pids = []

    def start(marked="marked", how="attached", **env):
        command = [sys.executable, "-c", JOB, marked, how, name]
        job = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | env)
        pids.extend([job.pid, int(job.stdout.readline())])
        return job, pids[-1]

    yield start
    for pid in filter(psutil.pid_exists, pids):
        os.kill(pid, signal.SIGKILL)


def running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_only_what_a_killed_job_left_is_ended(start, tmp_path):
    _, engine = start()
    _, helper = start(how="detached")
    killed, left_behind = start(how="detached")
    unburied, left_too = start()
    stranger_parent, stranger = start("unmarked")
    for parent in (killed, unburied, stranger_parent):
        parent.kill()
    killed.wait(), stranger_parent.wait()
    while running(unburied.pid):
        time.sleep(0.01)
    assert sorted(leftovers.sweep()) == sorted([left_behind, left_too])
    assert not running(left_behind) and not running(left_too)
    assert running(engine) and running(helper) and running(stranger)


def test_neither_a_job_nor_what_started_it_is_swept(start, name):
    """What a killed job left may have started the job that sweeps."""
    killed, _ = start()
    killed.kill()
    killed.wait()
    dead = f"local {killed.pid} 1 {os.readlink('/proc/self/ns/pid')}"
    sweeper = (
        "from specamort.measure import leftovers; "
        f"leftovers._MARK = {name!r}; print(leftovers.sweep())"
    )
    command = f'"{sys.executable}" -c "{sweeper}"; echo $?'
    done = subprocess.run(
        ["bash", "-c", command],
        env=os.environ | {name: dead},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout.endswith("0\n")


@pytest.mark.parametrize("mark", ["", "1", "local x y z", "local 1 1 pid:[1]", "a b c d e"])
def test_a_mark_that_is_not_ours_says_nothing(start, name, mark):
    """Damaged, or of another container, whose pids are its own."""
    _, child = start("unmarked", **{name: mark})
    assert leftovers.sweep() == [] and running(child)


def test_another_users_processes_are_left_alone(start, monkeypatch):
    killed, left_behind = start()
    killed.kill()
    killed.wait()
    monkeypatch.setattr(leftovers.os, "getuid", lambda: os.geteuid() + 1)
    assert leftovers.sweep() == [] and running(left_behind)


def test_what_does_not_end_is_a_sentence(start, monkeypatch):
    killed, left_behind = start()
    killed.kill()
    killed.wait()
    monkeypatch.setattr(psutil.Process, "kill", lambda self: None)
    with pytest.raises(leftovers.SpecamortError, match=f"process {left_behind}.*does not end"):
        leftovers.sweep(timeout_s=0.1)


def test_one_that_nobody_reaps_holds_no_device(start):
    """As in a container whose init does not: this test starts it, and does not ask how it ended."""
    killed, _ = start()
    dead = f"local {killed.pid} 1 {os.readlink('/proc/self/ns/pid')}"
    orphan = subprocess.Popen(["sleep", "60"], env=os.environ | {leftovers._MARK: dead})
    try:
        assert leftovers.sweep(timeout_s=5) == [orphan.pid]
        assert psutil.Process(orphan.pid).status() == psutil.STATUS_ZOMBIE
    finally:
        orphan.kill()
        orphan.wait()
