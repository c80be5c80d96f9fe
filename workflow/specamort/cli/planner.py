"""Should I speculate, and with which gamma?"""

import argparse
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from ..errors import SpecamortError
from ..planner.acceptance import LONGEST
from ..planner.calibration import D_MAX, MS_MAX, MS_MIN
from ..planner.scrape import shown
from ..study.study_file import read_study

_ONE_OF = {
    "becomes of drafts": ("url", "scrape", "workload", "alpha"),
    "a step costs": ("study", "t_base_ms"),
}
# what an option does nothing without
_NEEDS = {
    "platform": ("study",),
    "batch": ("study",),
    "setup": ("study",),
    "workload": ("study",),
    "d": ("t_base_ms",),
    "h_ms": ("t_base_ms",),
    "window": ("url",),
    "token_env": ("url",),
    "before": ("scrape",),
    "model": ("url", "scrape"),
    "engine": ("url", "scrape"),
    "alpha": ("at_gamma",),
    "at_gamma": ("alpha",),
}


def add(commands) -> None:
    p = commands.add_parser(
        "plan", help="should I speculate, and with which gamma?", allow_abbrev=False
    )
    _plan_options(p)


def _plan_options(p: argparse.ArgumentParser) -> None:
    p.set_defaults(run=_plan, log=None)
    ms, share, gamma = _number(float, 0, MS_MAX), _number(float, 0, 1), _number(int, 1, LONGEST)
    step = p.add_argument_group("what a step costs: from a finished study, or by hand")
    step.add_argument("--study", type=_text, help="study file; its tables are the calibration")
    step.add_argument(
        "--platform", type=_text, help="of the study; default: its calibration platform"
    )
    step.add_argument(
        "--batch",
        type=_number(int, 1, 10**6),
        help="of the study; default: the server's, or smallest",
    )
    step.add_argument(
        "--setup", type=_text, help="of the study, where it has several: mode, context, drafter"
    )
    step.add_argument(
        "--t-base-ms",
        type=_number(float, MS_MIN, MS_MAX),
        help="a decode step without speculation",
    )
    step.add_argument(
        "--d", type=_overheads, help="verify overhead, as GAMMA:SHARE,... (2:0.01,6:0.03)"
    )
    step.add_argument("--h-ms", type=ms, help="host time a verify step adds")
    step.add_argument("--draft-ms", type=ms, help="drafting time per token; n-gram: 0")
    seen = p.add_argument_group("what becomes of drafts: live, saved, from a study, or by hand")
    seen.add_argument("--url", type=_text, help="a running vLLM server; its /metrics is read twice")
    seen.add_argument(
        "--window", type=_number(float, 0, 3600), help="seconds between the two; default: 30"
    )
    seen.add_argument(
        "--token-env",
        type=_text,
        metavar="NAME",
        help="the environment variable that holds the server's bearer token",
    )
    seen.add_argument("--scrape", type=_file, help="a saved scrape, or a Prometheus query's JSON")
    seen.add_argument("--before", type=_file, help="an earlier one, to take the difference")
    seen.add_argument("--model", type=_text, help="model_name, where the server has several")
    seen.add_argument("--engine", type=_text, help="engine, or `all`, where the server has several")
    seen.add_argument("--workload", type=_text, help="of the study")
    seen.add_argument("--alpha", type=share, help="accepted / drafted tokens")
    seen.add_argument("--at-gamma", type=gamma, help="the gamma at which alpha was read")
    seen.add_argument("--coverage", type=share, help="share of steps that have a draft")
    p.add_argument("--max-gamma", type=gamma, help="longest draft length to consider")
    p.add_argument("--json", action="store_true", help="the whole answer for programs")
    p.add_argument("--figure", type=_file, help="speedup over acceptance and gamma, as a picture")


def _number(kind: type, low: float, high: float) -> Callable[[str], float]:
    def parse(text: str):
        try:
            value = kind(text.replace("_", "no digit"))
        except ValueError:
            value = None
        if value is None or not low <= value <= high:
            what = "whole number" if kind is int else "number"
            raise argparse.ArgumentTypeError(f"{shown(text)} is no {what} from {low:g} to {high:g}")
        return value

    return parse


def _text(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty; name something, or leave the option out")
    return text


def _file(text: str) -> Path:
    if "://" in text:  # not shown: it may hold a password
        raise argparse.ArgumentTypeError("is a file, not an address; a server's is --url")
    return Path(_text(text))


def _overheads(text: str) -> dict[int, float]:
    length, share = _number(int, 1, LONGEST), _number(float, 0, D_MAX)
    try:
        pairs = sorted((length(g), share(d)) for g, d in (x.split(":") for x in text.split(",")))
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"{shown(text)}: write it as 2:0.01,6:0.03") from e
    for (before, less), (gamma, more) in pairwise(pairs):
        if before == gamma:
            raise argparse.ArgumentTypeError(f"gamma {gamma} has two shares; give it one")
        if more < less:
            raise argparse.ArgumentTypeError(
                f"{less:g} of gamma {before} falls to {more:g} of gamma {gamma}, and verifying "
                "more tokens takes no less; give both the larger"
            )
    return dict(pairs)


def _check_together(args: argparse.Namespace) -> None:
    """Hold options against each other: none may be given that would do nothing."""
    given = {name for name, value in vars(args).items() if value is not None}
    for what, options in _ONE_OF.items():
        if len(given & set(options)) != 1:
            raise SpecamortError(f"say what {what} with one of {_listed(options)}")
    for name, needs in _NEEDS.items():
        if name in given and not given & set(needs):
            raise SpecamortError(
                f"{_listed([name])} does nothing without {_listed(needs)}; give that too, or leave "
                f"{_listed([name])} out"
            )


def _listed(names: Sequence[str]) -> str:
    *most, last = (f"--{name.replace('_', '-')}" for name in names)
    return f"{', '.join(most)} or {last}" if most else last


def _plan(args, terminal) -> None:
    import json
    from dataclasses import replace

    from ..planner import scrape, server_metrics
    from ..planner.acceptance import Acceptance
    from ..planner.calibration import Calibration
    from ..planner.from_study import chosen_setup, read_acceptance, read_calibration
    from ..planner.plan import plan
    from ..planner.text import overview

    _check_together(args)
    write_map = _map_writer(args.figure) if args.figure else None
    study = read_study(args.study) if args.study else None
    setup = chosen_setup(study, args.setup) if study else None
    now = None
    choice = {"model": args.model, "engine": args.engine}
    if args.url or args.scrape:
        if args.url:
            window_s = 30 if args.window is None else args.window
            bearer = scrape.token(args.token_env) if args.token_env else None
            counted = server_metrics.watch(args.url, window_s, bearer=bearer, **choice)
        else:
            counted = server_metrics.read_file(args.scrape, **choice)
            if args.before:
                counted = server_metrics.difference(
                    server_metrics.read_file(args.before, **choice), counted
                )
        now = server_metrics.read(counted)
        acceptance = now.acceptance
    elif args.workload:
        acceptance = read_acceptance(study, study.results, args.workload, setup)
    else:
        acceptance = Acceptance.of(args.alpha, args.at_gamma)
    if args.coverage is not None:
        acceptance = replace(acceptance, coverage=args.coverage)
    if study:
        batch = args.batch
        if batch is None:
            near = now.batch if now else 1
            batch = min(study.batches, key=lambda n: abs(n - near))
        platform = args.platform or study.calibration.name
        calibration = read_calibration(study, study.results, platform, batch, setup)
    else:
        calibration = Calibration(args.t_base_ms, args.d or {}, h_ms=args.h_ms or 0.0)
    if args.draft_ms is not None:
        calibration = replace(calibration, draft_ms=args.draft_ms)
    answer = plan(calibration, acceptance, args.max_gamma, now)
    if write_map:
        write_map(answer, now)
    if args.json:
        print(json.dumps(answer.to_dict(), indent=1, allow_nan=False))
    else:
        print(overview(answer, now))


def _map_writer(path: Path):
    """What writes the picture there, known before a server is watched for long."""
    try:
        from ..report.plan_map import write_to
    except ModuleNotFoundError as e:
        raise SpecamortError(
            "--figure needs matplotlib, which is in the extra `workflow`; run "
            "`pip install '.[workflow]'` in the checkout"
        ) from e
    return write_to(path)
