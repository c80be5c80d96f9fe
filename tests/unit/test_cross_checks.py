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
    )
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
        "repetitions": [{"counters": {"drafted": 100, "accepted": 70}}],
    }
    row = cross_checks.counter_agreement(table, [run]).iloc[0]
    # 0.2 over sqrt(0.6 * 0.4 * 2 / 100) = 2.89
    assert row["z"] == pytest.approx(-2.887, abs=1e-3) and row["agree"]
    assert row["origin"] == "rehearsal synthetic" and row["exclusions"] == ""
    run["repetitions"][0]["counters"]["accepted"] = 90
    run["device_state"] = hot()
    row = cross_checks.counter_agreement(table, [run]).iloc[0]
    assert not row["agree"] and row["exclusions"] == "throttled"


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
