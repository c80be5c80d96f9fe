"""How much a study asks for: engine starts and decode steps, before anything is queued."""

from dataclasses import dataclass

from .grid import Study
from .layout import jobs


@dataclass(frozen=True)
class Effort:
    """Attributes:
    starts: of an engine.
    steps: decode steps at most: nothing is accepted.
    """

    starts: int
    steps: int

    def hours(self, start_s: float, step_ms: float) -> float:
        """
        >>> Effort(starts=2, steps=1000).hours(start_s=60, step_ms=20)
        0.03888888888888889
        """
        return (self.starts * start_s + self.steps * step_ms / 1e3) / 3600


def effort(study: Study) -> Effort:
    """Of all jobs together; microbenchmarks, minutes each, start no engine and are not in it."""
    found = [_of_job(study, job.kind.rule) for job in jobs(study)]
    return Effort(sum(e.starts for e in found), sum(e.steps for e in found))


def _of_job(study: Study, rule: str) -> Effort:
    setups = {*study.baselines.values()}
    runs = len(study.workloads) * len(study.batches) * (study.warmup + study.repetitions)
    lengths = {g: study.tokens_to_generate(g) for g in study.gammas}
    drafting = sum(n for g, n in lengths.items() if g) * len(study.setups)
    starts = (len(lengths) - 1) * len(study.setups)
    if rule == "measure":  # gamma 0 is first and last
        steps = runs * (drafting + 2 * lengths[0] * len(setups))
        return Effort(starts + 2 * len(setups), steps)
    if rule == "counter_run":
        once = len(study.workloads) * len(study.batches) * study.replicates
        return Effort(starts, once * drafting)
    if rule == "reading_cost":
        cell = lengths[study.reading_cost_cell.gamma]
        return Effort(2, 2 * (study.warmup + 3 * study.repetitions) * cell)
    if rule == "trace":
        engines = {(c.model, c.gamma, c.mode) for c in study.trace_cells}
        each = (sum(study.trace_tokens(c.gamma)) for c in study.trace_cells)
        return Effort(len(engines), (1 + 2 * study.tracing.pairs) * sum(each))
    if rule == "dial":
        return Effort(3 * len({c.setup for c in study.dial_cells}), study.dial_steps)
    return Effort(2 if rule == "self_check" else 0, 0)
