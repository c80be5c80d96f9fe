"""A rehearsal of a study for a GPU, as its user runs it, with the real engine."""

import subprocess
import sys

import pytest
import yaml

from conftest import ROOT
from specamort.analysis import tables
from specamort.errors import SpecamortError
from specamort.records import record
from specamort.study.study_file import read_study
from specamort.study.yaml_file import load_yaml

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    """The published study, cut to one GPU and the shortest grid, rehearsed."""
    home = tmp_path_factory.mktemp("rehearsal")
    for name in ("Snakefile", "workflow", "profiles", "envs"):
        (home / name).symlink_to(ROOT / name)
    raw = load_yaml(ROOT / "config/study.yaml")
    raw |= {"name": "cut", "gammas": [0, 2], "batches": [1], "replicates": 1, "context_tokens": 400}
    del raw["platforms"]["h200"]
    raw["tracing"] |= {"models": [], "context_tokens": 400, "tokens": [1, 40]}
    (home / "cut.yaml").write_text(yaml.safe_dump(raw))
    run = subprocess.run(
        [sys.executable, "-m", "specamort", "rehearse", "--study", "cut.yaml"],
        cwd=home,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return home, run


def test_it_reaches_the_report_and_says_what_it_left_out(rehearsed):
    home, run = rehearsed
    page = (home / "results/cut-rehearsal/report.html").read_text()
    assert "This is a rehearsal" in page
    assert (
        "lookup alpha 1.000" in run.stdout and "nsys: traces were taken with Kineto" in run.stdout
    )
    assert "prompts of" in (home / "results/cut-rehearsal/prompts.txt").read_text()
    figure = home / "results/cut-rehearsal/figures/figure1_speedup.svg"
    assert "rehearsal" in figure.read_text()


def test_every_record_says_rehearsal_and_none_enters_the_study(rehearsed, monkeypatch):
    home, _ = rehearsed
    monkeypatch.chdir(home)
    records = [*(home / "results/cut-rehearsal/raw").rglob("*.json")]
    assert {record.read(p)["origin"] for p in records} == {"rehearsal"}
    kinds = {record.read(p)["kind"] for p in records}
    assert kinds == {
        "timing",
        "counter_run",
        "reading_cost",
        "microbenchmark",
        "trace",
        "self_check",
    }
    study = read_study("cut.yaml")
    (home / "results/cut").symlink_to(home / "results/cut-rehearsal")
    with pytest.raises(SpecamortError, match="its origin is rehearsal, the study's records are"):
        tables.timing_records(study, study.results)
