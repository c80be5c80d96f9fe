"""Who runs a study in a clone, and whether it still does something."""

import errno
import os
import subprocess
import sys
import time

import pytest

from specamort.cluster import running
from specamort.cluster.slurm import ControllerJob
from specamort.errors import SpecamortError

CLAIM = """
import sys, time
from pathlib import Path
from specamort.cluster.running import claim
claim(Path(sys.argv[1]), "28")
print("has it", flush=True)
time.sleep(60)
"""


@pytest.fixture
def other(tmp_path):
    """Another process that has the study."""
    command = [sys.executable, "-c", CLAIM, str(tmp_path)]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert run.stdout.readline() == "has it\n"
    yield run
    run.kill()
    run.wait()


def test_the_second_is_told_who_has_it(tmp_path, other):
    assert f"(process {other.pid} on " in running.holder(tmp_path)
    with pytest.raises(SpecamortError, match=rf"process {other.pid} on .*, job 28\) runs this st"):
        running.claim(tmp_path, patience_s=0)
    assert running.holder(tmp_path).endswith(", job 28)")


def test_a_claim_is_gone_with_its_holder(tmp_path, other):
    other.kill()
    other.wait()
    assert running.holder(tmp_path) is None
    running.claim(tmp_path, patience_s=0)
    running._HELD.pop().close()


def test_nobody_runs_what_was_never_started(tmp_path):
    assert running.holder(tmp_path / "none") is None


def test_a_folder_that_is_not_mine(tmp_path):
    (tmp_path / "controller").write_text("no folder")
    with pytest.raises(SpecamortError, match="controller/running: cannot be written"):
        running.claim(tmp_path)


def test_done_but_stuck(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = ControllerJob("28", "you", mine=True, running=True)
    record = tmp_path / "raw" / "a.json"
    record.parent.mkdir()
    record.touch()
    assert running.stuck(tmp_path, True, job) == []
    then = time.time() - 43 * 60
    for path in (record, record.parent):
        os.utime(path, (then, then))
    assert running.last_written([tmp_path]) == pytest.approx(then)
    (said,) = running.stuck(tmp_path, True, job)
    assert said.startswith("done, but the controller is stuck: ") and "for 43 min" in said
    assert said.endswith("scancel 28, then launch again")
    (said,) = running.stuck(tmp_path, False, ControllerJob("28", "you", False, True))
    assert said.startswith("not done, and the controller may be stuck: ") and said.endswith(
        "ask you to end it"
    )
    assert running.stuck(tmp_path, True, None)[0].endswith("end it and start it again")


def test_a_filesystem_that_does_not_answer_says_nothing_of_when(tmp_path, monkeypatch):
    (tmp_path / "a").touch()

    def stale(path, **how):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(running.Path, "stat", stale)
    assert running.last_written([tmp_path]) is None
    assert running.stuck(tmp_path, True, None) == []
