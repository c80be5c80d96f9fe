"""The tracing job with a stand-in engine and stand-in tracers."""

import gzip
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import synthetic
from conftest import ROOT
from letters import Letters
from specamort import cli
from specamort.analysis import decomposition
from specamort.errors import SpecamortError
from specamort.measure.tracing import job, nsys
from specamort.records import record
from specamort.study import tracer
from specamort.study.study_file import read_study


@pytest.fixture
def small(root):
    return in_letters(read_study(root / "config/small.yaml"))


def in_letters(study, **profile):
    """With room for passages in a tokenizer of letters, whose copies a lookup drafts badly."""
    any_alpha = {k: replace(w, alpha_min=0.0) for k, w in study.workloads.items()}
    traced = replace(study.tracing, context_tokens=2000, **profile)
    return replace(study, context_tokens=1500, workloads=any_alpha, tracing=traced)


@pytest.fixture(autouse=True)
def device(monkeypatch):
    monkeypatch.setattr(job, "state", lambda p: None)
    monkeypatch.setattr(job, "provenance", lambda s, p: synthetic.provenance(s, p.name))


class Traced:
    """An engine whose step takes 4 ms, 3 of them in one operator; traces as Kineto writes them."""

    lose = False

    def __init__(self, model, study, platform, gamma, max_model_len, profiler):
        self.gamma, self.tokenizer, self.log = gamma, Letters(), None
        self.used = synthetic.ENGINE
        self.directory, self.written = Path(profiler.get("torch_profiler_dir", ".")), 0

    def run(self, prompts, tokens, sampling, seed):
        steps = (tokens - 1) // (self.gamma + 1)
        rows = len(prompts) * (self.gamma + 1)
        self.log = [("execute_context_1(9)_generation_0(0)", "user_annotation", 0, 1000)]
        self.log.append(("aten::mm", "cpu_op", 0, 900))
        for i in range(1, steps + 1):
            mark = f"execute_context_0(0)_generation_{len(prompts)}({rows})"
            self.log.append((mark, "user_annotation", 4000 * i, 3900))
            self.log.append(("aten::mm", "cpu_op", 4000 * i, 3000))
        return {"step_ms": [4.0 * i for i in range(steps + 1)], "counters": None}

    def start_trace(self):
        self.log = []

    def stop_trace(self):
        self.written += 1
        if self.lose and self.written == 2:
            return
        events = [
            {"ph": "X", "name": n, "cat": c, "ts": t, "dur": d, "pid": 1, "tid": 1}
            for n, c, t, d in self.log
        ]
        path = self.directory / f"rank0.{1000 + self.written}.pt.trace.json.gz"
        path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))

    def close(self, timeout_s):
        pass


def traced(study, results, start=Traced):
    p = study.calibration
    job.trace_platform(study, p, results, start=start)
    home = results / "raw/trace" / p.name
    return [record.read(home / f"{c}.json") for c in study.trace_cells]


def test_kineto_pairs_become_steps(small, tmp_path):
    records = traced(small, tmp_path)
    steps = decomposition.steps(decomposition.pairs(records))
    assert len(steps) == len(small.trace_cells) and (steps["pairs"] == 2).all()
    assert steps["step_ms"].to_list() == pytest.approx([4.0] * len(steps))
    assert steps["device_ms"].to_list() == pytest.approx([3.0] * len(steps))
    assert steps["host_ms"].to_list() == pytest.approx([1.0] * len(steps))
    assert steps["gemm_ms"].to_list() == pytest.approx([3.0] * len(steps))
    assert set(steps["weights"]) == {"trained", "random"}
    stamps = [p.stat().st_mtime_ns for p in (tmp_path / "raw/trace").rglob("*.json")]
    traced(small, tmp_path, start=None)  # nothing is left to do, so no engine starts
    assert [p.stat().st_mtime_ns for p in (tmp_path / "raw/trace").rglob("*.json")] == stamps


def test_a_device_is_read_before_and_after_each_cell(small, tmp_path, monkeypatch):
    read = []

    def state(platform):
        read.append(synthetic.reading(at_ns=len(read)))
        return read[-1]

    monkeypatch.setattr(job, "state", state)
    states = [r["device_state"] for r in traced(small, tmp_path)]
    assert sorted(s["before"]["at_ns"] for s in states) == list(range(0, 2 * len(states), 2))
    assert all(s["after"]["at_ns"] == s["before"]["at_ns"] + 1 for s in states)


def test_a_lost_trace_stops_the_job(small, tmp_path):
    with pytest.raises(SpecamortError, match="8 runs were traced, 7 traces are there"):
        traced(small, tmp_path, type("Loses", (Traced,), {"lose": True}))


def test_a_pair_that_does_not_add_up_is_refused_before_it_is_kept(small, tmp_path):
    class Short(Traced):
        def run(self, *a):
            made = super().run(*a)
            self.log = self.log[:-2]
            return made

    with pytest.raises(SpecamortError, match=r"the trace shows 0 decode steps, the engine made 1"):
        traced(small, tmp_path, Short)
    assert not list((tmp_path / "raw/trace").rglob("*.json"))


def test_what_runs_under_nsys_runs_here(root, tmp_path, monkeypatch):
    """The very command that nsys is given, with a stand-in engine: cells, lengths, pairs."""
    commands = []
    monkeypatch.setattr(tracer, "require_version", lambda: "2025.1")
    monkeypatch.setattr(nsys, "profile_command", lambda out, program: commands.append(program))
    monkeypatch.setattr(job.subprocess, "run", lambda *a, **k: 1 / 0)
    study = in_letters(read_study(root / "config/study.yaml"), pairs=2)
    with pytest.raises(ZeroDivisionError):
        traced(study, tmp_path)
    ((_, _, module, *arguments),) = commands
    assert module == "specamort"
    monkeypatch.setattr(job, "trace_engine", partial(job.trace_engine, start=Traced))
    monkeypatch.setattr(cli.measure, "read_study", lambda path: study)
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 0
    runs, used = json.loads(
        (tmp_path / "traces/h100/llama-3.1-8b-instruct-g0/runs.json").read_text()
    )
    assert list(runs) == [
        str(c) for c in study.trace_cells if (c.model, c.gamma) == ("llama-3.1-8b-instruct", 0)
    ]
    for pairs in runs.values():
        assert len(pairs) == 2
        for pair in pairs:
            assert [r["decode_steps"] for r in pair["traced"]] == [0, 511]
    assert used["model_runner"] == "v1" and len(used["prompts_sha256"]) == len(runs)


def test_the_published_study_under_a_strict_nsys(root, tmp_path, monkeypatch):
    study = in_letters(read_study(root / "config/study.yaml"), tokens=(1, 36), pairs=2)
    stub = tmp_path / "bin" / "nsys"
    stub.parent.mkdir()
    stub.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT / 'tests/support')!r})\n"
        + (ROOT / "tests/support/stub_nsys.py").read_text()
    )
    stub.chmod(0o755)
    with pytest.raises(SpecamortError, match=r"nsys is not on the PATH"):
        monkeypatch.setenv("PATH", str(tmp_path))
        traced(study, tmp_path)
    assert not (tmp_path / "raw").exists()
    monkeypatch.setenv("PATH", str(stub.parent))
    monkeypatch.setenv("STUB_STEPS", "[0, 5]")
    monkeypatch.setenv("STUB_PAIRS", "2")
    steps = decomposition.steps(decomposition.pairs(traced(study, tmp_path)))
    assert set(steps["model"]) == {"llama-3.1-8b-instruct", "llama-3.2-1b-instruct"}
    assert set(steps["tracer"]) == {"nsys"} and (steps["step_ms"] == 5).all()
    assert (steps["device_ms"] > 0).all() and (steps["device_sum_ms"] > steps["device_ms"]).all()
    command = nsys.profile_command(tmp_path / "x", ["program"])
    monkeypatch.setattr(nsys, "profile_command", lambda *a: [c for c in command if "fork" not in c])
    with pytest.raises(SpecamortError, match=r"ended with 2: stub nsys: options dif.*nsys\.log"):
        traced(study, tmp_path / "again")
