"""The options of vLLM's that a study may give are the installed release's."""

from dataclasses import fields
from typing import get_args

import yaml

from conftest import ROOT

NAMES = yaml.safe_load((ROOT / "workflow/specamort/study/vllm_names.yaml").read_text())


def test_engine_arguments():
    from vllm.engine.arg_utils import EngineArgs

    assert set(NAMES["engine"]) <= {f.name for f in fields(EngineArgs)}


def test_drafter_options():
    from vllm.config.speculative import SpeculativeConfig, SpeculativeMethod

    assert set(NAMES["methods"]) <= set(get_args(SpeculativeMethod))
    assert set(NAMES["drafter"]) <= {f.name for f in fields(SpeculativeConfig)}
