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
