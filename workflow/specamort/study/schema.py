"""Our JSON schemas as checks that answer in sentences."""

import json
from collections.abc import Callable
from pathlib import Path

import fastjsonschema

from ..errors import SpecamortError

SCHEMAS = Path(__file__).resolve().parent / "schemas"


def compiled(schema: str) -> Callable[[object], object]:
    """One of our schemas as a function that raises fastjsonschema's own exception."""
    text = (SCHEMAS / f"{schema}.schema.json").read_text(encoding="utf-8")
    check: Callable[[object], object] = fastjsonschema.compile(json.loads(text))
    return check


def validator(schema: str) -> Callable[[object, str], None]:
    """A check of a file's content against one of our schemas, in a sentence naming the key."""
    check = compiled(schema)

    def validate(raw: object, file: str) -> None:
        try:
            check(raw)
        except fastjsonschema.JsonSchemaValueException as e:
            raise SpecamortError(f"{file}: {_sentence(e)}") from e

    return validate


def _sentence(e: fastjsonschema.JsonSchemaValueException) -> str:
    key = ".".join(e.path[1:]) or "the file"
    if e.rule in ("additionalProperties", "required"):
        known = e.definition["properties"]
        unknown = ", ".join(k for k in e.value if k not in known)
        missing = ", ".join(k for k in e.definition["required"] if k not in e.value)
        wrong = [f"unknown key {unknown}"] * bool(unknown) + [f"missing key {missing}"] * bool(
            missing
        )
        return f"{key}: {'; '.join(wrong)}; it has {', '.join(known)}"
    wrong_value = e.message.removeprefix(e.name or "").strip()
    return f"{key}: {wrong_value}, but is {e.value!r}"
