"""The self-check with a stand-in engine and tracer: what passes, and what is to be fixed."""

import io
from dataclasses import replace
from pathlib import Path

import pytest

import synthetic
from letters import Letters
from specamort.errors import SpecamortError
from specamort.measure import gpu, self_check
from specamort.records import record
from specamort.study import layout
from specamort.study.rehearsal import rehearsal
from specamort.study.study_file import parse_study, read_study
from specamort.study.yaml_file import load_yaml


@pytest.fixture
def study(root):
    """A rehearsal of the published study, with room for a chat request in letters."""
    raw = load_yaml(root / "config/study.yaml")
    study = parse_study(rehearsal(raw, "config/study.yaml"), "rehearsal.yaml")
    any_alpha = {k: replace(w, alpha_min=0.0) for k, w in study.workloads.items()}
    return replace(study, workloads=any_alpha)


class Node:
    """What a node's engine, tracer and kernels answer; a test spoils one of them."""

    def __init__(self, monkeypatch):
        self.source = {"driver": "580.1", "torch": "2.13.0"}
        self.counters = {"drafted": 16, "accepted": 16}
        self.families = {"attention": 1.0, "gemm": 5.0, "sampling": 0.1}
        self.kernel_ms = 1.0
        self.started = []
        self.engine_dies_at = None
        monkeypatch.setattr(
            self_check,
            "provenance",
            lambda s, p: synthetic.provenance(s, p.name) | {"cuda": "13.0"} | self.source,
        )
        monkeypatch.setattr(self_check, "read_shape", lambda model: None)
        monkeypatch.setattr(self_check, "in_child", lambda *a, **k: self.kernels())
        monkeypatch.setattr(self_check, "traced_runs", self.traced)

    def kernels(self):
        return {"passes": [{"samples_ms": [self.kernel_ms]}], "one_row_ms": {"qkv": 1.0}} | {
            "bandwidth": 1e12,
            "peak": 1e14,
        }

    def start(self, model, study, platform, gamma):
        self.started.append(gamma)
        if self.engine_dies_at == gamma:
            raise SpecamortError("vLLM did not start: out of memory")
        return self

    tokenizer, closed = Letters(), 0

    def run(self, prompts, tokens, sampling, seed):
        return {"step_ms": [5.0 * i for i in range(tokens)]}

    def close(self):
        self.closed += 1

    def traced(self, study, platform, cells, output, start):
        (cell,) = cells
        assert cell.gamma == 2 and study.tracing.pairs == 1
        if self.engine_dies_at == 2:
            raise SpecamortError("nsys or the engine under it ended with 1")
        run = {"counters": self.counters, "trace": None}
        trace = {"events": 4000, "family_ms": self.families}
        pair = {"untraced": [run, run], "traced": [run, run | {"trace": trace}]}
        return {str(cell): [pair]}, synthetic.ENGINE


@pytest.fixture
def node(monkeypatch):
    return Node(monkeypatch)


def ensure(study, node, results):
    said = io.StringIO()
    try:
        self_check.ensure(study, study.calibration, Path("m"), results, said, node.start)
    finally:
        node.lines = said.getvalue().splitlines()


def test_a_fit_node_passes_once_and_a_line_each(study, node, tmp_path):
    ensure(study, node, tmp_path)
    assert [line[:4] for line in node.lines] == ["pass"] * len(node.lines)
    assert "torch 2.13.0 (CUDA 13.0)" in node.lines[1] and node.closed == 1
    found = record.read(layout.folder(tmp_path, "self_check", "h100") / "passed.json")
    assert found["origin"] == "rehearsal" and found["kind"] == "self_check"
    ensure(study, node, tmp_path)
    assert node.lines == [] and node.started == [0]


@pytest.mark.parametrize("key", ["driver", "torch", "packages", "nsys"])
def test_a_new_driver_or_package_is_checked_anew_and_the_old_one_stays_known(
    study, node, tmp_path, key
):
    ensure(study, node, tmp_path)
    old, node.source[key] = dict(node.source), "newer"
    ensure(study, node, tmp_path)
    assert len(node.lines) > 5 and node.started == [0, 0]
    node.source = old  # nodes with different drivers do not check each other's away
    ensure(study, node, tmp_path)
    assert node.lines == [] and not list(tmp_path.rglob("superseded"))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        ({"counters": {"drafted": 0, "accepted": 0}}, "nothing was drafted"),
        ({"counters": {"drafted": 16, "accepted": 3}}, "does not copy, or the drafter"),
        ({"families": {"gemm": 1.0, "attention": 1.0}}, "shows no sampling kernel"),
        ({"families": {}}, "shows no attention, no gemm, no sampling kernel"),
        ({"kernel_ms": float("nan")}, "not positive numbers"),
        ({"engine_dies_at": 0}, "out of memory"),
        ({"run": lambda *a: 1 / 0}, "division by zero"),
        ({"engine_dies_at": 2}, "nsys or the engine under it ended with 1"),
    ],
)
def test_what_is_wrong_is_a_sentence_and_no_record(study, node, tmp_path, spoil, why):
    study.workloads["repeat"] = replace(study.workloads["repeat"], alpha_min=0.98)
    vars(node).update(spoil)
    node.tokenizer = Distinct()
    with pytest.raises(SpecamortError, match=why) as e:
        ensure(study, node, tmp_path)
    assert "self-check of h100: 1 of" in str(e.value) and "\n" not in str(e.value)
    assert not list(tmp_path.rglob("*.json"))
    assert [line[:3] for line in node.lines].count("fix") == 1
    assert node.closed == len(node.started) - (node.engine_dies_at == 0)


def test_one_refused_draft_does_not_stop_a_study(study, node, tmp_path):
    node.counters = {"drafted": 16, "accepted": 15}
    ensure(study, node, tmp_path)
    assert any("15 of 16 drafted tokens accepted" in line for line in node.lines)


def test_an_engine_that_dies_at_once_is_not_started_a_second_time(study, node, tmp_path):
    node.engine_dies_at = 0
    with pytest.raises(SpecamortError):
        ensure(study, node, tmp_path)
    assert not [line for line in node.lines if "gamma 2" in line]


def test_what_runs_in_a_child_comes_back():
    assert self_check.in_child(divmod, 7, 2) == (3, 1)


class Distinct(Letters):
    """Every token once, so that a lookup drafts a copy perfectly."""

    def encode(self, text, add_special_tokens):
        return list(range(len(text)))


def test_a_driver_older_than_torchs_cuda_is_found_before_an_engine_starts(root, node, tmp_path):
    study = read_study(root / "config/study.yaml")
    node.source |= {"driver": "550.54.15", "driver_cuda": 1204}
    with pytest.raises(SpecamortError, match=r"550\.54\.15 serves CUDA 12\.4, .* built for 13\.0"):
        ensure(study, node, tmp_path)
    assert node.started == []


def test_drivers_serve_every_release_of_their_major():
    def wrong(driver, cuda):
        return gpu.driver_too_old({"driver": "d", "driver_cuda": driver, "cuda": cuda})

    assert wrong(1300, "13.0") is None and wrong(1300, "13.1") is None
    assert wrong(1400, "13.0") is None
    assert "serves CUDA 12.8" in wrong(1208, "13.0")
    assert "no CUDA" in wrong(1300, None)
