import random

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import synthetic
from specamort.analysis import (
    calibration,
    cells,
    cross_checks,
    origins,
    predictions,
    repetitions,
    tables,
)
from specamort.errors import SpecamortError
from specamort.records import record
from specamort.study.grid import Cell


def reps(rows):
    """A repetition table: (replicate, gamma, pots of timed repetitions)."""
    made = []
    for replicate, gamma, pots in rows:
        for i, pot in enumerate([99.0, *pots]):
            made.append(
                dict(origin="synthetic", platform="p", replicate=replicate, workload="w", batch=1)
                | dict(gamma=gamma, repetition=i, warmup=i == 0, pot_ms=pot, left_out=False)
                | dict(drafts=5, drafted=10, accepted=4, decode_steps=10, decode_tokens=14)
                | dict(accepted_first=3)
            )
    return pd.DataFrame(made)


def test_medians_and_speedup_by_hand():
    """Each block is compared with its own baseline: 10/5 and 20/4, not 15/4.5."""
    table = cells.cells(
        reps([(0, 0, [9, 10, 30]), (0, 2, [5, 5, 6]), (1, 0, [20, 20, 20]), (1, 2, [4, 4, 1])]), 0
    ).set_index("gamma")
    assert table.loc[0, "pot_ms"] == 15
    assert table.loc[2, "pot_ms"] == 4.5
    assert table.loc[2, "speedup"] == pytest.approx((10 / 5 + 20 / 4) / 2)
    assert table.loc[2, "blocks"] == 2 and table.loc[2, "timed"] == 6


def test_ratios_by_hand():
    row = cells.cells(reps([(0, 0, [10]), (0, 2, [5])]), 0).set_index("gamma").loc[2]
    assert row["alpha"] == 0.4
    assert row["coverage"] == 0.5
    assert row["tau"] == 1.4
    assert row["beta"] == 0.6


def hot():
    return {"before": synthetic.reading(), "after": synthetic.reading(throttle_reasons=0x40)}


def test_throttled_and_shared_cells_are_kept_but_left_out(local):
    """Block 0 has a throttled baseline and block 1 a shared cell; block 2 alone counts there."""
    grid = [c for c in local.cells if c.workload == "repeat" and c.batch == 1 and c.gamma < 4]
    shared = {"before": synthetic.reading(other_processes=[7]), "after": synthetic.reading()}

    def records(states):
        for r in range(3):
            for c in grid:
                one = synthetic.timing(local, "cpu-bf16", r, c, d=0.0, t_base=10.0 * (r + 1))
                if state := states.get((r, c.gamma)):
                    one["device_state"] = state
                yield one

    reps = repetitions.repetitions(records({(0, 0): hot(), (1, 2): shared}))
    assert set(reps["exclusions"]) == {"", "throttled", "shared"}
    table = cells.cells(reps, 0).set_index("gamma")
    assert table.loc[0, "pot_ms"] == 25  # 20 and 30; 10 is throttled
    assert table.loc[2, "pot_ms"] == pytest.approx(30 / 3)
    assert table["blocks"].to_list() == [2, 1]
    assert table["blocks_left_out"].to_list() == [1, 2]
    everywhere = repetitions.repetitions(records({(r, 2): hot() for r in range(3)}))
    with pytest.raises(SpecamortError, match=r"1 cells were throttled.*repeat-n1-g2 first.*remeas"):
        cells.cells(everywhere, 0)


def test_no_draft_is_no_acceptance_but_not_a_zero():
    counts = pd.DataFrame([dict.fromkeys([*repetitions.COUNTS, "accepted_first"], 0)])
    counts["decode_steps"] = counts["decode_tokens"] = 7
    row = cells.ratios(counts).iloc[0]
    assert np.isnan(row["alpha"]) and row["coverage"] == 0 and row["tau"] == 1


def test_intervals_hold_the_median_and_shrink_to_nothing_without_noise():
    rng = random.Random(0)
    noisy = cells.cells(
        reps(
            [
                (r, g, [m + rng.gauss(0, 0.5) for _ in range(8)])
                for r in (0, 1, 2)
                for g, m in ((0, 10), (2, 5))
            ]
        ),
        0,
    )
    assert (noisy["pot_ms_low"] <= noisy["pot_ms"]).all()
    assert (noisy["pot_ms"] <= noisy["pot_ms_high"]).all()
    assert (noisy["pot_ms_low"] < noisy["pot_ms_high"]).all()
    still = cells.cells(reps([(0, 0, [10, 10]), (0, 2, [5, 5])]), 0)
    assert (still["pot_ms_low"] == still["pot_ms_high"]).all()


@pytest.fixture
def made(local, tmp_path):
    """Tables of a synthetic study that obeys equation (1)."""
    synthetic.write_study(local, tmp_path)
    tables.write_tables(local, tmp_path)
    return {n: tables.read_table(tmp_path, n) for n in tables.NAMES}


def test_equation_is_exact_where_the_world_obeys_it(made):
    e = made["errors"].set_index(["cells_of", "predictor", "workload"])
    for predictor in ("equation", "exact_divisor", "geometric"):
        assert e.loc[("all", predictor, "all"), "max_pct"] == pytest.approx(0, abs=1e-6)
    assert e.loc[("all", "acceptance_blind", "open"), "mape_pct"] == pytest.approx(77.5, abs=0.1)
    assert e.loc[("held out", "ratio_transfer", "all"), "cells"] == 12
    assert ("all", "ratio_transfer", "all") not in e.index
    assert made["residuals"]["host_residual_ms"].abs().max() < 1e-9


def test_every_table_says_whose_numbers_it_holds(made):
    for name, table in made.items():
        expected = "datasheet" if name == "vendor_verify_overhead" else "synthetic"
        assert set(table["origin"]) == {expected}, name


def test_a_row_made_of_two_origins_carries_both():
    one = pd.DataFrame({"k": [1, 2], "origin": ["measured", "rehearsal"]})
    other = pd.DataFrame({"k": [1, 2], "origin": ["synthetic", "rehearsal"]})
    both = origins.merged(one, other, on=["k"])
    assert both["origin"].to_list() == ["measured synthetic", "rehearsal"]
    assert origins.not_measured([both, one]) == "rehearsal synthetic"
    assert origins.not_measured([one[:1]]) == ""


def test_what_is_calibrated_on_rehearsed_cells_is_no_measurement(local):
    """The held-out cells are measured, their prediction is not."""
    table, d = cells_of(local, lambda gamma: 0.0)
    table["origin"], d["origin"] = "measured", "measured"
    table.loc[table["platform"] == local.calibration.name, "origin"] = "rehearsal"
    calibrated = calibration.acceptance(local, table)
    host = calibration.host_terms(local, table, calibrated, d)
    assert set(calibrated["origin"]) == {"rehearsal"}
    assert set(host["origin"]) == {"measured rehearsal"}
    predicted = predictions.predictions(local, table, calibrated, d, host)
    held = predicted.loc[predicted["held_out"], "origin"]
    assert set(held) == {"measured rehearsal"}
    assert set(predictions.errors(predicted)["origin"]) == {"measured rehearsal"}


def test_circular_predictors_only_where_held_out(made, local):
    p = made["predictions"]
    fitted = ["ratio_transfer", "ratio_transfer_batch", "timing_alpha"]
    fitted += ["equation_host", "exact_divisor_host"]
    circular = p[p["predictor"].isin(fitted)]
    assert set(circular["predictor"]) == set(fitted)
    assert set(circular["platform"]) == {x.name for x in local.heldout}
    assert set(p["calibrated_on"]) == {local.calibration.name}


def test_timing_alpha_interval_holds_it(made):
    t = made["timing_alpha"]
    assert (t["alpha_timing_low"] <= t["alpha_timing"] + 1e-12).all()
    assert (t["alpha_timing"] <= t["alpha_timing_high"] + 1e-12).all()
    assert t["alpha_timing"].to_list() == pytest.approx(t["alpha"].to_list())


def test_acceptance_band_is_judged(made, local):
    assert made["acceptance"]["in_band"].all()


def analysed(study, records, benches):
    table = cells.cells(repetitions.repetitions(records), study.seed)
    d = calibration.verify_overhead(study, benches)
    calibrated = calibration.acceptance(study, table)
    host = calibration.host_terms(study, table, calibrated, d)
    return calibrated, host, predictions.predictions(study, table, calibrated, d, host)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.randoms(use_true_random=False))
def test_held_out_cells_never_leak(local, rng):
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

    *before, predicted_before = analysed(local, study_records(lambda one: None), benches)
    *after, predicted_after = analysed(local, study_records(scramble), benches)
    for one, other in zip(before, after, strict=True):
        pd.testing.assert_frame_equal(one, other)
    pd.testing.assert_series_equal(
        predicted_before["predicted_ms"], predicted_after["predicted_ms"]
    )
    assert not predicted_before["pot_ms"].equals(predicted_after["pot_ms"])


def cells_of(local, h):
    """Cells of the local study that took `h(gamma)` ms a step more than the equation, and d."""
    rows = []
    for p in local.platforms:
        for c in local.cells:
            alpha = 1.0 if c.workload == "repeat" else 0.0
            tau = alpha * c.gamma + 1
            pot = (10.0 * (1 + 0.1 * c.gamma) + (h(c.gamma) if c.gamma else 0)) / tau
            rows.append(
                dict(origin="synthetic", platform=p, workload=c.workload, batch=c.batch)
                | dict(gamma=c.gamma, pot_ms=pot, pot_ms_low=pot, pot_ms_high=pot, t_base_ms=10.0)
                | dict(speedup=10 / pot, drafts=100, drafted=100 * c.gamma, decode_steps=100)
                | dict(accepted=100 * alpha * c.gamma, decode_tokens=100 * tau)
                | dict(accepted_first=100 * alpha, beta=alpha, alpha=alpha, coverage=1.0, tau=tau)
            )
    d = pd.DataFrame(
        [
            dict(origin="synthetic", platform=p, batch=n, gamma=g, d=0.1 * g)
            for p in local.platforms
            for n in local.batches
            for g in local.gammas
        ]
    )
    return pd.DataFrame(rows), d


def host_case(local, h):
    table, d = cells_of(local, h)
    calibrated = calibration.acceptance(local, table)
    host = calibration.host_terms(local, table, calibrated, d)
    errors = predictions.errors(predictions.predictions(local, table, calibrated, d, host))
    held = errors.query("cells_of == 'held out' and workload == 'all'").set_index("predictor")
    return host.set_index("form"), held["mape_pct"]


def test_ratio_transfer_is_one_ratio_a_gamma_and_the_batchs_own_beside_it(local):
    """Calibration speedups at gamma 6 on repeat: 5 at N = 1, 3 at N = 4; own baseline 8 ms."""
    table, d = cells_of(local, lambda gamma: 0.0)
    own = table["platform"] == local.calibration.name
    top = (table["workload"] == "repeat") & (table["gamma"] == 6)
    table.loc[own & top, "speedup"] = [5.0, 3.0]
    table.loc[~own, ["speedup", "t_base_ms"]] = [99.0, 8.0]
    calibrated = calibration.acceptance(local, table)
    host = calibration.host_terms(local, table, calibrated, d)
    p = predictions.predictions(local, table, calibrated, d, host)
    p = p.query("workload == 'repeat' and gamma == 6").set_index(["predictor", "batch"])
    predicted = p["predicted_ms"]
    assert predicted["ratio_transfer"].to_dict() == {1: 8 / 4, 4: 8 / 4}
    assert predicted["ratio_transfer_batch"].to_dict() == {1: 8 / 5, 4: pytest.approx(8 / 3)}


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


def test_the_device_confirms_a_right_roofline(made):
    """The synthetic traces verify at the predicted cost."""
    both = made["device_verify_overhead"]
    assert both["d_measured"].to_list() == pytest.approx(both["d_predicted"].to_list())
    assert both["step_error_pct"].abs().max() < 1e-9


def test_vendor_figures_by_hand(made):
    """H100, N = 1, gamma 6: the weights, read once, dominate; activations add little."""
    v = made["vendor_verify_overhead"].set_index(["gpu", "batch", "gamma"])
    assert len(v) == 12 and (v["study_at_most"] == 0.023).all()
    one = v.loc[("H100 SXM 80GB", 1, 6)]
    weights = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336) + 4096 * 128256
    base_bytes = 2 * weights + 32 * 2 * 2 * 8 * 128 * 1024
    assert one["device_ms"] == pytest.approx(1e3 * base_bytes / 3.35e12 / 0.7, rel=0.01)
    assert 0 < one["d"] < 0.01


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
    for run in b["repetitions"]:
        run["token_ids"] = [[1, 2, 9, 4]]
    row = cross_checks.divergence([a, b]).iloc[0]
    assert row["first_difference"] == 2 and row["origin"] == "synthetic"
    c = synthetic.timing(local, "cpu-bf16", 0, Cell("open", 1, 4), 0)
    assert cross_checks.divergence([a, c])["first_difference"].isna().all()


def test_records_out_of_place_are_refused(local, tmp_path):
    synthetic.write_study(local, tmp_path)
    home = tmp_path / "raw/timing/cpu-bf16/r0"
    one = home / f"{local.cells[1]}.json"
    whole = record.read(one)

    def refused(change, why):
        record.write(one, {**whole, **change})
        with pytest.raises(SpecamortError, match=why):
            tables.timing_records(local, tmp_path)

    refused({"cell": whole["cell"] | {"gamma": 77}}, "holds another cell")
    refused({"settings_hash": "0"}, "measured with other settings")
    moved = synthetic.provenance(local, "cpu-bf16", "another-gpu")
    refused({"provenance": moved}, "more than one device in one block")
    one.unlink()
    with pytest.raises(SpecamortError, match="cannot be read"):
        tables.timing_records(local, tmp_path)
