"""The tracing job: pairs of runs that differ only in length, untraced and traced.

What the pairs say is worked out by `trace.per_step`; which tracer watches is the study's choice.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from ... import files
from ...errors import SpecamortError
from ...model.step import per_step
from ...records import record
from ...records.block import Block
from ...study import layout, tracer
from ...study.grid import Platform, Study, TraceCell, told
from ...study.model_files import model_dir
from ...study.prompts import prompts
from ..engine import Engine
from ..provenance import now, provenance, state
from . import kineto, nsys

StartEngine = Callable[..., Engine]


def trace_platform(
    study: Study, platform: Platform, results: Path, progress=None, start: StartEngine = Engine
) -> None:
    """Trace what the platform still lacks, one record per cell.

    Raises:
        SpecamortError: no nsys where the study wants it, before anything starts; or traces that
            do not fit the runs.
    """
    if study.tracing.tracer == "nsys":
        tracer.require_version()
    block_dir = layout.folder(results, "trace", platform.name)
    cells = study.trace_cells
    bar = tqdm(total=len(cells), unit="trace", file=progress, disable=progress is None)
    wanted = {c: study.trace_settings(platform.name, c) for c in cells}
    with Block(block_dir, wanted, provenance(study, platform), progress) as block:
        bar.update(len(cells) - len(block.missing))
        for engine in dict.fromkeys(map(_engine, block.missing)):
            group = [c for c in block.missing if _engine(c) == engine]
            model, gamma, mode = engine
            bar.set_description(
                f"{platform.name} {' '.join(filter(None, (mode, model)))} gamma {gamma}"
            )
            name = "-".join(filter(None, (model, f"g{gamma}", mode)))
            output = results / "traces" / platform.name / name
            started = now()
            runs, used = traced_runs(study, platform, group, output, start)
            prompts_sha256 = used.pop("prompts_sha256", {})
            states = used.pop("device_states")
            for cell in group:
                for pair in runs[str(cell)]:  # refused here, while it can be traced again
                    _require_step(pair, cell)
                block.write(
                    cell,
                    record.envelope(
                        study,
                        "trace",
                        wanted[cell],
                        block.source | {"started": started, "finished": now()},
                    )
                    | {
                        "engine": used,
                        "prompt": {
                            "tokens": cell.context_tokens,
                            "sha256": prompts_sha256.get(str(cell), []),
                        },
                        "device_state": states[str(cell)],
                        "trace": {
                            "platform": platform.name,
                            **told(cell),
                            "weights": study.traced_models[model].weights,
                            "tracer": study.tracing.tracer,
                            "tokens_per_step": cell.batch * (gamma + 1),
                            "pairs": runs[str(cell)],
                        },
                    },
                )
                bar.update()
    bar.close()


def _engine(cell: TraceCell) -> tuple[str, int, str]:
    """What cells that share an engine have in common."""
    return cell.model, cell.gamma, cell.mode


def _require_step(pair: dict, cell: TraceCell) -> None:
    for runs in pair.values():
        try:
            per_step(*runs, cell.batch * (cell.gamma + 1))
        except ValueError as e:
            raise SpecamortError(f"traces of {cell}: {e}") from e


def trace_engine(
    study: Study,
    platform: Platform,
    cells: list[TraceCell],
    output: Path,
    start: StartEngine = Engine,
) -> tuple[dict[str, list[dict]], dict]:
    """Run the pairs of cells of one model and gamma on one engine.

    Returns:
        By cell, its pairs: `untraced` and `traced`, each the shorter and the longer run. A run's
        `trace` is the index of its trace in the order in which the tracer wrote them. And what
        the engine really used, with the hashes of each cell's prompts and the device's state
        before and after its runs.
    """
    model, gamma = cells[0].model, cells[0].gamma
    tokens = study.trace_tokens(gamma)
    output.mkdir(parents=True, exist_ok=True)
    kinds = {"nsys": nsys.OPTIONS, "kineto": kineto.options(output)}
    engine = start(
        model_dir(study.traced_models[model]),
        study.traced_at(cells[0]),
        platform,
        gamma,
        max_model_len=max(map(study.trace_length, cells)),
        profiler=kinds[study.tracing.tracer],
    )
    found: dict[str, list[dict]] = {}
    prompts_sha256: dict[str, list[str]] = {}
    states: dict[str, dict] = {}
    traced = 0
    try:
        for cell in cells:
            which = study.trace_prompts(cell.context_tokens)
            chosen = prompts(study, engine.tokenizer, which)[: cell.batch]
            batch = [p.token_ids for p in chosen]
            prompts_sha256[str(cell)] = [p.sha256 for p in chosen]

            def run(length: int, trace: int | None = None, batch=batch) -> dict:
                if trace is not None:
                    engine.start_trace()
                made = engine.run(batch, length, study.full_acceptance_workload.sampling, None)
                if trace is not None:
                    engine.stop_trace()
                steps = len(made["step_ms"]) - 1
                return {
                    "decode_steps": steps,
                    "wall_ms": made["step_ms"][-1],
                    "counters": made["counters"],
                    "trace": trace,
                }

            before = state(platform)
            for length in tokens:  # the first of each length compiles
                run(length)
            pairs = []
            for _ in range(study.tracing.pairs):
                pair = {"untraced": [run(length) for length in tokens], "traced": []}
                for length in tokens:
                    pair["traced"].append(run(length, traced))
                    traced += 1
                pairs.append(pair)
            found[str(cell)] = pairs
            states[str(cell)] = {"before": before, "after": state(platform)}
    finally:
        # Kineto has written its traces; under nsys a worker that is killed spoils the last one.
        engine.close(60 if study.tracing.tracer == "nsys" else 1)
    return found, engine.used | {"prompts_sha256": prompts_sha256, "device_states": states}


def traced_runs(
    study: Study, platform: Platform, cells: list[TraceCell], output: Path, start: StartEngine
) -> tuple[dict[str, list[dict]], dict]:
    """What `trace_engine` gives, with each index replaced by what its trace shows."""
    for old in output.glob("*.*"):
        old.unlink()
    if study.tracing.tracer == "nsys":
        found = _under_nsys(study, platform, cells, output)
        (runs, used), read = json.loads(files.read_text(output / "runs.json")), nsys.read
    else:
        runs, used = trace_engine(study, platform, cells, output, start)
        found, read = sorted(output.glob("*.pt.trace.json.gz")), kineto.read
    every = [r for pairs in runs.values() for pair in pairs for r in pair["traced"]]
    if len(found) != len(every):
        raise SpecamortError(
            f"{output}: {len(every)} runs were traced, {len(found)} traces are there; the tracer "
            "lost some, trace again"
        )
    for run, file in zip(every, found, strict=True):
        run["trace"] = asdict(read(file))
    return runs, used


def _under_nsys(
    study: Study, platform: Platform, cells: list[TraceCell], output: Path
) -> list[Path]:
    output.mkdir(parents=True, exist_ok=True)
    program = [sys.executable, "-m", "specamort", "trace-engine", "--study", study.file]
    program += ["--platform", platform.name, "--output", str(output)]
    program += ["--tokens", "{},{}".format(*study.tracing.tokens)]
    program += ["--pairs", str(study.tracing.pairs)]
    for cell in cells:
        program += ["--cell", str(cell)]
    log = output / "nsys.log"
    with log.open("w", encoding="utf-8") as f:
        command = nsys.profile_command(output / "nsys", program)
        done = subprocess.run(command, stdout=f, stderr=subprocess.STDOUT)
    if done.returncode:
        said = log.read_text(encoding="utf-8", errors="replace").splitlines()
        lines = [x for x in said if x.strip()] or ["it said nothing"]
        last = next((x for x in reversed(lines) if x.startswith("specamort:")), lines[-1])
        raise SpecamortError(
            f"nsys or the engine under it ended with {done.returncode}: {last} (details: {log})"
        )
    return [nsys.export(r) for r in nsys.reports(output / "nsys")]


def write_runs(study: Study, platform: Platform, cells: list[TraceCell], output: Path) -> None:
    """What runs under nsys: the pairs of the cells and the engine, into `runs.json`."""
    found = trace_engine(study, platform, cells, output)
    files.write_text(output / "runs.json", json.dumps(found))
