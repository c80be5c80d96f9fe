"""Should I speculate, and with which gamma?"""

import argparse
from pathlib import Path

from ..errors import SpecamortError
from ..study.study_file import read_study


def add(commands) -> None:
    _plan_options(commands.add_parser("plan", help="should I speculate, and with which gamma?"))


def _plan_options(p: argparse.ArgumentParser) -> None:
    p.set_defaults(run=_plan, log=None)
    step = p.add_argument_group("what a step costs: from a finished study, or by hand")
    step.add_argument("--study", help="study file; its tables are the calibration")
    step.add_argument("--platform", help="of the study; default: its calibration platform")
    step.add_argument("--batch", type=int, help="of the study; default: the server's, or smallest")
    step.add_argument("--t-base-ms", type=float, help="a decode step without speculation")
    step.add_argument(
        "--d", default="", help="verify verify_overhead, as GAMMA:SHARE,... (2:0.01,6:0.03)"
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


def _plan(args, terminal) -> None:
    import json
    from dataclasses import replace

    from ..planner import server_metrics
    from ..planner.acceptance import Acceptance
    from ..planner.calibration import Calibration
    from ..planner.from_study import read_acceptance, read_calibration
    from ..planner.plan import plan
    from ..planner.text import overview

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
            counted = server_metrics.watch(args.url, args.window, **choice)
        else:
            counted = server_metrics.read_file(args.scrape, **choice)
            if args.before:
                counted = server_metrics.difference(
                    server_metrics.read_file(args.before, **choice), counted
                )
        now = server_metrics.read(counted)
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
        try:
            from ..report.plan_map import plan_map
        except ModuleNotFoundError as e:
            raise SpecamortError(
                "--figure needs matplotlib, which is in the extra `workflow`; run "
                "`pip install '.[workflow]'` in the checkout"
            ) from e
        plan_map(answer, now).savefig(args.figure)
    print(json.dumps(answer.to_dict(), indent=1) if args.json else overview(answer, now))


def _overheads(text: str) -> dict[int, float]:
    try:
        pairs = [part.split(":") for part in text.split(",") if part]
        return {int(gamma): float(share) for gamma, share in pairs}
    except ValueError as e:
        raise SpecamortError(f"--d {text}: write it as 2:0.01,6:0.03") from e
