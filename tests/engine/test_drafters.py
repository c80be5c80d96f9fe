"""A model that drafts for itself: it is accepted, and each token costs a step of its own."""

import pytest

from conftest import ROOT
from specamort.errors import SpecamortError
from specamort.measure import models
from specamort.measure.engine import Engine
from specamort.measure.engine_check import check_engine
from specamort.study import model_files
from specamort.study.prompts import prompts
from specamort.study.study_file import parse_study, read_study
from specamort.study.yaml_file import load_yaml

pytestmark = pytest.mark.engine

FILE = ROOT / "config/drafters-local.yaml"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder that holds results/models."""
    home = tmp_path_factory.mktemp("drafters")
    study = read_study(FILE)
    models.fetch(study.model, home / model_files.model_dir(study.model))
    return home


def test_what_is_drafted_by_the_model_itself_is_accepted_and_timed(model, monkeypatch):
    monkeypatch.chdir(model)
    study = read_study(FILE)
    one = study.at("itself")
    engine = Engine(model_files.model_dir(study.model), one, study.calibration, 2)
    try:
        prompt = prompts(one, engine.tokenizer, one.timing_prompts("open"))[0].token_ids
        plain = engine.run([prompt], 13, {}, None)
        engine.time_drafts = True
        timed = engine.run([prompt], 13, {}, None)
        engine.time_drafts = False
        again = engine.run([prompt], 13, {}, None)
    finally:
        engine.close()
    assert "draft_ms" not in plain and "draft_ms" not in again
    for run in (plain, timed, again):
        assert run["counters"]["drafted"] == 2 * run["counters"]["drafts"] > 0
        # but for a near tie: kernels at other row counts round differently
        assert run["counters"]["accepted"] >= 0.8 * run["counters"]["drafted"]
    step_ms = timed["step_ms"][-1] / (len(timed["step_ms"]) - 1)
    assert 0 < timed["draft_ms"] < step_ms


def test_what_vllm_refuses_is_a_sentence(model, monkeypatch):
    monkeypatch.chdir(model)
    raw = load_yaml(FILE)
    assert check_engine(parse_study(raw, "here.yaml")) == []
    raw["drafters"]["lookup"]["rejection_sample_method"] = "nonsense"
    with pytest.raises(SpecamortError, match=r"here.yaml: engine: .*drafter lookup.*'block'") as e:
        check_engine(parse_study(raw, "here.yaml"))
    assert "\n" not in str(e.value)
