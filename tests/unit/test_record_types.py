"""The records' types promise what their schema does."""

import json

import pytest

from specamort.records import types
from specamort.study.schema import SCHEMAS

SCHEMA = json.loads((SCHEMAS / "record.schema.json").read_text())
PARTS, DEFINED = SCHEMA["properties"], SCHEMA["definitions"]
REPETITION = DEFINED["repetition"]["properties"]


@pytest.mark.parametrize(
    ("part", "schema"),
    [
        (types.Record, SCHEMA),
        (types.Provenance, PARTS["provenance"]),
        (types.Device, PARTS["provenance"]["properties"]["device"]),
        (types.Cell, PARTS["cell"]),
        (types.Block, PARTS["block"]),
        (types.Prompt, PARTS["prompt"]),
        (types.Engine, PARTS["engine"]),
        (types.DeviceState, PARTS["device_state"]),
        (types.Reading, DEFINED["reading"]),
        (types.Repetition, DEFINED["repetition"]),
        (types.Sequence, REPETITION["sequences"]["items"]),
        (types.Counters, DEFINED["counters"]),
        (types.Microbenchmark, PARTS["microbenchmark"]),
        (types.roofline.Pass, PARTS["microbenchmark"]["properties"]["passes"]["items"]),
        (types.SelfCheck, PARTS["self_check"]),
        (types.Check, PARTS["self_check"]["properties"]["checks"]["items"]),
        (types.Trace, PARTS["trace"]),
        (types.TracePair, PARTS["trace"]["properties"]["pairs"]["items"]),
        (types.TraceRun, DEFINED["runs"]["items"]),
        (types.step.Activity, DEFINED["runs"]["items"]["properties"]["trace"]),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_what_a_type_requires_the_schema_requires(part, schema):
    assert part.__required_keys__ == set(schema["required"])
    assert schema.get("properties", {}).keys() <= part.__annotations__.keys()


def test_kinds_and_origins_are_the_schemas():
    assert list(types.Kind.__args__) == PARTS["kind"]["enum"]
    assert list(types.Origin.__args__) == PARTS["origin"]["enum"]
