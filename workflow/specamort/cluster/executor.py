"""Snakemake's SLURM executor, made to outlast what SLURM does.

The plugin (2.8.0) forgets every job when a round of its questions fails, waits for ever for a job
that was preempted for good, submits again what its user cancelled, excludes nodes by what sacct
says of a job that has none, and refuses an account where sacctmgr and sshare are not for users.
"""

import asyncio
import re
import shlex
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any

import snakemake_executor_plugin_slurm as plugin

from ..errors import SpecamortError
from ..records import record
from ..study import layout
from ..study.grid import Study
from . import slurm
from .resources import ENDED

_PATIENCE_S = 3600
_PAUSE_S = 20
_OVER = {
    "BOOT_FAIL", "CANCELLED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
}  # fmt: skip
# for a moment also the state of a job that SLURM puts into the queue again
_REQUEUE_S = 20
_PERHAPS_REQUEUED = {"BOOT_FAIL", "NODE_FAIL", "PREEMPTED"}


def mend(checkout: Path, study: Study) -> None:
    """Give the plugin's executor the functions below; jobs' names then carry `checkout`."""
    submit, command = plugin.Executor.run_job, plugin.get_submit_command

    @wraps(submit)
    def run_job(self: Any, job: Any) -> None:
        _wait_for_slurm(self.logger)
        submit(self, job)

    @wraps(command)
    def get_submit_command(job: Any, params: dict[str, Any], *args: Any, **kwargs: Any) -> str:
        name = slurm.block_name(params["comment_str"], checkout)
        return command(job, params | {"run_uuid": name}, *args, **kwargs)

    plugin.Executor.run_job = run_job
    plugin.get_submit_command = get_submit_command
    plugin.Executor.get_account_arg = _account
    plugin.Executor.check_active_jobs = lambda self, active_jobs: check_active_jobs(
        self, active_jobs, partial(is_done, study)
    )


def _account(executor: Any, job: Any):
    # held against the site by `require_site`; where that is not possible, sbatch decides
    yield f" -A {shlex.quote(str(job.resources.slurm_account))}"


def _wait_for_slurm(logger: Any) -> None:
    """Submit nothing while SLURM does not answer; after an hour let sbatch say what is wrong."""
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        try:
            slurm.states([])
            return
        except SpecamortError as e:
            logger.warning(f"specamort: {e}; nothing is submitted until SLURM answers")
            time.sleep(_PAUSE_S)


def is_done(study: Study, job: Any) -> bool:
    """Whether every record that the job is to write is there and holds, whoever measured it."""
    wanted = {str(w.path): w for j in layout.jobs(study, rule=job.rule.name) for w in j.wanted}
    try:
        for path in job.output:
            record.held(wanted[str(path)], study)
    except SpecamortError:
        return False
    return True


async def check_active_jobs(
    self: Any, active_jobs: list[Any], is_done: Callable[[Any], bool]
) -> AsyncIterator[Any]:
    """Report what has ended, yield what has not. What SLURM does not say has not ended.

    Args:
        is_done: what says of a job that SLURM has forgotten whether it did its work.
    """
    settings = self.workflow.executor_settings
    self.next_seconds_between_status_checks = settings.init_seconds_before_status_checks
    try:
        ids = [j.external_jobid for j in active_jobs]
        queue, told = await asyncio.to_thread(slurm.states, ids) if ids else ({}, {})
    except SpecamortError as e:
        self.logger.warning(f"specamort: {e}; {len(active_jobs)} jobs are taken to go on")
        for j in active_jobs:
            yield j
        return
    latency = self.workflow.execution_settings.latency_wait
    for j in active_jobs:
        state = queue.get(j.external_jobid) or told.get(j.external_jobid)
        forgotten = j.external_jobid not in queue and state not in {*_OVER, "COMPLETED"}
        if "state" not in j.aux or j.aux["state"] != state:
            j.aux |= {"state": state, "since": time.monotonic()}
        patience = _REQUEUE_S if state in _PERHAPS_REQUEUED else 0
        if forgotten:
            # sacct may learn that it has ended when slurmdbd is back, or never
            patience = _PATIENCE_S if state else latency
        if state == "COMPLETED" or (forgotten and is_done(j.job)):
            _succeeded(self, j)
        elif (forgotten or state in _OVER) and time.monotonic() - j.aux["since"] >= patience:
            _failed(self, j, state)
        else:
            yield j


def _succeeded(executor: Any, j: Any) -> None:
    executor.report_job_success(j)
    if not executor.workflow.executor_settings.keep_successful_logs:
        with suppress(OSError):
            j.aux["slurm_logfile"].unlink()


def _failed(executor: Any, j: Any, state: str | None) -> None:
    gone = "gone from the queue, without what it was to write"
    job, said = j.job, state if state in _OVER else gone
    if state == "CANCELLED":
        # whoever cancels a job wants it gone
        job.attempt = job.restart_times + 1
        said = "CANCELLED; not submitted again, run the study again for that"
    elif state == "PREEMPTED":
        job.attempt -= 1  # no failure of the job's
    elif state == "FAILED" and _ran_out_of_memory(j):
        state = said = "OUT_OF_MEMORY"
    ENDED[job.rule.name, tuple(job.wildcards), state] += 1
    executor.report_job_error(
        j, msg=f"SLURM job {j.external_jobid}: {said}. ", aux_logs=[str(j.aux["slurm_logfile"])]
    )


def _ran_out_of_memory(j: Any) -> bool:
    """Whether a part of it did: what is killed is a step, and the job around it has just failed."""
    with suppress(OSError):
        if re.search(
            rb"oom[_-]kill|Out Of Memory|exceeded memory limit", j.aux["slurm_logfile"].read_bytes()
        ):
            return True
    return "OUT_OF_MEMORY" in slurm.step_states(j.external_jobid)
