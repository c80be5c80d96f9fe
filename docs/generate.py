"""Writes docs/configuration.md from the descriptions in the schemas; `make docs` runs it."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = ROOT / "workflow/specamort/study/schemas"
TARGET = ROOT / "docs/configuration.md"
FILES = {"study": "A study file", "cluster": "A cluster file", "user": "Your own file"}


def configuration() -> str:
    """The whole document."""
    parts = [
        "# What a study file, a cluster file and your own file hold\n\n"
        "Made by `make docs` from the schemas in `workflow/specamort/study/schemas`; edit those.\n"
        "Examples are in `config/` and `config/clusters/`. A name stands once, a whole number has\n"
        "no point, every number is finite, text has no control characters, and the file is UTF-8."
    ]
    for name, title in FILES.items():
        schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
        parts.append(f"## {title}\n{schema['description']}\n\n{_table(schema, schema)}")
        parts += _sections(schema, schema, "")
    return "\n\n".join(parts) + "\n"


def _sections(schema: dict, whole: dict, prefix: str) -> list[str]:
    """A heading, a sentence and a table for every mapping below `schema`."""
    parts = []
    for key, value in schema["properties"].items():
        about, where = value.get("description", ""), f"{prefix}{key}"
        inner = _resolved(value, whole)
        if isinstance(inner.get("additionalProperties"), dict):
            inner, where = inner["additionalProperties"], f"{where}.NAME"
        if "properties" in inner:
            parts.append(f"### {where}\n{about}\n\n{_table(inner, whole)}")
            parts += _sections(inner, whole, f"{where}.")
    return parts


def _table(schema: dict, whole: dict) -> str:
    rows = ["| key | value | needed | meaning |", "| --- | --- | --- | --- |"]
    for key, value in schema["properties"].items():
        needed = "yes" if key in schema.get("required", []) else ""
        about = value["description"].replace("|", r"\|")
        may_be = _value(value, whole).replace("|", r"\|")
        rows.append(f"| `{key}` | {may_be} | {needed} | {about} |")
    return "\n".join(rows)


def _value(value: dict, whole: dict) -> str:
    """What may stand there, in a few words."""
    named = _name(value)
    value = _resolved(value, whole)
    if "enum" in value:
        return ", ".join(f"`{v}`" for v in value["enum"])
    if isinstance(value["type"], list):
        one, many = (value | {"type": t} for t in value["type"])
        return f"{_value(one, whole)}, or {_value(many, whole)}"
    if value["type"] == "array":
        least, most = value.get("minItems"), value["maxItems"]
        size = f" of {most}" if least == most else f" of at most {most}"
        items = value["items"]
        mapping = _resolved(items, whole)["type"] == "object"
        like = f"mapping as `{_name(items)}`" if mapping else _value(items, whole)
        return f"list{size}: {like}"
    if value["type"] == "object":
        by_name = isinstance(value.get("additionalProperties"), dict)
        return "mapping by name" if by_name else "mapping"
    if named:
        return value["description"]
    words = {"integer": "whole number", "boolean": "true or false", "string": "text"}
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}
    said = [f"{sign} {value[k]:,}" for k, sign in bounds.items() if k in value]
    if "maxLength" in value:
        said.append(f"of at most {value['maxLength']} characters")
    return " ".join([words.get(value["type"], value["type"]), ", ".join(said)]).strip()


def _resolved(value: dict, whole: dict) -> dict:
    named = _name(value)
    return whole["definitions"][named] if named else value


def _name(value: dict) -> str:
    """Of the definition that stands here, if any."""
    return value.get("$ref", "").rpartition("/")[2]


if __name__ == "__main__":
    TARGET.write_text(configuration(), encoding="utf-8")
