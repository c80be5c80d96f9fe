"""Markdown that tests hold against what it describes: sections, tables, names in backticks."""

import re


def sections(text: str) -> dict[str, str]:
    """Text below each heading of the second level, by its title."""
    _, *parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def rows(text: str) -> list[list[str]]:
    """Cells of the rows of the tables in a text, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    rules = [i for i, row in enumerate(cells) if set(row[0]) == {"-"}]
    heads = {i for rule in rules for i in (rule - 1, rule)}
    return [row for i, row in enumerate(cells) if i not in heads]


def quoted(text: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", text)
