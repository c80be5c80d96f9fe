import random
from math import pi

import numpy as np
import pandas as pd
import pytest

from cases import reps
from specamort.analysis import (
    cells,
    repetitions,
)


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


def test_noise_is_of_repetitions_and_drift_within_a_block():
    table = reps([(0, 0, [10, 12, 11, 13]), (0, 2, [5, 7])])
    table.loc[[3, 4], "when"] = "last"
    made = cells.cells(table, 0).set_index("gamma")
    # relative variances of medians of 4 and 2, about the means 11 and 12, and 6
    base, own = pi / 2 * (4 / 2) / 4 / 11.5**2, pi / 2 * 2 / 2 / 6**2
    drift = (1 / 11) ** 2 / 12
    assert made.loc[2, "noise_pct"] == pytest.approx(195.996 * (own + base + drift) ** 0.5, 1e-5)
    assert made.loc[0, "noise_pct"] == pytest.approx(195.996 * (base + drift) ** 0.5, 1e-5)
    assert made["drift_pct"].to_list() == pytest.approx([100 / 11] * 2)
    # a second block that is alike halves the variance, though its machine is twice as slow
    twice = pd.concat([table, table.assign(replicate=1, pot_ms=2 * table["pot_ms"])])
    halved = cells.cells(twice, 0).set_index("gamma")
    assert (halved["noise_pct"] * 2**0.5).to_list() == pytest.approx(made["noise_pct"].to_list())


def test_speedups_pair_within_a_visit():
    """A cell of a later visit, when all was slow, and a baseline of both: 80 / 40, not 45 / 40."""
    early, late = reps([(0, 0, [10]), (0, 2, [5])]), reps([(0, 0, [80]), (0, 4, [40])])
    table = cells.cells(pd.concat([early, late.assign(visit="later")]), 0).set_index("gamma")
    assert table["speedup"].to_dict() == {0: 1, 2: 2, 4: 2}
    assert table["speedup_low"].to_list() == table["speedup_high"].to_list() == [1, 2, 2]
    assert table["t_base_ms"].to_dict() == {0: 45, 2: 10, 4: 80}
    assert table["visits"].to_list() == [2] * 3 and table["blocks"].to_list() == [1] * 3


def test_a_value_and_its_interval_are_one_statistic():
    """A baseline of 10 in one visit and 20 in a longer one is 15, whatever is drawn."""
    some = reps([(0, 0, [10, 10]), (0, 2, [5])])
    more = reps([(0, 0, [20, 20, 20, 20])]).assign(visit="later")
    table = cells.cells(pd.concat([some, more]), 0).set_index("gamma")
    assert table.loc[0, ["pot_ms", "pot_ms_low", "pot_ms_high"]].to_list() == [15] * 3


def test_blocks_are_drawn_together_and_baselines_once():
    rows = [(r, g, [m * (r + 1)] * 2) for r in range(3) for g, m in ((0, 30), (2, 10), (4, 5))]
    drawn = {c[-1]: (p, b) for c, p, b in cells.block_draws(reps(rows).query("not warmup"), 0)}
    assert (drawn[2][0] == 2 * drawn[4][0]).all() and len(np.unique(drawn[2][0])) == 3
    noisy = reps([(r, 0, [10, 11, 12, 17]) for r in range(3)] + [(r, 2, [5]) for r in range(3)])
    drawn = {c[-1]: (p, b) for c, p, b in cells.block_draws(noisy.query("not warmup"), 0)}
    assert (drawn[0][0] == drawn[2][1]).all() and len(np.unique(drawn[2][1])) > 3


def test_counters_are_of_different_texts():
    """A greedy text three times is one sample; another in the same block is a second."""
    table = reps([(0, 0, [10]), (0, 2, [5, 5, 5, 5])])
    other = (table["gamma"] == 2) & (table["repetition"] == 3)
    table.loc[other, ["text_sha256", "accepted"]] = ["u", 8]
    row = cells.cells(table, 0).set_index("gamma").loc[2]
    assert row[["texts", "timed", "drafted", "accepted", "decode_steps"]].to_list() == [
        *(2, 4, 20, 12, 20),
    ]
    assert row["alpha"] == 0.6


def test_a_step_verifies_if_any_sequence_does():
    """6 of 10 steps by the engine; half a draft a step where it does not say, 1 - 0.5 ** 4 of 4."""
    table = reps([(0, 0, [10]), (0, 2, [5])]).assign(batch=4)
    table.loc[table["gamma"] == 2, "verify_steps"] = 6
    table.loc[table["gamma"] == 0, "verify_steps"] = 0
    assert cells.cells(table, 0)["verify_share"].to_list() == [0, 0.6]
    table["verify_steps"] = np.nan
    table.loc[table["gamma"] == 0, "drafts"] = 0
    assert cells.cells(table, 0)["verify_share"].to_list() == [0, 1 - 0.5**4]
