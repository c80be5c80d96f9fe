"""What a rehearsal keeps of a study, what it changes, and that its numbers go nowhere else."""

import io
import sys

import pytest

from specamort.cluster import rehearse
from specamort.errors import SpecamortError
from specamort.study.rehearsal import rehearsal, write_rehearsal
from specamort.study.study_file import parse_study, read_study
from specamort.study.yaml_file import load_yaml


@pytest.fixture(params=["study", "local", "small", "modes", "drafters", "crossover"])
def pair(request, root):
    """A study and its rehearsal."""
    file = root / f"config/{request.param}.yaml"
    raw = load_yaml(file)
    return read_study(file), parse_study(rehearsal(raw, str(file)), "rehearsal")


def test_the_same_grid_blocks_and_prompt_lengths(pair):
    study, stand_in = pair
    assert stand_in.cells == study.cells
    assert list(stand_in.platforms) == list(study.platforms)
    assert stand_in.replicates == study.replicates
    assert [(s.workload, s.context_tokens, s.count) for s in stand_in.prompt_sets] == [
        (s.workload, s.context_tokens, s.count) for s in study.prompt_sets
    ]
    assert len(stand_in.trace_cells) == len(study.trace_cells)


def test_no_gpu_no_download_and_its_own_name(pair):
    study, stand_in = pair
    assert {p.device for p in stand_in.platforms.values()} == {"cpu"}
    assert {m.source for m in stand_in.models.values()} <= {"package", "random"}
    assert stand_in.tracing.tracer == "kineto"
    assert stand_in.results != study.results and stand_in.origin == "rehearsal"
    assert stand_in.rehearses == study.file


def test_full_keeps_the_lengths(root):
    file = root / "config/study.yaml"
    study = read_study(file)
    full = parse_study(rehearsal(load_yaml(file), str(file), full=True), "rehearsal")
    for key in ("warmup", "repetitions", "output_tokens"):
        assert getattr(full, key) == getattr(study, key)
    assert full.tracing.tokens == study.tracing.tokens


def test_settings_differ_so_that_no_record_serves_both(pair):
    study, stand_in = pair
    for platform in study.platforms:
        for cell in study.cells:
            assert study.timing_settings(platform, cell) != stand_in.timing_settings(platform, cell)
        for cell in set(study.trace_cells) & set(stand_in.trace_cells):
            assert study.trace_settings(platform, cell) != stand_in.trace_settings(platform, cell)


def test_a_failed_rule_is_its_own_sentence(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = write_rehearsal(read_study(root / "config/small.yaml"), full=False)
    said = "Job 3\n 9/96\rh100 r0: 10%specamort: the engine died (details: x.log)\n" * 2
    fails = f"print({said!r}); raise SystemExit(1)"
    with pytest.raises(SpecamortError, match=r"^the engine died \(details: x\.log\)$"):
        rehearse.rehearse(study, [sys.executable, "-c", fails])
    said = io.StringIO()
    rehearse.rehearse(study, [sys.executable, "-c", ""], said)
    assert "0/" in said.getvalue()


def test_one_study_at_a_time(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = write_rehearsal(read_study(root / "config/small.yaml"), full=False)
    with rehearse._alone(), pytest.raises(SpecamortError, match="another study is running here"):
        rehearse.rehearse(study, [sys.executable, "-c", ""])
