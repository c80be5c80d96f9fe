"""A study before it is measured: check it, fetch its models, rehearse it."""

import argparse
import sys
from pathlib import Path
from shlex import quote

from ..errors import SpecamortError
from ..study.effort import effort
from ..study.new import QUESTIONS
from ..study.study_file import read_study


def add(command) -> None:
    checked = command("check", _check, "read a study file, build its prompts, say what it holds")
    checked.add_argument("--output", type=Path, help="a file for what it says of the prompts")
    checked.add_argument("--start-s", type=_time, default=60.0, help="an engine start takes; 60")
    checked.add_argument("--step-ms", type=_time, default=20.0, help="a decode step takes; 20")
    made = command("new", _new, "write a commented study file from a few answers")
    for name, (question, default) in QUESTIONS.items():
        said = question + (f"; {default}" if default else "")
        made.add_argument(f"--{name.replace('_', '-')}", help=said)
    model = command("model", _model, "fetch, convert or make the study's models")
    model.add_argument("--model", help="only this one")
    rehearsed = command("rehearse", _rehearse, "the same study without its GPUs, in minutes")
    rehearsed.add_argument("--full", action="store_true", help="keep repetitions and lengths")
    rehearsed.add_argument("--cluster", help="cluster file: as its jobs, on CPUs")
    rehearsed.add_argument("snakemake", nargs="*", help="after --: more arguments for Snakemake")


def _time(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is no time above 0 and below 1,000,000")
    return value


def _new(args, terminal) -> None:
    """Asks for what no option says, if a person is there and no option was given."""
    from ..files import write_text
    from ..study.new import Answers, study_text

    path = Path(args.study)
    if path.exists():
        raise SpecamortError(f"{path}: is there already; name another file")
    given = {k: getattr(args, k) for k in QUESTIONS}
    if not any(given.values()) and sys.stdin.isatty():
        given = {k: input(f"{q}{f' [{d}]' * bool(d)}: ") for k, (q, d) in QUESTIONS.items()}
    answers = {k: given[k] or default for k, (_, default) in QUESTIONS.items()}
    write_text(path, study_text(path.stem, Answers(**answers)))
    print(f"{path}: written; next `specamort check --study {quote(str(path))}`")


def _check(args, terminal) -> None:
    from ..files import write_text
    from ..measure.engine_check import check_engine
    from ..study.prompt_check import check_prompts

    study = read_study(args.study)
    blocks = len(study.platforms) * study.replicates
    print(
        f"{study.file}: {len(study.cells)} cells in each of {blocks} blocks; calibration on "
        f"{study.calibration.name}, held out: {', '.join(p.name for p in study.heldout) or 'none'}"
    )
    if len(study.setups) > 1:
        print(f"setups: {', '.join(s.name for s in study.setups)}")
    asked = effort(study)
    print(
        f"{asked.starts} engine starts, {asked.steps:,} decode steps at most: "
        f"{asked.hours(args.start_s, args.step_ms):.1f} hours of a device at "
        f"{args.start_s:g} s a start and {args.step_ms:g} ms a step"
    )
    lines = [*check_engine(study), *check_prompts(study)]
    print(*lines, sep="\n")
    if args.output:
        write_text(args.output, "\n".join([*lines, ""]))


def _model(args, terminal) -> None:
    from ..measure.models import fetch
    from ..study.model_files import model_dir
    from ..study.prompt_check import check_prompts

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


def _rehearse(args, terminal) -> None:
    from ..cluster.rehearse import not_rehearsed, rehearse, snakemake_command
    from ..measure.models import fetch
    from ..study.model_files import EMBEDDED, is_there, model_dir
    from ..study.prompt_check import check_prompts
    from ..study.rehearsal import write_rehearsal

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
