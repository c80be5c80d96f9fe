"""Records to tables: repetitions, cells with intervals, acceptance, predictions, errors.

Pure functions of data frames. The calibration platform's cells are the only source of alpha,
coverage, tau, beta and the transferred speedups; a held-out platform gives its baseline and
its own d, nothing else.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from . import equation, roofline
from .errors import SpecamortError
from .gpu import marks
from .study import Study

CELL = ["platform", "workload", "batch", "gamma"]
COUNTS = ["drafts", "drafted", "accepted", "decode_steps", "decode_tokens"]
# Predictors that took a time from the calibration platform's own cells: no test of them there.
FITTED = [
    *("ratio_transfer", "ratio_transfer_batch", "timing_alpha"),
    *("equation_host", "exact_divisor_host"),
]
RESAMPLES = 1000
LEVEL = 0.95


def words(values: Iterable[str]) -> str:
    """The different words in `values`, one each: what rows made of several are marked with."""
    return " ".join(sorted({w for v in values if v == v for w in v.split()}))


def not_measured(frames: Iterable[pd.DataFrame]) -> str:
    """The origins of the frames' rows other than `measured`; empty if all were measured."""
    return words(w for f in frames for o in f["origin"] for w in o.split() if w != "measured")


def merged(one: pd.DataFrame, other: pd.DataFrame, on: list[str], **how) -> pd.DataFrame:
    """A merge whose rows carry the origins of both sides."""
    both = one.merge(other.rename(columns={"origin": "origin_other"}), on=on, **how)
    pairs = zip(both["origin"], both.pop("origin_other"), strict=True)
    return both.assign(origin=[words(pair) for pair in pairs])


def device_marks(record: dict) -> str:
    """`gpu.marks` of a record as one word or two; empty if it is quiet or says nothing."""
    return " ".join(marks(record.get("device_state")))


def repetitions(records: Iterable[dict]) -> pd.DataFrame:
    """One row per repetition of the timing records, warm-ups included and marked.

    `pot_ms` is the mean over the repetition's sequences of (last - first token) / (tokens - 1).
    `marks` says whether the device was throttled or shared (see `gpu.marks`); `left_out` holds
    for a marked cell, and for every cell of a block whose own baseline is marked.
    """
    rows = []
    for r in records:
        head = {
            "origin": r["origin"],
            **r["cell"],
            "block": r["block"]["id"],
            "device": r["provenance"]["device"]["name"],
            "device_uuid": r["provenance"]["device"]["uuid"],
            "host": r["provenance"]["host"],
            "job_id": r["provenance"]["job_id"],
            "marks": device_marks(r),
        }
        for run in r["repetitions"]:
            sequences, counters = run["sequences"], run["counters"]
            per_pos = counters["accepted_per_pos"]
            rows.append(
                head
                | {
                    "repetition": run["index"],
                    "warmup": run["warmup"],
                    "pot_ms": sum(s["pot_ms"] for s in sequences) / len(sequences),
                    "decode_tokens": sum(s["tokens"] - 1 for s in sequences),
                    "decode_steps": run["decode_steps"],
                    "engine_steps": counters["engine_steps"],
                    "drafts": counters["drafts"],
                    "drafted": counters["drafted"],
                    "accepted": counters["accepted"],
                    "accepted_first": per_pos[0] if per_pos else 0,
                    "text_sha256": "+".join(s["sha256"][:8] for s in sequences),
                }
            )
    reps = pd.DataFrame(rows)
    marked = reps["marks"] != ""
    block = pd.MultiIndex.from_frame(reps[["platform", "replicate", "workload", "batch"]])
    reps["left_out"] = marked | block.isin(block[marked & (reps["gamma"] == 0)])
    return reps


def cells(reps: pd.DataFrame, seed: int) -> pd.DataFrame:
    """One row per cell: median pot, speedup over the block's own baseline, counters, intervals.

    A block's value is the median over its timed repetitions; a cell's is the median over
    blocks. Intervals are percentile bootstraps that resample blocks, then repetitions in them.

    Raises:
        SpecamortError: all blocks of a cell are left out.
    """
    timed = counted(reps)
    kept = pd.MultiIndex.from_frame(timed[CELL])
    empty = reps[~pd.MultiIndex.from_frame(reps[CELL]).isin(kept)]
    if len(empty):
        platform, workload, batch, gamma = empty.iloc[0][CELL]
        raise SpecamortError(
            f"{empty[CELL].drop_duplicates().shape[0]} cells were throttled or shared in every "
            f"block, or their baseline was ({platform} {workload}-n{batch}-g{gamma} first); run "
            "`specamort remeasure` and then the study again"
        )
    medians = timed.groupby([*CELL, "replicate"])["pot_ms"].median().rename("block_pot_ms")
    by_block = medians.reset_index()
    base = by_block[by_block["gamma"] == 0].drop(columns="gamma")
    by_block = by_block.merge(
        base, on=["platform", "workload", "batch", "replicate"], suffixes=("", "_base")
    )
    by_block["speedup"] = by_block["block_pot_ms_base"] / by_block["block_pot_ms"]
    value = by_block.groupby(CELL).agg(
        pot_ms=("block_pot_ms", "median"),
        t_base_ms=("block_pot_ms_base", "median"),
        speedup=("speedup", "median"),
        blocks=("replicate", "nunique"),
    )
    counts = timed.groupby(CELL)[[*COUNTS, "accepted_first"]].sum()
    repeated = timed.groupby(CELL).agg(origin=("origin", words), timed=("pot_ms", "size"))
    left_out = reps[reps["left_out"]].groupby(CELL)["replicate"].nunique().rename("blocks_left_out")
    table = repeated.join([value, counts, _intervals(timed, seed), left_out]).reset_index()
    table["blocks_left_out"] = table["blocks_left_out"].fillna(0).astype(int)
    return pd.concat([table, ratios(table)], axis=1)


def counted(reps: pd.DataFrame) -> pd.DataFrame:
    """The repetitions that medians rest on."""
    return reps[~reps["warmup"] & ~reps["left_out"]]


def ratios(counts: pd.DataFrame) -> pd.DataFrame:
    """alpha, coverage, tau and beta of rows that hold counters; NaN without a draft."""
    drafted, drafts = counts["drafted"].replace(0, np.nan), counts["drafts"].replace(0, np.nan)
    return pd.DataFrame(
        {
            "alpha": counts["accepted"] / drafted,
            "coverage": counts["drafts"] / counts["decode_steps"],
            "tau": counts["decode_tokens"] / counts["decode_steps"],
            "beta": counts["accepted_first"] / drafts,
        }
    )


def _intervals(timed: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Bootstrap intervals of pot and speedup, per cell."""
    rows = [
        dict(zip(CELL, cell, strict=True))
        | _bounds("pot_ms", np.median(pot, axis=1))
        | _bounds("speedup", np.median(base / pot, axis=1))
        for cell, pot, base in _draws(timed, seed)
    ]
    return pd.DataFrame(rows).set_index(CELL)


def _draws(timed: pd.DataFrame, seed: int) -> Iterator[tuple[tuple, np.ndarray, np.ndarray]]:
    """By cell, resampled blocks' pot and baseline: arrays of RESAMPLES x blocks.

    Blocks are drawn with replacement, repetitions within them; a block's baseline is its own.
    """
    rng = np.random.default_rng(seed)
    draws: dict[tuple, dict[int, np.ndarray]] = {}
    for (*cell, replicate), g in timed.groupby([*CELL, "replicate"]):
        blocks = draws.setdefault(tuple(cell), {})
        blocks[replicate] = _resampled_median(g["pot_ms"].to_numpy(), rng)
    draw = np.arange(RESAMPLES)[:, None]
    for cell, spec in draws.items():
        own = draws.get((*cell[:-1], 0), {})
        paired = sorted(spec.keys() & own.keys())
        if not paired:
            continue
        chosen = rng.integers(len(paired), size=(RESAMPLES, len(paired)))
        pot = np.stack([spec[r] for r in paired], axis=1)[draw, chosen]
        base = np.stack([own[r] for r in paired], axis=1)[draw, chosen]
        yield cell, pot, base


def _resampled_median(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.median(values[rng.integers(values.size, size=(RESAMPLES, values.size))], axis=1)


def _bounds(name: str, draws: np.ndarray) -> dict:
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {f"{name}_low": low, f"{name}_high": high}


def acceptance(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Calibrated per (workload, gamma) on the calibration platform alone, pooled over batches.

    Adds the declared band and whether the counter's alpha is inside it.
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


def overheads(study: Study, benches: dict[str, dict]) -> pd.DataFrame:
    """d(gamma) per platform, batch and gamma, from each platform's microbenchmark.

    Args:
        benches: by platform, the microbenchmark with its record's `origin` and, where the device
            was throttled or shared, `marks`.
    """
    return pd.DataFrame(
        [
            {
                "origin": bench["origin"],
                "platform": p,
                "batch": n,
                "gamma": g,
                "d": roofline.verify_overhead(bench, n, g),
                "microbenchmark": bench["hash"],
                "marks": bench.get("marks", ""),
            }
            for p, bench in benches.items()
            for n in study.batches
            for g in study.gammas
        ]
    )


def _with_overheads(table: pd.DataFrame, d: pd.DataFrame) -> pd.DataFrame:
    """Speculative cells, each with its d."""
    where = ["platform", "batch", "gamma"]
    return merged(table[table["gamma"] > 0], d[["origin", *where, "d"]], on=where)


def _with_calibrated(
    table: pd.DataFrame, calibrated: pd.DataFrame, d: pd.DataFrame
) -> pd.DataFrame:
    """Speculative cells with the calibrated acceptance in the place of their own."""
    spec = _with_overheads(table, d)
    spec = merged(
        spec,
        calibrated[["origin", "workload", "gamma", "alpha", "coverage", "tau", "beta"]],
        on=["workload", "gamma"],
        suffixes=("_own", ""),
    )
    # alpha is undefined where nothing was drafted; nothing was accepted either
    return spec.fillna({"alpha": 0.0})


def host_terms(
    study: Study, table: pd.DataFrame, calibrated: pd.DataFrame, d: pd.DataFrame
) -> pd.DataFrame:
    """The refinement `t_ver = t_base (1 + d) + h`: h per decode step, on calibration cells only.

    For each form of the divisor a constant h and h = h0 + h1 gamma are fitted by least squares on
    the relative error of pot; the linear one is taken if its AICc (Hurvich and Tsai, 1989) is
    lower. One row per form: `h0_ms`, `h1_ms` (0 if constant), both criteria, what it saw.
    """
    name = study.calibration.name
    spec = _with_calibrated(table, calibrated, d)
    own = spec[spec["platform"] == name]
    forms = {
        "equation": (1.0, own["alpha"] * own["gamma"] + 1),
        "exact_divisor": (own["coverage"], own["tau"]),
    }
    rows = []
    for form, (coverage, divisor) in forms.items():
        h = equation.host_residual_ms(own["pot_ms"], own["t_base_ms"], own["d"], coverage, divisor)
        weight = 1 / (own["pot_ms"] * divisor)
        constant, linear = (
            _fit(h.to_numpy(), own["gamma"].to_numpy(), weight.to_numpy(), k) for k in (1, 2)
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
    h: np.ndarray, gamma: np.ndarray, weight: np.ndarray, parameters: int
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


def predictions(
    study: Study,
    table: pd.DataFrame,
    calibrated: pd.DataFrame,
    d: pd.DataFrame,
    host: pd.DataFrame,
) -> pd.DataFrame:
    """Every speculative cell under every predictor, with the signed error in percent.

    Rows of the calibration platform are a consistency check; rows of the others are held out.

    `ratio_transfer` is the study's: one measured speedup of the calibration platform per workload
    and gamma. The study does not say how it pools batches; here it is the median of the batches'
    speedups, which like every other value of a cell is a median, gives each batch one vote where
    a ratio of pooled times would favour the slower batch, and is the mean for the study's two.
    `ratio_transfer_batch` takes the speedup of the cell's own batch.

    Args:
        host: `host_terms`.
    """
    name = study.calibration.name
    spec = _with_calibrated(table, calibrated, d)
    base, over, gamma, alpha = spec["t_base_ms"], spec["d"], spec["gamma"], spec["alpha"]
    beta = _first_beta(calibrated, spec["workload"])
    terms = host.set_index("form")
    h = {f: terms.loc[f, "h0_ms"] + terms.loc[f, "h1_ms"] * gamma for f in terms.index}
    key = ["workload", "batch", "gamma"]
    reference = spec[spec["platform"] == name].set_index(key)
    lookup = pd.MultiIndex.from_frame(spec[key])
    timing = equation.alpha_from_timing(
        reference["pot_ms"],
        reference["t_base_ms"],
        reference["d"],
        reference.index.get_level_values("gamma"),
    )
    timing = timing.groupby(["workload", "gamma"]).mean()
    over_batches = pd.MultiIndex.from_frame(spec[["workload", "gamma"]])
    spec["alpha_timing"] = timing.reindex(over_batches).to_numpy()
    pooled = reference["speedup"].groupby(["workload", "gamma"]).median()
    predicted = {
        "equation": equation.pot(base, over, alpha, gamma),
        "exact_divisor": equation.pot_exact_divisor(base, over, spec["coverage"], spec["tau"]),
        "equation_host": equation.pot_host(base, over, h["equation"], 1, alpha * gamma + 1),
        "exact_divisor_host": equation.pot_host(
            base, over, h["exact_divisor"], spec["coverage"], spec["tau"]
        ),
        "acceptance_blind": equation.pot_acceptance_blind(base, over, gamma),
        "geometric": [
            equation.pot_geometric(*x) for x in zip(base, over, beta, gamma, strict=True)
        ],
        "ratio_transfer": equation.pot_ratio_transfer(
            base, pooled.reindex(over_batches).to_numpy()
        ),
        "ratio_transfer_batch": equation.pot_ratio_transfer(
            base, reference["speedup"].reindex(lookup).to_numpy()
        ),
        "timing_alpha": equation.pot(base, over, spec["alpha_timing"], gamma),
    }
    kept = ["origin", *key, "platform", "t_base_ms", "d", "pot_ms", "pot_ms_low", "pot_ms_high"]
    long = pd.concat([spec[kept].assign(predictor=k, predicted_ms=v) for k, v in predicted.items()])
    long["held_out"] = long["platform"] != name
    long["calibrated_on"] = name
    long["error_pct"] = equation.percentage_error(long["predicted_ms"], long["pot_ms"])
    circular = long["predictor"].isin(FITTED) & ~long["held_out"]
    return long[~circular].reset_index(drop=True)


def _first_beta(calibrated: pd.DataFrame, workloads: pd.Series) -> list[float]:
    """One beta per workload, from the smallest gamma: geometric acceptance knows no other."""
    first = calibrated.sort_values("gamma").groupby("workload")["beta"].first().fillna(0)
    return [first[w] for w in workloads]


def errors(predicted: pd.DataFrame) -> pd.DataFrame:
    """Mean absolute, maximum and mean signed percentage error, by predictor and workload.

    Over the held-out cells, and over all cells for those predictors that exist for all.
    """
    everywhere = predicted["predictor"].isin(predicted.loc[~predicted["held_out"], "predictor"])
    sets = pd.concat(
        [
            predicted[everywhere].assign(cells_of="all"),
            predicted[predicted["held_out"]].assign(cells_of="held out"),
        ]
    )
    return (
        pd.concat([sets, sets.assign(workload="all")])
        .groupby(["cells_of", "predictor", "workload"])
        .agg(
            origin=("origin", words),
            cells=("error_pct", "size"),
            mape_pct=("error_pct", lambda e: e.abs().mean()),
            max_pct=("error_pct", lambda e: e.abs().max()),
            signed_pct=("error_pct", "mean"),
        )
        .reset_index()
    )


def host_residuals(
    reps: pd.DataFrame, table: pd.DataFrame, d: pd.DataFrame, floors: pd.DataFrame, seed: int
) -> pd.DataFrame:
    """h per decode step of every speculative cell, from its own counters (a diagnosis).

    With its bootstrap interval, and in percent of two traced host times (ms): `floor_ms`, the
    study's, one for every platform, and `own_floor_ms`, the platform's own at the study's context.

    Args:
        floors: `decomposition.floors`.
    """
    spec = merged(_with_overheads(table, d), floors, on=["platform"])
    modelled = (spec["d"], spec["coverage"], spec["tau"])
    spec["host_residual_ms"] = equation.host_residual_ms(
        spec["pot_ms"], spec["t_base_ms"], *modelled
    )
    given = spec.set_index(CELL)[["d", "coverage", "tau"]]
    bounds = [
        dict(zip(CELL, cell, strict=True))
        | _bounds(
            "host_residual_ms",
            np.median(equation.host_residual_ms(pot, base, *given.loc[cell]), axis=1),
        )
        for cell, pot, base in _draws(counted(reps), seed)
        if cell in given.index
    ]
    spec = spec.merge(pd.DataFrame(bounds), on=CELL)
    shares = ["floor_ms", "of_floor_pct", "own_floor_ms", "of_own_floor_pct"]
    for floor, share in (shares[:2], shares[2:]):
        spec[share] = 100 * spec["host_residual_ms"] / spec[floor]
    kept = ["origin", *CELL, "t_base_ms", "d", "coverage", "tau", "pot_ms", "host_residual_ms"]
    return spec[[*kept, "host_residual_ms_low", "host_residual_ms_high", *shares]]


def timing_alpha(table: pd.DataFrame, d: pd.DataFrame) -> pd.DataFrame:
    """Equation (1) inverted per platform: the study's figure 5, a cross-check only.

    Means over batch sizes; `_low` and `_high` come from the ends of pot's interval.
    """
    spec = _with_overheads(table, d)
    for name, pot in (("", "pot_ms"), ("_low", "pot_ms_high"), ("_high", "pot_ms_low")):
        spec[f"alpha_timing{name}"] = equation.alpha_from_timing(
            spec[pot], spec["t_base_ms"], spec["d"], spec["gamma"]
        )
    means = ["alpha_timing", "alpha_timing_low", "alpha_timing_high", "alpha"]
    by_gamma = spec.groupby(["platform", "workload", "gamma"])
    table = by_gamma["origin"].agg(words).to_frame().join(by_gamma[means].mean())
    return table.reset_index()


def counter_agreement(table: pd.DataFrame, records: Iterable[dict]) -> pd.DataFrame:
    """In-line alpha beside the untimed counter runs', and the counting error between them.

    `z` is the difference over its binomial standard error (one draft token, one trial); `marks`
    are the counter run's.
    """
    rows = [
        {k: r["cell"][k] for k in CELL}
        | {"origin": r["origin"], "marks": device_marks(r)}
        | {k: sum(x["counters"][k] for x in r["repetitions"]) for k in ("drafted", "accepted")}
        for r in records
    ]
    both = merged(table, pd.DataFrame(rows), on=CELL, suffixes=("", "_counter_run"))
    out = both[["origin", *CELL, "alpha"]].copy()
    out["alpha_counter_run"] = both["accepted_counter_run"] / both["drafted_counter_run"]
    n, m = both["drafted"], both["drafted_counter_run"]
    p = (both["accepted"] + both["accepted_counter_run"]) / (n + m)
    error = np.sqrt(p * (1 - p) * (1 / n + 1 / m))
    gap = out["alpha"] - out["alpha_counter_run"]
    out["z"] = np.where(gap == 0, 0.0, gap / error.where(error > 0))
    out["agree"] = out["z"].abs() <= 3
    out["marks"] = both["marks"]
    return out


def reading_cost(on: dict, off: dict) -> dict:
    """Step time with the engine's statistics on over off, minus one, in percent, with interval."""
    pots = {}
    for name, r in (("on", on), ("off", off)):
        pots[name] = np.array(
            [
                np.mean([s["arrival_pot_ms"] for s in run["sequences"]])
                for run in r["repetitions"]
                if not run["warmup"]
            ]
        )
    rng = np.random.default_rng(0)
    ratio = 100 * (_resampled_median(pots["on"], rng) / _resampled_median(pots["off"], rng) - 1)
    return {
        "origin": words([on["origin"], off["origin"]]),
        "pot_on_ms": float(np.median(pots["on"])),
        "pot_off_ms": float(np.median(pots["off"])),
        "cost_pct": float(100 * (np.median(pots["on"]) / np.median(pots["off"]) - 1)),
        **{k: float(v) for k, v in _bounds("cost_pct", ratio).items()},
        "marks": words(map(device_marks, (on, off))),
    }


def divergence(records: Iterable[dict]) -> pd.DataFrame:
    """Where a greedy text at gamma first differs from its block's text at gamma 0.

    One row per sequence; `first_difference` is a token index, NaN where the texts agree as far
    as both go. Sampled workloads are left out: their texts may differ.
    """
    texts = {}
    for r in records:
        if r["settings"]["workload"]["sampling"].get("temperature", 0) == 0:
            timed = next(x for x in r["repetitions"] if not x["warmup"])
            where = tuple(r["cell"][k] for k in ("platform", "replicate", "workload", "batch"))
            texts[where, r["cell"]["gamma"]] = r["origin"], timed.get("token_ids", [])
    rows = []
    for (where, gamma), (origin, ids) in texts.items():
        if gamma == 0 or (where, 0) not in texts:
            continue
        base_origin, base_ids = texts[where, 0]
        for i, (a, b) in enumerate(zip(base_ids, ids, strict=False)):
            first = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
            rows.append((words([origin, base_origin]), *where, gamma, i, len(b), first))
    columns = [
        *("origin", "platform", "replicate", "workload", "batch", "gamma"),
        *("sequence", "tokens", "first_difference"),
    ]
    return pd.DataFrame(rows, columns=columns)
