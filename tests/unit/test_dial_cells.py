"""The dial's repetitions to cells, slopes and machinery, on steps whose making is known."""

import math

import pandas as pd
import pytest

from specamort.analysis import dial, law


def reps(step_ms, rounds=3, shift=0.0):
    """One platform and batch: gamma 0 on both engines, gamma 2 at acceptances 0, 0.5 and 1."""
    rows = []
    for r in range(rounds):
        for engine, gamma, acceptance, pattern in [
            ("plain", 0, None, None),
            ("dial", 0, None, None),
            ("dial", 2, 0.0, "geometric"),
            ("dial", 2, 0.5, "geometric"),
            ("dial", 2, 0.5, "whole"),
            ("dial", 2, 1.0, "geometric"),
        ]:
            alpha = 0.375 if acceptance == 0.5 else acceptance or 0.0
            tau = 1 + alpha * gamma
            step = step_ms(engine, gamma, alpha, pattern) * (1 + shift * r)
            drafts = 80 if gamma else 0
            rows.append(
                {"origin": "synthetic", "platform": "p", "batch": 1, "engine": engine}
                | {"gamma": gamma, "acceptance": acceptance, "pattern": pattern, "round": r}
                | {"pot_ms": step / tau, "step_ms": step, "draft_ms": 0.0, "exclusions": ""}
                | {"drafts": drafts, "drafted": 2 * drafts, "accepted": 2 * drafts * alpha}
                | {"decode_steps": 80, "decode_tokens": 80 * tau}
            )
    return pd.DataFrame(rows)


def flat(engine, gamma, alpha, pattern):
    return {"plain": 10.0, "dial": 10.5}[engine] + (2.0 if gamma else 0.0)


def test_cells_by_hand():
    table = dial.cells(reps(flat), seed=1).set_index(["gamma", "acceptance", "pattern"])
    assert len(table) == 5 and (table["t_base_ms"] == 10.5).all() and (table["rounds"] == 3).all()
    half = table.loc[(2, 0.5, "geometric")]
    assert half["alpha"] == 0.375 and half["tau"] == 1.75 and half["coverage"] == 1
    assert half["step_ms"] == half["step_ms_low"] == half["step_ms_high"] == 12.5
    assert half["pot_ms"] == pytest.approx(12.5 / 1.75)


def test_machinery_is_what_an_engine_takes_more_with_nothing_proposed():
    (row,) = dial.machinery(reps(flat), seed=1).to_dict("records")
    assert row["plain_ms"] == 10 and row["idle_ms"] == 10.5
    assert row["machinery_ms"] == row["machinery_ms_low"] == row["machinery_ms_high"] == 0.5
    assert row["drift_pct"] == 0


def test_a_step_that_does_not_depend_on_acceptance_has_no_slope_though_the_machine_drifts():
    (row,) = dial.slopes(reps(flat, shift=0.2), seed=1).to_dict("records")
    assert [row[k] for k in ("slope_pct", "slope_pct_low", "slope_pct_high")] == pytest.approx(
        [0] * 3, abs=1e-9
    )
    assert row["pattern_pct"] == pytest.approx(0, abs=1e-9) and row["rounds"] == 3


def test_one_that_does_shows_its_slope_and_its_pattern():
    def step(engine, gamma, alpha, pattern):
        return 10.0 + alpha + (0.5 if pattern == "whole" else 0.0)

    (row,) = dial.slopes(reps(step, rounds=4), seed=1).to_dict("records")
    # 10, 10.375, 10.875 and 11 ms at alpha 0, 0.375, 0.375 and 1: 0.484375 / 0.515625 ms
    assert row["slope_pct"] == pytest.approx(100 * 0.484375 / 0.515625 / 10.5625)
    assert row["pattern_pct"] == pytest.approx(100 * 0.5 / 10.375)
    (single,) = dial.slopes(reps(step, rounds=1), seed=1).to_dict("records")
    assert math.isnan(single["slope_pct_low"]) and not math.isnan(single["slope_pct"])


def test_a_study_without_a_dial_has_empty_tables():
    none = dial.repetitions([])
    cells = dial.cells(none, seed=1)
    assert none.empty and cells.empty and "step_ms" in cells
    assert dial.machinery(none, 1).empty and dial.slopes(none, 1).empty


def test_the_dial_calibrates_by_batch_and_draft_length_not_by_acceptance(local):
    dialled = dial.cells(reps(flat), seed=1).assign(platform=local.calibration.name)
    other = dialled.assign(platform=local.heldout[0].name, step_ms=99.0)
    overhead = pd.DataFrame(
        {"origin": "synthetic", "platform": p, "batch": 1, "gamma": g, "increment_ms": 0.8 * g / 2}
        for p in local.platforms
        for g in (0, 2)
    )
    found = law.points(local, pd.DataFrame(), overhead, pd.concat([dialled, other]))
    assert found["gamma"].to_list() == [2] and found["step_ms"].to_list() == [12.5]
    assert found["t_base_ms"].to_list() == [10.5] and found["coverage"].to_list() == [1]
    assert set(found["by"]) == {"dial"}
    best, choices = law.law(found)
    assert choices["chosen"].sum() == 1 and law.read_law(choices) == best
    predicted = law.dial_predictions(local, dialled, overhead, best)
    assert not predicted["held_out"].any()
    # one point tells no term: nothing is taken but the increment
    assert best.h_ms == {} and predicted["error_pct"].to_list()[-1] == pytest.approx(-9.6)
    assert predicted["error_pct"].isna().to_list() == (predicted["gamma"] == 0).to_list()


def test_machinery_is_a_term_of_every_step_where_it_is_known_from_0(local):
    made = dial.machinery(reps(flat), seed=1).assign(platform=local.calibration.name)
    assert law.idle_ms(local, made) == 0.5
    assert law.idle_ms(local, made.assign(machinery_ms_low=-0.1)) == 0
    assert law.idle_ms(local, made.iloc[:0]) == 0
