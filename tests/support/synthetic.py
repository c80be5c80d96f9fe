"""Records of a study that was never run: every number obeys the equation, and says so.

They are marked `origin: synthetic`; the tables, figures and report carry the word.
"""

import random
from collections import Counter
from math import ceil

from specamort.model import draws, equation
from specamort.model.roofline import Shape, bound_ms, costs, point
from specamort.study import layout
from specamort.study.grid import Cell, DialCell, Study, TraceCell, told
from specamort.study.settings import digest

SHAPE = Shape(hidden=64, intermediate=128, layers=2, heads=4, kv_heads=2, head_dim=16, vocab=256)
BANDWIDTH, PEAK = 1e10, 1e11


def microbenchmark(study: Study, context: int | None = None) -> dict:
    """A device at 50% of its roofline in every kernel."""
    context = context or study.context_tokens

    def kinds(n: int, g: int) -> dict[str, float]:
        parts = costs(SHAPE, n, g, context, 2)
        return {k: 2 * bound_ms(*cost, BANDWIDTH, PEAK) for k, cost in parts.items()}

    points = [(n, g) for n in study.batches for g in study.gammas]
    rounds = 3
    measured = {
        "shape": vars(SHAPE),
        "itemsize": 2,
        "context": context,
        "seed": study.seed,
        "order": [[point(*p) for p in points]] * rounds,
        "bandwidth": BANDWIDTH,
        "peak": PEAK,
        "one_row_ms": kinds(1, 0),
        "passes": [
            {"batch": n, "gamma": g, "passes_per_sample": 1}
            | {"samples_ms": [sum(kinds(n, g).values())] * rounds}
            for n, g in points
        ],
        "seconds": 1.0,
        "visits": 1,
    }
    return measured | {"hash": digest(measured)}


def provenance(study: Study, platform: str, uuid: str | None = None) -> dict:
    return {
        "config_hash": "0" * 16,
        "code_version": "synthetic",
        "code_hash": "synthetic",
        "packages": "synthetic",
        "nsys": None,
        "vllm": "none",
        "torch": "none",
        "cuda": None,
        "device": {"name": f"synthetic {platform}", "uuid": uuid or f"uuid-{platform}"},
        "driver": "none",
        "host": "nowhere",
        "job_id": None,
        "clocks_mhz": {},
        "started": "2026-01-01T00:00:00+00:00",
        "finished": "2026-01-01T00:01:00+00:00",
    }


def reading(**changed) -> dict:
    """A quiet GPU, as NVML would tell it."""
    return {
        "clocks_mhz": {"sm": 1980, "memory": 2619},
        "power_cap_w": 700.0,
        "temperature_c": 41,
        "throttle_reasons": 0,
        "throttled_ns": {"power": 0, "thermal": 0},
        "at_ns": 0,
        "other_processes": [],
    } | changed


ENGINE = {
    "model_runner": "v1",
    "runner_class": "synthetic",
    "drafter": "synthetic",
    "attention_backend": "synthetic",
    "cudagraph_mode": "NONE",
    "environment": {},
}


def repetition(
    index: int, warmup: bool, batch: int, gamma: int, pot_ms: float, alpha: float, tokens: int = 106
) -> dict:
    """A repetition whose every step has a full draft, `alpha` of it accepted on average."""
    steps = ceil((tokens - 1) / (alpha * gamma + 1))
    drafts = steps * batch if gamma else 0
    accepted = [round(drafts * alpha)] * gamma
    return {
        "index": index,
        "warmup": warmup,
        "seed": None,
        "sequences": [
            {"tokens": tokens, "pot_ms": pot_ms, "arrival_pot_ms": pot_ms, "sha256": "0" * 64}
            for _ in range(batch)
        ],
        "decode_steps": steps * batch,
        "step_drafts": [batch if gamma else 0] * steps,
        "visit": "0" * 32,
        "counters": {
            "engine_steps": steps + 1,
            "drafts": drafts,
            "drafted": drafts * gamma,
            "accepted": sum(accepted),
            "accepted_per_pos": accepted,
        },
        "token_ids": [list(range(tokens))] * batch,
    }


def timing(
    study: Study,
    platform: str,
    replicate: int,
    cell: Cell,
    d: float,
    noise: float = 0.0,
    t_base: float = 10.0,
) -> dict:
    """One timing record that equation (1) fits exactly when `noise` is 0."""
    alpha = 1.0 if study.workloads[cell.workload].kind == "repeat" else 0.0
    pot = equation.pot(t_base, d, alpha, cell.gamma)
    rng = random.Random(f"{platform}-{replicate}-{cell}")
    tokens = study.tokens_to_generate(cell.gamma)
    runs = [
        repetition(
            *(i, i < study.warmup, cell.batch, cell.gamma),
            *(pot * (1 + noise * rng.gauss(0, 1)), alpha, tokens),
        )
        for i in range(study.warmup + study.repetitions)
    ]
    for run in runs[: study.warmup] + runs[study.warmup + 1 :]:
        del run["token_ids"]  # the engine's job keeps one copy of the texts
    settings = study.timing_settings(platform, cell)
    visits = {}
    if cell.gamma == 0:
        runs = [
            run | {"when": when, "index": i}
            for i, (when, run) in enumerate((w, r) for w in ("first", "last") for r in runs)
        ]
        now = {k: provenance(study, platform)[k] for k in ("started", "finished")}
        now |= {"visit": "0" * 32, "device_state": {"before": None, "after": None}}
        visits = {"visits": [now | {"when": when} for when in ("first", "last")]}
    return visits | {
        "schema_version": 3,
        "kind": "timing",
        "origin": "synthetic",
        "study": study.name,
        "cell": {"platform": platform, "replicate": replicate, **told(cell)},
        "settings": settings,
        "settings_hash": digest(settings),
        "provenance": provenance(study, platform),
        "block": {"id": f"{platform}-{replicate}", "seed": "0", "gamma_order": list(study.gammas)},
        "prompt": {
            "tokens": settings["context_tokens"],
            "sha256": [f"{platform}-{replicate}-{i}" for i in range(cell.batch)],
        },
        "engine": ENGINE,
        "repetitions": runs,
    }


def without_statistics(timed: dict) -> dict:
    """The record of the same cell with the engine's statistics off."""
    runs = [
        run
        | {"counters": None, "step_drafts": None}
        | {"sequences": [s | {"pot_ms": None} for s in run["sequences"]]}
        for run in timed["repetitions"]
    ]
    return timed | {"repetitions": runs}


def trace(study: Study, platform: str, cell: TraceCell, d: float, t_base: float) -> dict:
    """A traced cell: 60% of the baseline's step is device time, of which d more is verifying."""
    tokens = study.trace_tokens(cell.gamma)
    rows = cell.batch * (cell.gamma + 1)
    device, host = 0.6 * t_base * (1 + d), 0.4 * t_base
    families = {"gemm": 0.9 * device, "attention": 0.1 * device}

    def run(steps: int, traced: bool) -> dict:
        seen = {
            "tracer": study.tracing.tracer,
            "steps": steps,
            "step_tokens": [rows] * steps,
            "busy_ms": steps * device,
            "sum_ms": steps * device,
            "family_ms": {k: steps * v for k, v in families.items()},
            "events": steps,
        }
        wall = steps * (device + host)
        return {"decode_steps": steps, "wall_ms": wall, "trace": seen if traced else None}

    lengths = [(t - 1) // (cell.gamma + 1) for t in tokens]
    pair = {
        "untraced": [run(n, False) for n in lengths],
        "traced": [run(n, True) for n in lengths],
    }
    settings = study.trace_settings(platform, cell)
    return {
        "schema_version": 3,
        "kind": "trace",
        "origin": "synthetic",
        "study": study.name,
        "settings": settings,
        "settings_hash": digest(settings),
        "provenance": provenance(study, platform),
        "engine": ENGINE,
        "trace": {
            "platform": platform,
            **told(cell),
            "weights": study.models[cell.model].weights,
            "tracer": study.tracing.tracer,
            "tokens_per_step": rows,
            "pairs": [pair] * study.tracing.pairs,
        },
    }


def dial(
    study: Study,
    platform: str,
    cell: DialCell,
    d: dict[int, float],
    noise: float = 0.0,
    t_base: float = 10.0,
    machinery: float = 0.0,
) -> dict:
    """A dial record whose steps take what the equation says, whatever is accepted.

    Args:
        d: the verify overhead of every draft length.
        machinery: what a step of an engine that could speculate takes more, as a share of t_base.
    """
    batch = cell.batch
    rng = random.Random(f"{platform}-{batch}")
    idle = draws.Dialled(0, None, None)
    runs: list[dict] = []

    def add(engine: str, warmup: bool, asked: draws.Dialled) -> None:
        gamma, tokens = asked.gamma, study.tokens_to_generate(asked.gamma)
        lot = random.Random(f"{batch}-{asked}-{len(runs)}")
        lengths = draws.lengths(asked, tokens, lot)
        steps = len(lengths) if gamma else tokens - 1
        over = machinery + d.get(gamma, 0.0) if engine == "dial" else 0.0
        pot = t_base * (1 + over) * (1 + noise * rng.gauss(0, 1)) * steps / (tokens - 1)
        one = repetition(len(runs), warmup, batch, gamma, pot, 0.0, tokens)
        drafts = batch * len(lengths)
        by = [batch * sum(n > i for n in lengths) for i in range(gamma)]
        one |= {"decode_steps": steps * batch, "visit": "0" * 32, "engine": engine}
        one["step_drafts"] = [batch if gamma else 0] * steps
        one |= {**asked._asdict(), "lengths": lengths}
        one["counters"] |= {
            "engine_steps": steps + 1,
            "drafts": drafts,
            "drafted": drafts * gamma,
            "accepted": sum(by),
            "accepted_per_pos": by,
        }
        runs.append(one)

    def without() -> None:
        for i in range(study.warmup + study.dial.repetitions):
            add("plain", i < study.warmup, idle)

    without()
    for _ in range(study.dial.repetitions):
        for asked in study.dialled:
            add("dial", False, asked)
    without()
    kept = Counter()
    for run in runs:
        kept[run["engine"], run["gamma"]] += not run["warmup"]
        if run["warmup"] or kept[run["engine"], run["gamma"]] > 1:
            del run["token_ids"]
    settings = study.dial_settings(platform, cell)
    return {
        "schema_version": 3,
        "kind": "dial",
        "origin": "synthetic",
        "study": study.name,
        "settings": settings,
        "settings_hash": digest(settings),
        "provenance": provenance(study, platform),
        "dial": {
            "platform": platform,
            **told(cell),
            "text_runs": {str(g): 2 for g in study.gammas},
        },
        "prompt": {
            "tokens": settings["context_tokens"],
            "sha256": [f"{platform}-0-{i}" for i in range(batch)],
        },
        "engine": ENGINE,
        "repetitions": runs,
    }


def write_study(study: Study, results, noise: float = 0.0) -> None:
    """Every record that the study's measuring rules would have written."""
    from specamort.analysis import calibration
    from specamort.records import record

    bench = microbenchmark(study)
    d = calibration.verify_overhead(
        study, dict.fromkeys(study.platforms, bench | {"origin": "synthetic"})
    )
    d = d.set_index(["platform", "batch", "gamma"])["d"]
    for i, p in enumerate(study.platforms):
        for name, context in study.benched.items():
            record.write(
                layout.folder(results, "microbench", p) / f"{name}.json",
                {
                    "kind": "microbenchmark",
                    "origin": "synthetic",
                    "study": study.name,
                    "settings": (wanted := study.microbench_settings(p, name)),
                    "settings_hash": digest(wanted),
                    "provenance": provenance(study, p),
                    "microbenchmark": microbenchmark(study, context),
                },
            )
        for c in study.cells:
            over = float(d[p, c.batch, c.gamma])
            for r in range(study.replicates):
                one = timing(study, p, r, c, over, noise, t_base=10.0 - i)
                record.write(layout.folder(results, "measure", p, r) / f"{c}.json", one)
            if study.platforms[p].role == "calibration" and c.gamma:
                wanted = study.counter_settings(p, c)
                counted = {
                    "kind": "counter_run",
                    "settings": wanted,
                    "settings_hash": digest(wanted),
                }
                first = timing(study, p, 0, c, over, noise, t_base=10.0 - i)
                record.write(
                    layout.folder(results, "counter_run", p) / f"{c}.json", first | counted
                )
        for c in study.dial_cells:
            over = {g: float(d[p, c.batch, g]) for g in study.gammas if g}
            record.write(
                layout.folder(results, "dial", p) / f"{c}.json",
                dial(study, p, c, over, noise, t_base=10.0 - i),
            )
        for c in study.trace_cells:
            over = float(d.get((p, c.batch, c.gamma), 0.0))
            record.write(
                layout.folder(results, "trace", p) / f"{c}.json",
                trace(study, p, c, over, t_base=10.0 - i),
            )
        if study.platforms[p].role == "calibration":
            c = study.reading_cost_cell
            one = timing(study, p, 0, c, float(d[p, c.batch, c.gamma]), noise)
            for state, measured in (("on", one), ("off", without_statistics(one))):
                record.write(
                    layout.folder(results, "reading_cost", p) / f"{state}.json",
                    measured | {"kind": "reading_cost"},
                )


def write_self_checks(study: Study) -> None:
    """A passed self-check of every platform that has one, in the study's results."""
    from specamort.records import record

    for p in study.self_checked:
        settings = study.self_check_settings(p)
        record.write(
            layout.folder(study.results, "self_check", p) / "passed.json",
            {
                "kind": "self_check",
                "origin": "synthetic",
                "study": study.name,
                "settings": settings,
                "settings_hash": digest(settings),
                "provenance": provenance(study, p),
                "self_check": {"platform": p, "checks": [{"what": "nothing", "fix": None}]},
            },
        )
