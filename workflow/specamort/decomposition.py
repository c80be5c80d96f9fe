"""Trace records to tables: what a step is made of, and the roofline's d against the device's.

Pure functions. Intervals run from the lowest to the highest pair of runs.
"""

from collections.abc import Iterable

import pandas as pd

from .errors import SpecamortError
from .study import Study
from .trace import FAMILIES, per_step

KEY = ["platform", "model", "context_tokens", "batch", "gamma"]


def pairs(records: Iterable[dict]) -> pd.DataFrame:
    """One row per pair of traced runs: a step's wall, device and host time, and by family.

    `tracer_cost_pct` is what the traced step took more than the untraced one.

    Raises:
        SpecamortError: a pair that `trace.per_step` refuses, by its cell.
    """
    rows = []
    for r in records:
        t = r["trace"]
        for i, pair in enumerate(t["pairs"]):
            try:
                step = per_step(*pair["traced"], t["rows"])
                untraced_ms = per_step(*pair["untraced"], t["rows"])["step_ms"]
            except SpecamortError as e:
                where = "-".join(str(t[k]) for k in KEY)
                raise SpecamortError(f"traces of {where}, pair {i}: {e}") from e
            by_family = step.pop("family_ms")
            head = {k: t[k] for k in (*KEY, "weights", "tracer")}
            rows.append(
                {"origin": r["origin"], **head, "pair": i, **step, "untraced_step_ms": untraced_ms}
                | {"tracer_cost_pct": 100 * (step["step_ms"] / untraced_ms - 1)}
                | {f"{f}_ms": by_family.get(f, 0.0) for f in (*FAMILIES, "other")}
            )
    return pd.DataFrame(rows)


def steps(pairs: pd.DataFrame) -> pd.DataFrame:
    """One row per traced cell: medians over pairs, lowest and highest of the main three."""
    by_cell = pairs.groupby(KEY, sort=False)
    table = by_cell.agg(
        origin=("origin", "first"),
        weights=("weights", "first"),
        tracer=("tracer", "first"),
        pairs=("pair", "size"),
    )
    times = [c for c in pairs if c.endswith(("_ms", "_pct"))]
    table = table.join(by_cell[times].median())
    for name in ("step_ms", "device_ms", "host_ms"):
        table[f"{name}_low"], table[f"{name}_high"] = by_cell[name].min(), by_cell[name].max()
    return table.reset_index()


def device_overheads(study: Study, pairs: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """The roofline's d beside the device's own: traced forward pass at gamma + 1 rows over 1 row.

    The forward pass is the device time without sampling, which the roofline does not model.

    Args:
        predicted: `analysis.overheads`.
    """
    own = pairs[
        (pairs["model"] == study.model.name) & (pairs["context_tokens"] == study.context_tokens)
    ]
    forward = (own["device_ms"] - own["sampling_ms"]).rename("forward_ms")
    by_cell = pd.concat([own[["origin", *KEY]], forward], axis=1).groupby(
        ["origin", "platform", "batch", "gamma"]
    )["forward_ms"]
    table = by_cell.agg(forward_ms="median", low="min", high="max").reset_index()
    base = table[table["gamma"] == 0].drop(columns="gamma")
    both = table[table["gamma"] > 0].merge(
        base, on=["origin", "platform", "batch"], suffixes=("", "_base")
    )
    both["d_measured"] = both["forward_ms"] / both["forward_ms_base"] - 1
    both["d_measured_low"] = both["low"] / both["high_base"] - 1
    both["d_measured_high"] = both["high"] / both["low_base"] - 1
    both = both.merge(predicted, on=["platform", "batch", "gamma"]).rename(
        columns={"d": "d_predicted"}
    )
    both["step_error_pct"] = 100 * ((1 + both["d_predicted"]) / (1 + both["d_measured"]) - 1)
    measured = ["d_measured", "d_measured_low", "d_measured_high"]
    return both[
        ["origin", "platform", "batch", "gamma", "d_predicted", *measured, "step_error_pct"]
    ]


def floors(study: Study, steps: pd.DataFrame) -> pd.DataFrame:
    """The traced host floor of the study's own decode step, by platform (smallest batch)."""
    own = steps[
        (steps["model"] == study.model.name)
        & (steps["context_tokens"] == study.context_tokens)
        & (steps["batch"] == min(study.batches))
        & (steps["gamma"] == 0)
    ]
    return own[["platform", "host_ms"]].rename(columns={"host_ms": "floor_ms"})
