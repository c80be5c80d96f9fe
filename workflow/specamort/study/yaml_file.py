"""The one reader of the YAML that people write: study files, cluster files, the user's own."""

import os
import stat
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from ..errors import SpecamortError, Unreadable

# What people write is a page; a few lines of aliases can stand for more than fits into memory.
_MOST_BYTES = 2**18
_MOST_VALUES = 2**16
_DEEPEST = 32
_TAG = "tag:yaml.org,2002:"


def load_yaml(path: str | Path) -> Any:
    """The content of a YAML file: text, numbers, truth values, lists, and mappings by text.

    Raises:
        Unreadable: there is no such file, or the filesystem fails.
        SpecamortError: it is not YAML in UTF-8, names something twice, or is absurdly large.
    """
    try:
        content = yaml.load(_text(path), _Loader)
        if _values(content) > _MOST_VALUES:
            raise SpecamortError(f"{path}: comes to too many values or levels; write it out")
    except yaml.MarkedYAMLError as e:
        line = f"line {e.problem_mark.line + 1}: " if e.problem_mark else ""
        why = " ".join(filter(None, (e.context, e.problem)))
        raise SpecamortError(f"{path}: not valid YAML: {line}{why:.200}") from e
    except yaml.reader.ReaderError as e:
        raise SpecamortError(
            f"{path}: not valid YAML: holds the control character U+{e.character:04X}"
        ) from e
    except RecursionError as e:
        raise SpecamortError(f"{path}: not valid YAML: is nested too deeply") from e
    return content


def _text(path: str | Path) -> str:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise Unreadable(f"{path}: cannot be read (not a regular file); name a file there is")
        with open(path, "rb", opener=_at_once) as f:
            content = f.read(_MOST_BYTES + 1) or b""
    except (OSError, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) else "no file can have that name"
        raise Unreadable(f"{path}: cannot be read ({why}); name a file there is") from e
    if len(content) > _MOST_BYTES:
        raise SpecamortError(
            f"{path}: is larger than {_MOST_BYTES // 1024} kB; is it the right one?"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise SpecamortError(
            f"{path}: is not text in UTF-8 (byte {e.start}); save it as such"
        ) from e


def _at_once(path: str, flags: int) -> int:
    """Some that call themselves regular files never answer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _values(content: object, level: int = 0) -> int:
    """How many there are, each as often as an alias names it; more than enough if too deep."""
    if level > _DEEPEST:
        return _MOST_VALUES + 1
    total = 1
    if isinstance(content, dict | list):
        for value in content.values() if isinstance(content, dict) else content:
            total += _values(value, level + 1)
            if total > _MOST_VALUES:
                break
    return total


class _Odd:
    """No text, number, truth value, list or mapping: a schema refuses it, and names its key."""

    def __init__(self, node: yaml.Node):
        self._tag = node.tag.replace(_TAG, "!!")

    def __repr__(self) -> str:
        return f"nothing that can be read as {self._tag}"


class _Loader(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys; a study must not lose a platform that way."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if key.value == "<<":
                raise _wrong(key, "the merge key << is not taken; write out what it stands for")
            if key.tag != f"{_TAG}str":
                raise _wrong(key, f"the name {_shown(key)} is not text; put it in quotes")
            if key.value in seen:
                raise _wrong(key, f"duplicate name {key.value!r:.80}; rename one")
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_scalar_or_odd(self, node: yaml.Node) -> Any:
        try:
            return yaml.SafeLoader.yaml_constructors[node.tag](self, node)
        except (ValueError, OverflowError, LookupError):
            return _Odd(node)


_known = yaml.SafeLoader.yaml_constructors
_Loader.yaml_constructors = (
    {f"{_TAG}{t}": _known[f"{_TAG}{t}"] for t in ("str", "seq", "map")}
    | {f"{_TAG}{t}": _Loader.construct_scalar_or_odd for t in ("null", "bool", "int", "float")}
    | {f"{_TAG}timestamp": _known[f"{_TAG}str"], None: lambda _, node: _Odd(node)}
)


def _shown(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return f"{node.value:.80}"
    return "(a mapping)" if isinstance(node, yaml.MappingNode) else "(a list)"


def _wrong(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, problem, node.start_mark)
