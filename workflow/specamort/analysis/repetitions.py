"""Timing records to one row per repetition, with what is left out."""

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd

from ..errors import SpecamortError
from ..records.exclusions import record_exclusions, run_exclusions
from ..records.types import Counters, Record, Repetition
from .origins import words

CELL = ["platform", "workload", "batch", "gamma"]
# what a cell and its baseline have in common
PAIR = ["platform", "replicate", "workload", "batch", "visit"]
COUNTS = ["drafts", "drafted", "accepted", "decode_steps", "decode_tokens"]


def device_exclusions(record: Record) -> str:
    """A record's `exclusions` as one word or two; empty if its device was quiet, or tells nothing.

    See `records.exclusions`.
    """
    return " ".join(record_exclusions(record))


def run_counters(run: Repetition) -> Counters:
    """Of a run with the engine's statistics on: all but those of the reading cost's second half."""
    counters = run["counters"]
    assert counters is not None
    return counters


def repetitions(records: Iterable[Record]) -> pd.DataFrame:
    """One row per repetition of the timing records, warm-ups included.

    Returns:
        `origin`, the cell and `replicate`; `block`, `device`, `device_uuid`, `host`, `job_id`;
        `visit` (id), `when` (first or last in its visit, of a baseline; else empty);
        `exclusions` (words: throttled, shared); `repetition` (number), `warmup`;
        `pot_ms` (ms): mean over the sequences of (last - first token) / (tokens - 1);
        `decode_tokens`, `drafted`, `accepted` (tokens), `decode_steps` (steps), `drafts`, and
            `accepted_first` (drafts whose first token was accepted), summed over the sequences;
        `engine_steps` (steps of the whole batch, prefill included), `verify_steps`: those in which
            at least one sequence's draft was verified, NaN where the engine was not asked;
        `draft_ms`: what a step's drafts took, of warm-ups only; NaN where they were not timed;
        `text_sha256`; `left_out`: the cell has exclusions, or a baseline of its visit has.

    Raises:
        SpecamortError: a cell has no baseline of its own visit.
    """
    rows = []
    for r in records:
        head = {
            "origin": r["origin"],
            **{k: r["cell"][k] for k in ("platform", "replicate", "workload", "batch", "gamma")},
            "block": r["block"]["id"],
            "device": r["provenance"]["device"]["name"],
            "device_uuid": r["provenance"]["device"]["uuid"],
            "host": r["provenance"]["host"],
            "job_id": r["provenance"]["job_id"],
        }
        for run, marks in zip(r["repetitions"], run_exclusions(r), strict=True):
            about = {"visit": run.get("visit", ""), "when": run.get("when", "")}
            about["exclusions"] = " ".join(marks)
            rows.append(head | about | _counted_run(run))
    reps = pd.DataFrame(rows)
    marked = reps["exclusions"] != ""
    block = pd.MultiIndex.from_frame(reps[PAIR])
    alone = ~block.isin(block[reps["gamma"] == 0])
    if alone.any():
        platform, replicate, workload, batch, _ = block[alone][0]
        raise SpecamortError(
            f"{platform}, replicate {replicate}: {workload}-n{batch} has cells whose visit left no "
            "gamma 0 to compare them with; run `specamort remeasure` and then the study again"
        )
    reps["left_out"] = marked | block.isin(block[marked & (reps["gamma"] == 0)])
    return reps


def _counted_run(run: Repetition) -> dict[str, Any]:
    sequences, counters = run["sequences"], run_counters(run)
    per_pos, drafts = counters["accepted_per_pos"], run.get("step_drafts")
    return {
        "repetition": run["index"],
        "warmup": run["warmup"],
        "pot_ms": sum(s["pot_ms"] or math.nan for s in sequences) / len(sequences),
        "decode_tokens": sum(s["tokens"] - 1 for s in sequences),
        "decode_steps": run["decode_steps"],
        "engine_steps": counters["engine_steps"],
        "verify_steps": math.nan if drafts is None else sum(n > 0 for n in drafts),
        "draft_ms": math.nan if (took := run.get("draft_ms")) is None else took,
        "drafts": counters["drafts"],
        "drafted": counters["drafted"],
        "accepted": counters["accepted"],
        "accepted_first": per_pos[0] if per_pos else 0,
        "text_sha256": "+".join(s["sha256"][:8] for s in sequences),
    }


def counted(reps: pd.DataFrame) -> pd.DataFrame:
    """The repetitions that medians rest on, with the same columns."""
    return reps[~reps["warmup"] & ~reps["left_out"]]


def texts(reps: pd.DataFrame) -> pd.DataFrame:
    """Of repetitions that generated one text, one: it is one sample of the counters, however often.

    Greedy text is the same every time; its counters say no more the tenth time than the first.
    """
    return reps.drop_duplicates([*CELL, "replicate", "text_sha256"])


def one_of_each_text(runs: Iterable[Repetition]) -> Iterable[Repetition]:
    """As `texts`, of a record's repetitions."""
    return {tuple(s["sha256"] for s in x["sequences"]): x for x in runs}.values()


def survival(records: Iterable[Record]) -> pd.DataFrame:
    """Acceptance by position in the draft, of speculative cells, all batches and texts together.

    Returns:
        One row per platform, workload, gamma and position: `origin`, `platform`, `workload`,
        `gamma`, `position` (number, from 1), `drafts` (drafts), `survived` (drafts of which at
        least so many tokens were accepted), `survival` (their share; NaN without a draft).
    """
    rows = []
    for r in records:
        for run in one_of_each_text(x for x in r["repetitions"] if not x["warmup"]):
            counters = run_counters(run)
            by = counters["accepted_per_pos"] or [0] * r["cell"]["gamma"]
            rows += [
                {k: r["cell"][k] for k in ("platform", "workload", "gamma")}
                | {"origin": r["origin"], "position": i, "drafts": counters["drafts"]}
                | {"survived": n}
                for i, n in enumerate(by, 1)
            ]
    key = ["platform", "workload", "gamma", "position"]
    by_position = pd.DataFrame(rows, columns=["origin", *key, "drafts", "survived"]).groupby(key)
    table = by_position.agg(
        origin=("origin", words), drafts=("drafts", "sum"), survived=("survived", "sum")
    ).reset_index()
    table["survival"] = table["survived"] / table["drafts"].replace(0, math.nan)
    return table[["origin", *key, "drafts", "survived", "survival"]]


def requests(records: Iterable[Record]) -> pd.DataFrame:
    """One row per sequence of each text of a cell, untimed repetitions aside.

    Returns:
        `origin`, the cell and `replicate`, `sequence` (number), `category` (text; empty where the
        prompts have none), `prompt_tokens`, `tokens` (of output), `decode_steps` (steps that gave
        it tokens after the first; NaN in records that do not say), `tau` (tokens per step).
    """
    rows = []
    for r in records:
        prompt, n = r["prompt"], r["cell"]["batch"]
        categories = prompt.get("categories", [""] * n)
        lengths = prompt.get("lengths", [prompt["tokens"]] * n)
        cell = {k: v for k, v in r["cell"].items() if k != "setup"}
        head = {"origin": r["origin"], **cell}
        for run in one_of_each_text(x for x in r["repetitions"] if not x["warmup"]):
            rows += [
                head
                | {"sequence": i, "category": category, "prompt_tokens": tokens}
                | {"tokens": s["tokens"], "decode_steps": s.get("decode_steps", math.nan)}
                for i, (s, category, tokens) in enumerate(
                    zip(run["sequences"], categories, lengths, strict=True)
                )
            ]
    columns = ["origin", "platform", "replicate", "workload", "batch", "gamma", "sequence"]
    columns += ["category", "prompt_tokens", "tokens", "decode_steps"]
    table = pd.DataFrame(rows, columns=columns)
    return table.assign(tau=(table["tokens"] - 1) / table["decode_steps"])


def categories(requests: pd.DataFrame) -> pd.DataFrame:
    """Tokens per step by category of request, all batches and replicates together.

    Args:
        requests: `requests`.

    Returns:
        One row per platform, workload, gamma above 0 and category that the prompts name: `origin`,
        `platform`, `workload`, `gamma`, `category`, `requests` (number), `prompt_tokens` (mean),
        `decode_steps`, `decode_tokens` (sums), `tau` (tokens per step).
    """
    key = ["platform", "workload", "gamma", "category"]
    own = requests[(requests["gamma"] > 0) & (requests["category"] != "")]
    own = own.assign(decode_tokens=own["tokens"] - 1)
    table = own.groupby(key).agg(
        origin=("origin", words),
        requests=("tokens", "size"),
        prompt_tokens=("prompt_tokens", "mean"),
        decode_steps=("decode_steps", "sum"),
        decode_tokens=("decode_tokens", "sum"),
    )
    table = table.reset_index().assign(tau=lambda t: t["decode_tokens"] / t["decode_steps"])
    columns = ["requests", "prompt_tokens", "decode_steps", "decode_tokens", "tau"]
    return table[["origin", *key, *columns]]
