"""What the mended executor makes of SLURM's states, with stand-ins for Snakemake's objects."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import synthetic
from specamort.errors import SpecamortError
from specamort.study import layout

pytest.importorskip("snakemake_executor_plugin_slurm")

from specamort.cluster import executor, slurm
from specamort.cluster.resources import ENDED


class Stub:
    """The executor: what it reports, by job id."""

    def __init__(self, monkeypatch, tmp_path):
        self.ended, self.logger = [], logging.getLogger("test")
        self.log = tmp_path / "7.log"
        self.workflow = SimpleNamespace(
            executor_settings=SimpleNamespace(
                init_seconds_before_status_checks=40, keep_successful_logs=False
            ),
            execution_settings=SimpleNamespace(latency_wait=60),
        )
        rule = SimpleNamespace(name="measure")
        self.output = tmp_path / "a.json"
        self.job = SimpleNamespace(
            rule=rule, wildcards=("s", "p", "0"), output=[str(self.output)], attempt=1,
            restart_times=2,
        )  # fmt: skip
        self.info = SimpleNamespace(
            job=self.job, external_jobid="7", aux={"slurm_logfile": self.log}
        )
        self.report_job_success = lambda j: self.ended.append("success")
        self.report_job_error = lambda j, msg, aux_logs: self.ended.append(msg)
        self.clock = 1000.0
        monkeypatch.setattr(executor.time, "monotonic", lambda: self.clock)
        self.monkeypatch = monkeypatch
        ENDED.clear()

    def look(self, state, after_s=0.0, by_sacct=False):
        """One round of questions; True if the job is taken to go on."""

        def states(ids):
            if isinstance(state, Exception):
                raise state
            found = {} if state is None else {"7": state}
            return ({}, found) if by_sacct else (found, {})

        self.clock += after_s
        self.monkeypatch.setattr(slurm, "states", states)

        async def whole():
            done = lambda job: self.output.exists()  # noqa: E731
            return [j async for j in executor.check_active_jobs(self, [self.info], done)]

        return asyncio.run(whole()) == [self.info]


@pytest.fixture
def stub(monkeypatch, tmp_path):
    return Stub(monkeypatch, tmp_path)


def test_a_slurm_that_does_not_answer_ends_nothing(stub):
    for _ in range(20):
        assert stub.look(SpecamortError("squeue fails: timed out"), 600)
    assert stub.look("RUNNING") and stub.next_seconds_between_status_checks == 40
    stub.log.touch()
    assert not stub.look("COMPLETED") and stub.ended == ["success"] and not stub.log.exists()


def test_a_job_that_slurm_forgot_is_judged_by_its_files(stub):
    assert stub.look("RUNNING")
    stub.output.touch()
    assert not stub.look(None) and stub.ended == ["success"]


def test_a_forgotten_job_without_its_files_failed_once_they_cannot_come_any_more(stub):
    assert stub.look("RUNNING") and stub.look(None, 40) and stub.look(None, 59)
    assert not stub.look(None, 1)
    assert stub.ended == ["SLURM job 7: gone from the queue, without what it was to write. "]
    assert stub.job.attempt == 1


def test_a_job_that_only_sacct_says_to_run_has_ended_with_its_files_or_in_the_end(stub):
    """slurmdbd was away when it ended, and may never hear of it."""
    assert stub.look("RUNNING") and stub.look("RUNNING", 3000, by_sacct=True)
    assert not stub.look("RUNNING", 700, by_sacct=True)
    assert "gone from the queue" in stub.ended[0]
    stub.info.aux.pop("state")
    stub.output.touch()
    assert not stub.look("RUNNING", by_sacct=True) and stub.ended[1:] == ["success"]


def test_who_cancels_a_job_wants_it_gone(stub):
    assert not stub.look("CANCELLED")
    assert stub.job.attempt - 1 == stub.job.restart_times  # Snakemake then restarts it no more
    assert "not submitted again" in stub.ended[0]


@pytest.mark.parametrize(("state", "attempt"), [("PREEMPTED", 0), ("NODE_FAIL", 1)])
def test_what_slurm_may_put_into_the_queue_again_is_looked_at_twice(stub, state, attempt):
    assert stub.look(state) and stub.look("PENDING", 40) and stub.look(state, 40)
    assert not stub.look(state, 40)
    # a preemption is no attempt of the job's
    assert stub.job.attempt == attempt


def test_how_an_attempt_ended_is_kept_for_the_next(stub):
    assert not stub.look("TIMEOUT")
    assert dict(ENDED) == {("measure", ("s", "p", "0"), "TIMEOUT"): 1}


@pytest.mark.parametrize(
    ("log", "steps", "why"),
    [
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.", set(), "OUT_OF_MEMORY"),
        ("srun: error: n1: task 0: Out Of Memory", {"FAILED"}, "OUT_OF_MEMORY"),
        ("", {"FAILED", "OUT_OF_MEMORY"}, "OUT_OF_MEMORY"),
        (None, {"OUT_OF_MEMORY", "FAILED"}, "OUT_OF_MEMORY"),
        ("it had memory", {"FAILED", "COMPLETED"}, "FAILED"),
        (None, set(), "FAILED"),
    ],
)
def test_a_job_whose_step_ran_out_of_memory_did(stub, monkeypatch, log, steps, why):
    if log is not None:
        stub.log.write_text(log)
    monkeypatch.setattr(slurm, "step_states", lambda job: steps)
    assert not stub.look("FAILED")
    assert dict(ENDED) == {("measure", ("s", "p", "0"), why): 1} and f"7: {why}. " in stub.ended[0]


def test_a_forgotten_jobs_records_are_its_work_only_if_they_hold(small, tmp_path, monkeypatch):
    """A record that was in its place before, of other settings, says nothing of the job."""
    monkeypatch.chdir(tmp_path)
    mine = next(j for j in layout.jobs(small, rule="measure"))
    paths = [str(w.path) for w in mine.wanted]
    job = SimpleNamespace(rule=SimpleNamespace(name="measure"), output=paths)
    synthetic.write_study(small, small.results)
    assert executor.is_done(small, job)
    assert not executor.is_done(replace(small, warmup=7), job)
    Path(paths[-1]).unlink()
    assert not executor.is_done(small, job)


def test_nothing_is_submitted_until_slurm_answers(stub, monkeypatch):
    answers = iter([SpecamortError("squeue fails"), SpecamortError("squeue fails"), None])

    def states(ids):
        if answer := next(answers):
            raise answer
        return {}, {}

    monkeypatch.setattr(slurm, "states", states)
    naps = []
    monkeypatch.setattr(executor.time, "sleep", naps.append)
    executor._wait_for_slurm(stub.logger)
    assert len(naps) == 2


def test_a_job_never_seen_has_time_for_its_files_too(stub):
    assert stub.look(None) and stub.look(None, 59)
    stub.output.touch()
    assert not stub.look(None, 1) and stub.ended == ["success"]
