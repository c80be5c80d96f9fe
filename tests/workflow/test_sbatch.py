"""What the published study asks SLURM for, block by block, held against Phoenix by hand.

`sbatch` is a stand-in that writes down what it is given; `make cluster-test` submits the same to a
real SLURM.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time

import pytest

import synthetic
from conftest import ROOT
from specamort import record, self_check
from specamort.rehearse import write_rehearsal
from specamort.study import digest, read_study

# By hand, from Phoenix's documentation and config/clusters/phoenix.yaml. Minutes: 1.5 times (four
# engine starts of 5 minutes and 74,272 steps of 20 ms); tracing starts an engine more for each of
# two models; a self-check starts two and decodes nothing worth counting.
BLOCK = {"mem": "65536", "cpus-per-task": "8", "qos": "inferno", "account": "gts-me"}
MINUTES = {"self_check": 15, "trace": 83}
JOBS = [
    *(("self_check", p, None) for p in ("h100", "h200")),
    *(("measure", p, r) for p in ("h100", "h200") for r in range(3)),
    *(("microbench", p, None) for p in ("h100", "h200")),
    *(("trace", p, None) for p in ("h100", "h200")),
    ("count", "h100", None),
    ("overhead", "h100", None),
]


def expected(rule, platform):
    return BLOCK | {
        "partition": f"gpu-{platform}",
        "gres": f"gpu:{platform}:1",
        "time": str(MINUTES.get(rule, 68)),
    }


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
        "squeue": f"case \"$*\" in *-u*%k*) ;; *) seq -f '%.0f|PENDING' $(wc -l < {log}) ;; esac",
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


def named(calls):
    """Calls by rule and wildcards, from the comment that the executor gives a job."""
    found = {}
    for call in calls:
        rule, wildcards = re.match(r"rule_(\w+?)_wildcards_(.*)", call["comment"]).groups()
        found[rule, wildcards] = call
    return found


@pytest.mark.parametrize("rehearsed", [False, True], ids=["study", "rehearsal"])
def test_every_block_of_the_published_study(site, rehearsed):
    study = read_study("config/study.yaml")
    if rehearsed:
        study = write_rehearsal(study, full=False)
    for model in study.models:
        (site / "results/models" / model).mkdir(parents=True)
    first = named(submitted(site, study.file, wanted=2))
    assert {rule for rule, _ in first} == {"self_check"}  # everything else waits for it
    for p in study.platforms:
        settings = study.self_check_settings(p)
        record.write(
            self_check.self_check_path(study.results, p),
            {"kind": "self_check", "origin": study.origin, "study": study.name}
            | {"settings": settings, "settings_hash": digest(settings)}
            | {"provenance": synthetic.provenance(study, p)}
            | {"self_check": {"platform": p, "checks": [{"what": "all", "fix": None}]}},
        )
    shutil.rmtree(site / ".snakemake", ignore_errors=True)
    calls = first | named(submitted(site, study.file, wanted=12))
    wanted = {
        (rule, "_".join(map(str, (study.name, p, *([] if r is None else [r]))))): expected(rule, p)
        for rule, p, r in JOBS
    }
    assert calls.keys() == wanted.keys()
    for job, asked in wanted.items():
        got = {k: calls[job].get(k) for k in asked}
        assert got == asked, job
        assert "requeue" in calls[job], job
