"""What 2,000 cells cost the controller: a dry run, and on a SLURM cluster the submission.

Two shapes of the same number of cells: many small blocks, and few large ones. Submission is
measured where `sinfo` answers, against nodes that are drained for its duration, so that no job
starts (the test cluster; as root).
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
SHAPES = {
    "1,000 blocks of 2 cells": {
        "replicates": 500,
        "workloads": 1,
        "batches": [1],
        "gammas": [0, 4],
    },
    "50 blocks of 40 cells": {
        "replicates": 25,
        "workloads": 2,
        "batches": [1, 2, 4, 8],
        "gammas": [0, 1, 2, 4, 6],
    },
}


def write_study(home: Path, replicates: int, workloads: int, **grid) -> int:
    """A study with a model that is never loaded; the number of its measuring jobs."""
    study = yaml.safe_load((ROOT / "config/small.yaml").read_text(encoding="utf-8"))
    (home / "model").mkdir()
    (home / "model/config.json").write_text("{}", encoding="utf-8")
    study |= {"model": {"name": "none", "source": "directory", "path": "model"}, **grid}
    study |= {"name": "scale", "replicates": replicates}
    study["workloads"] = dict(list(study["workloads"].items())[:workloads])
    (home / "study.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
    for name in ("Snakefile", "workflow", "config", "profiles", "envs"):
        (home / name).symlink_to(ROOT / name)
    return 2 * replicates + 4


def run(home: Path, *arguments: str, until=None) -> tuple[float, float]:
    """Seconds and peak memory in MB of a Snakemake, ended once `until` holds."""
    command = [sys.executable, "-m", "snakemake", "--profile", "profiles/slurm", "--jobs", "5000"]
    command += ["--config", f"cluster={ROOT}/tests/cluster/cluster.yaml", "--nolock"]
    command += [*arguments, "--configfile", "study.yaml"]
    began = time.monotonic()
    with (home / "log").open("w", encoding="utf-8") as log:
        job = subprocess.Popen(command, cwd=home, stdout=log, stderr=log)
    while until and not until():
        assert job.poll() is None, (home / "log").read_text(encoding="utf-8")[-2000:]
        time.sleep(0.2)
    took = time.monotonic() - began
    if until:
        job.kill()
    _, status, usage = os.wait4(job.pid, 0)
    assert until or status == 0, (home / "log").read_text(encoding="utf-8")[-2000:]
    return took if until else time.monotonic() - began, usage.ru_maxrss / 1024


def queued() -> int:
    return len(subprocess.check_output(["squeue", "-h", "-r"]).splitlines())


def main() -> None:
    slurm = shutil.which("sinfo") and not subprocess.run(["sinfo"], capture_output=True).returncode
    nodes = ["scontrol", "update", "nodename=h100-1,h200-1"]
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory(dir="/var/tmp") as made:
            jobs = write_study(Path(made), **shape)
            seconds, megabytes = run(Path(made), "-n")
            print(f"{name}: dry run {seconds:.1f} s, {megabytes:.0f} MB", flush=True)
            if not slurm:
                continue
            assert queued() == 0, "the queue must be empty"
            subprocess.run([*nodes, "state=drain", "reason=benchmark"], check=True)
            try:
                seconds, megabytes = run(Path(made), until=lambda n=jobs: queued() >= n)
            finally:
                subprocess.run(["scancel", "-u", str(os.getuid())], check=True)
                subprocess.run([*nodes, "state=resume"], check=True)
            print(f"{name}: {jobs} jobs submitted in {seconds:.1f} s, {megabytes:.0f} MB")


if __name__ == "__main__":
    main()
