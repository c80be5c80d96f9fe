import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cases
import synthetic
from cases import analysed, cells_of
from specamort.analysis import (
    calibration,
)
from specamort.study.grid import DialCell


def test_equation_is_exact_where_the_world_obeys_it(made):
    e = made["errors"].set_index(["cells_of", "predictor", "workload"])
    for predictor in ("equation", "exact_divisor", "geometric"):
        assert e.loc[("all", predictor, "all"), "max_pct"] == pytest.approx(0, abs=1e-6)
    assert e.loc[("all", "acceptance_blind", "open"), "mape_pct"] == pytest.approx(77.5, abs=0.1)
    assert e.loc[("held out", "ratio_transfer", "all"), "cells"] == 12
    assert ("all", "ratio_transfer", "all") not in e.index
    assert made["residuals"]["host_residual_ms"].abs().max() < 1e-9


def test_circular_predictors_only_where_held_out(made, local):
    p = made["predictions"]
    fitted = ["ratio_transfer", "ratio_transfer_batch", "timing_alpha"]
    fitted += ["equation_host", "exact_divisor_host"]
    circular = p[p["predictor"].isin(fitted)]
    assert set(circular["predictor"]) == set(fitted)
    assert set(circular["platform"]) == {x.name for x in local.heldout}
    assert set(p["calibrated_on"]) == {local.calibration.name}


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.randoms(use_true_random=False), st.booleans())
def test_held_out_cells_never_leak(local, rng, by_dial):
    """Change every held-out speculative cell at random: nothing calibrated moves, and neither
    does any prediction, since a held-out platform gives only its baseline and its own d."""
    bench = synthetic.microbenchmark(local) | {"origin": "synthetic"}
    benches = dict.fromkeys(local.platforms, bench)
    d = calibration.verify_overhead(local, benches).set_index(["platform", "batch", "gamma"])["d"]

    def study_records(change):
        for p in local.platforms.values():
            for r in range(local.replicates):
                for c in local.cells:
                    over = float(d[p.name, c.batch, c.gamma])
                    one = synthetic.timing(local, p.name, r, c, over, noise=0.02)
                    if p.role == "heldout" and c.gamma:
                        change(one)
                    yield one

    def scramble(one):
        for run in one["repetitions"]:
            for s in run["sequences"]:
                s["pot_ms"] *= rng.uniform(0.1, 10)
            run["counters"]["accepted"] = rng.randint(0, run["counters"]["drafted"])
            run["decode_steps"] += rng.randint(0, 9)

    def dialled(change):
        for p in local.platforms.values() if by_dial else []:
            for n in local.batches:
                one = synthetic.dial(
                    local, p.name, DialCell(n), dict.fromkeys(local.gammas, 0.1), 0.02
                )
                if p.role == "heldout":
                    change(one)
                yield one

    def scramble_dial(one):
        for run in one["repetitions"]:
            for s in run["sequences"]:
                s["pot_ms"] *= rng.uniform(0.1, 10)

    *before, predicted_before = analysed(
        local, study_records(lambda one: None), benches, dialled(lambda one: None)
    )
    *after, predicted_after = analysed(
        local, study_records(scramble), benches, dialled(scramble_dial)
    )
    for one, other in zip(before, after, strict=True):
        pd.testing.assert_frame_equal(one, other)
    pd.testing.assert_series_equal(
        predicted_before["predicted_ms"], predicted_after["predicted_ms"]
    )
    assert not predicted_before["pot_ms"].equals(predicted_after["pot_ms"])


def test_ratio_transfer_is_one_ratio_a_gamma_and_the_batchs_own_beside_it(local):
    """Calibration speedups at gamma 6 on repeat: 5 at N = 1, 3 at N = 4; own baseline 8 ms."""
    table, d = cells_of(local, lambda gamma: 0.0)
    own = table["platform"] == local.calibration.name
    top = (table["workload"] == "repeat") & (table["gamma"] == 6)
    table.loc[own & top, "speedup"] = [5.0, 3.0]
    table.loc[~own, ["speedup", "t_base_ms"]] = [99.0, 8.0]
    calibrated = calibration.acceptance(local, table)
    host = calibration.host_terms(local, table, calibrated, d)
    p = cases.predicted(local, table, calibrated, d, host)
    p = p.query("workload == 'repeat' and gamma == 6").set_index(["predictor", "batch"])
    predicted = p["predicted_ms"]
    assert predicted["ratio_transfer"].to_dict() == {1: 8 / 4, 4: 8 / 4}
    assert predicted["ratio_transfer_batch"].to_dict() == {1: 8 / 5, 4: pytest.approx(8 / 3)}
