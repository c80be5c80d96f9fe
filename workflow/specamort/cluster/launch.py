"""The workflow's controller as a small job of its own, which outlives its time limit."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ..errors import SpecamortError
from ..study.grid import Study
from ..study.model_files import is_there, model_dir
from ..study.prompt_check import check_prompts
from ..study.study_file import read_study
from .cluster_file import Cluster, user_setting
from .preflight import require_site
from .slurm import controller_name, live_jobs
from .status import blocks

_GRACE_S = 90
_ENDLESS = 1000


class Controller:
    """What the job runs: Snakemake; `checkpoint` is submitit's call before the time is over."""

    def __init__(self, study: str, command: list[str]):
        self._study, self._command = study, command
        self._snakemake: subprocess.Popen | None = None

    def __call__(self) -> None:
        self._wait_for_leftovers()
        # a group of its own, which `checkpoint` can end alone
        self._snakemake = subprocess.Popen(self._command, start_new_session=True)
        if code := self._snakemake.wait():
            raise SpecamortError(
                f"the study is not finished (Snakemake ended with {code}); see above, mend it and "
                "launch again"
            )

    def _wait_for_leftovers(self) -> None:
        """While jobs of an earlier controller are doing all that is left, they need no second."""
        study = read_study(self._study)
        while True:
            table = blocks(study, live_jobs(Path.cwd()), {})
            left = set(table.loc[table["state"] != "done", "state"])
            if not left or not left <= {"running", "queued"}:
                return
            print("specamort: jobs of the controller before this one go on; waiting", flush=True)
            time.sleep(30)

    def checkpoint(self):
        """Stop Snakemake so that its jobs stay in the queue, and say how to go on."""
        from submitit.helpers import DelayedSubmission

        if self._snakemake:
            # SIGINT would cancel the submitted blocks, SIGTERM would wait for them
            os.killpg(self._snakemake.pid, signal.SIGKILL)
        return DelayedSubmission(Controller(self._study, self._command))


def launch(study: Study, cluster: Cluster, results: Path, arguments: list[str]) -> tuple[str, Path]:
    """Submit the controller; its job id and its log.

    Args:
        arguments: more arguments for Snakemake.

    Raises:
        SpecamortError: the site lacks something, or the model is missing; nothing is submitted.
    """
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedJobError

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
    command += ["--configfile", study.file]
    mail = user_setting("mail")
    folder = (results / "controller").resolve()
    # `exec`: the batch shell becomes the controller, and the signal before the end reaches it
    executor = SlurmExecutor(folder, max_num_timeout=_ENDLESS, python=f"exec {sys.executable}")
    asks = cluster.controller
    optional = {"partition": asks.partition, "qos": asks.qos}
    executor.update_parameters(
        job_name=controller_name(study.name),
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
    try:
        job = executor.submit(Controller(study.file, command))
    except FailedJobError as e:
        raise SpecamortError(f"sbatch refuses the controller: {str(e).strip()}") from e
    return job.job_id, job.paths.stdout
