"""Timing records to one row per repetition, with what is left out."""

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd

from ..records.exclusions import exclusions
from ..records.types import Counters, Record, Repetition

CELL = ["platform", "workload", "batch", "gamma"]
COUNTS = ["drafts", "drafted", "accepted", "decode_steps", "decode_tokens"]


def device_exclusions(record: Record) -> str:
    """A record's `exclusions` as one word or two; empty if its device was quiet, or tells nothing.

    See `records.exclusions`.
    """
    return " ".join(exclusions(record.get("device_state")))


def run_counters(run: Repetition) -> Counters:
    """Of a run with the engine's statistics on: all but those of the reading cost's second half."""
    counters = run["counters"]
    assert counters is not None
    return counters


def repetitions(records: Iterable[Record]) -> pd.DataFrame:
    """One row per repetition of the timing records, warm-ups included.

    Returns:
        `origin`, the cell and `replicate`; `block`, `device`, `device_uuid`, `host`, `job_id`;
        `exclusions` (words: throttled, shared); `repetition` (number), `warmup`;
        `pot_ms` (ms): mean over the sequences of (last - first token) / (tokens - 1);
        `decode_tokens`, `drafted`, `accepted` (tokens), `decode_steps` (steps), `drafts`, and
            `accepted_first` (drafts whose first token was accepted), summed over the sequences;
        `engine_steps` (steps of the whole batch, prefill included); `text_sha256`;
        `left_out`: the cell has exclusions, or the baseline of its block has.
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
            "exclusions": device_exclusions(r),
        }
        rows += [head | _counted_run(run) for run in r["repetitions"]]
    reps = pd.DataFrame(rows)
    marked = reps["exclusions"] != ""
    block = pd.MultiIndex.from_frame(reps[["platform", "replicate", "workload", "batch"]])
    reps["left_out"] = marked | block.isin(block[marked & (reps["gamma"] == 0)])
    return reps


def _counted_run(run: Repetition) -> dict[str, Any]:
    sequences, counters = run["sequences"], run_counters(run)
    per_pos = counters["accepted_per_pos"]
    return {
        "repetition": run["index"],
        "warmup": run["warmup"],
        "pot_ms": sum(s["pot_ms"] or math.nan for s in sequences) / len(sequences),
        "decode_tokens": sum(s["tokens"] - 1 for s in sequences),
        "decode_steps": run["decode_steps"],
        "engine_steps": counters["engine_steps"],
        "drafts": counters["drafts"],
        "drafted": counters["drafted"],
        "accepted": counters["accepted"],
        "accepted_first": per_pos[0] if per_pos else 0,
        "text_sha256": "+".join(s["sha256"][:8] for s in sequences),
    }


def counted(reps: pd.DataFrame) -> pd.DataFrame:
    """The repetitions that medians rest on, with the same columns."""
    return reps[~reps["warmup"] & ~reps["left_out"]]
