"""The measuring jobs, as the workflow's rules run them."""

import re
from pathlib import Path

from ..errors import SpecamortError
from ..study.study_file import read_study


def add(command) -> None:
    command("self-check", _self_check, "is this node fit to measure on?", platform=True)
    block = command("measure", _measure, "measure a block, or what it still lacks", platform=True)
    block.add_argument("--replicate", type=int, required=True)
    command(
        "remeasure", _remeasure, "move throttled or shared cells aside; the study measures anew"
    )
    command("counter-run", _counter_run, "acceptance by counter, untimed", platform=True)
    command(
        "reading-cost", _reading_cost, "what reading the engine's counters costs", platform=True
    )
    command("trace", _trace, "what a decode and a verify step are made of", platform=True)
    under = command("trace-engine", _trace_engine, "the part of trace under nsys", platform=True)
    under.add_argument("--output", type=Path, required=True)
    under.add_argument("--cell", action="append", required=True)
    under.add_argument(
        "--tokens", help="output lengths of a pair, as SHORT,LONG, if not the study's"
    )
    under.add_argument("--pairs", type=int, help="if not the study's")
    command("microbench", _microbench, "standalone kernel times for the roofline", platform=True)
    command("dial", _dial, "step time over acceptance that is asked for", platform=True)


def _job(args, terminal):
    """What every measuring command needs: study, platform, model directory, results."""
    from ..measure import leftovers
    from ..measure.self_check import ensure
    from ..study.model_files import model_dir

    study = read_study(args.study)
    platform = study.platform(args.platform)
    leftovers.mark()
    if killed := leftovers.sweep():
        print(f"specamort: ended {len(killed)} processes of a killed job", file=terminal)
    job = study, platform, model_dir(study.model), study.results
    if platform.name in study.self_checked:
        ensure(*job, progress=terminal)
    return job


def _self_check(args, terminal) -> None:
    """What `_job` makes of every measuring command's first lines, and nothing after them."""
    from ..measure.self_check import ensure

    job = _job(args, terminal)
    ensure(*job, progress=terminal)


def _measure(args, terminal) -> None:
    replicate = read_study(args.study).replicate(args.replicate)
    from ..measure.timing import measure_block

    study, platform, model, results = _job(args, terminal)
    measure_block(study, platform, replicate, model, results, progress=terminal)


def _remeasure(args, terminal) -> None:
    from ..records.exclusions import set_marked_aside

    study = read_study(args.study)
    moved = set_marked_aside(study, study.results)
    print(*moved, sep="\n")
    print(f"{len(moved)} records of throttled or shared cells moved to raw/superseded")


def _counter_run(args, terminal) -> None:
    from ..measure.counter_run import counter_run

    counter_run(*_job(args, terminal), progress=terminal)


def _reading_cost(args, terminal) -> None:
    from ..measure.reading_cost import reading_cost

    reading_cost(*_job(args, terminal), progress=terminal)


def _trace(args, terminal) -> None:
    from ..measure.tracing.job import trace_platform

    study, platform, _, results = _job(args, terminal)
    trace_platform(study, platform, results, progress=terminal)


def _trace_engine(args, terminal) -> None:
    from dataclasses import replace

    from ..measure.tracing.job import write_runs

    study = read_study(args.study)
    platform, known = study.platform(args.platform), {str(c): c for c in study.trace_cells}
    if unknown := [c for c in args.cell if c not in known]:
        raise SpecamortError(f"--cell {unknown[0]}: {study.file} traces {', '.join(known)}")
    changed = {}
    if args.tokens is not None:
        if not re.fullmatch(r"\d{1,6},\d{1,6}", args.tokens):
            raise SpecamortError(f"--tokens {args.tokens}: write it as 1,512")
        changed["tokens"] = tuple(map(int, args.tokens.split(",")))
    if args.pairs is not None:
        if args.pairs < 1:
            raise SpecamortError(f"--pairs {args.pairs}: at least 1")
        changed["pairs"] = args.pairs
    study = replace(study, tracing=replace(study.tracing, **changed))
    write_runs(study, platform, [known[c] for c in args.cell], args.output)


def _microbench(args, terminal) -> None:
    from ..measure.microbench import microbench

    microbench(*_job(args, terminal), progress=terminal)


def _dial(args, terminal) -> None:
    if not read_study(args.study).dial:
        raise SpecamortError(f"{args.study}: has no section dial; add one (docs/configuration.md)")
    from ..measure.dial_run import dial_run

    dial_run(*_job(args, terminal), progress=terminal)
