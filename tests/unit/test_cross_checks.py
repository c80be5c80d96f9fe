import pandas as pd
import pytest

import synthetic
from cases import cells_of, hot
from specamort.analysis import (
    cross_checks,
    repetitions,
)
from specamort.study.grid import Cell


def test_timing_alpha_interval_holds_it(made):
    t = made["timing_alpha"]
    assert (t["alpha_timing_low"] <= t["alpha_timing"] + 1e-12).all()
    assert (t["alpha_timing"] <= t["alpha_timing_high"] + 1e-12).all()
    assert t["alpha_timing"].to_list() == pytest.approx(t["alpha"].to_list())


def test_host_residuals_hold_their_interval_and_their_share(made, local):
    r = made["residuals"]
    assert (r["host_residual_ms_low"] <= r["host_residual_ms"] + 1e-9).all()
    assert (r["host_residual_ms"] <= r["host_residual_ms_high"] + 1e-9).all()
    assert r["floor_ms"].to_list() == pytest.approx([4.0] * len(r))
    own = [4.0 if p == "cpu-bf16" else 3.6 for p in r["platform"]]
    assert r["own_floor_ms"].to_list() == pytest.approx(own)


def test_a_residual_is_held_against_both_floors(local):
    """h of 2 ms against 4 and 5 ms, which is 50 and 40%."""
    table, d = cells_of(local, lambda gamma: 2.0)
    reps = pd.DataFrame(
        table[[*repetitions.CELL, "pot_ms"]].assign(replicate=0, warmup=False, left_out=False)
    ).assign(visit="v")
    floors = pd.DataFrame({"platform": list(local.platforms), "origin": "rehearsal"})
    floors = floors.assign(floor_ms=4.0, own_floor_ms=[4.0, 5.0])
    r = cross_checks.host_residuals(reps, table, d, floors, 0)
    assert r["host_residual_ms"].to_list() == pytest.approx([2] * len(r))
    assert r["of_floor_pct"].to_list() == pytest.approx([50] * len(r))
    held = r["platform"] == local.heldout[0].name
    assert r.loc[held, "of_own_floor_pct"].to_list() == pytest.approx([40] * held.sum())
    assert set(r["origin"]) == {"rehearsal synthetic"}


def test_counter_agreement_by_hand():
    table = pd.DataFrame(
        [dict(origin="synthetic", platform="p", workload="w", batch=1, gamma=2)]
    ).assign(drafted=100, accepted=50, alpha=0.5)
    run = {
        "origin": "rehearsal",
        "cell": dict(platform="p", replicate=0, workload="w", batch=1, gamma=2),
        "repetitions": [
            {"sequences": [{"sha256": "a"}], "counters": {"drafted": 100, "accepted": 70}}
        ],
    }
    row = cross_checks.counter_agreement(table, [run]).iloc[0]
    # 0.2 over sqrt(0.6 * 0.4 * 2 / 100) = 2.89
    assert row["z"] == pytest.approx(-2.887, abs=1e-3) and row["agree"]
    assert row["origin"] == "rehearsal synthetic" and row["exclusions"] == ""
    run["repetitions"][0]["counters"]["accepted"] = 90
    run |= {"device_state": hot(), "origin": "measured"}
    row = cross_checks.counter_agreement(table, [run]).iloc[0]
    assert row["agree"] == False and row["exclusions"] == "throttled"  # noqa: E712
    again = {"sequences": [{"sha256": "b"}], "counters": {"drafted": 300, "accepted": 60}}
    run["repetitions"] += [again] * 5
    row = cross_checks.counter_agreement(table, [run]).iloc[0]
    # of two texts 150 of 400: 0.125 over sqrt(0.4 * 0.6 * (1 / 100 + 1 / 400)) = 2.28
    assert row["z"] == pytest.approx(2.282, abs=1e-3) and row["agree"]


def test_a_workload_without_drafts_is_nothing_to_compare():
    table = pd.DataFrame(
        [dict(origin="synthetic", platform="p", workload="w", batch=1, gamma=2)]
    ).assign(drafted=0, accepted=0, alpha=float("nan"))
    run = {
        "origin": "synthetic",
        "cell": dict(platform="p", replicate=0, workload="w", batch=1, gamma=2),
        "repetitions": [
            {"sequences": [{"sha256": "a"}], "counters": {"drafted": 0, "accepted": 0}}
        ],
    }
    row = cross_checks.counter_agreement(table, [run]).iloc[0]
    assert pd.isna(row["z"]) and pd.isna(row["agree"])
    run["repetitions"][0]["counters"]["drafted"] = 4
    row = cross_checks.counter_agreement(table, [run]).iloc[0]
    assert row["agree"] == False  # noqa: E712


def test_a_residual_is_of_the_blocks_own_times(local):
    """Three blocks of another speed each, all with 2 ms; medians of columns would not give it."""
    table, d = cells_of(local, lambda gamma: 2.0)
    reps = pd.DataFrame(
        [
            dict(zip(repetitions.CELL, cell, strict=True))
            | dict(replicate=r, visit="v", warmup=False, left_out=False, pot_ms=pot)
            for cell in table[repetitions.CELL].itertuples(index=False, name=None)
            for r, base in enumerate((10.0, 30.0, 20.0))
            for alpha in (float(cell[1] == "repeat"),)
            for step in (base * (1 + 0.1 * cell[3]) + [2.0, 1.0, 5.0][r] * (cell[3] > 0),)
            for pot in (step / (alpha * cell[3] + 1),)
        ]
    )
    floors = pd.DataFrame({"platform": list(local.platforms), "origin": "synthetic"})
    floors = floors.assign(floor_ms=4.0, own_floor_ms=4.0)
    r = cross_checks.host_residuals(reps, table, d, floors, 0)
    assert r["host_residual_ms"].to_list() == pytest.approx([2] * len(r))
    assert (r["host_residual_ms_low"] <= 2).all() and (r["host_residual_ms_high"] >= 2).all()


def test_reading_cost_by_hand():
    def runs(*pots, **more):
        return more | {
            "origin": "synthetic",
            "repetitions": [
                {"warmup": i == 0, "sequences": [{"arrival_pot_ms": p}]} for i, p in enumerate(pots)
            ],
        }

    cost = cross_checks.reading_cost(runs(99, 10.3, 10.3), runs(99, 10, 10, device_state=hot()))
    assert cost["cost_pct"] == pytest.approx(3)
    assert cost["cost_pct_low"] == pytest.approx(3)
    assert cost["origin"] == "synthetic" and cost["exclusions"] == "throttled"


def test_divergence_reports_the_first_difference(local):
    a = synthetic.timing(local, "cpu-bf16", 0, Cell("open", 1, 0), 0)
    b = synthetic.timing(local, "cpu-bf16", 0, Cell("open", 1, 2), 0)
    for one, text in ((a, [1, 2, 3]), (b, [1, 2, 9, 4])):
        for run in one["repetitions"]:
            run["token_ids"] = [text]
    row = cross_checks.divergence([a, b]).iloc[0]
    assert row["first_difference"] == 2 and row["origin"] == "synthetic"
    c = synthetic.timing(local, "cpu-bf16", 0, Cell("open", 1, 4), 0)
    for run in c["repetitions"]:
        run["token_ids"] = [[1, 2, 3]]
    assert cross_checks.divergence([a, c])["first_difference"].isna().all()
