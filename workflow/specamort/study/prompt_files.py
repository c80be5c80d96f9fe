"""Prompts of people's own: JSON lines, or one JSON array, in the shapes that they have."""

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..errors import SpecamortError
from ..files import read_text

SHAPES = (
    '{"messages": [{"role": "user", "content": ...}]}, {"conversations": [{"from": "human", '
    '"value": ...}]}, {"prompt": ...}, {"turns": [...]}, {"question": ...} or {"text": ...}'
)
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}
_ROLES |= {"system": "system", "chatgpt": "assistant", "bing": "assistant", "developer": "system"}
_MOST_BYTES = 2**28
_PLAIN = ("prompt", "question", "text")


@dataclass(frozen=True)
class Asked:
    """A request: the turns up to one of a user's, (role, content) each."""

    turns: tuple[tuple[str, str], ...]
    category: str = ""

    @property
    def text(self) -> str:
        """Without a chat template."""
        return "\n\n".join(content for _, content in self.turns)

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": role, "content": content} for role, content in self.turns]


@cache
def file_sha256(path: str) -> str:
    """Of a prompt file's content.

    Raises:
        SpecamortError: it cannot be read.
    """
    return sha256(_text(path).encode()).hexdigest()


@cache
def read_asked(path: str, category: str | None = None) -> tuple[Asked, ...]:
    """Every request of a file, in its order.

    Args:
        category: the key of a line that says what kind of request it is.

    Raises:
        SpecamortError: it cannot be read; or a line, by its number, is empty, not JSON or of no
            shape that is known.
    """
    return tuple(_asked(path, where, one, category) for where, one in _objects(path))


def _text(path: str) -> str:
    """A pipe would be waited for, and a device has no end."""
    try:
        found = os.stat(path)
    except (OSError, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) else "no file can have that name"
        raise SpecamortError(f"{path}: cannot be read ({why}); name a JSONL file") from e
    if not stat.S_ISREG(found.st_mode):
        raise SpecamortError(f"{path}: is no file; name a JSONL file")
    if found.st_size > _MOST_BYTES:
        raise SpecamortError(f"{path}: has more than {_MOST_BYTES:,} bytes; give it fewer requests")
    return read_text(Path(path))


def _objects(path: str) -> Iterator[tuple[str, Any]]:
    text = _text(path)
    if not text.strip():
        raise SpecamortError(f"{path}: is empty; give it a request a line")
    if text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as e:
            raise SpecamortError(f"{path}: begins as a JSON array and is none: {e!s:.100}") from e
        yield from ((f"entry {i}", one) for i, one in enumerate(found, 1))
        return
    for i, line in enumerate(text.rstrip("\n").split("\n"), 1):
        if not line.strip():
            raise SpecamortError(f"{path}: line {i}: is empty; remove it")
        try:
            yield f"line {i}", json.loads(line)
        except (ValueError, RecursionError) as e:
            raise SpecamortError(f"{path}: line {i}: is not JSON: {e!s:.100}") from e


def _asked(path: str, where: str, one: Any, category: str | None) -> Asked:
    def refuse(why: str) -> SpecamortError:
        return SpecamortError(f"{path}: {where}: {why}")

    if not isinstance(one, dict):
        raise refuse(f"is no JSON object; a request is {SHAPES}")
    kind = ""
    if category is not None:
        kind = str(one.get(category, ""))
        if type(one.get(category)) not in (str, int) or not kind.isprintable() or len(kind) > 100:
            raise refuse(
                f"has no category {category!r:.80}, or one that is no word of at most 100 "
                "characters"
            )
    body = one["body"] if isinstance(one.get("body"), dict) else one
    turns = _turns(body)
    if turns is None:
        raise refuse(f"is of no shape that is known; a request is {SHAPES}")
    while turns and turns[-1][0] != "user":  # what was answered is not asked again
        turns = turns[:-1]
    if not any(content.strip() for role, content in turns if role == "user"):
        raise refuse("asks nothing: it has no text of a user")
    try:
        "".join(content for _, content in turns).encode()
    except UnicodeEncodeError as e:
        raise refuse("holds half a character (a lone surrogate)") from e
    return Asked(tuple(turns), kind)


def _turns(body: dict[str, Any]) -> list[tuple[str, str]] | None:
    """Null where the shape is not known."""
    for key in ("messages", "prompt"):
        if isinstance(body.get(key), list):
            return _each(body[key], "role", "content")
    if isinstance(body.get("conversations"), list):
        return _each(body["conversations"], "from", "value")
    if isinstance(body.get("turns"), list) and body["turns"]:
        first = body["turns"][0]
        return [("user", first)] if isinstance(first, str) else None
    for key in _PLAIN:
        if isinstance(body.get(key), str):
            return [("user", body[key])]
    return None


def _each(turns: list[Any], who: str, what: str) -> list[tuple[str, str]] | None:
    found = []
    for turn in turns:
        if not isinstance(turn, dict) or not isinstance(turn.get(who), str):
            return None
        role, content = _ROLES.get(turn[who]), turn.get(what)
        if isinstance(content, list):  # OpenAI's parts, of which text can be asked
            parts = [p.get("text") for p in content if isinstance(p, dict)]
            told = [p for p in parts if isinstance(p, str)]
            content = "\n".join(told) if len(told) == len(content) else None
        if role is None or not isinstance(content, str):
            return None
        found.append((role, content))
    return found
