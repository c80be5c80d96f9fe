"""Trace records to tables: what a step is made of, and the microbenchmark against the device.

Pure functions. Intervals run from the lowest to the highest pair of runs.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from ..errors import SpecamortError
from ..model.kernels import FAMILIES
from ..model.step import per_step
from ..records.types import Record
from ..study.grid import Study
from .origins import merged, words
from .repetitions import device_exclusions

KEY = ["platform", "model", "context_tokens", "batch", "gamma"]


def pairs(records: Iterable[Record]) -> pd.DataFrame:
    """One row per pair of runs: a step's wall, device and host time, and by family.

    Kineto's cost is partly inside the operators it times, so with it the host comes out too small,
    if anything.

    Returns:
        `origin`, the traced cell, `weights`, `tracer`, `pair` (number);
        `step_ms`: the untraced step's wall time; `device_ms`, `device_sum_ms`: the traced step's
            device time, as a union and as a sum; `host_ms`: step_ms - device_ms, so that the
            tracer's cost is not called host; `traced_step_ms`, and `tracer_cost_pct`, what it is
            more than step_ms, in percent;
        `attention_ms` and so on: device time by family of kernels;
        `exclusions` (words: throttled, shared).

    Raises:
        SpecamortError: a pair that `step.per_step` refuses, by its cell.
    """
    rows = []
    for r in records:
        t = r["trace"]
        cell = {k: v for k, v in t.items() if k not in ("tokens_per_step", "pairs")}
        for i, pair in enumerate(t["pairs"]):
            try:
                short, long = pair["traced"]
                traced = per_step(short, long, t["tokens_per_step"])
                short, long = pair["untraced"]
                step_ms = per_step(short, long, t["tokens_per_step"])["step_ms"]
            except ValueError as e:
                where = "-".join(str(cell[k]) for k in KEY)
                raise SpecamortError(f"traces of {where}, pair {i}: {e}") from e
            rows.append(
                {"origin": r["origin"], **cell, "pair": i}
                | {"step_ms": step_ms, "device_ms": traced["device_ms"]}
                | {"device_sum_ms": traced["device_sum_ms"]}
                | {"host_ms": step_ms - traced["device_ms"], "traced_step_ms": traced["step_ms"]}
                | {"tracer_cost_pct": 100 * (traced["step_ms"] / step_ms - 1)}
                | {f"{f}_ms": traced["family_ms"].get(f, 0.0) for f in (*FAMILIES, "other")}
                | {"exclusions": device_exclusions(r)}
            )
    return pd.DataFrame(rows)


def steps(pairs: pd.DataFrame) -> pd.DataFrame:
    """One row per traced cell: medians over pairs, lowest and highest of the main three.

    `host_ms` is the median step less the median device time, so that the parts add up: which
    untraced runs share a pair with which traced ones is chance.

    Returns:
        The columns of `pairs`, but `pairs` (number) for `pair`; `step_ms_low`, `step_ms_high`, and
        the same of `device_ms` and `host_ms` (ms); `host_share_pct` (% of step_ms).
    """
    by_cell = pairs.groupby(KEY, sort=False)
    table = by_cell.agg(
        origin=("origin", words),
        weights=("weights", "first"),
        tracer=("tracer", "first"),
        pairs=("pair", "size"),
        exclusions=("exclusions", words),
    )
    times = [c for c in pairs.columns if c.endswith(("_ms", "_pct"))]
    table = table.join(by_cell[times].median())
    table["host_ms"] = table["step_ms"] - table["device_ms"]
    table["host_share_pct"] = 100 * table["host_ms"] / table["step_ms"]
    for name in ("step_ms", "device_ms", "host_ms"):
        table[f"{name}_low"], table[f"{name}_high"] = by_cell[name].min(), by_cell[name].max()
    return table.reset_index()


def compared_decode_steps(study: Study, steps: pd.DataFrame) -> pd.DataFrame:
    """The rows of `steps` that compare models: gamma 0, N = 1, at `tracing.context_tokens`."""
    return steps[
        (steps["gamma"] == 0)
        & (steps["batch"] == 1)
        & (steps["context_tokens"] == study.tracing.context_tokens)
    ]


def device_verify_overhead(
    study: Study, pairs: pd.DataFrame, predicted: pd.DataFrame
) -> pd.DataFrame:
    """The microbenchmark's passes and roofline beside the device's own: traced forward passes.

    The forward pass is the device time without sampling, which neither models. At gamma 0 there is
    no d, but a step whose milliseconds they can be held against.

    Args:
        predicted: `calibration.verify_overhead`.

    Returns:
        `origin`, `platform`, `batch`, `gamma`; `d_predicted`, `d_measured` and its ends `_low` and
        `_high` (shares of a step), `step_error_pct` (% of the measured verify step): NaN at
        gamma 0; `traced_ms`, `passes_ms`, `roofline_ms` (ms a step), `passes_error_pct`,
        `roofline_error_pct` (signed, % of traced_ms).
    """
    own = pairs[
        (pairs["model"] == study.model.name) & (pairs["context_tokens"] == study.context_tokens)
    ]
    where = ["platform", "batch", "gamma"]
    forward = own.assign(forward_ms=own["device_ms"] - own["sampling_ms"]).groupby(where)
    table = forward.agg(
        origin=("origin", words),
        traced_ms=("forward_ms", "median"),
        low=("forward_ms", "min"),
        high=("forward_ms", "max"),
    ).reset_index()
    base = table[table["gamma"] == 0].drop(columns="gamma")
    both = merged(table, base, on=where[:2], suffixes=("", "_base"))
    both["d_measured"] = both["traced_ms"] / both["traced_ms_base"] - 1
    both["d_measured_low"] = both["low"] / both["high_base"] - 1
    both["d_measured_high"] = both["high"] / both["low_base"] - 1
    told = predicted[["origin", *where, "d", "device_ms", "roofline_ms"]]
    both = merged(both, told, on=where)
    both = both.rename(columns={"d": "d_predicted", "device_ms": "passes_ms"})
    both["step_error_pct"] = 100 * ((1 + both["d_predicted"]) / (1 + both["d_measured"]) - 1)
    for name in ("passes", "roofline"):
        both[f"{name}_error_pct"] = 100 * (both[f"{name}_ms"] / both["traced_ms"] - 1)
    shares = ["d_predicted", "d_measured", "d_measured_low", "d_measured_high", "step_error_pct"]
    both.loc[both["gamma"] == 0, shares] = np.nan
    times = ["traced_ms", "passes_ms", "passes_error_pct", "roofline_ms", "roofline_error_pct"]
    return both[["origin", *where, *shares, *times]]


def floors(study: Study, steps: pd.DataFrame) -> pd.DataFrame:
    """The traced host times of a step that residuals are held against, one row per platform.

    `floor_ms` is the study's (section "The under-prediction IS a host residual"): its model's
    decode step on the calibration platform at `tracing.context_tokens`, N = 1, for every platform
    alike. `own_floor_ms` is the platform's own, at the cells' context and the smallest batch. NaN
    where not traced.

    Returns:
        `origin`, `platform`, `floor_ms`, `own_floor_ms` (ms per step).
    """
    decode = steps[(steps["model"] == study.model.name) & (steps["gamma"] == 0)]

    def traced(platform: str, context: int, batch: int) -> pd.DataFrame:
        return decode[
            (decode["platform"] == platform)
            & (decode["context_tokens"] == context)
            & (decode["batch"] == batch)
        ]

    floor = traced(study.calibration.name, study.tracing.context_tokens, 1)
    rows = []
    for p in study.platforms:
        own = traced(p, study.context_tokens, min(study.batches))
        rows.append(
            {"origin": words([*floor["origin"], *own["origin"]]), "platform": p}
            | {"floor_ms": floor["host_ms"].median(), "own_floor_ms": own["host_ms"].median()}
        )
    return pd.DataFrame(rows)
