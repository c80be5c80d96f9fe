"""The DAG through a real SLURM, the real engine on CPU in the place of the GPUs' nodes.

Needs the test cluster (`make cluster-test` starts it); elsewhere these tests are skipped. One
undisturbed run comes first; every disturbance then measures one block anew and has to end with
the same set of records.
"""

import os
import re
import shutil
import subprocess
import sys
import time

import pytest

import synthetic
from clusters import (
    ACCOUNT,
    CLUSTER,
    FILE,
    KIND,
    PARTITION,
    STUDY,
    Checkout,
    ask,
    is_up,
    kill_the_job,
    running,
    slurm,
    wait_for,
)
from phoenix import BLOCKS, SELF_CHECKS, asks, job_name
from specamort.analysis import tables
from specamort.records import record
from specamort.study.rehearsal import write_rehearsal
from specamort.study.study_file import read_study

pytestmark = pytest.mark.skipif(not is_up(), reason="no test cluster is up")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    made = tmp_path_factory.mktemp("cluster")
    made.chmod(0o755)
    return Checkout.linked(made).home


@pytest.fixture(scope="module")
def undisturbed(home):
    """The whole study, launched as a user does; its checkout and the set of its records."""
    checkout = Checkout(home)
    checkout.specamort("model")
    job = checkout.launch()
    assert checkout.launch() == job  # one controller, however often it is launched
    assert "controller: job" in checkout.specamort("status")
    checkout.wait_for_the_end()
    assert (checkout.results / "report.html").exists(), checkout.log(job)[-4000:]
    return checkout, checkout.records()


@pytest.fixture
def checkout(undisturbed):
    checkout, before = undisturbed
    yield checkout
    checkout.stop()
    assert checkout.records() == before
    assert not (checkout.results / "raw/superseded").exists()
    records = tables.timing_records(STUDY, checkout.results)
    for platform in STUDY.platforms:
        block = [r for r in records if r["cell"]["platform"] == platform]
        for key in (
            lambda r: r["block"]["id"],
            lambda r: r["provenance"]["host"],
            lambda r: r["provenance"]["device"]["uuid"],
        ):
            assert len(set(map(key, block))) == 1


@pytest.mark.parametrize(
    ("account", "change", "why"),
    [
        ("", (), "no SLURM account: put `account: YOURS`"),
        ("gts-nobody", (), r"account gts-nobody: SLURM does not know it .*yours are: .*gts-test"),
        (ACCOUNT, ("gpu-h100", "gpu-h1000"), r"platforms\.cpu-bf16\.partition"),
        (ACCOUNT, ("gpu:h200:1", "gpu:a100:1"), r"platforms\.cpu-fp32\.gres"),
        (ACCOUNT, ("inferno", "express"), r"controller\.qos"),
    ],
)
def test_a_wrong_site_is_refused_before_anything_is_submitted(home, account, change, why, tmp_path):
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER.read_text().replace(*change or ("", "")))
    before = ask("squeue", "-h")
    checkout = Checkout(home)
    code, out = checkout.finish(checkout.snakemake(cluster, account=account))
    assert code != 0
    assert re.search(why, out) and "nothing was submitted" in out
    assert ask("squeue", "-h") == before


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A checkout with the published study's rehearsal; its partitions hold what they take."""
    monkeypatch.chdir(Checkout.linked(tmp_path).home)
    study = write_rehearsal(read_study("config/study.yaml"), full=False)
    for model in study.models:
        (tmp_path / "results/models" / model).mkdir(parents=True)
    for partition in PARTITION.values():
        ask("scontrol", "update", f"partitionname={partition}", "state=down")
    yield study
    ask("scancel", "-u", "root", "-t", "pending")
    for partition in PARTITION.values():
        ask("scontrol", "update", f"partitionname={partition}", "state=up")


def held(command, wanted):
    """What SLURM says of the jobs that a command submits, by comment, once there are `wanted`."""

    def found():
        jobs = ask("scontrol", "show", "job", "-o").splitlines()
        told = [dict(w.split("=", 1) for w in j.split() if "=" in w) for j in jobs]
        told = {j["Comment"]: j for j in told if j.get("JobState") == "PENDING"}
        return told if len(told) == wanted else None

    run = subprocess.Popen(
        command,
        env=os.environ | {"SPECAMORT_ACCOUNT": ACCOUNT},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        return wait_for(f"{wanted} jobs", found)
    finally:
        run.kill()
        run.wait()


def test_every_block_of_the_published_study_is_taken_as_it_is_meant(published):
    """With config/clusters/phoenix.yaml, as `specamort rehearse --cluster` submits it."""
    command = [sys.executable, "-m", "snakemake", "--profile", "profiles/slurm", "--nolock"]
    command += ["--configfile", published.file]
    first = held(command, len(SELF_CHECKS))
    ask("scancel", "-u", "root", "-t", "pending")
    synthetic.write_self_checks(published)
    shutil.rmtree(".snakemake")
    jobs = first | held(command, len(BLOCKS))
    wanted = {job_name(r, published.name, p, n): asks(r, p) for r, p, n in SELF_CHECKS + BLOCKS}
    assert jobs.keys() == wanted.keys()
    for name, asked in wanted.items():
        job, minutes = jobs[name], int(asked["time"])
        assert {
            "Partition": asked["partition"],
            "Account": ACCOUNT,
            "QOS": asked["qos"],
            "TimeLimit": f"{minutes // 60:02}:{minutes % 60:02}:00",
            "MinMemoryNode": "64G",
            "NumCPUs": asked["cpus-per-task"],
            "TresPerNode": f"gres:{asked['gres']}",
            "Requeue": "1",
        }.items() <= job.items(), (name, job)


def test_a_study_launched_by_sbatch(undisturbed, monkeypatch):
    """What people type first; everything is measured, so its controller has little to do."""
    checkout, before = undisturbed
    (checkout.results / "report.html").unlink()
    monkeypatch.chdir(checkout.home)
    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    monkeypatch.delenv("SPECAMORT_ACCOUNT", raising=False)
    script = ["profiles/slurm/study.sbatch", FILE, str(CLUSTER)]
    job = ask("sbatch", "--parsable", "-A", ACCOUNT, "-p", "cpu-small", "--mem=1G", *script).strip()
    checkout.wait_for_the_end()
    said = (checkout.home / f"specamort-launch-{job}.out").read_text()
    assert re.search(r"submitted the controller of small: job \d+", said), said
    assert (checkout.results / "report.html").exists()
    assert checkout.records() == before


def test_a_launched_study(undisturbed):
    checkout, _ = undisturbed
    for r in tables.timing_records(STUDY, checkout.results):
        job = r["provenance"]["job_id"]
        out = ask("sacct", "-nXP", "-j", job, "-o", "Account,QOS,Partition,ReqTRES")
        partition = PARTITION[r["cell"]["platform"]]
        assert re.match(rf"{ACCOUNT}\|inferno\|{partition}\|.*gres/gpu=1", out)
    by_block = {
        (r["cell"]["platform"], r["provenance"]["job_id"])
        for r in tables.timing_records(STUDY, checkout.results)
    }
    assert len(by_block) == len(STUDY.platforms)
    out = checkout.specamort("status")
    assert re.search(r"(\d+) of \1 cells done", out) and "GPU-hours so far" in out


def requeue(platform, job):
    ask("scontrol", "requeue", job)


def preempt(platform, job):
    """A paid job wants the node that a free one has."""
    ask(
        *("sbatch", "-p", PARTITION[platform], "--gres", f"gpu:{KIND[platform]}:1"),
        *("--qos", "inferno", "-A", ACCOUNT, "-c", "2", "-t", "1", "-o", "/dev/null"),
        *("--wrap", "sleep 2"),
    )
    wait_for("preemption", lambda: running(platform) != job)


def kill_the_node(platform, job):
    """All that runs on the node ends at once; SLURM notices, and later the node comes back."""
    node = f"{KIND[platform]}-1"
    slurm("down", node)
    kill_the_job(job, and_slurm=True)
    wait_for("node failure", lambda: running(platform) != job)
    slurm("up", node)


def restart_slurmctld(platform, job):
    slurm("down", "slurmctld")
    time.sleep(5)
    slurm("up", "slurmctld")
    wait_for("slurmctld", lambda: subprocess.run(["scontrol", "ping"]).returncode == 0)


@pytest.mark.parametrize(
    "disturb",
    [
        {"cpu-fp32": requeue},
        {"cpu-bf16": preempt, "cpu-fp32": kill_the_node},
        {"cpu-bf16": restart_slurmctld},
    ],
    ids=lambda by_platform: "-".join(f.__name__ for f in by_platform.values()),
)
def test_disturbed_blocks(checkout, disturb, tmp_path):
    """Each block is disturbed once it has a cell, which must survive as it was."""
    cluster = tmp_path / "cluster.yaml"
    text = CLUSTER.read_text()
    if preempt in disturb.values():
        text = text.replace("qos: inferno, cpus: 2", "qos: embers, cpus: 2")
    cluster.write_text(text)
    checkout.forget_blocks()
    run = checkout.snakemake(cluster)
    cells = {}
    for platform, do in disturb.items():
        path, cells[path] = checkout.first_cell(platform)
        do(platform, running(platform))
    code, out = checkout.finish(run)
    assert code == 0, out[-4000:]
    for path, found in cells.items():
        assert record.read(path) == found


def test_a_cancelled_block_closes_its_engine(checkout):
    checkout.forget_blocks()
    run = checkout.snakemake()
    path, found = checkout.first_cell("cpu-bf16")
    job = running("cpu-bf16")
    ask("scancel", job)
    code, out = checkout.finish(run)
    assert code != 0 and "not submitted again" in out
    (log,) = (checkout.home / ".snakemake/slurm_logs").rglob(f"{job}.log")
    assert "told to stop (SIGTERM)" in log.read_text()
    code, out = checkout.finish(checkout.snakemake())
    assert code == 0, out[-4000:]
    assert record.read(path) == found


def test_a_controller_that_runs_out_of_time(checkout, tmp_path):
    """It requeues itself, its blocks go on meanwhile, and none is submitted twice."""
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER.read_text().replace("minutes: 60", "minutes: 3"))
    checkout.forget_blocks()
    job = checkout.launch(cluster)
    checkout.wait_for_the_end()
    log = checkout.log(job)
    assert "Requeued job" in log and "Job completed successfully" in log, log[-4000:]
    assert len(checkout.jobs_since(job)) == len(STUDY.platforms)


def test_a_controller_that_is_killed(checkout):
    """The same command goes on; the blocks that the first one submitted are not measured twice."""
    checkout.forget_blocks()
    first = checkout.launch()
    path, found = checkout.first_cell("cpu-bf16")
    ask("scancel", first)
    wait_for("its death", lambda: not ask("squeue", "-h", "-p", "cpu-small"))
    assert checkout.launch() != first
    checkout.wait_for_the_end()
    assert record.read(path) == found
    assert len(checkout.jobs_since(first)) == len(STUDY.platforms)
