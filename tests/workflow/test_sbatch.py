"""What the published study asks SLURM for, block by block, held against Phoenix by hand.

`sbatch` is a stand-in that writes down what it is given; `make cluster-test` submits the same to a
real SLURM.
"""

import os
import shlex
import shutil
import subprocess
import sys
import time

import pytest

import synthetic
from conftest import ROOT
from phoenix import BLOCKS, SELF_CHECKS, asks, job_name
from specamort.cluster.slurm import block_name
from specamort.study.rehearsal import write_rehearsal
from specamort.study.study_file import read_study


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A checkout and a SLURM that takes every job, writes its call down, and never runs it."""
    for name in ("Snakefile", "workflow", "config", "profiles", "envs"):
        (tmp_path / name).symlink_to(ROOT / name)
    commands = tmp_path / "bin"
    commands.mkdir()
    log = tmp_path / "sbatch.log"
    answers = {
        "sinfo": "echo 'gpu-h100|gpu:h100:8'; echo 'gpu-h200|gpu:h200:8'",
        "sacctmgr": "case $1 in -nP) echo 'gts-me|inferno,embers' ;; *) echo gts-me ;; esac",
        "sbatch": f'echo "$(printf \'%q \' "$@")" >> {log}; wc -l < {log}',
        "squeue": f"case \"$*\" in *%k*) ;; *) seq -f '%.0f|PENDING' $(wc -l < {log}) ;; esac",
        "sacct": "true",
        "scontrol": "echo 'SLURM_VERSION = 23.11'; echo 'MinJobAge = 300 sec'",
        "scancel": "true",
    }
    for name, script in answers.items():
        path = commands / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("SPECAMORT_ACCOUNT", "gts-me")
    monkeypatch.setenv("USER", "me")
    log.touch()
    return tmp_path


def submitted(site, file, wanted):
    """Calls of sbatch that Snakemake makes for a study, once there are `wanted`."""
    log = site / "sbatch.log"
    log.write_text("")
    command = [sys.executable, "-m", "snakemake", "--profile", "profiles/slurm", "--nolock"]
    command += ["--slurm-init-seconds-before-status-checks", "1", "--configfile", str(file)]
    with (site / "snakemake.log").open("w") as output:
        run = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            seen, quiet = 0, 0
            while run.poll() is None and quiet < 16:  # until nothing comes for four seconds
                time.sleep(0.25)
                now = len(log.read_text().splitlines())
                quiet = quiet + 1 if now == seen and now >= wanted else 0
                seen = now
        finally:
            run.kill()
            run.wait()
    calls = [shlex.split(line) for line in log.read_text().splitlines()]
    assert len(calls) == wanted, (site / "snakemake.log").read_text()[-3000:]
    return [arguments(c) for c in calls]


def arguments(call):
    """Options of one call by their long names; a flag's value is None."""
    short = {"-p": "partition", "-A": "account", "-t": "time"}
    found = {}
    for word, after in zip(call, [*call[1:], "-"], strict=True):
        if word.startswith("-"):
            name, _, value = word.removeprefix("--").partition("=")
            name = short.get(name, name)
            found[name] = value or (None if after.startswith("-") else after)
    return found


@pytest.mark.parametrize("rehearsed", [False, True], ids=["study", "rehearsal"])
def test_every_block_of_the_published_study(site, rehearsed):
    study = read_study("config/study.yaml")
    if rehearsed:
        study = write_rehearsal(study, full=False)
    for model in study.models:
        (site / "results/models" / model).mkdir(parents=True)
    first = submitted(site, study.file, wanted=2)
    assert {c["comment"] for c in first} == {
        job_name(r, study.name, p, n) for r, p, n in SELF_CHECKS
    }
    synthetic.write_self_checks(study)
    shutil.rmtree(site / ".snakemake", ignore_errors=True)
    calls = {c["comment"]: c for c in [*first, *submitted(site, study.file, wanted=12)]}
    wanted = {job_name(r, study.name, p, n): asks(r, p) for r, p, n in SELF_CHECKS + BLOCKS}
    assert calls.keys() == wanted.keys()
    for job, asked in wanted.items():
        asked |= {"account": "gts-me", "requeue": None, "job-name": block_name(job, site)}
        assert {k: calls[job][k] for k in asked} == asked, job
