from dataclasses import replace

import pandas as pd
import pytest

import synthetic
from specamort.analysis import tables
from specamort.errors import SpecamortError
from specamort.records import record
from specamort.report import figures
from specamort.report.page import device_answer, disturbed, divergence, write_report
from specamort.study import layout


@pytest.fixture
def made_page(small, tmp_path, monkeypatch):
    """A study's page; numbers of the generator, said to be of another origin if asked."""

    monkeypatch.setattr(figures, "FORMATS", ["svg"])  # all that a page holds

    def make(study, origin="synthetic"):
        synthetic.write_study(study, tmp_path, noise=0.01)
        tables.write_tables(study, tmp_path)
        for path in (tmp_path / "tables").glob("*.csv"):
            path.write_text(path.read_text().replace("synthetic", origin))
        figures.draw_all(study, tmp_path)
        write_report(study, tmp_path)
        return (tmp_path / "report.html").read_text()

    return make


BANNERS = ("Every number on this page is synthetic", "This is a rehearsal: stand-ins measured it")


@pytest.mark.parametrize(
    ("origin", "banners"),
    [("synthetic", BANNERS[:1]), ("rehearsal", BANNERS[1:]), ("measured", ())],
)
def test_page_and_every_figure_say_whose_numbers_they_show(
    made_page, small, tmp_path, origin, banners
):
    text = made_page(small, origin)
    assert tuple(b for b in BANNERS if b in text) == banners
    for path in (tmp_path / "figures").glob("*.svg"):
        drawn = path.read_text()
        marked = [w for w in ("synthetic", "rehearsal") if f">{w}</text>" in drawn]
        assert marked == ([] if origin == "measured" else [origin]), path.name


def test_figures_of_rehearsed_traces_alone_say_so(made_page, small, tmp_path):
    made_page(small, "measured")
    steps = tmp_path / "tables/steps.csv"
    steps.write_text(steps.read_text().replace("measured", "rehearsal"))
    figures.draw_all(small, tmp_path)
    assert ">rehearsal</text>" in (tmp_path / "figures/figure4_decode_step.svg").read_text()


def test_a_rehearsal_misses_the_stand_ins_band(made_page, small):
    too_good = replace(small.workloads["repeat"], alpha_max=0.5)
    missed = replace(small, workloads=small.workloads | {"repeat": too_good})
    said = "band at γ = 2 (the stand-in model&#39;s, not the study&#39;s): α is 1.000"
    assert said in made_page(missed, "rehearsal").replace("'", "&#39;")
    assert "the stand-in model" not in made_page(missed, "measured")


def test_what_ran_on_a_disturbed_device_is_named(made_page, small, tmp_path):
    assert "The device was" not in made_page(small)
    hot = {"before": synthetic.reading(), "after": synthetic.reading(throttle_reasons=0x40)}
    both = hot | {"before": synthetic.reading(other_processes=[7])}
    cell = next(c for c in small.trace_cells if c.gamma == 2)
    for rule, platform, name, state in (
        ("trace", "cpu-bf16", cell, both),
        ("microbench", "cpu-fp32", "kernels", hot),
        ("counter_run", "cpu-bf16", "open-n1-g2", hot),
        ("reading_cost", "cpu-bf16", "off", hot),
    ):
        path = layout.folder(tmp_path, rule, platform) / f"{name}.json"
        record.write(path, record.read(path) | {"device_state": state})
    tables.write_tables(small, tmp_path)
    t = {n: tables.read_table(tmp_path, n) for n in tables.NAMES}
    assert disturbed(t) == [
        "The device was shared and throttled during the traces of smollm2-135m-instruct on "
        "cpu-bf16, N = 1, γ = 2, 256 tokens.",
        "The device was throttled during the microbenchmark of cpu-fp32.",
        "The device was throttled during the counter run of open on cpu-bf16, N = 1, γ = 2.",
        "The device was throttled during the runs for the cost of reading counters on cpu-bf16.",
    ]
    write_report(small, tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert all(f'<p class="mark">{said}</p>' in text for said in disturbed(t))


def test_the_devices_error_is_told_by_batch():
    d = pd.DataFrame({"batch": [1, 1, 4], "gamma": [2, 4, 2], "step_error_pct": [2.0, -4.0, 10.0]})
    said = device_answer(d.assign(platform="p", d_predicted=0.5, d_measured=0.25))
    assert "furthest off on p at N = 4, γ = 2" in said
    assert said.endswith("on average 3% at N = 1, 10% at N = 4.")


def test_missed_band_is_marked(made_page, small):
    assert "missed its declared band" not in made_page(small)
    too_good = replace(small.workloads["repeat"], alpha_max=0.5)
    marked = made_page(replace(small, workloads=small.workloads | {"repeat": too_good}))
    assert "Workload repeat missed its declared band at γ = 2: α is 1.000" in marked


def test_one_platform_and_other_axes(made_page, small):
    """Any study file draws: one platform, three batches, gammas that are not the study's."""
    only = {"cpu-bf16": small.calibration}
    text = made_page(replace(small, platforms=only, gammas=(0, 1, 3, 8), batches=(1, 2, 8)))
    assert "held-out" not in text.split('class="answer"')[1].split("</p>")[0]


def test_divergence_sentences():
    columns = ["first_difference"]
    assert "No greedy text" in divergence(pd.DataFrame(columns=columns))
    same = pd.DataFrame({"first_difference": [None, None]})
    assert "same at every γ in all 2" in divergence(same)
    some = pd.DataFrame({"first_difference": [None, 4, 8]})
    assert "in 2 of 3 sequences compared, earliest at token 4" in divergence(some)


def test_a_label_is_drawn_and_written_as_it_is(made_page, small, tmp_path):
    label = r"A$_{$ <b>\frac"
    odd = replace(small.platforms["cpu-bf16"], label=label)
    text = made_page(replace(small, platforms=small.platforms | {"cpu-bf16": odd}))
    told = label.replace("<b>", "&lt;b&gt;")
    assert f"{told} and CPU fp32" in text
    assert told in (tmp_path / "figures/figure1_speedup.svg").read_text()


def test_a_figure_that_is_gone_is_a_sentence(made_page, small, tmp_path):
    made_page(small)
    (tmp_path / "figures/figure1_speedup.svg").unlink()
    with pytest.raises(SpecamortError, match=r"figure1_speedup\.svg: cannot be read"):
        write_report(small, tmp_path)


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", "\0" * 50, "platform,origin\n1,mine\n"])
def test_a_table_that_is_none_is_a_sentence(made_page, small, tmp_path, content):
    made_page(small)
    (tmp_path / "tables/steps.csv").write_text(content)
    for draw in (figures.draw_all, write_report):
        with pytest.raises(SpecamortError, match=r"tables/steps\.csv: .*anew"):
            draw(small, tmp_path)


def test_a_table_without_its_rows_is_a_sentence(made_page, small, tmp_path):
    made_page(small)
    cells = tmp_path / "tables/cells.csv"
    cells.write_text(cells.read_text().splitlines()[0] + "\n")
    for draw in (figures.draw_all, write_report):
        with pytest.raises(SpecamortError, match=r"tables: not as `specamort analyse` writes"):
            draw(small, tmp_path)
