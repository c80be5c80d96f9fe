"""What a rule's jobs ask of SLURM, from the cluster file."""

import time
from collections.abc import Callable
from functools import cache
from math import ceil
from pathlib import Path
from types import SimpleNamespace

from ..errors import SpecamortError
from ..study.grid import Study
from ..study.layout import job_name
from . import slurm
from .cluster_file import Cluster, Request, user_setting

_MARGIN = 1.5


def block_minutes(study: Study, request: Request, rule: str = "measure") -> int:
    """What a job may take: every gamma's engine start and every repetition at full length.

    Tracing starts an engine more for each model; a self-check starts two and decodes little, and
    every job on a node with other software makes its own first.
    """
    if rule == "self_check":
        return ceil(_MARGIN * 2 * request.start_minutes)
    more_starts = 2 + (len(study.models) if rule == "trace" else 0)
    cells = len(study.workloads) * len(study.batches)
    tokens = sum(study.tokens_to_generate(g) for g in study.gammas)
    steps = cells * (study.warmup + study.repetitions) * tokens
    starts = len(study.gammas) + more_starts
    needed = starts * request.start_minutes + steps * request.step_ms / 60_000
    return ceil(_MARGIN * needed)


def requests(
    study: Study, cluster: Cluster | None, checkout: Path, rule: str
) -> dict[str, Callable]:
    """Resources of a measuring rule, by name, as functions of its wildcards and attempt.

    Time and memory grow with each attempt. A job of the same block that an earlier controller
    left in the queue is waited for: what it measures, the new one finds done. Without a cluster
    file there are none.
    """
    if cluster is None:
        return {}
    account = user_setting("account")

    def asked(value: Callable[[Request], str | int], grows: bool = False) -> Callable:
        def resource(wildcards, attempt):
            wanted = value(cluster.platforms[wildcards.platform])
            return wanted * attempt if grows else wanted

        return resource

    def after_leftovers(wildcards) -> str:
        what = job_name(rule, *wildcards)
        left = [j.id for j in _leftovers(checkout, int(time.time() // 60)) if j.what == what]
        return f"--dependency=afterany:{':'.join(left)}" if left else ""

    named = {
        "slurm_account": asked(lambda _: account),
        "slurm_partition": asked(lambda r: r.partition),
        "gres": asked(lambda r: r.gres),
        "qos": asked(lambda r: r.qos),
        "constraint": asked(lambda r: r.constraint),
    }
    given = {
        k: v
        for k, v in named.items()
        if all(v(SimpleNamespace(platform=p), 1) is not None for p in study.platforms)
    }
    return given | {
        "slurm_extra": after_leftovers,
        "cpus_per_task": asked(lambda r: r.cpus),
        "mem_mb": asked(lambda r: ceil(1024 * r.mem_gb), grows=True),
        "runtime": asked(lambda r: block_minutes(study, r, rule), grows=True),
    }


@cache
def _leftovers(checkout: Path, minute: int) -> list[slurm.Job]:
    """The queue of this minute; none where there is no SLURM, as in a dry run on a laptop."""
    try:
        return slurm.live_jobs(checkout)
    except SpecamortError:
        return []
