"""What a rule's jobs ask of SLURM, from the cluster file."""

import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from math import ceil
from pathlib import Path
from types import SimpleNamespace

from ..errors import SpecamortError
from ..study.grid import Study
from ..study.layout import job_name
from . import slurm
from .cluster_file import Cluster, ControllerRequest, Request, user_setting

_MARGIN = 1.5
# (rule, wildcards, how it ended) of attempts of this Snakemake's; see executor.py
ENDED: Counter[tuple[str, tuple[str, ...], str | None]] = Counter()


def block_minutes(study: Study, request: Request, rule: str = "measure") -> int:
    """What a job may take: every gamma's engine start and every repetition at full length.

    A block measures gamma 0 twice. Tracing starts an engine more for each model; a dial starts
    three and no more for its draft lengths; a self-check starts two and decodes little, and every
    job on a node with other software makes its own first.
    """
    if rule == "self_check":
        return ceil(_MARGIN * 2 * request.start_minutes)
    setups = len({*study.baselines.values()})
    if rule == "dial":
        starts, dialled = 3 * setups + 2, study.dial_steps
        return ceil(_MARGIN * (starts * request.start_minutes + dialled * request.step_ms / 60_000))
    cells = len(study.workloads) * len(study.batches)
    gammas = [*study.gammas, 0] if rule == "measure" else study.gammas
    drafting = [g for g in gammas if g]
    per_setup = [*drafting * len(study.drafters), *(g for g in gammas if not g)]
    tokens = setups * sum(map(study.tokens_to_generate, per_setup))
    steps = cells * (study.warmup + study.repetitions) * tokens
    starts = setups * len(per_setup) + 2
    if rule == "trace":
        starts += len(study.modes) * len(study.traced_models)
    needed = starts * request.start_minutes + steps * request.step_ms / 60_000
    return ceil(_MARGIN * needed)


def memory_mb(request: Request | ControllerRequest) -> int:
    return ceil(1024 * request.mem_gb)


def requests(
    study: Study, cluster: Cluster | None, checkout: Path, rule: str
) -> dict[str, Callable]:
    """Resources of a measuring rule, by name, as functions of its wildcards and attempt.

    Time grows after a time-out, memory after a job ran out of it, neither past what the partition
    allows. A job of the same block that an earlier controller left in the queue is waited for: what
    it measures, the new one finds done. Without a cluster file there are none.
    """
    if cluster is None:
        return {}
    account = user_setting("account")

    def asked(value: Callable[[Request], str | int | None]) -> Callable:
        return lambda wildcards, attempt: value(cluster.platforms[wildcards.platform])

    def growing(value: Callable[[Request], int], after: str, limit: str) -> Callable:
        def resource(wildcards, attempt):
            request = cluster.platforms[wildcards.platform]
            first = value(request)
            if not (times := ENDED[rule, tuple(wildcards), after]):
                return first
            most = getattr(_limits().get(request.partition), limit, None)
            return max(first, min(first * (1 + times), most or first * (1 + times)))

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
        "mem_mb": growing(memory_mb, "OUT_OF_MEMORY", "mem_mb"),
        "runtime": growing(lambda r: block_minutes(study, r, rule), "TIMEOUT", "minutes"),
    }


@cache
def _leftovers(checkout: Path, minute: int) -> list[slurm.Job]:
    """The queue of this minute; none where there is no SLURM, as in a dry run on a laptop."""
    try:
        return slurm.live_jobs(checkout)
    except SpecamortError:
        return []


@cache
def _limits() -> dict[str, slurm.Limit]:
    try:
        return slurm.read_site().limits
    except SpecamortError:
        return {}
