"""The real engine through the whole DAG: real model, real counters, two CPU platforms."""

import re
import subprocess
import sys

import pytest

from specamort.analysis import tables
from specamort.records import record
from specamort.study.study_file import read_study

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    from conftest import ROOT

    home = tmp_path_factory.mktemp("study")
    for name in ("Snakefile", "workflow", "config", "profiles", "envs"):
        (home / name).symlink_to(ROOT / name)

    def snakemake(*args):
        return subprocess.run(
            [
                *(sys.executable, "-m", "snakemake", "--profile", "profiles/local"),
                *("--configfile", "config/small.yaml", *args),
            ],
            cwd=home,
            capture_output=True,
            text=True,
        )

    first = snakemake()
    assert first.returncode == 0, first.stderr[-4000:]
    return home / "results/small", snakemake


def test_report_from_measured_numbers(ran):
    results, _ = ran
    page = (results / "report.html").read_text()
    assert "synthetic" not in page
    cells = tables.read_table(results, "cells").set_index(["platform", "workload", "gamma"])
    assert (cells["origin"] == "measured").all()
    for platform in ("cpu-bf16", "cpu-fp32"):
        # copying with full acceptance must be faster, whatever the machine
        assert cells.loc[(platform, "repeat", 2), "speedup"] > 1
        assert cells.loc[(platform, "repeat", 2), "tau"] == 3


def test_acceptance_is_the_counters(ran):
    results, _ = ran
    acceptance = tables.read_table(results, "acceptance").set_index("workload")
    assert acceptance.loc["repeat", "alpha"] >= 0.98
    assert acceptance["in_band"].all()
    assert tables.read_table(results, "counter_agreement")["agree"].all()


def test_counters_add_up(ran):
    """Tokens a step emits are one and what was accepted; the engine counts the same steps."""
    results, _ = ran
    reps = tables.read_table(results, "repetitions")
    cut = reps["decode_steps"] + reps["accepted"] - reps["decode_tokens"]
    assert cut.between(0, reps["gamma"]).all()  # the length limit may cut the last step's tokens
    assert (cut[reps["workload"] == "repeat"] == 0).all()
    assert (reps["engine_steps"] == reps["decode_steps"] + 1).all()  # batch 1: the prefill
    assert (reps.loc[reps["gamma"] == 0, "drafts"] == 0).all()


def test_block_is_one_device_and_provenance_is_whole(ran):
    results, _ = ran
    blocks = tables.read_table(results, "provenance")
    assert len(blocks) == 2 and blocks["device_uuid"].notna().all()
    assert blocks["vllm"].str.contains(r"vllm.* \d").all()
    study = read_study("config/small.yaml")
    assert len(tables.timing_records(study, results)) == 8


def test_records_say_what_the_engine_really_was(ran):
    results, _ = ran
    records = [record.read(p) for p in results.glob("raw/*/*/**/*-g2.json")]
    assert {r["kind"] for r in records} == {"timing", "counter_run", "trace"}
    for r in records:
        used = r["engine"]
        assert used["model_runner"] == "v1" and used["drafter"].endswith(".NgramProposer")
        assert used["attention_backend"] == "CPU_ATTN" and used["cudagraph_mode"] == "NONE"
        assert used["environment"]["VLLM_USE_V2_MODEL_RUNNER"] == "0"


def test_steps_are_taken_apart_by_real_traces(ran):
    results, _ = ran
    steps = tables.read_table(results, "steps")
    assert set(steps["tracer"]) == {"kineto"} and set(steps["weights"]) == {"trained", "random"}
    # other tests share the cores: the traced run of a pair may have had less of them
    assert (steps["device_ms"] > 0).all() and steps["host_ms"].median() > 0
    assert steps["step_ms"].to_list() == pytest.approx(
        (steps["device_ms"] + steps["host_ms"]).to_list(), rel=0.2
    )  # medians of the parts, over pairs
    # matrix products are most of what a step computes, whatever the machine
    assert (steps["gemm_ms"] > 0.3 * steps["device_ms"]).all()


def test_second_run_has_nothing_to_do_and_a_lost_record_costs_one_cell(ran):
    results, snakemake = ran
    again = snakemake("-n")
    assert "Nothing to be done" in again.stdout + again.stderr
    lost = results / "raw/timing/cpu-fp32/r0/open-n1-g2.json"
    lost.unlink()
    kept = {p: p.read_bytes() for p in results.glob("raw/timing/**/*.json")}
    repaired = snakemake()
    assert repaired.returncode == 0, repaired.stderr[-4000:]
    assert lost.exists()
    assert {p: p.read_bytes() for p in kept} == kept
    said = repaired.stdout + repaired.stderr
    assert re.findall("Measuring block (.*):", said) == ["r0 on cpu-fp32"]
