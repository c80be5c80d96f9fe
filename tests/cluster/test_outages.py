"""What SLURM and its users do to a study, on a real SLURM, with a stand-in for every measurement.

One undisturbed run comes first; each test then measures the two blocks anew, disturbs them, and
has to end with the same set of records.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusters import (
    ACCOUNT,
    CLUSTER,
    KIND,
    PARTITION,
    STUDY,
    Checkout,
    ask,
    is_up,
    kill_the_job,
    queue,
    running,
    slurm,
    wait_for,
)
from specamort.cluster.slurm import _seconds

pytestmark = pytest.mark.skipif(not is_up(), reason="no test cluster is up")
AWAY_S = 45  # longer than the ten seconds for which slurmctld remembers a job here
CONF = Path("/etc/slurm/slurm.conf")


@pytest.fixture(scope="module", autouse=True)
def forgetful():
    """Ended jobs leave the queue after ten seconds, so that nothing else tells how they ended."""
    before = CONF.read_text()
    CONF.write_text(before.replace("MinJobAge=300", "MinJobAge=10"))
    ask("scontrol", "reconfigure")
    yield
    CONF.write_text(before)
    ask("scontrol", "reconfigure")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    checkout = Checkout.quick(tmp_path_factory.mktemp("quick"), cell_s=2)
    code, out = checkout.finish(checkout.snakemake())
    assert code == 0, out[-4000:]
    return checkout, checkout.records()


@pytest.fixture
def checkout(undisturbed):
    """Nothing is queued; both blocks have to be measured anew."""
    checkout, before = undisturbed
    checkout.forget_blocks()
    shutil.rmtree(checkout.results / "raw/superseded", ignore_errors=True)
    yield checkout
    checkout.stop()
    assert checkout.records() == before
    assert not (checkout.results / "raw/superseded").exists()


@contextmanager
def away(daemon):
    slurm("down", daemon)
    try:
        yield
    finally:
        slurm("up", daemon)
        wait_for("SLURM", lambda: subprocess.run(["squeue"], capture_output=True).returncode == 0)


def newest_job():
    return max((int(j.split()[0]) for j in queue()), default=0)


def limit(job):
    """Of time, in seconds."""
    return _seconds(ask("squeue", "-h", "-j", job, "-o", "%l").strip())


def whole(block):
    return len(list(block.glob("*.json"))) == len(STUDY.cells)


def of_block(platform):
    """Ids of the jobs of a block that are queued or running."""
    return [j.split()[0] for j in queue() if f"rule_measure_wildcards_small_{platform}_0" in j]


def test_names_in_the_queue_tell_what_runs(checkout):
    run = checkout.snakemake()
    wait_for("both blocks", lambda: running("cpu-bf16") and running("cpu-fp32"), checkout.results)
    names = ask("squeue", "-h", "-o", "%j|%k|%Z").splitlines()
    assert all(
        re.fullmatch(
            rf"specamort-measure-small_cpu-\w+_0-[0-9a-f]{{8}}\|rule_.*\|{checkout.home}", n
        )
        for n in names
    ), names
    assert checkout.finish(run)[0] == 0


@pytest.mark.parametrize("daemon", ["slurmdbd", "slurmctld"])
def test_a_daemon_is_away_while_blocks_end(checkout, daemon):
    run = checkout.snakemake()
    checkout.first_cell("cpu-bf16")
    before = newest_job()
    with away(daemon):
        wait_for("both blocks", lambda: all(map(whole, checkout.blocks.values())), checkout.results)
        time.sleep(AWAY_S)
    code, out = checkout.finish(run)
    assert code == 0, out[-4000:]
    assert not checkout.jobs_since(before)


def test_a_job_that_is_to_be_submitted_while_slurm_is_away(checkout):
    """A block's process crashes, and there is no SLURM to submit it to again."""
    run = checkout.snakemake()
    checkout.first_cell("cpu-bf16")
    job = running("cpu-bf16")
    slurm("down", "slurmctld")
    kill_the_job(job)
    time.sleep(AWAY_S)
    slurm("up", "slurmctld")
    code, out = checkout.finish(run)
    assert code == 0, out[-4000:]


def test_a_node_fails_and_later_jobs_are_submitted(checkout):
    """What sacct says of a job that was put back into the queue is no node to exclude."""
    run = checkout.snakemake(QUICK_CELL_S="30")
    path, found = checkout.first_cell("cpu-bf16")
    job, other = running("cpu-bf16"), running("cpu-fp32")
    slurm("down", "h100-1")
    kill_the_job(job, and_slurm=True)
    wait_for("node failure", lambda: running("cpu-bf16") != job)
    time.sleep(15)  # long enough for Snakemake to see it
    kill_the_job(other)
    wait_for("its successor", lambda: set(of_block("cpu-fp32")) - {other}, checkout.results)
    slurm("up", "h100-1")
    code, out = checkout.finish(run)
    assert code == 0, out[-4000:]
    assert json.loads(path.read_text()) == found
    assert "exclud" not in out


def preempt(platform):
    """A paid job wants the node that a free one has."""
    before = running(platform)
    ask(
        *("sbatch", "-p", PARTITION[platform], "--gres", f"gpu:{KIND[platform]}:1"),
        *("--qos", "inferno", "-A", ACCOUNT, "-c", "2", "-t", "1", "-o", "/dev/null"),
        *("--wrap", "sleep 2"),
    )
    wait_for("preemption", lambda: running(platform) != before)


def test_a_job_that_is_preempted_for_good(checkout, tmp_path):
    """With PreemptMode=CANCEL SLURM does not start it again; more often than a job may fail."""
    ask("sacctmgr", "-i", "modify", "qos", "embers", "set", "preemptmode=cancel")
    try:
        cluster = tmp_path / "cluster.yaml"
        cluster.write_text(
            CLUSTER.read_text().replace("qos: inferno, cpus: 2", "qos: embers, cpus: 2")
        )
        run = checkout.snakemake(cluster, QUICK_CELL_S="8")
        path, found = checkout.first_cell("cpu-bf16")
        for _ in range(4):
            wait_for("the block", lambda: running("cpu-bf16"), checkout.results)
            preempt("cpu-bf16")
        code, out = checkout.finish(run)
        assert code == 0, out[-4000:]
        assert json.loads(path.read_text()) == found
    finally:
        ask("sacctmgr", "-i", "modify", "qos", "embers", "set", "preemptmode=cluster")


def test_who_cancels_a_block_wants_it_gone(checkout):
    run = checkout.snakemake()
    path, found = checkout.first_cell("cpu-bf16")
    job = running("cpu-bf16")
    ask("scancel", job)
    code, out = checkout.finish(run)
    assert code != 0 and "CANCELLED; not submitted again" in out
    assert not {j for j in checkout.jobs_since(job) if j != running("cpu-fp32")} - set(
        re.findall(r"SLURM jobid (\d+)", out)
    )
    assert len(re.findall(r"has been submitted", out)) == 2
    assert checkout.blocks["cpu-fp32"].is_dir()  # the rest went on
    code, out = checkout.finish(checkout.snakemake())
    assert code == 0, out[-4000:]
    assert json.loads(path.read_text()) == found


def test_time_grows_after_a_time_out_only(checkout):
    """One block crashes, the other is over its time: both are submitted again."""
    run = checkout.snakemake(QUICK_CELL_S="30")
    wait_for("both", lambda: running("cpu-bf16") and running("cpu-fp32"), checkout.results)
    slow, crashes = running("cpu-bf16"), running("cpu-fp32")
    first = limit(slow)
    ask("scontrol", "update", f"jobid={slow}", "timelimit=1")
    kill_the_job(crashes)
    again = wait_for("its successor", lambda: set(of_block("cpu-fp32")) - {crashes})
    assert limit(again.pop()) == first
    again = wait_for("its successor", lambda: set(of_block("cpu-bf16")) - {slow}, checkout.results)
    assert limit(again.pop()) == 2 * first
    code, out = checkout.finish(run)
    assert code == 0, out[-4000:]


def test_memory_grows_after_a_block_ran_out_of_it(checkout, tmp_path):
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER.read_text().replace("mem_gb: 4", "mem_gb: 1"))
    code, out = checkout.finish(checkout.snakemake(cluster, QUICK_MB="1200", QUICK_CELL_S="6"))
    assert code == 0, out[-4000:]
    assert out.count(": OUT_OF_MEMORY. ") == 2
    jobs = re.findall(r"SLURM jobid (\d+)", out)
    memory = ask("sacct", "-nXP", "-j", ",".join(jobs), "-o", "ReqMem").split()
    assert sorted(memory) == ["1G", "1G", "2G", "2G"]


def test_a_failure_after_the_block_is_whole_removes_nothing(checkout):
    """Another job of the block finishes it; the first then fails, and Snakemake clears up."""
    code, out = checkout.finish(checkout.snakemake())
    assert code == 0, out[-4000:]
    block = checkout.blocks["cpu-bf16"]
    stale, missing, *_ = sorted(block.glob("*.json"))
    old = json.loads(stale.read_text())
    stale.write_text(json.dumps(old | {"settings_hash": "0" * 16}))
    missing.unlink()
    run = checkout.snakemake(QUICK_CELL_S="10")
    wait_for("the job", lambda: (block / "partial").is_dir(), checkout.results)
    job = running("cpu-bf16")
    winner = ("measure", "--platform", "cpu-bf16", "--replicate", "0")
    checkout.specamort(*winner, QUICK_CELL_S="0", SLURM_JOB_ID="winner")
    whole = {p.name: p.read_text() for p in block.glob("*.json")}
    assert len(whole) == len(STUDY.cells)
    wait_for("its failure", lambda: running("cpu-bf16") != job, checkout.results)
    code, out = checkout.finish(run)
    assert code == 0, out[-4000:]
    assert f"SLURM job {job}: FAILED" in out
    assert {p.name: p.read_text() for p in block.glob("*.json")} == whole
    shutil.rmtree(checkout.results / "raw/superseded")


def test_two_clones_with_one_study(checkout, tmp_path):
    """Each has a controller and names of its own, and neither hears of the other's."""
    other = Checkout.quick(tmp_path / "other")
    shutil.copytree(checkout.results, other.results)
    (other.results / "report.html").unlink()
    first = checkout.launch()
    assert other.launch() != first
    assert checkout.launch() == first
    for one in (checkout, other):
        assert re.search(r"controller: job \d+\n", one.specamort("status"))
    wait_for("work", lambda: running("cpu-bf16"))
    code, out = checkout.finish(checkout.snakemake())
    assert code != 0 and re.search(rf"job {first}\) runs this study in this clone; wait", out), out
    checkout.wait_for_the_end()
    assert (other.results / "report.html").exists()


def test_a_plain_snakemake_is_told_of(checkout):
    run = checkout.snakemake()
    checkout.first_cell("cpu-bf16")
    out = checkout.specamort("launch", "--cluster", str(CLUSTER), status=1)
    assert f"root (process {run.pid} on " in out and "scancel" not in out
    assert f"controller: root (process {run.pid} on " in checkout.specamort("status")
    assert checkout.finish(run)[0] == 0


def test_a_controller_that_waits_while_slurm_is_away(checkout):
    """Its predecessor was killed; what that one submitted is all that is left."""
    first = checkout.launch(QUICK_CELL_S="15")
    checkout.first_cell("cpu-bf16")
    ask("scancel", first)
    wait_for("its death", lambda: not any(j.startswith(first) for j in queue()))
    second = checkout.launch(QUICK_CELL_S="15")
    wait_for("the wait", lambda: "waiting" in checkout.log(second), checkout.results)
    with away("slurmctld"):
        time.sleep(AWAY_S)
    checkout.wait_for_the_end()
    assert "Job completed successfully" in checkout.log(second)


def test_a_snakemake_that_is_stuck_is_started_again(checkout):
    """It does nothing any more; its blocks end, and nobody would write the report."""
    module = checkout.home / "workflow/specamort/cluster/launch.py"
    before = module.read_text()
    module.write_text(
        before.replace("_PATIENCE_S = 600", "_PATIENCE_S = 10").replace(
            "_LOOK_S = 30", "_LOOK_S = 5"
        )
    )
    (checkout.results / "report.html").unlink()
    try:
        job = checkout.launch()
        checkout.first_cell("cpu-bf16")
        held = re.search(r"process (\d+)", (checkout.results / "controller/running").read_text())
        os.kill(int(held[1]), signal.SIGSTOP)
        checkout.wait_for_the_end()
    finally:
        module.write_text(before)
    log = checkout.log(job)
    assert "Snakemake starts again" in log and "Job completed successfully" in log
    assert (checkout.results / "report.html").exists()
