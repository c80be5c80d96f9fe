"""The reader of what people write: YAML or a sentence, whatever the file is."""

import os

import pytest

from specamort.errors import SpecamortError, Unreadable
from specamort.study.schema import validator
from specamort.study.yaml_file import load_yaml

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{y}: &{y} [{', '.join([f'*{x}'] * 10)}]\n"
    for x, y in zip("abcdefgh", "bcdefghi", strict=True)
)


def load(tmp_path, content):
    path = tmp_path / "some.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_yaml(path)


@pytest.mark.parametrize(
    ("content", "value"),
    [
        ("a: [1, 2.5, true, null, x]", {"a": [1, 2.5, True, None, "x"]}),
        ("\ufeffa: 1\r\nb: 2\r\n", {"a": 1, "b": 2}),
        ("a: &x [1]\nb: *x", {"a": [1], "b": [1]}),
        ("'32': é γ", {"32": "é γ"}),
        ("a: 2024-01-01", {"a": "2024-01-01"}),
        ("", None),
    ],
)
def test_what_is_yaml_is_read(tmp_path, content, value):
    assert load(tmp_path, content) == value


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("32: x", "line 1: the name 32 is not text; put it in quotes"),
        ("a: 1\non: x", "line 2: the name on is not text"),
        ("? [a, b]\n: 2", r"the name \(a list\) is not text"),
        ("? {a: b}\n: 2", r"the name \(a mapping\) is not text"),
        ("2024-01-01: x", "the name 2024-01-01 is not text"),
        ("a: 1\n'a': 2", "line 2: duplicate name 'a'"),
        ("a: &a {x: 1}\nb: {<<: *a}", "line 2: the merge key << is not taken"),
        ("a: 1\n---\nb: 2", "line 2: .* another document"),
        ("a: [", "line 1: "),
        ("a: *b", "undefined alias"),
        ("a: \0", r"U\+0000"),
        ("a: é".encode("latin-1"), r"not text in UTF-8 \(byte 3\)"),
        ("a: é".encode("utf-16"), r"not text in UTF-8 \(byte 0\)"),
        (bytes(range(256)), "not text in UTF-8"),
        ("[" * 20_000, "nested too deeply"),
        ("a: " + "[" * 40 + "]" * 40, "too many values or levels"),
        ("&a [*a]", "too many values or levels"),
        (LAUGHS, "too many values or levels"),
        ("# " + "x" * 2**18, "larger than 256 kB"),
    ],
)
def test_what_is_none_is_a_sentence(tmp_path, content, why):
    with pytest.raises(SpecamortError, match=rf"some\.yaml: .*{why}") as e:
        load(tmp_path, content)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    "value", ["!!binary aGk=", "!!set {x, y}", "!!python/object:os.x []", "!x y", "9" * 5000, "0x_"]
)
def test_what_has_no_place_in_a_file_is_refused_by_its_key(tmp_path, value):
    with pytest.raises(SpecamortError, match="f: account: must be string, but is nothing that can"):
        validator("user")(load(tmp_path, f"account: {value}"), "f")


@pytest.mark.parametrize("name", ["nowhere", ".", "a\0b", "x" * 300, "pipe", "/dev/zero"])
def test_what_is_no_file_is_a_sentence(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with pytest.raises(Unreadable, match="cannot be read"):
        load_yaml(name)
