from dataclasses import replace

import pandas as pd
import pytest

import synthetic
from specamort import figures, record, report, tables


@pytest.fixture
def page(small, tmp_path):
    """A study's page; numbers of the generator, said to be of another origin if asked."""

    def make(study, origin="synthetic"):
        synthetic.write_study(study, tmp_path, noise=0.01)
        tables.write_tables(study, tmp_path)
        for path in (tmp_path / "tables").glob("*.csv"):
            path.write_text(path.read_text().replace("synthetic", origin))
        figures.draw_all(study, tmp_path)
        report.write_report(study, tmp_path)
        assert all(p.stat().st_size > 1000 for p in figures.figure_paths(tmp_path))
        return (tmp_path / "report.html").read_text()

    return make


BANNERS = ("Every number on this page is synthetic", "This is a rehearsal: stand-ins measured it")


@pytest.mark.parametrize(
    ("origin", "banners"),
    [("synthetic", BANNERS[:1]), ("rehearsal", BANNERS[1:]), ("measured", ())],
)
def test_page_and_every_figure_say_whose_numbers_they_show(page, small, tmp_path, origin, banners):
    text = page(small, origin)
    assert tuple(b for b in BANNERS if b in text) == banners
    for path in (tmp_path / "figures").glob("*.svg"):
        drawn = path.read_text()
        marked = [w for w in ("synthetic", "rehearsal") if f">{w}</text>" in drawn]
        assert marked == ([] if origin == "measured" else [origin]), path.name


def test_figures_of_rehearsed_traces_alone_say_so(page, small, tmp_path):
    page(small, "measured")
    steps = tmp_path / "tables/steps.csv"
    steps.write_text(steps.read_text().replace("measured", "rehearsal"))
    figures.draw_all(small, tmp_path)
    assert ">rehearsal</text>" in (tmp_path / "figures/figure4_decode_step.svg").read_text()


def test_a_rehearsal_misses_the_stand_ins_band(page, small):
    too_good = replace(small.workloads["repeat"], alpha_max=0.5)
    missed = replace(small, workloads=small.workloads | {"repeat": too_good})
    said = "band at γ = 2 (the stand-in model&#39;s, not the study&#39;s): α is 1.000"
    assert said in page(missed, "rehearsal").replace("'", "&#39;")
    assert "the stand-in model" not in page(missed, "measured")


def test_what_ran_on_a_disturbed_device_is_named(page, small, tmp_path):
    assert "The device was" not in page(small)
    hot = {"before": synthetic.reading(), "after": synthetic.reading(throttle_reasons=0x40)}
    both = hot | {"before": synthetic.reading(other_processes=[7])}
    cell = next(c for c in small.trace_cells if c.gamma == 2)
    raw = tmp_path / "raw"
    for path, state in (
        (raw / f"trace/cpu-bf16/{cell}.json", both),
        (raw / "microbenchmark/cpu-fp32.json", hot),
        (raw / "counter/cpu-bf16/open-n1-g2.json", hot),
        (raw / "overhead/cpu-bf16/off.json", hot),
    ):
        record.write(path, record.read(path) | {"device_state": state})
    tables.write_tables(small, tmp_path)
    t = {n: tables.read_table(tmp_path, n) for n in tables.NAMES}
    assert report.disturbed(t) == [
        "The device was shared and throttled during the traces of smollm2-135m-instruct on "
        "cpu-bf16, N = 1, γ = 2, 256 tokens.",
        "The device was throttled during the microbenchmark of cpu-fp32.",
        "The device was throttled during the counter run of open on cpu-bf16, N = 1, γ = 2.",
        "The device was throttled during the runs for the cost of reading counters on cpu-bf16.",
    ]
    report.write_report(small, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert all(f'<p class="mark">{said}</p>' in page for said in report.disturbed(t))


def test_figure_7_has_a_panel_for_every_batch(small):
    """At N = 1 a d of 0.1, at N = 4 of 0.4."""
    study = replace(small, batches=(1, 4))
    d = pd.DataFrame({"batch": [1, 4], "d_predicted": [0.1, 0.4], "platform": "cpu-bf16"})
    d = d.assign(gamma=2, d_measured=d["d_predicted"], d_measured_low=0.0, d_measured_high=1.0)
    drawn = figures.device_overhead(study, {"device_overheads": d})
    assert [ax.get_title() for ax in drawn.axes] == ["batch N = 1", "batch N = 4"]
    lines = [ax.lines[0].get_ydata().tolist() for ax in drawn.axes]
    assert lines == [[0, 0.1], [0, 0.4]]


def test_figure_4_shows_the_step_without_the_tracer(small):
    row = dict(platform="cpu-bf16", model="m", weights="trained", gamma=0, batch=1)
    row |= dict(context_tokens=256, device_ms=6.0, host_ms=4.0, traced_step_ms=13.0)
    row |= dict(step_ms=10.0, step_ms_low=9.0, step_ms_high=12.0)
    drawn = figures.decode_step(small, {"steps": pd.DataFrame([row])})
    device, host = drawn.axes[0].patches
    assert device.get_height() == 6 and host.get_y() + host.get_height() == 10
    assert "4.0 ms\n40%" in [t.get_text() for t in drawn.axes[0].texts]


def test_the_devices_error_is_told_by_batch():
    d = pd.DataFrame({"batch": [1, 1, 4], "gamma": [2, 4, 2], "step_error_pct": [2.0, -4.0, 10.0]})
    said = report.device_answer(d.assign(platform="p", d_predicted=0.5, d_measured=0.25))
    assert "furthest off on p at N = 4, γ = 2" in said
    assert said.endswith("on average 3% at N = 1, 10% at N = 4.")


def test_missed_band_is_marked(page, small):
    assert "missed its declared band" not in page(small)
    too_good = replace(small.workloads["repeat"], alpha_max=0.5)
    marked = page(replace(small, workloads=small.workloads | {"repeat": too_good}))
    assert "Workload repeat missed its declared band at γ = 2: α is 1.000" in marked


def test_one_platform_and_other_axes(page, small):
    """Any study file draws: one platform, three batches, gammas that are not the study's."""
    only = {"cpu-bf16": small.calibration}
    text = page(replace(small, platforms=only, gammas=(0, 1, 3, 8), batches=(1, 2, 8)))
    assert "held-out" not in text.split('class="answer"')[1].split("</p>")[0]


def test_divergence_sentences():
    columns = ["first_difference"]
    assert "No greedy text" in report.divergence(pd.DataFrame(columns=columns))
    same = pd.DataFrame({"first_difference": [None, None]})
    assert "same at every γ in all 2" in report.divergence(same)
    some = pd.DataFrame({"first_difference": [None, 4, 8]})
    assert "in 2 of 3 sequences compared, earliest at token 4" in report.divergence(some)
