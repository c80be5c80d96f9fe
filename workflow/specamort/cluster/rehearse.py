"""Run a rehearsal's workflow, with a bar over all of its records."""

import fcntl
import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from tqdm import tqdm

from ..errors import SpecamortError
from ..study.grid import Study
from ..study.model_files import EMBEDDED, load_tokenizer
from .status import blocks

_ENGINE_GB = 8  # of memory, for one engine and its front end
_MOST_SIDE_BY_SIDE = 4
_NEVER_REHEARSED = (
    "the GPU's kernels, their times and their memory; vLLM's CUDA build",
    "nsys: traces were taken with Kineto",
    "NVML: the wrong GPU, a throttled or a shared one",
    "the models: weights, licence, and whether they copy when asked (the stand-in does not, so "
    "`repeat` ran as raw text that repeats; the study's own prompts were built, not run)",
)


def not_rehearsed(study: Study) -> list[str]:
    """What of `study` a rehearsal on this machine leaves to the GPUs."""
    lines = list(_NEVER_REHEARSED)
    if load_tokenizer(study.model) is None:
        lines.append(
            f"the study's own tokenizer: its prompts were built with {EMBEDDED.name}'s; run "
            f"`specamort model --study {study.file}`, then `specamort check`"
        )
    if study.engine["model_runner"] == "v2":
        lines.append("model runner v2 and its drafter: the stand-in runs v1")
    return lines


def rehearse(study: Study, command: list[str], progress=None) -> None:
    """Run the rehearsal's DAG with a bar over all of its records.

    Args:
        study: of `write_rehearsal`.
        command: Snakemake with its arguments.

    Raises:
        SpecamortError: a rule failed (by its own sentence), or another study runs here.
    """
    log = study.results / "rehearsal.log"
    with _alone(), log.open("w", encoding="utf-8") as output:
        run = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            _watch(study, run, progress)
        finally:
            _stop(run)
    if run.returncode:
        raise SpecamortError(
            _reasons(log.read_text(encoding="utf-8")) or f"the workflow stopped; see {log}"
        )


def snakemake_command(study: Study, cluster: str | None, arguments: list[str]) -> list[str]:
    """Snakemake for the rehearsal: side by side on this machine, or as the cluster's jobs."""
    command = [sys.executable, "-m", "snakemake", "--configfile", study.file, "--nolock"]
    if cluster:
        command += ["--profile", "profiles/slurm", "--config", f"cluster={cluster}"]
    else:
        command += ["--profile", "profiles/local", "--resources", f"device={side_by_side()}"]
    return [*command, *arguments]


def side_by_side() -> int:
    """How many engines this machine holds at once: a core and memory for each."""
    fitting = psutil.virtual_memory().available // (_ENGINE_GB * 10**9)
    cores = len(os.sched_getaffinity(0))
    return int(max(1, min(cores, fitting, _MOST_SIDE_BY_SIDE)))


def _reasons(log: str) -> str:
    """What the jobs that failed have said, each once; a job's bar may stand before it."""
    reasons = re.findall(r"specamort: (.*\(details: .*\))", log)
    return "; ".join(dict.fromkeys(reasons))


def _watch(study: Study, run: subprocess.Popen, progress) -> None:
    with tqdm(unit="record", file=progress, disable=progress is None) as bar:
        while True:
            table = blocks(study, [], {})
            if bar.total is None:
                bar.initial = int(table["done"].sum())
                bar.n = bar.initial
            bar.total = int(table["cells"].sum())
            bar.n = int(table["done"].sum())
            under_way = table.query("0 < done < cells")["job"].tolist()
            bar.set_description(", ".join(under_way[:2]) or "rehearsal")
            if run.poll() is not None:
                return
            time.sleep(5)


def _stop(run: subprocess.Popen) -> None:
    """End Snakemake and its jobs in order: each closes its engine and keeps what it has."""
    if run.poll() is not None:
        return
    for job in psutil.Process(run.pid).children(recursive=True):
        with suppress(psutil.Error):
            if "--study" in job.cmdline():
                job.terminate()
    run.terminate()
    run.wait()


@contextmanager
def _alone():
    """The lock of `make study`: one study at a time in a checkout, gone with its holder."""
    Path("results").mkdir(exist_ok=True)
    with Path("results/.lock").open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise SpecamortError("another study is running here; wait for it") from e
        yield
