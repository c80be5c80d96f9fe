import random

import numpy as np
import pandas as pd
import pytest

import synthetic
from cases import host_case
from specamort.analysis import (
    calibration,
)


def test_acceptance_band_is_judged(made, local):
    assert made["acceptance"]["in_band"].all()


def test_a_constant_host_term_is_found_and_carries_over(local):
    jitter = iter(random.Random(1).uniform(-0.05, 0.05) for _ in range(1000))
    host, error = host_case(local, lambda gamma: 2.0 + next(jitter))
    assert host["h0_ms"].to_list() == pytest.approx([2, 2], abs=0.05)
    assert (host["h1_ms"] == 0).all() and (host["aicc_constant"] < host["aicc_linear"]).all()
    assert error["equation"] > 10 and error["equation_host"] < 1


def test_a_host_term_that_grows_with_gamma_is_told_apart(local):
    jitter = iter(random.Random(1).uniform(-0.05, 0.05) for _ in range(1000))
    host, error = host_case(local, lambda gamma: 1.0 + 0.5 * gamma + next(jitter))
    assert (host["aicc_linear"] < host["aicc_constant"]).all()
    assert host["h0_ms"].to_list() == pytest.approx([1, 1], abs=0.1)
    assert host["h1_ms"].to_list() == pytest.approx([0.5, 0.5], abs=0.03)
    assert error["exact_divisor_host"] < 1 < error["exact_divisor"]


def test_too_few_cells_choose_a_constant():
    (h0, h1), criterion = calibration._fit(np.array([1.0, 3.0]), np.array([2, 2]), np.ones(2), 1)
    assert (h0, h1) == (pytest.approx(2), 0) and criterion == np.inf
    assert calibration._fit(np.array([1.0, 3.0]), np.array([2, 2]), np.ones(2), 2)[1] == np.inf


def test_what_verifying_costs_has_its_interval_and_the_roofline_beside_it(local):
    """A platform whose passes at N = 4, gamma 2 take 10, 12 and 17 ms, without a draft 8."""
    bench = synthetic.microbenchmark(local) | {"origin": "synthetic"}
    for p in bench["passes"]:
        if p["batch"] == 4 and p["gamma"] in (0, 2):
            p["samples_ms"] = [10.0, 12.0, 17.0] if p["gamma"] else [8.0] * 3
    table = calibration.verify_overhead(local, {"cpu-bf16": bench}).set_index(["batch", "gamma"])
    one = table.loc[4, 2]
    for name, ends in {
        "device_ms": (10, 12, 17),
        "increment_ms": (2, 4, 9),
        "d": (0.25, 0.5, 1.125),
    }.items():
        assert tuple(one[f"{name}{end}"] for end in ("_low", "", "_high")) == ends
    without = table.loc[4, 0]
    assert (without[["d", "increment_ms", "roofline_d"]] == 0).all()
    # the roofline has not seen them
    assert one["roofline_d"] == pytest.approx(one["roofline_ms"] / without["roofline_ms"] - 1)
    assert one["roofline_ms"] != pytest.approx(12, rel=0.1)
    assert one["microbenchmark"] == bench["hash"]


def test_a_speculative_cell_has_the_overhead_of_its_own_batch(local):
    table = pd.DataFrame(
        [dict(origin="measured", platform="p", batch=n, gamma=g) for n in (1, 4) for g in (0, 2)]
    )
    d = table.assign(origin="rehearsal", d=[0, 0.1, 0, 0.4], increment_ms=[0, 1.0, 0, 4.0])
    spec = calibration.with_verify_overhead(table, d).set_index("batch")
    assert spec["d"].to_dict() == {1: 0.1, 4: 0.4}
    assert spec["increment_ms"].to_dict() == {1: 1.0, 4: 4.0}
    assert set(spec["origin"]) == {"measured rehearsal"}


def baselines(steps, gammas=(0, 2, 3)):
    """Cells of one platform and workload: step of gamma 0 by batch; speculation takes 999 ms."""
    return pd.DataFrame(
        [
            dict(origin="measured", platform="p", workload="w", batch=n, gamma=g)
            | dict(pot_ms=999.0 if g else ms)
            for n, ms in steps.items()
            for g in gammas
        ]
    )


def test_rows_from_baselines_are_other_batches_steps():
    """Batches of 1, 2, 4 and 8 that take 10, 11, 14 and 30 ms; three rows are amid 2 and 4."""
    made = calibration.rows_from_baselines(baselines({8: 30.0, 1: 10.0, 4: 14.0, 2: 11.0}))
    by = made.set_index(["batch", "gamma"])
    assert by["increment_ms"].to_dict() == {
        (1, 2): 2.5,  # 12.5 - 10
        (1, 3): 4.0,
        (2, 2): 11.0,  # six rows are amid 4 and 8
        (2, 3): 19.0,
    }
    assert by["from_batches"].to_dict() == {
        (1, 2): "1 2 4",
        (1, 3): "1 4",
        (2, 2): "2 4 8",
        (2, 3): "2 8",
    }


def test_rows_from_baselines_reach_no_further_than_the_batches_do():
    made = calibration.rows_from_baselines(baselines({1: 10.0, 2: 11.0}))
    assert made.empty and "increment_ms" in made


def test_no_speculative_time_moves_rows_from_baselines():
    table = baselines({1: 10.0, 4: 14.0})
    other = table.assign(pot_ms=table["pot_ms"].where(table["gamma"] == 0, 1.0))
    pd.testing.assert_frame_equal(
        calibration.rows_from_baselines(table), calibration.rows_from_baselines(other)
    )
    assert len(calibration.rows_from_baselines(table)) == 2
