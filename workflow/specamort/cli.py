"""One command, thin: each subcommand reads files, calls one function, writes files."""

import argparse
import os
import signal
import sys
import traceback
from pathlib import Path

from .errors import SpecamortError
from .study import read_study


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    terminal = sys.stderr
    try:
        if args.log:
            terminal = _divert(args.log)
        _stop_on_sigterm(terminal)
        args.run(args, terminal)
    except Exception as e:
        expected = isinstance(e, SpecamortError)
        if not expected:
            traceback.print_exc()
        said = e if expected else f"failed in a way nobody foresaw ({type(e).__name__}: {e})"
        hint = f" (details: {args.log})" if args.log else ""
        print(f"specamort: {said}{hint}", file=terminal)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="specamort", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run, help: str, platform=False):
        p = commands.add_parser(name, help=help)
        p.add_argument("--study", required=True, help="study file")
        p.add_argument("--log", type=Path, help="send all output but progress to this file")
        if platform:
            p.add_argument("--platform", required=True, help="a platform of the study")
        p.set_defaults(run=run)
        return p

    checked = command("check", _check, "read a study file, build its prompts, say what it holds")
    checked.add_argument("--output", type=Path, help="a file for what it says of the prompts")
    ahead = command("preflight", _preflight, "check a cluster before anything is queued")
    ahead.add_argument("--cluster", required=True, help="cluster file")
    start = command(
        "launch", _launch, "submit the whole study: a controller job that submits the rest"
    )
    start.add_argument("--cluster", required=True, help="cluster file")
    start.add_argument("snakemake", nargs="*", help="after --: more arguments for Snakemake")
    rehearsed = command("rehearse", _rehearse, "the same study without its GPUs, in minutes")
    rehearsed.add_argument("--full", action="store_true", help="keep repetitions and lengths")
    rehearsed.add_argument("--cluster", help="cluster file: as its jobs, on CPUs")
    rehearsed.add_argument("snakemake", nargs="*", help="after --: more arguments for Snakemake")
    command("status", _status, "how far the study is, by records and SLURM's queue")
    model = command("model", _model, "fetch, convert or make the study's models")
    model.add_argument("--model", help="only this one")
    command("self-check", _self_check, "is this node fit to measure on?", platform=True)
    block = command("measure", _measure, "measure a block, or what it still lacks", platform=True)
    block.add_argument("--replicate", type=int, required=True)
    command(
        "remeasure", _remeasure, "move throttled or shared cells aside; the study measures anew"
    )
    command("count", _count, "counter runs: acceptance, untimed", platform=True)
    command("overhead", _overhead, "what reading the engine's counters costs", platform=True)
    command("trace", _trace, "what a decode and a verify step are made of", platform=True)
    under = command("trace-engine", _trace_engine, "the part of trace under nsys", platform=True)
    under.add_argument("--output", type=Path, required=True)
    under.add_argument("--cell", action="append", required=True)
    under.add_argument("--tokens", required=True, help="output lengths of a pair, as SHORT,LONG")
    under.add_argument("--pairs", type=int, required=True)
    command("microbench", _microbench, "standalone kernel times for the roofline", platform=True)
    _plan_options(commands.add_parser("plan", help="should I speculate, and with which gamma?"))
    command("analyse", _analyse, "records to tables")
    command("figures", _figures, "tables to figures")
    command("report", _report, "tables and figures to one HTML page")
    return parser


def _plan_options(p: argparse.ArgumentParser) -> None:
    p.set_defaults(run=_plan, log=None)
    step = p.add_argument_group("what a step costs: from a finished study, or by hand")
    step.add_argument("--study", help="study file; its tables are the calibration")
    step.add_argument("--platform", help="of the study; default: its calibration platform")
    step.add_argument("--batch", type=int, help="of the study; default: the server's, or smallest")
    step.add_argument("--t-base-ms", type=float, help="a decode step without speculation")
    step.add_argument(
        "--d", default="", help="verify overheads, as GAMMA:SHARE,... (2:0.01,6:0.03)"
    )
    step.add_argument("--h-ms", type=float, default=0.0, help="host time a verify step adds")
    step.add_argument("--draft-ms", type=float, help="drafting time per token; n-gram: 0")
    seen = p.add_argument_group("what becomes of drafts: live, saved, from a study, or by hand")
    seen.add_argument("--url", help="a running vLLM server; its /metrics is read twice")
    seen.add_argument("--window", type=float, default=30, help="seconds between the two")
    seen.add_argument("--scrape", type=Path, help="a saved scrape, or a Prometheus query's JSON")
    seen.add_argument("--before", type=Path, help="an earlier one, to take the difference")
    seen.add_argument("--model", help="model_name, where the server has several")
    seen.add_argument("--engine", help="engine, or `all`, where the server has several")
    seen.add_argument("--workload", help="of the study")
    seen.add_argument("--alpha", type=float, help="accepted / drafted tokens")
    seen.add_argument("--at-gamma", type=int, help="the gamma at which alpha was read")
    seen.add_argument("--coverage", type=float, help="share of steps that have a draft")
    p.add_argument("--max-gamma", type=int, help="longest draft length to consider")
    p.add_argument("--json", action="store_true", help="the whole answer for programs")
    p.add_argument("--figure", type=Path, help="speedup over acceptance and gamma, as a picture")


def _stop_on_sigterm(terminal) -> None:
    """End in order when SLURM preempts, requeues or times out: engines closed within its grace."""

    def stop(signum, frame):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for stream in {terminal, sys.stderr}:
            print(
                "specamort: told to stop (SIGTERM); finished cells are kept, the same command "
                "goes on",
                file=stream,
                flush=True,
            )
        sys.exit(128 + signum)  # not an Exception: no handler on the way takes it for a failure

    signal.signal(signal.SIGTERM, stop)


def _divert(log: Path):
    """Send this process's and its children's output to `log`; give back the terminal."""
    log.parent.mkdir(parents=True, exist_ok=True)
    terminal = os.fdopen(os.dup(2), "w", buffering=1)
    with log.open("a") as f:
        os.dup2(f.fileno(), 1)
        os.dup2(f.fileno(), 2)
    return terminal


def _job(args, terminal):
    """What every measuring command needs: study, platform, model directory, results."""
    from .models import model_dir
    from .orphans import sweep
    from .self_check import ensure

    study = read_study(args.study)
    platform = study.platform(args.platform)
    if killed := sweep((study.results / "logs").resolve()):
        print(f"specamort: ended {len(killed)} processes of a killed job", file=terminal)
    job = study, platform, model_dir(study.model), study.results
    if platform.name in study.self_checked:
        ensure(*job, progress=terminal)
    return job


def _check(args, terminal) -> None:
    from .prompt_check import check_prompts
    from .record import write_text

    study = read_study(args.study)
    blocks = len(study.platforms) * study.replicates
    print(
        f"{study.file}: {len(study.cells)} cells in each of {blocks} blocks; calibration on "
        f"{study.calibration.name}, held out: {', '.join(p.name for p in study.heldout) or 'none'}"
    )
    lines = check_prompts(study)
    print(*lines, sep="\n")
    if args.output:
        write_text(args.output, "\n".join([*lines, ""]))


def _preflight(args, terminal) -> None:
    from .cluster import read_cluster
    from .preflight import preflight

    study = read_study(args.study)
    checks = preflight(study, read_cluster(args.cluster, study), study.results)
    print(*checks, sep="\n")
    if wrong := sum(c.fix is not None for c in checks):
        raise SpecamortError(f"{wrong} of {len(checks)} to fix before you submit")


def _launch(args, terminal) -> None:
    from .cluster import USER_FILE, read_cluster, user_setting
    from .launch import launch
    from .slurm import controller

    study = read_study(args.study)
    cluster = read_cluster(args.cluster, study)
    if running := controller(study.name):
        print(f"the controller of {study.name} is already there: job {running}")
        log = next(iter((study.results / "controller").glob(f"{running}_*.out")), None)
    else:
        running, log = launch(study, cluster, study.results, args.snakemake)
        print(f"submitted the controller of {study.name}: job {running}")
        if not user_setting("mail"):
            print(f"to hear when it ends, put `mail: YOURS` into {USER_FILE}")
    print(f"  follow it   tail -F {os.path.relpath(log)}" if log else "  it waits for a node")
    print(f"  how far     specamort status --study {args.study}")
    print(f"  stop it     scancel {running} (blocks that were submitted go on)")


def _rehearse(args, terminal) -> None:
    from .models import EMBEDDED, fetch, is_there, model_dir
    from .prompt_check import check_prompts
    from .rehearse import not_rehearsed, rehearse, snakemake_command, write_rehearsal

    study = read_study(args.study)
    if study.rehearses:
        raise SpecamortError(f"{study.file}: is a rehearsal itself; name {study.rehearses}")
    if not is_there(EMBEDDED):  # its tokenizer stands in for one that is not here
        fetch(EMBEDDED, model_dir(EMBEDDED))
    print(*check_prompts(study), sep="\n", flush=True)
    stand_in = write_rehearsal(study, args.full)
    rehearse(stand_in, snakemake_command(stand_in, args.cluster, args.snakemake), terminal)
    print(f"rehearsed: {stand_in.results / 'report.html'}", "not rehearsed:", sep="\n")
    print(*(f"  - {what}" for what in not_rehearsed(study)), sep="\n")


def _status(args, terminal) -> None:
    from . import slurm, status

    study, home = read_study(args.study), Path.cwd()
    try:
        live = slurm.live_jobs(home)
        job = slurm.controller(study.name)
        print(f"controller: job {job}" if job else "no controller is queued or running")
    except SpecamortError as e:
        print(f"SLURM's queue is not known ({e}); records only")
        live = []
    table = status.blocks(study, study.results, live, slurm.failed_jobs(home))
    spent = slurm.gpu_hours(set().union(*table["spent_by"]))
    print(status.overview(table, spent))


def _model(args, terminal) -> None:
    from .models import fetch, model_dir
    from .prompt_check import check_prompts

    study = read_study(args.study)
    if args.model and args.model not in study.models:
        raise SpecamortError(
            f"{args.study}: no model {args.model!r}; it has {', '.join(study.models)}"
        )
    for model in [study.models[args.model]] if args.model else study.models.values():
        if model.source != "directory" and (args.model or not model_dir(model).exists()):
            fetch(model, model_dir(model), like=model_dir(study.model))
    if not args.model:
        print(*check_prompts(study), sep="\n")


def _self_check(args, terminal) -> None:
    """What `_job` makes of every measuring command's first lines, and nothing after them."""
    from .self_check import ensure

    job = _job(args, terminal)
    ensure(*job, progress=terminal)


def _measure(args, terminal) -> None:
    from .measure import measure_block

    study, platform, model, results = _job(args, terminal)
    measure_block(study, platform, args.replicate, model, results, progress=terminal)


def _remeasure(args, terminal) -> None:
    from .measure import set_marked_aside

    moved = set_marked_aside(read_study(args.study).results)
    print(*moved, sep="\n")
    print(f"{len(moved)} records of throttled or shared cells moved to raw/superseded")


def _count(args, terminal) -> None:
    from .measure import count

    count(*_job(args, terminal), progress=terminal)


def _overhead(args, terminal) -> None:
    from .measure import overhead

    overhead(*_job(args, terminal))


def _trace(args, terminal) -> None:
    from .profile import trace_platform

    study, platform, _, results = _job(args, terminal)
    trace_platform(study, platform, results, progress=terminal)


def _trace_engine(args, terminal) -> None:
    from dataclasses import replace

    from .profile import write_runs

    try:
        lengths = tuple(map(int, args.tokens.split(",")))
    except ValueError as e:
        raise SpecamortError(f"--tokens {args.tokens}: write it as 1,512") from e
    study = read_study(args.study)
    study = replace(study, profile=replace(study.profile, tokens=lengths, pairs=args.pairs))
    write_runs(study, study.platform(args.platform), args.cell, args.output)


def _microbench(args, terminal) -> None:
    from .microbench import microbench

    microbench(*_job(args, terminal))


def _plan(args, terminal) -> None:
    import json
    from dataclasses import replace

    from . import serving
    from .plan import Acceptance, Calibration, overview, plan
    from .tables import read_acceptance, read_calibration

    study = read_study(args.study) if args.study else None
    given = [args.url, args.scrape, args.workload, args.alpha]
    if sum(x is not None for x in given) != 1:
        raise SpecamortError(
            "say what becomes of drafts with one of --url, --scrape, --workload, or --alpha"
        )
    if (study is None) == (args.t_base_ms is None):
        raise SpecamortError("say what a step costs with one of --study or --t-base-ms")
    now = None
    if args.url or args.scrape:
        choice = {"model": args.model, "engine": args.engine}
        if args.url:
            counted = serving.watch(args.url, args.window, **choice)
        else:
            counted = serving.read_file(args.scrape, **choice)
            if args.before:
                counted = serving.difference(serving.read_file(args.before, **choice), counted)
        now = serving.read(counted)
        acceptance = now.acceptance
    elif args.workload:
        if study is None:
            raise SpecamortError("--workload is of a study; name it with --study")
        acceptance = read_acceptance(study, study.results, args.workload)
    else:
        if args.at_gamma is None:
            raise SpecamortError("--alpha needs --at-gamma, the draft length it was read at")
        acceptance = Acceptance.of(args.alpha, args.at_gamma)
    if args.coverage is not None:
        acceptance = replace(acceptance, coverage=args.coverage)
    if study:
        batch = args.batch
        if batch is None:
            near = now.batch if now else 1
            batch = min(study.batches, key=lambda n: abs(n - near))
        platform = args.platform or study.calibration.name
        calibration = read_calibration(study, study.results, platform, batch)
    else:
        calibration = Calibration(args.t_base_ms, _overheads(args.d), h0_ms=args.h_ms)
    if args.draft_ms is not None:
        calibration = replace(calibration, draft_ms=args.draft_ms)
    answer = plan(calibration, acceptance, args.max_gamma, now)
    if args.figure:
        from .figures import plan_map

        plan_map(answer, now).savefig(args.figure)
    print(json.dumps(answer.to_dict(), indent=1) if args.json else overview(answer, now))


def _overheads(text: str) -> dict[int, float]:
    try:
        pairs = [part.split(":") for part in text.split(",") if part]
        return {int(gamma): float(share) for gamma, share in pairs}
    except ValueError as e:
        raise SpecamortError(f"--d {text}: write it as 2:0.01,6:0.03") from e


def _analyse(args, terminal) -> None:
    from .tables import write_tables

    study = read_study(args.study)
    write_tables(study, study.results)


def _figures(args, terminal) -> None:
    from .figures import draw_all

    study = read_study(args.study)
    draw_all(study, study.results)


def _report(args, terminal) -> None:
    from .report import write_report

    study = read_study(args.study)
    write_report(study, study.results)


if __name__ == "__main__":
    sys.exit(main())
