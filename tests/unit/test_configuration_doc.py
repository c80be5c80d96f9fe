"""docs/configuration.md says what the schemas say, and the schemas say it of every key."""

import json
import runpy

import pytest

from conftest import ROOT
from specamort.study.schema import SCHEMAS
from specamort.study.texts import texts

GENERATOR = runpy.run_path(str(ROOT / "docs/generate.py"))


def test_document_is_up_to_date():
    written = (ROOT / "docs/configuration.md").read_text()
    assert written == GENERATOR["configuration"](), "docs/configuration.md: run `make docs`"


@pytest.mark.parametrize("name", GENERATOR["FILES"])
def test_every_key_is_described_in_a_sentence(name):
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    keys = list(properties(schema))
    assert len(keys) > 1
    for key, value in keys:
        assert value.get("description", "").endswith("."), f"{name}: {key}: has no sentence"


def test_every_shipped_text_is_named():
    schema = json.loads((SCHEMAS / "study.schema.json").read_text())
    about = dict(properties(schema))["text"]["description"]
    assert all(text in about for text in texts())


def properties(schema):
    """Every property at any depth, as (name, schema)."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {}).items()
        for value in schema.values():
            yield from properties(value)
