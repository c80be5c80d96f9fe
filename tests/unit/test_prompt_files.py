"""Prompts from people's files: every shape, and what is wrong with one, by its line."""

import json
from dataclasses import replace

import pytest

from letters import Letters
from specamort.errors import SpecamortError
from specamort.study.grid import PromptSet, Workload
from specamort.study.prompt_files import read_asked
from specamort.study.prompts import prompts
from specamort.study.study_file import parse_study
from specamort.study.yaml_file import load_yaml

USER = {"role": "user", "content": "How are you?"}
SAID = {"role": "assistant", "content": "Fine."}


def file(tmp_path, *lines):
    path = tmp_path / "asked.jsonl"
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines) + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("line", "turns"),
    [
        ({"messages": [USER]}, [("user", "How are you?")]),
        ({"messages": [USER, SAID]}, [("user", "How are you?")]),
        (
            {"messages": [{"role": "system", "content": "Be brief."}, USER, SAID, USER]},
            [("system", "Be brief."), *[("user", "How are you?"), ("assistant", "Fine.")] * 2][:-1],
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 2}]},
            [("user", "a\na")],
        ),
        ({"custom_id": "1", "body": {"messages": [USER]}}, [("user", "How are you?")]),
        (
            {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]},
            [("user", "Hi")],
        ),
        ({"prompt": "Once upon"}, [("user", "Once upon")]),
        ({"prompt": [USER]}, [("user", "How are you?")]),
        ({"turns": ["first", "second"]}, [("user", "first")]),
        ({"question": "Why?"}, [("user", "Why?")]),
        ({"text": "Because."}, [("user", "Because.")]),
    ],
)
def test_shapes(tmp_path, line, turns):
    (asked,) = read_asked(file(tmp_path, line))
    assert list(asked.turns) == turns


def test_an_array_and_categories(tmp_path):
    path = tmp_path / "dump.json"
    path.write_text(json.dumps([{"prompt": "a", "task": "x"}, {"prompt": "b", "task": 2}]))
    assert [a.category for a in read_asked(str(path), "task")] == ["x", "2"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([""], "is empty"),
        ([{"prompt": "a"}, "", {"prompt": "b"}], "line 2: is empty"),
        ([{"prompt": "a"}, "{"], "line 2: is not JSON"),
        (["[1, 2"], "begins as a JSON array"),
        (["[1]"], "entry 1: is no JSON object"),
        (["7"], "line 1: is no JSON object"),
        ([{"messages": "hello"}], "line 1: is of no shape"),
        ([{"messages": [{"role": "user"}]}], "is of no shape"),
        ([{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}], "is of no shape"),
        ([{"messages": []}], "asks nothing"),
        ([{"messages": [SAID]}], "asks nothing"),
        ([{"prompt": "  "}], "asks nothing"),
        ([{"answer": "x"}], "is of no shape"),
        (['{"prompt": "\\ud800"}'], "half a character"),
        (["[" * 100_000], "begins as a JSON array"),
    ],
)
def test_what_is_wrong_is_a_sentence(tmp_path, lines, said):
    with pytest.raises(SpecamortError, match=said) as e:
        read_asked(file(tmp_path, *lines))
    assert "\n" not in str(e.value) and "asked.jsonl: " in str(e.value)


def test_a_line_without_its_category_is_named(tmp_path):
    with pytest.raises(SpecamortError, match="line 2: has no category 'task'"):
        read_asked(file(tmp_path, {"prompt": "a", "task": "x"}, {"prompt": "b"}), "task")


@pytest.mark.parametrize("category", ["x" * 101, "a\nb", True, None, 1.5, ["x"]])
def test_a_category_is_a_short_word(tmp_path, category):
    with pytest.raises(SpecamortError, match="line 1: has no category 'task', or one") as e:
        read_asked(file(tmp_path, {"prompt": "a", "task": category}), "task")
    assert "\n" not in str(e.value)


def made(small, path, count=3, context=40, **changes):
    mine = replace(Workload("mine", "file", False, path=path), **changes)
    study = replace(small, workloads=small.workloads | {"mine": mine})
    which = PromptSet("mine", context, count, 16, {0: 16, 2: 16})
    return prompts(study, Letters(), which)


def test_ragged_within_its_range_and_none_twice(small, tmp_path):
    lines = [{"prompt": "x" * n} for n in (3, 5, 5, 10, 20, 40, 41, 90)]
    found = made(small, file(tmp_path, *lines), count=4, tokens=(5, 40))
    assert sorted(len(p.token_ids) for p in found) == [5, 10, 20, 40]
    assert len(made(small, file(tmp_path, *lines), count=5)) == 5


def test_exact_ones_are_cut(small, tmp_path):
    lines = [{"prompt": f"{i}" * (38 + i)} for i in range(6)]
    found = made(small, file(tmp_path, *lines), lengths="exact")
    assert [len(p.token_ids) for p in found] == [40, 40, 40]


def test_more_prompts_do_not_change_the_first(small, tmp_path):
    path = file(tmp_path, *({"prompt": f"number {i}"} for i in range(20)))
    assert made(small, path, count=8)[:3] == made(small, path, count=3)
    other = replace(small, seed=7)
    assert made(other, path, count=8) != made(small, path, count=8)


def test_too_few_is_a_sentence(small, tmp_path):
    path = file(tmp_path, {"prompt": "short"}, {"prompt": "x" * 50})
    with pytest.raises(SpecamortError, match=r"1 different prompts of 1 to 40 .* \(1 are"):
        made(small, path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"text": "alice"}, "text: is not of kind file"),
        ({"path": "no/such.jsonl"}, "path: no/such.jsonl: cannot be read"),
        ({"lengths": "exact", "chat": True}, "lengths: exact would cut"),
        ({"tokens": [1]}, "tokens"),
        ({"kind": "open"}, "text: missing key"),
    ],
)
def test_a_workload_of_a_file_in_a_study_file(root, tmp_path, change, said):
    raw = load_yaml(root / "config/small.yaml")
    good = {"kind": "file", "path": file(tmp_path, {"prompt": "a"}), "chat": False}
    raw["workloads"]["mine"] = good
    study = parse_study(raw, "mine.yaml")
    settings = study.timing_settings("cpu-bf16", study.cells[-1])
    assert settings["workload"]["lengths"] == "as_they_are" and "text" not in settings["workload"]
    raw["workloads"]["mine"] = good | change
    with pytest.raises(SpecamortError, match=rf"^mine.yaml: workloads.mine.{said}"):
        parse_study(raw, "mine.yaml")


def test_another_file_is_measured_anew(root, tmp_path):
    from specamort.study import prompt_files

    raw = load_yaml(root / "config/small.yaml")
    raw["workloads"]["mine"] = {"kind": "file", "chat": False}
    hashes = set()
    for text in ("a", "b"):
        raw["workloads"]["mine"]["path"] = file(tmp_path, {"prompt": text})
        prompt_files.file_sha256.cache_clear()
        study = parse_study(raw, "mine.yaml")
        hashes.add(study.timing_settings("cpu-bf16", study.cells[-1])["text_sha256"])
    assert len(hashes) == 2
