"""The DAG through a real SLURM, the real engine on CPU in the place of the GPUs' nodes.

Needs the test cluster (`make cluster-test` starts it); elsewhere these tests are skipped.
"""

import os
import re
import shutil
import subprocess
import sys
import time

import pytest

from conftest import ROOT
from specamort import tables
from specamort.study import read_study

ACCOUNT = "gts-test"
up = shutil.which("sinfo") and subprocess.run(
    [str(ROOT / "tests/cluster/slurm-cluster"), "status"], capture_output=True
)
pytestmark = pytest.mark.skipif(not up or up.returncode != 0, reason="no test cluster is up")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    made = tmp_path_factory.mktemp("cluster")
    made.chmod(0o755)
    for name in ("Snakefile", "workflow", "config", "profiles", "envs"):
        (made / name).symlink_to(ROOT / name)
    return made


def snakemake(home, *args, account=ACCOUNT, wait=True):
    settings = [f"{rule}=2" for rule in ("measure", "count", "overhead", "microbench")]
    command = [sys.executable, "-m", "snakemake", "--profile", "profiles/slurm"]
    command += ["--config", f"cluster={ROOT}/tests/cluster/cluster.yaml"]
    command += ["--configfile", "config/small.yaml", "--latency-wait", "10"]
    command += ["--slurm-init-seconds-before-status-checks", "5"]
    command += ["--set-threads", *settings, "--nolock", *args]
    environment = os.environ | {"SPECAMORT_ACCOUNT": account}
    if not account:
        del environment["SPECAMORT_ACCOUNT"]
        environment["HOME"] = str(home)
    run = subprocess.Popen(
        command,
        cwd=home,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if not wait:
        return run
    out, _ = run.communicate()
    return subprocess.CompletedProcess(command, run.returncode, out, None)


def jobs(state):
    """(job id, partition, comment) of this user's jobs in a state, Snakemake's rule in comment."""
    out = subprocess.run(
        ["squeue", "-h", "-t", state, "-o", "%i %P %k"], capture_output=True, text=True, check=True
    ).stdout
    return [line.split(maxsplit=2) for line in out.splitlines()]


def test_without_an_account_nothing_is_submitted(home):
    before = jobs("all")
    run = snakemake(home, account="")
    assert run.returncode != 0
    assert "no SLURM account: put" in run.stdout
    assert jobs("all") == before


def test_wrong_account_says_so(home):
    run = snakemake(home, account="gts-nobody")
    assert run.returncode != 0
    assert "gts-nobody" in run.stdout


def test_study_survives_a_cancelled_block(home):
    """scancel a running block: it is submitted again, and the study ends as if undisturbed."""
    run = snakemake(home, wait=False)
    deadline = time.monotonic() + 420
    cancelled = None
    while cancelled is None and run.poll() is None:
        assert time.monotonic() < deadline, "no block ever ran"
        time.sleep(1)
        measuring = [j for j in jobs("running") if "measure" in j[2]]
        if measuring:
            cancelled = measuring[0][0]
            time.sleep(20)
            subprocess.run(["scancel", cancelled], check=True)
    out, _ = run.communicate(timeout=900)
    assert cancelled, out[-4000:]
    assert run.returncode == 0, out[-4000:]
    study, results = read_study(ROOT / "config/small.yaml"), home / "results/small"
    records = tables.timing_records(study, results)
    assert len(records) == 8
    for platform in study.platforms:
        block = [r for r in records if r["cell"]["platform"] == platform]
        assert len({r["block"]["id"] for r in block}) == 1
        assert len({r["provenance"]["host"] for r in block}) == 1
        assert cancelled not in {r["provenance"]["job_id"] for r in block} or len(block) == 4
    assert (results / "report.html").exists()


def test_jobs_went_where_the_cluster_file_says(home):
    study = read_study(ROOT / "config/small.yaml")
    for r in tables.timing_records(study, home / "results/small"):
        job = r["provenance"]["job_id"]
        out = subprocess.run(
            ["sacct", "-n", "-X", "-P", "-j", job, "-o", "Account,QOS,Partition,ReqTRES"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        partition = {"cpu-bf16": "gpu-h100", "cpu-fp32": "gpu-h200"}[r["cell"]["platform"]]
        assert re.match(rf"{ACCOUNT}\|inferno\|{partition}\|.*gres/gpu=1", out)
