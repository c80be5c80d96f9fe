import random

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
