import pytest

import synthetic
from cases import hot
from specamort.analysis import (
    cells,
    repetitions,
)
from specamort.errors import SpecamortError


def test_throttled_and_shared_cells_are_kept_but_left_out(local):
    """Block 0 has a throttled baseline and block 1 a shared cell; block 2 alone counts there."""
    grid = [c for c in local.cells if c.workload == "repeat" and c.batch == 1 and c.gamma < 4]
    shared = {"before": synthetic.reading(other_processes=[7]), "after": synthetic.reading()}

    def records(states):
        for r in range(3):
            for c in grid:
                one = synthetic.timing(local, "cpu-bf16", r, c, d=0.0, t_base=10.0 * (r + 1))
                if (state := states.get((r, c.gamma))) and c.gamma == 0:
                    one["visits"][1]["device_state"] = state  # the last of its visit
                elif state:
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


def test_survival_by_hand(local):
    """Two texts of one block: of 3 and 5 drafts 2 and 4 held one token, 1 and 0 two."""
    cell = next(c for c in local.cells if c.gamma == 2)
    one = synthetic.timing(local, "cpu-bf16", 0, cell, d=0.0)
    texts = {"a": (3, [2, 1]), "b": (5, [4, 0])}
    for run, text in zip(one["repetitions"], "aab", strict=False):
        run["sequences"] = [run["sequences"][0] | {"sha256": text}]
        run["counters"] |= dict(zip(("drafts", "accepted_per_pos"), texts[text], strict=True))
    one["repetitions"] = [*one["repetitions"][:3], *one["repetitions"][1:3]]
    base = synthetic.timing(local, "cpu-bf16", 0, next(c for c in local.cells if not c.gamma), 0.0)
    table = repetitions.survival([base, one])
    assert table["position"].to_list() == [1, 2] and table["drafts"].to_list() == [8, 8]
    assert table["survival"].to_list() == [6 / 8, 1 / 8]


def test_a_cell_without_its_visits_baseline_is_a_sentence(local):
    base, one = (synthetic.timing(local, "cpu-bf16", 0, c, d=0.0) for c in local.cells[:2])
    for run in one["repetitions"]:
        run["visit"] = "another"
    with pytest.raises(SpecamortError, match=r"repeat-n1 has cells whose visit left.*remeasure"):
        repetitions.repetitions([base, one])
