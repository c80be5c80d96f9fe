from dataclasses import replace

import pandas as pd
import pytest

import synthetic
from specamort import figures, report, tables


@pytest.fixture
def page(small, tmp_path):
    def make(study):
        synthetic.write_study(study, tmp_path, noise=0.01)
        tables.write_tables(study, tmp_path)
        figures.draw_all(study, tmp_path)
        report.write_report(study, tmp_path)
        assert all(p.stat().st_size > 1000 for p in figures.figure_paths(tmp_path))
        return (tmp_path / "report.html").read_text()

    return make


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
