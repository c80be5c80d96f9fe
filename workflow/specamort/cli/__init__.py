"""One command, thin: each subcommand reads files, calls one function, writes files."""

import argparse
import os
import signal
import sys
import traceback
from pathlib import Path

from ..errors import SpecamortError
from . import analysis, cluster, measure, planner, study


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    terminal = sys.stderr
    try:
        if args.log:
            terminal = _divert(args.log)
        _stop_on_sigterm(terminal)
        args.run(args, terminal)
    except Exception as e:
        hint = f" (details: {args.log})" if args.log else ""
        print(f"specamort: {_sentence(e)}{hint}", file=terminal)
        return 1
    return 0


def _sentence(e: Exception) -> str:
    """What to tell a person; the traceback of what we did not expect goes to the log."""
    if isinstance(e, SpecamortError):
        return str(e)
    if isinstance(e, ModuleNotFoundError) and not (e.name or "").startswith("specamort"):
        return (
            f"{e.name} is not installed here; `pip install '.[workflow]'` for tables, figures and "
            "launching, `make env` for an engine"
        )
    traceback.print_exc()
    return f"stopped by an unexpected {type(e).__name__}: {e}; please report it"


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

    for audience in (study, cluster, measure, analysis):
        audience.add(command)
    planner.add(commands)
    return parser


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
    with log.open("a", encoding="utf-8") as f:
        os.dup2(f.fileno(), 1)
        os.dup2(f.fileno(), 2)
    return terminal
