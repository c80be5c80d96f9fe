"""Figures draw what tables hold, as docs/figures.md says, in colours that mean one thing."""

import ast
import json
import re
from dataclasses import replace
from io import StringIO

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text

import synthetic
from conftest import ROOT
from documents import quoted, rows, sections
from specamort.analysis import setups, tables
from specamort.report import figures, style
from specamort.study.layout import KINDS
from specamort.study.study_file import read_study

DOCUMENT = (ROOT / "docs/figures.md").read_text()
SECTIONS = {t: s for t, s in sections(DOCUMENT).items() if t.startswith("Figure ")}
DRAWN = {
    name: [(quoted(r[0])[0], quoted(r[1])[0], r[2]) for r in rows(section)]
    for name, section in zip(figures.FIGURES | figures.COMPARED, SECTIONS.values(), strict=True)
}
BY_PLATFORM = (
    "figure3_shortfall",
    "figure4_decode_step",
    "figure7_device_overhead",
    "figure8_dial",
)


@pytest.fixture(scope="module")
def study():
    return read_study(ROOT / "config/local.yaml")


@pytest.fixture(scope="module")
def results(study, tmp_path_factory):
    path = tmp_path_factory.mktemp("results")
    synthetic.write_study(study, path, noise=0.02)
    tables.write_tables(study, path)
    return path


@pytest.fixture(scope="module")
def frames(results):
    return {n: tables.read_table(results, n) for n in figures.TABLES}


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_every_figure_is_drawn_in_every_format(study, results):
    figures.draw_all(study, results)
    paths = figures.figure_paths(study, results)
    assert len(paths) == 3 * len(figures.FIGURES)
    assert all(p.stat().st_size > 1000 for p in paths)


def test_a_study_without_a_dial_has_no_figure_of_it(study):
    without = figures.figures_of(replace(study, dial=None))
    assert figures.FIGURES.keys() - without.keys() == {"figure8_dial"}


@pytest.mark.parametrize("name", figures.FIGURES | figures.COMPARED)
def test_a_figure_draws_the_columns_documented_and_no_others(study, frames, name):
    said = pd.DataFrame(DRAWN[name], columns=["table", "column", "unit"])
    axes = setups.NAMES if name in figures.COMPARED else []
    given = {t: frames[t][[*axes, *columns]] for t, columns in said.groupby("table")["column"]}
    draw = (figures.FIGURES | figures.COMPARED)[name]
    draw(study, given)
    for table, column, _ in DRAWN[name]:
        without = given | {table: given[table].drop(columns=column)}
        with pytest.raises((KeyError, pd.errors.UndefinedVariableError)):
            draw(study, without)


def test_every_figure_and_every_table_drawn_is_documented():
    numbers = [title.split(":")[0].replace(" ", "").lower() for title in SECTIONS]
    every = figures.FIGURES | figures.COMPARED
    assert numbers == [name.split("_")[0] for name in every]
    assert {t for columns in DRAWN.values() for t, *_ in columns} == set(figures.TABLES)
    for draw, section in zip(every.values(), SECTIONS.values(), strict=True):
        assert f"`report/figures.py:{draw.__name__}`" in section


def test_units_are_the_dictionarys():
    dictionary = sections((ROOT / "docs/tables.md").read_text())
    for table, column, unit in {c for columns in DRAWN.values() for c in columns}:
        known = rows(dictionary[f"{table}.csv"]) + rows(dictionary["In several tables"])
        assert [r[1] for r in known if column in quoted(r[0])] == [unit], f"{table}.{column}"


def test_every_file_and_function_named_exists():
    named = [q for q in quoted(DOCUMENT) if re.fullmatch(r"[\w/.]+\.(py|json)(:\w+)?", q)]
    code = [n for n in named if not n.startswith("raw/")]
    assert len(code) > 20
    for path, _, function in (n.partition(":") for n in code):
        tree = (ROOT / "workflow/specamort" / path).read_text()
        if function:
            defined = (n for n in ast.parse(tree).body if hasattr(n, "name"))
            assert function in [n.name for n in defined], f"{path}:{function}"


def test_every_record_and_table_named_is_there(results):
    records = set(re.findall(r"raw/[\w/.-]+\.json", DOCUMENT))
    assert len(records) > 3
    for record in records:
        place = record.replace("PLATFORM", "cpu-bf16").replace("rN", "r0").replace("CELL", "*")
        assert list(results.glob(place)), record
    for kind, record in re.findall(r"`(\w+)` in\s+`(raw/[^`]+)`", DOCUMENT):
        place = record.replace("PLATFORM", "cpu-bf16").replace("rN", "r0").replace("CELL", "*")
        assert {json.loads(p.read_text())["kind"] for p in results.glob(place)} == {kind}
    for table in re.findall(r"tables/[\w.]+\.csv", DOCUMENT):
        assert (results / table) in tables.table_paths(results), table
    for picture in re.findall(r"figures/(\w+)\.svg", DOCUMENT):
        assert picture in figures.FIGURES


def test_every_name_is_of_a_table_a_column_or_a_kind(results, study):
    columns = {c for n in tables.NAMES for c in tables.read_table(results, n)}
    kinds = {k.kind for k in KINDS.values()} | {w.kind for w in study.workloads.values()}
    named = {q for q in quoted(DOCUMENT) if re.fullmatch(r"\w+", q)}
    assert named <= columns | set(tables.NAMES) | kinds


def test_no_colour_is_of_two_things():
    palette = [*style.WORKLOAD_COLOURS, *style.PLATFORM_COLOURS, style.GREY, style.VERIFY_COST]
    assert len({c.lower() for c in palette}) == len(palette)


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_has_colours_of_workloads_or_of_platforms(study, frames, name):
    drawn = StringIO()
    figure = figures.FIGURES[name](study, frames)
    figure.savefig(drawn, format="svg")
    used = set(re.findall(r"#[0-9a-f]{6}", drawn.getvalue()))
    both = [style.WORKLOAD_COLOURS, style.PLATFORM_COLOURS]
    own, foreign = both[::-1] if name in BY_PLATFORM else both
    assert used & {c.lower() for c in own}
    assert not used & {c.lower() for c in foreign}
    for text in figure.findobj(Text):
        if text.get_text() in study.workloads and name not in BY_PLATFORM:
            expected = style.workload_colour(study, text.get_text())
            assert to_hex(text.get_color()) == expected.lower()


def test_figure_3_stacks_what_the_table_holds(small):
    """On one platform a residual of 0.5, on the other verifying cost less than predicted."""
    row = {"workload": "repeat", "batch": 1, "gamma": 2, "ideal": 3, "speedup_after_verify": 2.0}
    table = pd.DataFrame([row | {"platform": p} for p in small.platforms])
    table["speedup"] = [1.5, 2.25]
    table["residual_loss"] = 2.0 - table["speedup"]
    table = table.assign(speedup_low=1.0, speedup_high=2.5, verify_loss=1.0)
    one = replace(small, batches=(1,), gammas=(0, 2))
    law = {"workload": "repeat", "batch": 1, "gamma": 2, "predicted_speedup": 1.9}
    said = [law | {"platform": "cpu-fp32", "predictor": k} for k in ("equation", "law")]
    drawn = figures.shortfall(one, {"shortfall": table, "predictions": pd.DataFrame(said)})
    marks = [line for line in drawn.axes[0].lines if line.get_marker() in "_x"]
    assert [y for line in marks for y in line.get_ydata()] == [1.9, 1.9]
    bars = drawn.axes[0].patches
    ends = [(b.get_y(), b.get_y() + b.get_height()) for b in bars]
    assert ends == [(2, 3), (0, 1.5), (1.5, 2), (2, 3), (0, 2.25), (2.25, 2)]
    assert [b.get_hatch() for b in bars] == [None, None, "////", None, None, "...."]


def test_figure_4_shows_the_step_without_the_tracer(small):
    row = dict(platform="cpu-bf16", model="m", weights="trained", gamma=0, batch=1)
    row |= dict(context_tokens=256, device_ms=6.0, host_ms=4.0, traced_step_ms=13.0)
    row |= dict(step_ms=10.0, step_ms_low=9.0, step_ms_high=12.0, host_share_pct=40.0)
    drawn = figures.decode_step(small, {"steps": pd.DataFrame([row])})
    device, host = drawn.axes[0].patches
    assert device.get_height() == 6 and host.get_y() + host.get_height() == 10
    assert "4.0 ms\n40%" in [t.get_text() for t in drawn.axes[0].texts]


def test_figure_6_names_the_tables_mean_error(study, frames):
    errors = frames["errors"].assign(mape_pct=12.34)
    drawn = figures.parity(study, frames | {"errors": errors})
    assert drawn.axes[0].get_title() == "equation (1): held-out error 12.3% mean"
    none = errors[errors["cells_of"] == "all"]
    drawn = figures.parity(study, frames | {"errors": none})
    assert drawn.axes[0].get_title() == "equation (1)"


def test_figure_7_has_a_panel_for_every_batch(small):
    """At N = 1 a d of 0.1, at N = 4 of 0.4."""
    both = replace(small, batches=(1, 4))
    d = pd.DataFrame({"batch": [1, 4, 1, 4], "gamma": [0, 0, 2, 2], "d": [0, 0, 0.1, 0.4]})
    d = d.assign(platform="cpu-bf16")
    traced = d.query("gamma == 2").assign(d_measured=0.2, d_measured_low=0.0, d_measured_high=1.0)
    given = {"verify_overhead": d, "device_verify_overhead": traced}
    drawn = figures.device_overhead(both, given)
    assert [ax.get_title() for ax in drawn.axes] == ["batch N = 1", "batch N = 4"]
    lines = [ax.lines[0].get_ydata().tolist() for ax in drawn.axes]
    assert lines == [[0, 0.1], [0, 0.4]]
