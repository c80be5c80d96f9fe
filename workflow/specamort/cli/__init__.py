"""One command, thin: each subcommand reads files, calls one function, writes files."""

import argparse
import os
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from ..errors import SpecamortError
from . import analysis, cluster, measure, planner, study


def main(argv: list[str] | None = None) -> int:
    for stream in filter(None, (sys.stdout, sys.stderr)):  # either may be closed
        stream.reconfigure(errors="backslashreplace")  # a locale may have no letter gamma
    args = _parser().parse_args(argv)
    terminal, hint = sys.stderr, ""
    try:
        if args.log:
            terminal, hint = _divert(args.log), f" (details: {args.log})"
        _stop_on_sigterm(terminal)
        args.run(args, terminal)
        print(end="", flush=True)
    except Exception as e:
        if isinstance(e, BrokenPipeError) and _nobody_reads():
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return 1
        if not isinstance(e, _TOLD) or (hint and not isinstance(e, SpecamortError)):
            traceback.print_exc()
        print(_on_one_line(f"specamort: {_sentence(e)}{hint}"), file=terminal)
        return 1
    except KeyboardInterrupt:
        print("specamort: stopped; what is finished is kept", file=terminal)
        return 130
    return 0


# what a person can mend, and a traceback would not help with
_TOLD = (SpecamortError, ModuleNotFoundError, OSError, MemoryError, RecursionError)


def _sentence(e: Exception) -> str:
    """What to tell a person; where it came from goes to the log."""
    if isinstance(e, SpecamortError):
        return str(e)
    if isinstance(e, ModuleNotFoundError) and not (e.name or "").startswith("specamort"):
        return (
            f"{e.name} is not installed here; `pip install '.[workflow]'` for tables, figures and "
            "launching, `make env` for an engine"
        )
    if isinstance(e, OSError):
        where = "" if e.filename is None else f"{os.fsdecode(e.filename)}: "
        return f"{where}{e.strerror or e}; mend that and run again, what is finished is kept"
    if isinstance(e, MemoryError):
        return "there is not enough memory; give it more, or make the study smaller"
    if isinstance(e, RecursionError):
        return "something that was read is nested too deeply; see which file it is (--log FILE)"
    return f"stopped by an unexpected {type(e).__name__}: {e}; please report it"


def _nobody_reads() -> bool:
    """Whether who read this command's output has seen enough (`| head`)."""
    output = select.poll()
    output.register(1, 0)
    return any(event & select.POLLERR for _, event in output.poll(0))


def _on_one_line(text: str) -> str:
    text = _without_passwords(text)
    return "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)


def _without_passwords(text: str) -> str:
    """Without what an address may carry, wherever it was written by mistake, even in two words."""
    hidden = "[an address with a password]"
    if "://" in text and "@" in text[(at := text.index("://")) :]:
        start = max(text.rfind(" ", 0, at), text.rfind("\n", 0, at)) + 1
        rest = text[text.rindex("@") :].split(maxsplit=1)[1:]
        text = " ".join([text[:start] + hidden, *rest])
    words = (hidden if ":" in w.rpartition("@")[0] else w for w in text.split(" "))
    return " ".join(words)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(_on_one_line(message))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="specamort", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run, help: str, platform=False):
        p = commands.add_parser(name, help=help)
        p.add_argument("--study", required=True, type=_name, help="study file")
        p.add_argument("--log", type=Path, help="send all output but progress to this file")
        if platform:
            p.add_argument("--platform", required=True, help="a platform of the study")
        p.set_defaults(run=run)
        return p

    for audience in (study, cluster, measure, analysis):
        audience.add(command)
    planner.add(commands)
    return parser


def _name(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("names no file")
    return text


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
    """Send this process's and its children's output to `log`; give back the terminal.

    Raises:
        SpecamortError: there is no writing there.
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        # a pipe that nobody reads would be waited for
        opened = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666)
    except (OSError, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) else "no file can have that name"
        raise SpecamortError(f"--log {log}: cannot be written ({why}); name another file") from e
    os.set_blocking(opened, True)
    encoding = sys.stderr.encoding if sys.stderr else None
    terminal = os.fdopen(os.dup(2), "w", 1, encoding, "backslashreplace")
    os.dup2(opened, 1)
    os.dup2(opened, 2)
    os.close(opened)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    return terminal
