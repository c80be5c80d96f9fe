"""What is calibrated, on the calibration platform's cells alone: acceptance and the host term.

And each platform's verify overhead d, from its own microbenchmark. Pure functions of data frames.
"""

from collections.abc import Mapping
from typing import NotRequired

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..model import equation, roofline
from ..records.types import Microbenchmark
from ..study.grid import Study
from .cells import Floats, ratios
from .origins import merged, words
from .repetitions import COUNTS


class PlatformBench(Microbenchmark):
    """A microbenchmark with its record's origin, and its exclusions as words."""

    origin: str
    exclusions: NotRequired[str]


def acceptance(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Calibrated per (workload, gamma) on the calibration platform alone, pooled over batches.

    Returns:
        `origin`, `calibrated_on`, `workload`, `gamma`, the counters of `cells.cells` summed, what
        `cells.ratios` gives, and the declared band: `alpha_min`, `alpha_max` (shares), `in_band`.
    """
    name = study.calibration.name
    own = table[(table["platform"] == name) & (table["gamma"] > 0)]
    pooled = own.groupby(["workload", "gamma"])[[*COUNTS, "accepted_first"]].sum().reset_index()
    pooled = pd.concat([pooled, ratios(pooled)], axis=1)
    pooled.insert(0, "origin", words(own["origin"]))
    pooled.insert(1, "calibrated_on", name)
    band = study.workloads
    pooled["alpha_min"] = [band[w].alpha_min for w in pooled["workload"]]
    pooled["alpha_max"] = [band[w].alpha_max for w in pooled["workload"]]
    pooled["in_band"] = pooled["alpha"].between(pooled["alpha_min"], pooled["alpha_max"])
    return pooled


def verify_overhead(study: Study, benches: Mapping[str, PlatformBench]) -> pd.DataFrame:
    """What verifying costs each platform's device, from its microbenchmark; the roofline beside it.

    Returns:
        `origin`, `platform`, `batch`, `gamma`; `d` (share of a step), `device_ms` and
        `increment_ms`, what a step takes more than at gamma 0 (ms), each with the ends of its
        interval, `_low` and `_high`; `roofline_ms` (ms) and `roofline_d` (share of a step), which
        know the kernels at one row alone; `microbenchmark` (hash), `exclusions` (words).
    """
    rows = []
    for p, bench in benches.items():
        for n in study.batches:
            without = roofline.roofline_ms(bench, n, 0)
            for g in study.gammas:
                predicted = roofline.roofline_ms(bench, n, g)
                rows.append(
                    {"origin": bench["origin"], "platform": p, "batch": n, "gamma": g}
                    | _estimated("d", roofline.verify_overhead(bench, n, g))
                    | _estimated("device_ms", roofline.device_ms(bench, n, g))
                    | _estimated("increment_ms", roofline.increment_ms(bench, n, g))
                    | {"roofline_ms": predicted, "roofline_d": predicted / without - 1}
                    | {"microbenchmark": bench["hash"], "exclusions": bench.get("exclusions", "")}
                )
    return pd.DataFrame(rows)


def _estimated(name: str, e: roofline.Estimate) -> dict[str, float]:
    return {name: e.value, f"{name}_low": e.low, f"{name}_high": e.high}


def with_verify_overhead(table: pd.DataFrame, d: pd.DataFrame) -> pd.DataFrame:
    """Speculative cells, each with its `d` (share of a step) and `increment_ms` (ms)."""
    where = ["platform", "batch", "gamma"]
    own = d[["origin", *where, "d", "increment_ms"]]
    return merged(table[table["gamma"] > 0], own, on=where)


def rows_from_baselines(table: pd.DataFrame) -> pd.DataFrame:
    """The increment of verifying as baselines alone tell it: no speculative time is looked at.

    A step without drafts of N (gamma + 1) sequences computes as many rows as one that verifies
    gamma + 1 positions of N. Where the grid has no such batch but one below and one above it, the
    step is interpolated between the nearest two; none is extrapolated. Attention reads the keys of
    N (gamma + 1) contexts there, of N in a verify step, and the host serves more sequences: where
    those weigh, the increment is too large.

    Args:
        table: `cells.cells`.

    Returns:
        `origin`, `platform`, `workload`, `batch`, `gamma`, `increment_ms` (ms a step), and
        `from_batches`: the batches whose steps it is made of (words).
    """
    rows = []
    for (platform, workload), own in table.groupby(["platform", "workload"], sort=False):
        base = own[own["gamma"] == 0].sort_values("batch")
        batches, steps = base["batch"].to_numpy(), base["pot_ms"].to_numpy(dtype=float)
        for n in batches:
            for g in sorted({int(x) for x in own["gamma"] if x}):
                verified = n * (g + 1)
                if verified > batches.max():
                    continue
                used = sorted(
                    {n, batches[batches <= verified].max(), batches[batches >= verified].min()}
                )
                step = np.interp(verified, batches, steps)
                rows.append(
                    {"origin": words(base.loc[base["batch"].isin(used), "origin"])}
                    | {"platform": platform, "workload": workload, "batch": n, "gamma": g}
                    | {"increment_ms": step - np.interp(n, batches, steps)}
                    | {"from_batches": " ".join(map(str, used))}
                )
    columns = ["origin", "platform", "workload", "batch", "gamma", "increment_ms", "from_batches"]
    return pd.DataFrame(rows, columns=columns)


def with_calibrated(table: pd.DataFrame, calibrated: pd.DataFrame, d: pd.DataFrame) -> pd.DataFrame:
    """Speculative cells with their d, and calibrated acceptance in the place of their own.

    Returns:
        The columns of `table` and `d`; `alpha`, `coverage`, `beta` (shares), `tau` (tokens per
        step) and `verify_share`, of the batch, are calibrated, the cell's own have `_own` behind
        their names.
    """
    spec = with_verify_overhead(table, d)
    spec = merged(
        spec,
        calibrated[["origin", "workload", "gamma", "alpha", "coverage", "tau", "beta"]],
        on=["workload", "gamma"],
        suffixes=("_own", ""),
    )
    own = table[table["platform"].isin(calibrated["calibrated_on"])]
    where = ["workload", "batch", "gamma"]
    spec = merged(spec, own[["origin", *where, "verify_share"]], on=where, suffixes=("_own", ""))
    # alpha is undefined where nothing was drafted; nothing was accepted either
    return spec.fillna({"alpha": 0.0})


def host_terms(
    study: Study, table: pd.DataFrame, calibrated: pd.DataFrame, d: pd.DataFrame
) -> pd.DataFrame:
    """The refinement `t_ver = t_base (1 + d) + h`: h per decode step, on calibration cells only.

    For each form of the divisor a constant h and h = h0 + h1 gamma are fitted by least squares on
    the relative error of pot; the linear one is taken if its AICc (Hurvich and Tsai, 1989) is
    lower.

    Returns:
        One row per form: `origin`, `form`, `h0_ms` and `h1_ms` (ms per step, and per step and
        drafted token; 0 if constant), `aicc_constant`, `aicc_linear` (numbers), `cells` (number
        fitted), `calibrated_on`.
    """
    name = study.calibration.name
    spec = with_calibrated(table, calibrated, d)
    own = spec[spec["platform"] == name]
    forms: dict[str, tuple[equation.Number, pd.Series]] = {
        "equation": (1.0, own["alpha"] * own["gamma"] + 1),
        "exact_divisor": (own["coverage"], own["tau"]),
    }
    rows = []
    for form, (coverage, divisor) in forms.items():
        h = equation.host_residual_ms(own["pot_ms"], own["t_base_ms"], own["d"], coverage, divisor)
        weight = 1 / (own["pot_ms"] * divisor)
        constant, linear = (
            _fit(np.asarray(h), own["gamma"].to_numpy(), weight.to_numpy(), k) for k in (1, 2)
        )
        chosen = linear if linear[1] < constant[1] else constant
        rows.append(
            {"origin": words(own["origin"]), "form": form}
            | {"h0_ms": chosen[0][0], "h1_ms": chosen[0][1]}
            | {"aicc_constant": constant[1], "aicc_linear": linear[1], "cells": len(own)}
            | {"calibrated_on": name}
        )
    return pd.DataFrame(rows)


def _fit(
    h: Floats, gamma: NDArray[np.int64], weight: Floats, parameters: int
) -> tuple[tuple[float, float], float]:
    """Weighted least squares of h on 1, or on 1 and gamma: (h0, h1) and AICc.

    The criterion is infinite where there are too few cells or draft lengths to tell.
    """
    x = np.vander(gamma.astype(float), parameters, increasing=True) * weight[:, None]
    solution, _, rank, _ = np.linalg.lstsq(x, h * weight, rcond=None)
    left, n, k = float(((h * weight - x @ solution) ** 2).sum()), len(h), parameters + 1
    h0, h1 = (*solution, 0.0)[:2]
    if rank < parameters or n <= k + 1 or left <= 0:
        return (float(h0), float(h1)), np.inf
    return (float(h0), float(h1)), n * np.log(left / n) + 2 * k + 2 * k * (k + 1) / (n - k - 1)
