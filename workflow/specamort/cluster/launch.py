"""The workflow's controller as a small job of its own, which outlives its time limit."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from ..errors import SpecamortError
from ..study.grid import Study
from ..study.model_files import is_there, model_dir
from ..study.prompt_check import check_prompts
from ..study.study_file import read_study
from . import slurm
from .cluster_file import Cluster, user_setting
from .preflight import require_site
from .running import last_written
from .slurm import controller_name, live_jobs
from .status import blocks

_GRACE_S = 90
_ENDLESS = 1000
_LOOK_S = 30
# longer than Snakemake takes to notice that a job has ended, and to wait for its files
_PATIENCE_S = 600
_SBATCH_S = 60
_MOST_AGAIN = 3


class Controller:
    """What the job runs: Snakemake; `checkpoint` is submitit's call before the time is over."""

    def __init__(self, study: str, command: list[str]):
        self._study, self._command = study, command
        self._snakemake: subprocess.Popen | None = None

    def __call__(self) -> None:
        # once: whoever edits the study file while it runs must not end its controller
        study = read_study(self._study)
        self._wait_for_leftovers(study)
        idle = content = 0
        while True:
            before = _last_written(study.results)
            code = self._run(study.results)
            if code:
                raise SpecamortError(
                    f"the study is not finished (Snakemake ended with {code}); see above, mend it "
                    "and launch again"
                )
            idle = idle + 1 if _last_written(study.results) == before else 0
            # behind an `ancient` input that is made anew Snakemake plans nothing, and is content
            content += code == 0
            if code == 0 and (idle or content > _MOST_AGAIN or _finished(study)):
                return
            if idle > 1:
                raise SpecamortError(
                    "Snakemake was started again, and again nothing runs and nothing is written; "
                    "see above, mend it and launch again"
                )
            what = "not all is done" if code == 0 else "nothing is queued or written"
            print(f"specamort: {what}; Snakemake starts again", flush=True)

    def _run(self, results: Path) -> int | None:
        """Snakemake's exit status; null if it was ended, stuck."""
        # a group of its own, which can be ended alone
        self._snakemake = subprocess.Popen(self._command, start_new_session=True)
        moved, seen = time.monotonic(), None
        while True:
            try:
                return self._snakemake.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                now = self._under_way(results)
            if now is None or now != seen:
                moved, seen = time.monotonic(), now
            elif time.monotonic() - moved > _PATIENCE_S:
                self._end_snakemake()
                return None

    def _under_way(self, results: Path) -> float | None:
        """When something of the study was last written; null while something may be at work."""
        try:
            waiting = live_jobs(Path.cwd())
        except SpecamortError:
            return None
        here = psutil.Process(self._snakemake.pid).children(recursive=True)
        # rules that run here, not a passing question to SLURM
        at_work = [p for p in here if time.time() - p.create_time() > _LOOK_S]
        return None if waiting or at_work else _last_written(results)

    def _wait_for_leftovers(self, study: Study) -> None:
        """While jobs of an earlier controller are doing all that is left, they need no second."""
        while True:
            try:
                table = blocks(study, live_jobs(Path.cwd()), {})
            except SpecamortError as e:
                if not slurm.is_here():
                    raise
                print(f"specamort: {e}; waiting until SLURM answers", flush=True)
            else:
                left = set(table.loc[table["state"] != "done", "state"])
                if not left or not left <= {"running", "queued"}:
                    return
                print(
                    "specamort: jobs of the controller before this one go on; waiting", flush=True
                )
            time.sleep(_LOOK_S)

    def _end_snakemake(self) -> None:
        # SIGINT would cancel the submitted blocks, SIGTERM would wait for them
        os.killpg(self._snakemake.pid, signal.SIGKILL)
        self._snakemake.wait()

    def checkpoint(self):
        """Stop Snakemake so that its jobs stay in the queue, and say how to go on."""
        from submitit.helpers import DelayedSubmission

        if self._snakemake and self._snakemake.poll() is None:
            self._end_snakemake()
        return DelayedSubmission(Controller(self._study, self._command))


def _finished(study: Study) -> bool:
    done = (blocks(study, [], {})["state"] == "done").all()
    return done and (study.results / "report.html").exists()


def _last_written(results: Path) -> float | None:
    """As `last_written`; the controller's own log aside, which says only that it lives."""
    return last_written(f for f in results.glob("*/") if f.name != "controller")


def launch(study: Study, cluster: Cluster, results: Path, arguments: list[str]) -> tuple[str, Path]:
    """Submit the controller; its job id and its log.

    Args:
        arguments: more arguments for Snakemake.

    Raises:
        SpecamortError: the site lacks something, or the model is missing; nothing is submitted.
    """
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    class Sbatch(SlurmExecutor):
        """submitit itself would wait for sbatch for ever."""

        def _make_submission_command(self, submission_file_path):
            command = super()._make_submission_command(submission_file_path)
            return ["timeout", "--kill-after=1", str(_SBATCH_S), *command]

    require_site(study, cluster)
    for model in study.models.values():
        if not is_there(model):
            raise SpecamortError(
                f"{model_dir(model)}: is not there; run `specamort model --study {study.file}` "
                "where there is a network; nothing was submitted"
            )
    print(*check_prompts(study), sep="\n")
    command = [sys.executable, "-m", "snakemake", "--profile", "profiles/slurm"]
    command += ["--config", f"cluster={cluster.file}", "--nolock", *arguments]
    command += [f"--configfile={study.file}"]
    mail = user_setting("mail")
    folder = (results / "controller").resolve()
    asks = cluster.controller
    optional = {"partition": asks.partition, "qos": asks.qos}
    try:
        # `exec`: the batch shell becomes the controller, and the signal before the end reaches it
        python = f"exec {shlex.quote(sys.executable)}"
        executor = Sbatch(folder, max_num_timeout=_ENDLESS, python=python)
        executor.update_parameters(
            job_name=controller_name(study.name, Path.cwd()),
            time=asks.minutes,
            cpus_per_task=asks.cpus,
            mem=f"{int(1024 * asks.mem_gb)}MB",
            account=user_setting("account"),
            use_srun=False,
            stderr_to_stdout=True,
            **{k: v for k, v in optional.items() if v},
            additional_parameters={
                "signal": f"B:USR2@{_GRACE_S}",
                "requeue": True,
                "dependency": "singleton",
            }
            | ({"mail-user": mail, "mail-type": "END,FAIL"} if mail else {}),
        )
        job = executor.submit(Controller(study.file, command))
    except (FailedJobError, FailedSubmissionError, RuntimeError) as e:
        why = " ".join(str(e).split()) or f"no answer in {_SBATCH_S} s"
        raise SpecamortError(f"SLURM's sbatch refuses the controller: {why}") from e
    return job.job_id, job.paths.stdout
