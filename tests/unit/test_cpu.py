"""What a machine's cores did beside a job, by jobs whose own CPU time is known."""

import os
import subprocess
import sys
import time

import pytest

psutil = pytest.importorskip("psutil")

from specamort.measure import cpu  # noqa: E402
from specamort.records.exclusions import exclusions  # noqa: E402

# Spends the seconds of CPU time it is told, in a child that it waits for if asked.
SPEND = """
import subprocess, sys, time
if sys.argv[2] == "by a child":
    subprocess.run([sys.executable, "-c", sys.argv[3], sys.argv[1], "itself", ""])
else:
    while time.process_time() < float(sys.argv[1]):
        pass
"""


# An engine's end: a process whose child goes on for a while and is waited for by nobody.
ORPHAN = r"""
import subprocess, sys, time
import psutil
from specamort.measure import cpu
cpu.reading()
before = cpu._job_s()
engine = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], stdout=2).pid)"
worker = "import time\nwhile time.process_time() < 0.5: pass"
said = subprocess.run([sys.executable, "-c", engine, sys.executable, "-c", worker],
                      stdout=subprocess.PIPE, check=True).stdout
while psutil.Process(int(said)).status() != psutil.STATUS_ZOMBIE:
    time.sleep(0.05)
print(cpu._job_s() - before)
"""


def spend(seconds, how):
    command = [sys.executable, "-c", SPEND, str(seconds), how, SPEND]
    return subprocess.Popen(command)


@pytest.fixture(autouse=True)
def not_the_tests_orphans(monkeypatch):
    monkeypatch.setattr(cpu, "_adopt_orphans", lambda: None)


@pytest.fixture
def stat(monkeypatch):
    """A machine on which nobody else does anything: what is busy is what this job has used."""
    spent = {"system": 0.0, "steal": 0.0, "own": 0.0}

    def cpu_times():
        fields = dict.fromkeys(("user", "nice", "irq", "softirq", "idle", "iowait"), 1000.0)
        times = fields | {"system": spent["system"], "steal": spent["steal"]}
        return type("Times", (), times)()

    monkeypatch.setattr(psutil, "cpu_times", cpu_times)
    monkeypatch.setattr(cpu, "_job_s", lambda: spent["own"])
    return spent


def test_only_what_is_not_the_jobs_counts(stat):
    """Of 7 s that the cores were busy 5 were the job's; idle and waiting for a disk are not."""
    before = cpu.reading()
    stat |= {"system": 7.0, "own": 5.0, "steal": 0.5}
    after = cpu.reading()
    assert after["others_s"] - before["others_s"] == pytest.approx(2)
    assert after["steal_s"] - before["steal_s"] == pytest.approx(0.5)
    assert after["cores"] == os.cpu_count() and after["at_ns"] >= before["at_ns"]
    assert before["others_s"] == pytest.approx(4000)


@pytest.mark.parametrize("how", ["itself", "by a child"])
def test_the_jobs_own_processes_are_its_own_alive_or_waited_for(how):
    before = cpu._job_s()
    child = spend(0.5, how)
    child.wait()
    ended = cpu._job_s() - before
    assert 0.5 <= ended < 5
    before = cpu._job_s()
    child = spend(60, how)
    try:
        while cpu._job_s() - before < 0.5:  # counted while it runs, or this never ends
            time.sleep(0.05)
    finally:
        for p in (*psutil.Process(child.pid).children(recursive=True), child):
            p.kill()
        child.wait()


def test_what_an_engine_leaves_when_it_ends_is_the_jobs():
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN], capture_output=True, text=True, check=True, timeout=60
    )
    assert float(done.stdout) >= 0.5


def test_a_cell_is_shared_by_what_others_took_a_second():
    before = {"at_ns": 0, "steal_s": 10.0, "others_s": 100.0, "cores": 64}

    def of(seconds, steal=0.0, others=0.0, **options):
        after = {"at_ns": int(seconds * 1e9), "cores": 64}
        after |= {"steal_s": 10 + steal, "others_s": 100 + others}
        return exclusions({"before": before, "after": after}, **options)

    assert of(20, steal=1, others=0.9) == []
    assert of(20, steal=1, others=1.1) == ["shared"]
    assert of(20, others=2.1) == of(20, steal=2.1) == ["shared"]
    assert of(20, others=2.1, shared_above=0.2) == []
    assert of(20, others=-1) == of(0) == []  # clocks that tick in hundredths


def test_this_machine_can_be_read():
    one = cpu.reading()
    other = cpu.reading()
    assert other["at_ns"] > one["at_ns"] and other["steal_s"] >= one["steal_s"] >= 0
