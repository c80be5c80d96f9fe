"""The first job on each GPU: everything else waits until this node and its software have passed.

About three minutes: a wrong driver, engine, tracer or device is found before hours of a study are
spent on it. It is made anew when the driver or a package changes.
"""

import math
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from ..checks import Check
from ..errors import SpecamortError
from ..model.roofline import read_shape
from ..records import record
from ..study import layout, tracer
from ..study.grid import Platform, Study, TraceCell
from ..study.prompts import prompts
from ..study.settings import digest
from . import gpu
from .engine import Engine
from .microbench import measure_device
from .provenance import now, provenance
from .tracing.job import traced_runs

StartEngine = Callable[..., Engine]


_SAME = ("vllm", "torch", "cuda", "driver", "packages", "nsys")
_FAMILIES = ("attention", "gemm", "sampling")
_STEPS = 8
_COPIED = 0.5  # of a few drafts; the band is for whole cells to meet


def ensure(
    study: Study,
    platform: Platform,
    model: Path,
    results: Path,
    progress=None,
    start: StartEngine = Engine,
) -> None:
    """Check the platform unless a check of this software has passed; a line each to `progress`.

    Jobs on nodes with different drivers each have a record of their own.

    Raises:
        SpecamortError: something is to be fixed; nothing is recorded.
    """
    source = provenance(study, platform)
    settings = study.self_check_settings(platform.name)
    folder = layout.folder(results, "self_check", platform.name)
    # the workflow waits for the first that passed; each software has its own beside it
    first, path = folder / "passed.json", folder / f"{digest([source[k] for k in _SAME])}.json"
    if _passed(path, study, settings):
        return
    done, started = [], now()
    for check in checks(study, platform, source, model, results, start):
        print(check, file=progress, flush=True)
        if progress is not sys.stderr:  # the executor deletes what a job that succeeds has said
            print(check, flush=True)
        done.append(check)
    if wrong := [c for c in done if c.fix]:
        raise SpecamortError(
            f"self-check of {platform.name}: {len(wrong)} of {len(done)} to fix; first: "
            f"{wrong[0].what}: {wrong[0].fix}"
        )
    times = {"started": started, "finished": now()}
    found = record.envelope(study, "self_check", settings, source | times) | {
        "self_check": {"platform": platform.name, "checks": [vars(c) for c in done]},
    }
    for place in (path, first):
        if not _passed(place, study, settings):
            record.write(place, found)


def checks(
    study: Study, platform: Platform, source: dict, model: Path, results: Path, start: StartEngine
) -> Iterator[Check]:
    """Every check, cheapest first; none is begun after one that the next would trip over."""
    yield Check(f"device: {source['device']['name']}, driver {source['driver']}")
    cuda = f"CUDA {source['cuda']}" if source["cuda"] else "no CUDA"
    packages = f"{source['vllm']}, torch {source['torch']} ({cuda})"
    old = gpu.driver_too_old(source) if platform.device == "cuda" else None
    yield Check(packages, old)
    if old:
        return
    if study.tracing.tracer == "nsys":
        version = _tried("tracer", lambda: f"nsys {tracer.require_version()}")
        yield version
        if version.fix:
            return
    yield _tried("microbenchmark", lambda: _smallest_case(study, platform, model))
    decodes = _tried("engine at gamma 0", lambda: _decodes(study, platform, model, start))
    yield decodes
    if decodes.fix:
        return
    gamma = min(g for g in study.gammas if g)
    traced: list = []

    def short_trace() -> str:
        runs, used = _short_trace(study, platform, gamma, results, start)
        traced.append(runs)
        return (
            f"engine at gamma {gamma}: runner {used['model_runner']}, {used['drafter']}, attention "
            f"{used['attention_backend']}, CUDA graphs {used['cudagraph_mode']}"
        )

    yield _tried(f"engine at gamma {gamma}, traced with {study.tracing.tracer}", short_trace)
    if not traced:
        return
    (runs,) = traced
    yield _accepted(study, gamma, runs["untraced"][1]["counters"])
    yield _families(study, runs["traced"][1]["trace"])
    if platform.device == "cuda":
        yield _tried("NVML", lambda: f"NVML: {gpu.reading()['clocks_mhz']['sm']} MHz")


def _passed(path: Path, study: Study, settings: dict) -> bool:
    try:
        record.read_held(path, study, "self_check", settings)
    except SpecamortError:
        return False
    return True


def _tried(what: str, check: Callable[[], str]) -> Check:
    """The check's line; whatever a driver, an engine or a kernel raises is a line to fix."""
    try:
        return Check(check())
    except Exception as e:
        return Check(what, str(e).strip().split("\n")[-1] or type(e).__name__)


def _smallest_case(study: Study, platform: Platform, model: Path) -> str:
    smallest = {"batches": [min(study.batches)], "gammas": [0], "rounds": 1, "seed": study.seed}
    found = in_child(measure_device, read_shape(model), platform, study.context_tokens, **smallest)
    times = [ms for one in found["passes"] for ms in one["samples_ms"]]
    times += found["one_row_ms"].values()
    if not all(math.isfinite(x) and x > 0 for x in [*times, found["bandwidth"], found["peak"]]):
        raise SpecamortError("gives times that are not positive numbers; is the device healthy?")
    return (
        f"microbenchmark: {found['bandwidth'] / 1e9:.0f} GB/s, {found['peak'] / 1e12:.2f} Tflop/s"
    )


def in_child(call: Callable, *args, **options):
    """A call in a process of its own, whose hold on the GPU's memory ends with it."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as child:
        return child.submit(call, *args, **options).result()


def _decodes(study: Study, platform: Platform, model: Path, start: StartEngine) -> str:
    engine = start(model, study.at(study.setups[0].name), platform, 0)
    try:
        which = study.timing_prompts(study.full_acceptance_workload.name)
        prompt = prompts(study, engine.tokenizer, which)[0]
        made = engine.run(
            [prompt.token_ids], 1 + _STEPS, study.full_acceptance_workload.sampling, None
        )
    finally:
        engine.close()
    step_ms = made["step_ms"][-1] / (len(made["step_ms"]) - 1)
    return f"engine at gamma 0: a step of {step_ms:.1f} ms"


def _short_trace(
    study: Study, platform: Platform, gamma: int, results: Path, start: StartEngine
) -> tuple[dict, dict]:
    """One pair of runs, a few verify steps, by the study's own tracer; and the engine used."""
    lengths = (1, 1 + _STEPS * (gamma + 1))
    short = replace(study, tracing=replace(study.tracing, tokens=lengths, pairs=1))
    mode = next(iter(study.modes)) if len(study.modes) > 1 else ""
    cell = TraceCell(study.model.name, study.context_tokens, min(study.batches), gamma, mode)
    output = results / "traces" / platform.name / f"self-check-{uuid.uuid4().hex[:8]}"
    try:
        runs, used = traced_runs(short, platform, [cell], output, start)
    finally:
        shutil.rmtree(output, ignore_errors=True)
    return runs[str(cell)][0], used


def _accepted(study: Study, gamma: int, counters: dict) -> Check:
    least = study.full_acceptance_workload.alpha_min
    if not counters["drafted"]:
        return Check("counters", "nothing was drafted; does the engine run the study's drafter?")
    alpha = counters["accepted"] / counters["drafted"]
    what = (
        f"counters: {counters['accepted']} of {counters['drafted']} drafted tokens accepted on a "
        f"copy (the band of whole cells begins at {least})"
    )
    wrong = "the model does not copy, or the drafter does not look up; read what it wrote"
    return Check(what, wrong if alpha < _COPIED else None)


def _families(study: Study, trace: dict) -> Check:
    missing = [f for f in _FAMILIES if not trace["family_ms"].get(f)]
    what = f"trace by {study.tracing.tracer}: {trace['events']} intervals"
    wrong = f"shows no {', no '.join(missing)} kernel; it does not see all of the engine's work"
    return Check(what, wrong if missing else None)
