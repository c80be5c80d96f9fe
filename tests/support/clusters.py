"""A checkout on the test cluster, and how a test waits there: for progress, never for a clock."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time

import psutil

from conftest import ROOT
from specamort.cluster.running import last_written
from specamort.records import record
from specamort.study.study_file import read_study

ACCOUNT = "gts-test"
CLUSTER = ROOT / "tests/cluster/cluster.yaml"
FILE = "config/small.yaml"
STUDY = read_study(ROOT / FILE)
KIND = {"cpu-bf16": "h100", "cpu-fp32": "h200"}  # of the partition, the gres and the node
PARTITION = {platform: f"gpu-{kind}" for platform, kind in KIND.items()}
SLURM = ROOT / "tests/cluster/slurm-cluster"
PATIENCE_S = 240
_PROMPTS = """
def check_prompts(study, tokenizer_of=None):
    return ["a stand-in"]
"""


def is_up():
    if not shutil.which("sinfo"):
        return False
    return subprocess.run([str(SLURM), "status"], capture_output=True).returncode == 0


def ask(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def slurm(*command):
    ask(str(SLURM), *command)


def queue():
    """Every job that is queued or runs, and its state; empty while SLURM does not answer."""
    said = subprocess.run(
        ["squeue", "-h", "-o", "%i %T %j %k"], capture_output=True, text=True
    ).stdout
    return said.splitlines()


def wait_for(what, check, where=None, patience_s=PATIENCE_S):
    """What `check` gives, once it does, as long as the queue or files in `where` still change."""
    moved, seen = time.monotonic(), None
    while not (found := check()):
        now = queue(), where and last_written([where])
        if now != seen:
            moved, seen = time.monotonic(), now
        assert time.monotonic() - moved < patience_s, f"{what} never came; {now}"
        time.sleep(0.5)
    return found


class Checkout:
    """A user's checkout: the commands they run, and what is measured in it."""

    def __init__(self, home, **environment):
        self.home, self.environment, self.runs = home, environment, []
        self.results = home / "results" / STUDY.name
        self.blocks = {p: self.results / "raw/timing" / p / "r0" for p in STUDY.platforms}

    @classmethod
    def linked(cls, home):
        for name in ("Snakefile", "workflow", "config", "profiles", "envs"):
            (home / name).symlink_to(ROOT / name)
        return cls(home)

    @classmethod
    def quick(cls, home, cell_s=1):
        """One with a stand-in for every measuring job, and none for anything else."""
        home.mkdir(exist_ok=True)
        home.chmod(0o755)
        shutil.copy(ROOT / "Snakefile", home)
        for name in ("workflow", "config", "profiles", "envs"):
            shutil.copytree(ROOT / name, home / name)
        package = home / "workflow/specamort"
        shutil.copy(ROOT / "tests/support/quick_measure.py", package / "cli/measure.py")
        (package / "study/prompt_check.py").write_text(_PROMPTS)
        for model in STUDY.models:
            (home / "results/models" / model).mkdir(parents=True)
            (home / "results/models" / model / "config.json").touch()
        return cls(
            home,
            PYTHONPATH=f"{home}/workflow:{ROOT}/tests/support",
            QUICK_CELL_S=str(cell_s),
        )

    def start(self, *command, account=ACCOUNT, **environment):
        """A command of theirs at work; what it says goes to the file `said` of the process."""
        environment = os.environ | {"SPECAMORT_ACCOUNT": account} | self.environment | environment
        if not account:
            del environment["SPECAMORT_ACCOUNT"]
            environment["HOME"] = str(self.home)
        said = self.home / f"{command[0]}-{time.monotonic_ns()}.out"
        with said.open("w") as output:
            run = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=self.home,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        run.said = said
        self.runs.append(run)
        return run

    def snakemake(self, cluster=CLUSTER, more=(), **kwargs):
        command = ["snakemake", "--profile", "profiles/slurm", "--latency-wait", "10", *more]
        command += ["--config", f"cluster={cluster}", "--configfile", FILE, "--nolock"]
        return self.start(*command, "--slurm-init-seconds-before-status-checks", "5", **kwargs)

    def finish(self, run):
        """Its exit status and what it said, as long as the study gets on."""
        wait_for("its end", lambda: run.poll() is not None, self.results)
        return run.returncode, run.said.read_text()

    def specamort(self, name, *arguments, status=0, **kwargs):
        run = self.start("specamort", name, "--study", FILE, *arguments, **kwargs)
        code, out = self.finish(run)
        assert code == status, out
        return out

    def launch(self, cluster=CLUSTER, **kwargs):
        options = ["--", "--slurm-init-seconds-before-status-checks", "5", "--latency-wait", "10"]
        out = self.specamort("launch", "--cluster", str(cluster), *options, **kwargs)
        return re.search(r"job (\d+)", out)[1]

    def log(self, job):
        """What a controller has said so far."""
        found = (self.results / "controller").glob(f"{job}_*.out")
        return "".join(p.read_text() for p in found)

    def wait_for_the_end(self):
        wait_for("the end", lambda: not ask("squeue", "-h", "-o", "%i"), self.results)

    def records(self):
        raw = self.results / "raw"
        found = {str(p.relative_to(raw)) for p in raw.rglob("*.json")}
        return {p for p in found if not p.startswith("superseded")}

    def forget_blocks(self):
        for block in self.blocks.values():
            shutil.rmtree(block, ignore_errors=True)

    def stop(self):
        """End what a test that failed has left: its commands and every job in the queue."""
        for run in self.runs:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
                run.wait()
        ask("scancel", "-u", str(os.getuid()))
        wait_for("an empty queue", lambda: not queue())

    def first_cell(self, platform):
        """The first record of the block under way, once there is one, and what it holds."""
        partial = self.blocks[platform] / "partial"
        path = wait_for("a cell", lambda: next(partial.glob("*-g*.json"), None), self.results)
        return self.blocks[platform] / path.name, record.read(path)

    def jobs_since(self, job):
        """Ids of all jobs submitted for measuring blocks after `job`."""
        listed = ask("sacct", "-nXP", "-S", "now-1hours", "-o", "JobID,Partition").splitlines()
        return {
            number
            for number, partition in (line.split("|") for line in listed)
            if partition in PARTITION.values() and int(number) > int(job)
        }


def running(platform):
    """Id of the measuring job that runs for a platform."""
    out = ask("squeue", "-h", "-t", "running", "-p", PARTITION[platform], "-o", "%i %k")
    return next((line.split()[0] for line in out.splitlines() if "rule_measure" in line), None)


def kill_the_job(job, and_slurm=False):
    """All processes of a SLURM job at once, as a crash would; its node's, with SLURM's own."""
    assert job and job.isdigit(), f"job {job!r}: is none"
    for p in psutil.process_iter():
        try:
            line = " ".join(p.cmdline())
            if line.startswith("slurmstepd: ["):
                of_it = and_slurm and f"[{job}." in line
            else:
                of_it = p.environ().get("SLURM_JOB_ID") == job
            if of_it:
                p.kill()
        except psutil.Error:
            continue
