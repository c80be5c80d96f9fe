"""The study's published numbers beside ours: every formula by hand, and when the two compare."""

from dataclasses import replace

import pandas as pd
import pytest
import yaml

import synthetic
from specamort.analysis import tables
from specamort.analysis.claims import FORMULAS, Tables, claims
from specamort.study.study_file import read_study


@pytest.fixture
def study(root):
    return read_study(root / "config/study.yaml")


@pytest.fixture
def published(root):
    return yaml.safe_load((root / "workflow/specamort/analysis/published.yaml").read_text())


def frame(columns, *rows):
    return pd.DataFrame(rows, columns=columns.split()).assign(origin="measured")


def by_hand():
    """A few rows of every table that claims read, on the calibration platform but where said."""
    everywhere = "platform workload batch gamma"
    return Tables(
        cells=frame(
            everywhere + " pot_ms speedup alpha",
            ("h200", "repeat", 1, 0, 8.0, 1.0, None),
            ("h200", "repeat", 1, 2, 4.0, 2.0, 1.0),
            ("h200", "repeat", 1, 6, 2.0, 4.0, 2 / 3),
            ("h200", "open", 1, 6, 1.0, 99.0, 0.0),
        ),
        acceptance=frame("workload gamma alpha", ("repeat", 2, 1.0), ("repeat", 6, 0.75)),
        verify_overhead=frame(
            "platform batch gamma d", ("h100", 1, 6, 0.02), ("h100", 4, 6, 0.03), ("h200", 1, 6, 0)
        ),
        predictions=frame(
            "workload predictor error_pct",
            *[("repeat", "equation", e) for e in (-1.0, -2.0, 3.0, -4.0)],
            *[("repeat", "acceptance_blind", 9.0), ("open", "equation", 9.0)],
        ),
        errors=frame(
            "cells_of predictor workload cells mape_pct max_pct",
            *[("all", "equation", "all", 20, 5.0, 9.0), ("held out", "equation", "all", 10, 6, 7)],
            *[("held out", "ratio_transfer", "all", 10, 3.0, 4.0)],
            *[("held out", "ratio_transfer_batch", "all", 10, 1.0, 1.0)],
        ),
        residuals=frame(
            "workload host_residual_ms of_floor_pct of_own_floor_pct",
            *[("repeat", 0.5, 5.0, 9), ("repeat", 1.0, 10.0, 9), ("repeat", 3.0, 30.0, 9)],
            ("open", 77, 77, 9),
        ),
        timing_alpha=frame(
            "platform workload gamma alpha_timing",
            *[("h100", "repeat", 2, 0.90), ("h200", "repeat", 2, 0.85)],
            *[("h100", "repeat", 6, 0.80), ("h200", "repeat", 6, 0.90)],
            *[("h100", "open", 6, 0.10), ("h200", "open", 6, 0.10)],
        ),
        steps=frame(
            "platform model context_tokens batch gamma step_ms device_ms host_ms traced_step_ms",
            ("h100", "llama-3.1-8b-instruct", 2048, 1, 0, 10.0, 6.0, 4.0, 13.0),
            ("h100", "llama-3.2-1b-instruct", 2048, 1, 0, 5.0, 2.0, 3.0, 7.0),
            *[("h200", "llama-3.1-8b-instruct", 2048, 1, 0, 99, 99, 99, 99)],
            *[("h100", "llama-3.1-8b-instruct", 1024, 1, 0, 99, 99, 99, 99)],
            *[("h100", "llama-3.1-8b-instruct", 2048, 4, 0, 99, 99, 99, 99)],
        ),
    )


def test_every_published_number_has_a_formula_and_the_other_way_round(published):
    ids = [c["id"] for c in published["claims"]]
    assert len(ids) == len(set(ids)) and set(ids) == FORMULAS.keys()
    assert all(c["kind"] in ("measured", "predicted", "derived") for c in published["claims"])


@pytest.mark.parametrize(
    ("claim", "ours"),
    [
        ("ideal_repeat_g6", 0.75 * 6 + 1),
        ("shortfall_repeat_g6_pct", 100 * (1 - 4 / 5.5)),
        ("under_predicted_repeat_pct", 75),
        ("cells_speculative", 20),
        ("cells_heldout", 10),
        ("ratio_transfer_mape_pct", 3),
        ("verify_overhead_g6_pct", 2),
        ("verify_overhead_max_pct", 3),
        ("timing_alpha_gap", (0.05 + 0.1 + 0) / 3),
        # slope through (0, 1), (2, 2) and (4, 4): 6 over 8
        ("marginal_speedup_over_alpha", 0.75),
        ("host_residual_ms", 1.5),
        ("host_residual_of_floor_pct", 15),
        ("host_residual_of_floor_min_pct", 5),
        ("host_residual_of_floor_max_pct", 30),
        ("nsys_step_8b_ms", 10),
        ("nsys_host_share_8b_pct", 40),
        ("nsys_kernel_ratio", 3),
        ("nsys_host_gap_pct", 25),
    ],
)
def test_ours_by_hand(study, published, claim, ours):
    got = claims(study, published, by_hand()).set_index("claim")
    assert got.loc[claim, "ours"] == pytest.approx(ours)


def test_the_studys_number_is_never_printed_as_ours(local, published, tmp_path):
    synthetic.write_study(local, tmp_path)
    tables.write_tables(local, tmp_path)
    made = {n: tables.read_table(tmp_path, n) for n in tables.NAMES}
    got = made["claims"].set_index("claim")
    assert len(got) == len(published["claims"])
    assert got.loc["speedup_repeat_max", "ours"] == made["cells"]["speedup"].max()
    # 60% of a step of 10 ms on the synthetic device
    assert got.loc["nsys_kernel_8b_ms", "ours"] == pytest.approx(6)
    assert got.loc["nsys_host_1b_ms", "ours"] == pytest.approx(4)
    assert got.loc["timing_alpha_gap", "study"] != got.loc["timing_alpha_gap", "study"]
    assert set(got["origin"]) == {"synthetic"}
    t = Tables(**{k: made[k] for k in Tables.__dataclass_fields__})
    blank = Tables(**{k: f.iloc[:0] for k, f in vars(t).items()})
    assert claims(local, published, blank)["ours"].isna().all()


def test_the_published_study_compares_whatever_the_order_of_its_grid(study, published):
    study = replace(study, gammas=study.gammas[::-1], batches=study.batches[::-1])
    assert set(claims(study, published, by_hand())["comparable"]) == {"yes"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda s: {"gammas": (0, 2, 4)}, "gammas"),
        (lambda s: {"batches": (1,)}, "batches"),
        (lambda s: {"context_tokens": 512}, "context"),
        (lambda s: {"drafters": {"x": s.drafter | {"method": "eagle"}}}, "drafter"),
        (lambda s: {"modes": {"x": s.engine | {"enforce_eager": False}}}, "eager mode"),
        (lambda s: {"modes": {"x": s.engine | {"enable_prefix_caching": True}}}, "prefix caching"),
        (lambda s: {"modes": {"x": s.engine | {"model_runner": "v2"}}}, "model runner"),
        (lambda s: {"model": replace(s.model, repo="someone/else")}, "model"),
        (lambda s: {"model": replace(s.model, source="directory")}, "model"),
        (lambda s: {"platforms": {"h100": s.platforms["h100"]}}, "GPUs"),
        (lambda s: {"platforms": swapped(s.platforms)}, "GPUs"),
        (lambda s: {"platforms": on_cpu(s.platforms)}, "GPUs"),
    ],
)
def test_what_differs_from_the_published_conditions_is_named(study, published, change, named):
    got = claims(replace(study, **change(study)), published, by_hand())
    assert set(got["comparable"]) == {f"no: other {named}"}


def swapped(platforms):
    other = {"calibration": "heldout", "heldout": "calibration"}
    return {k: replace(p, role=other[p.role]) for k, p in platforms.items()}


def on_cpu(platforms):
    return {k: replace(p, device="cpu") for k, p in platforms.items()}


def test_traced_claims_need_the_published_traces_as_well(study, published):
    study = replace(study, tracing=replace(study.tracing, tracer="kineto"))
    got = claims(study, published, by_hand()).set_index("claim")["comparable"]
    assert got["nsys_host_8b_ms"] == got["host_residual_of_floor_pct"] == "no: other tracer"
    assert got["host_residual_ms"] == got["speedup_open"] == "yes"


def test_what_nobody_measured_does_not_compare(study, published):
    t = by_hand()
    t.steps.loc[0, "origin"] = "rehearsal"
    got = claims(replace(study, gammas=(0, 2)), published, t)
    assert set(got["origin"]) == {"measured rehearsal"}
    assert set(got["comparable"]) == {"no: other origin, gammas"}
