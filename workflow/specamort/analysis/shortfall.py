"""What stands between the ideal speedup and the measured one, at full acceptance."""

import pandas as pd

from ..model import equation
from ..study.grid import Study
from .calibration import with_verify_overhead
from .repetitions import CELL

LOSSES = ["acceptance_loss", "verify_loss", "residual_loss"]


def shortfall(study: Study, cells: pd.DataFrame, verify_overhead: pd.DataFrame) -> pd.DataFrame:
    """The ideal speedup taken apart, for every speculative cell of the repeat workloads.

    Speedups are over gamma 0 and add up: `ideal` = `speedup` + `acceptance_loss` + `verify_loss` +
    `residual_loss`. The order matters, since a step that is longer loses more where it emits more
    tokens: first what was not accepted, then the predicted verify cost, then the rest.

    Args:
        cells: `cells.cells`; read are `ideal`, `tau` (tokens per decode step), `coverage` (drafts
            per decode step), `speedup` and its interval.
        verify_overhead: `calibration.verify_overhead`; read is `d` (share of a step).

    Returns:
        `origin`, the cell, what was read, and
        `speedup_after_verify`: tau / (1 + coverage d), the speedup if a step took no longer than
            the baseline's and its predicted verify cost;
        `acceptance_loss`: ideal - tau, speedup;
        `verify_loss`: tau - speedup_after_verify, speedup;
        `residual_loss`: speedup_after_verify - speedup, speedup. Host time that the equation leaves
            out; below 0 where the roofline predicts too large a verify cost;
        `speedup_pct` and `*_loss_pct`: the four in percent of ideal.
    """
    repeat = [w.name for w in study.workloads.values() if w.kind == "repeat"]
    table = with_verify_overhead(cells[cells["workload"].isin(repeat)], verify_overhead)
    coverage, tau = table["coverage"], table["tau"]
    table["speedup_after_verify"] = 1 / equation.pot_exact_divisor(1.0, table["d"], coverage, tau)
    levels = ["ideal", "tau", "speedup_after_verify", "speedup"]
    for loss, above, below in zip(LOSSES, levels, levels[1:], strict=False):
        table[loss] = table[above] - table[below]
    shares = ["speedup", *LOSSES]
    for part in shares:
        table[f"{part}_pct"] = 100 * table[part] / table["ideal"]
    measured = ["speedup", "speedup_low", "speedup_high"]
    kept = ["origin", *CELL, "ideal", "tau", "coverage", "d", "speedup_after_verify", *measured]
    return table[[*kept, *LOSSES, *(f"{part}_pct" for part in shares)]]
