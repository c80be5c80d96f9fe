"""Our JSON schemas as checks that answer in sentences."""

import json
import re
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any

import fastjsonschema

from ..errors import SpecamortError

SCHEMAS = Path(__file__).resolve().parent / "schemas"

# Control characters, lines' ends, halves of a character and turned writing: no name, label or path
# needs one, and a sentence, a figure or a batch script that gets one is broken.
_NO_TEXT = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def compiled(schema: str) -> Callable[[object], object]:
    """One of our schemas as a function that raises fastjsonschema's own exception."""
    text = (SCHEMAS / f"{schema}.schema.json").read_text(encoding="utf-8")
    check: Callable[[object], object] = fastjsonschema.compile(json.loads(text))
    return check


def validator(schema: str) -> Callable[[object, str], None]:
    """A check of a file's content against one of our schemas, in a sentence naming the key.

    Whatever the schema says, numbers are finite, 2.0 is not an integer, and text has no control
    characters.
    """
    check = compiled(schema)

    def validate(raw: object, file: str) -> None:
        try:
            check(_plain(raw, "the file"))
        except fastjsonschema.JsonSchemaValueException as e:
            raise SpecamortError(f"{file}: {_sentence(e)}") from e
        except ValueError as e:
            raise SpecamortError(f"{file}: {e}") from e

    return validate


class _Float(float):
    """To a JSON schema 2.0 is an integer, to us it is none: it ends in file names and hashes."""

    def is_integer(self) -> bool:
        return False


def _plain(value: Any, key: str) -> Any:
    """`value` as a schema gets it.

    Raises:
        ValueError: it is, or holds, what no file of ours may hold; names the key.
    """
    if isinstance(value, dict):
        below = "" if key == "the file" else f"{key}."
        return {_plain(k, key): _plain(v, f"{below}{k}") for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v, f"{key}.{i}") for i, v in enumerate(value)]
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{key}: must be a finite number, but is {value}")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError(f"{key}: must be a number of at most 64 bits")
    if isinstance(value, str) and (found := _NO_TEXT.search(value)):
        raise ValueError(f"{key}: holds the control character U+{ord(found[0]):04X}; remove it")
    return _Float(value) if isinstance(value, float) else value


def _sentence(e: fastjsonschema.JsonSchemaValueException) -> str:
    key = ".".join(e.path[1:]) or "the file"
    if e.rule in ("additionalProperties", "required"):
        known = e.definition["properties"]
        unknown = ", ".join(f"{k:.80}" for k in e.value if k not in known)
        missing = ", ".join(k for k in e.definition.get("required", ()) if k not in e.value)
        wrong = [f"unknown key {unknown}"] * bool(unknown) + [f"missing key {missing}"] * bool(
            missing
        )
        return f"{key}: {'; '.join(wrong)}; it has {', '.join(known)}"
    if e.rule == "propertyNames":
        name = e.definition["propertyNames"]
        bad = next(k for k in e.value if not re.search(name["pattern"], k))
        return f"{key}: a name must be {name['description']}, but is {bad!r:.80}"
    wrong_value = e.message.removeprefix(e.name or "").strip()
    if e.rule == "pattern":
        wrong_value = f"must be {e.definition['description']}"
    return f"{key}: {wrong_value}, but is {e.value!r:.80}"
