import random

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import synthetic
from specamort import analysis, record, tables
from specamort.claims import Tables, claims
from specamort.errors import SpecamortError
from specamort.study import Cell


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
    table = analysis.cells(
        reps([(0, 0, [9, 10, 30]), (0, 2, [5, 5, 6]), (1, 0, [20, 20, 20]), (1, 2, [4, 4, 1])]), 0
    ).set_index("gamma")
    assert table.loc[0, "pot_ms"] == 15
    assert table.loc[2, "pot_ms"] == 4.5
    assert table.loc[2, "speedup"] == pytest.approx((10 / 5 + 20 / 4) / 2)
    assert table.loc[2, "blocks"] == 2 and table.loc[2, "timed"] == 6


def test_ratios_by_hand():
    row = analysis.cells(reps([(0, 0, [10]), (0, 2, [5])]), 0).set_index("gamma").loc[2]
    assert row["alpha"] == 0.4
    assert row["coverage"] == 0.5
    assert row["tau"] == 1.4
    assert row["beta"] == 0.6


def test_throttled_and_shared_cells_are_kept_but_left_out(local):
    """Block 0 has a throttled baseline and block 1 a shared cell; block 2 alone counts there."""
    cells = [c for c in local.cells if c.workload == "repeat" and c.batch == 1 and c.gamma < 4]
    hot = {"before": synthetic.reading(), "after": synthetic.reading(throttle_reasons=0x40)}
    shared = {"before": synthetic.reading(other_processes=[7]), "after": synthetic.reading()}

    def records(states):
        for r in range(3):
            for c in cells:
                one = synthetic.timing(local, "cpu-bf16", r, c, d=0.0, t_base=10.0 * (r + 1))
                if state := states.get((r, c.gamma)):
                    one["device_state"] = state
                yield one

    reps = analysis.repetitions(records({(0, 0): hot, (1, 2): shared}))
    assert set(reps["marks"]) == {"", "throttled", "shared"}
    table = analysis.cells(reps, 0).set_index("gamma")
    assert table.loc[0, "pot_ms"] == 25  # 20 and 30; 10 is throttled
    assert table.loc[2, "pot_ms"] == pytest.approx(30 / 3)
    assert table["blocks"].to_list() == [2, 1]
    assert table["blocks_left_out"].to_list() == [1, 2]
    everywhere = analysis.repetitions(records({(r, 2): hot for r in range(3)}))
    with pytest.raises(SpecamortError, match=r"1 cells were throttled.*repeat-n1-g2 first.*remeas"):
        analysis.cells(everywhere, 0)


def test_no_draft_is_no_acceptance_but_not_a_zero():
    counts = pd.DataFrame([dict.fromkeys([*analysis.COUNTS, "accepted_first"], 0)])
    counts["decode_steps"] = counts["decode_tokens"] = 7
    row = analysis.ratios(counts).iloc[0]
    assert np.isnan(row["alpha"]) and row["coverage"] == 0 and row["tau"] == 1


def test_intervals_hold_the_median_and_shrink_to_nothing_without_noise():
    rng = random.Random(0)
    noisy = analysis.cells(
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
    still = analysis.cells(reps([(0, 0, [10, 10]), (0, 2, [5, 5])]), 0)
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


def test_synthetic_says_so_in_every_table_of_numbers(made):
    for name in ("repetitions", "cells", "predictions", "residuals", "timing_alpha", "provenance"):
        assert set(made[name]["origin"]) == {"synthetic"}, name


def test_circular_predictors_only_where_held_out(made, local):
    p = made["predictions"]
    circular = p[p["predictor"].isin(["ratio_transfer", "timing_alpha"])]
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
    table = analysis.cells(analysis.repetitions(records), study.seed)
    d = analysis.overheads(study, benches)
    calibrated = analysis.acceptance(study, table)
    return calibrated, analysis.predictions(study, table, calibrated, d)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.randoms(use_true_random=False))
def test_held_out_cells_never_leak(local, rng):
    """Change every held-out speculative cell at random: nothing calibrated moves, and neither
    does any prediction, since a held-out platform gives only its baseline and its own d."""
    bench = synthetic.microbenchmark(local)
    benches = dict.fromkeys(local.platforms, bench)
    d = analysis.overheads(local, benches).set_index(["platform", "batch", "gamma"])["d"]

    def study_records(change):
        for p in local.platforms.values():
            for r in range(local.replicates):
                for c in local.cells:
                    one = synthetic.timing(local, p.name, r, c, float(d[p.name, c.batch, c.gamma]))
                    if p.role == "heldout" and c.gamma:
                        change(one)
                    yield one

    def scramble(one):
        for run in one["repetitions"]:
            for s in run["sequences"]:
                s["pot_ms"] *= rng.uniform(0.1, 10)
            run["counters"]["accepted"] = rng.randint(0, run["counters"]["drafted"])
            run["decode_steps"] += rng.randint(0, 9)

    before, predicted_before = analysed(local, study_records(lambda one: None), benches)
    after, predicted_after = analysed(local, study_records(scramble), benches)
    pd.testing.assert_frame_equal(before, after)
    pd.testing.assert_series_equal(
        predicted_before["predicted_ms"], predicted_after["predicted_ms"]
    )
    assert not predicted_before["pot_ms"].equals(predicted_after["pot_ms"])


def test_counter_agreement_by_hand():
    table = pd.DataFrame(
        [dict(origin="synthetic", platform="p", workload="w", batch=1, gamma=2)]
    ).assign(drafted=100, accepted=50, alpha=0.5)
    run = {
        "cell": dict(platform="p", replicate=0, workload="w", batch=1, gamma=2),
        "repetitions": [{"counters": {"drafted": 100, "accepted": 70}}],
    }
    row = analysis.counter_agreement(table, [run]).iloc[0]
    # 0.2 over sqrt(0.6 * 0.4 * 2 / 100) = 2.89
    assert row["z"] == pytest.approx(-2.887, abs=1e-3) and row["agree"]
    run["repetitions"][0]["counters"]["accepted"] = 90
    assert not analysis.counter_agreement(table, [run]).iloc[0]["agree"]


def test_reading_cost_by_hand():
    def runs(*pots):
        return {
            "repetitions": [
                {"warmup": i == 0, "sequences": [{"arrival_pot_ms": p}]} for i, p in enumerate(pots)
            ]
        }

    cost = analysis.reading_cost(runs(99, 10.3, 10.3), runs(99, 10, 10))
    assert cost["cost_pct"] == pytest.approx(3)
    assert cost["cost_pct_low"] == pytest.approx(3)


def test_divergence_reports_the_first_difference(local):
    a = synthetic.timing(local, "cpu-bf16", 0, Cell("open", 1, 0), 0)
    b = synthetic.timing(local, "cpu-bf16", 0, Cell("open", 1, 2), 0)
    for run in b["repetitions"]:
        run["token_ids"] = [[1, 2, 9, 4]]
    row = analysis.divergence([a, b]).iloc[0]
    assert row["first_difference"] == 2
    c = synthetic.timing(local, "cpu-bf16", 0, Cell("open", 1, 4), 0)
    assert analysis.divergence([a, c])["first_difference"].isna().all()


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


def test_claims_never_print_the_studys_number_as_ours(made, local, root):
    published = yaml.safe_load((root / "workflow/specamort/published.yaml").read_text())
    t = Tables(
        *[
            made[n]
            for n in ["cells", "acceptance", "overheads", "errors", "residuals", "timing_alpha"]
        ]
    )
    got = claims(local, published, t).set_index("claim")
    assert len(got) == len(published)
    assert got.loc["speedup_repeat_max", "ours"] == made["cells"]["speedup"].max()
    assert got.filter(like="nsys", axis=0)["ours"].isna().all()
    assert got.loc["t_base_ms", "comparable"].startswith("no")
    blank = Tables(*[f.iloc[:0] for f in vars(t).values()])
    assert claims(local, published, blank)["ours"].isna().all()
