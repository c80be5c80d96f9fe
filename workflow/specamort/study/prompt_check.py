"""Every prompt that a study will ask for, built before anything is queued.

Needs a model's tokenizer, not its weights, and no GPU.
"""

from collections import Counter
from collections.abc import Callable
from shlex import quote
from statistics import median

from ..errors import SpecamortError
from .grid import Model, PromptSet, Study
from .model_files import EMBEDDED, is_there, load_tokenizer, longest_input
from .prompts import Prompt, Tokenizer, draftability, prompts


def check_prompts(
    study: Study, tokenizer_of: Callable[[Model], Tokenizer | None] = load_tokenizer
) -> list[str]:
    """A line for each set of prompts: how many, how long, and how well a copy can be drafted.

    Raises:
        SpecamortError: a prompt cannot be built, or is longer than the model takes.
    """
    lines = []
    for model in study.traced_models.values():
        tokenizer = tokenizer_of(model)
        if tokenizer is None:
            tokenizer = tokenizer_of(EMBEDDED)
            how = f"built with {EMBEDDED.name}'s" if tokenizer else "not built"
            why = "its tokenizer is not here"
            mend = f"run `specamort model --study {quote(study.file)}`"
            if is_there(model):
                why, mend = "transformers is not installed here", "run `make env`"
            lines.append(f"prompts of {model.name}: {why}, {how}; {mend}")
            if tokenizer is None:
                continue
        _require_room(study, model)
        for which in _sets(study, model):
            lines += _lines(study, model, tokenizer, which)
    return lines


def _lines(study: Study, model: Model, tokenizer: Tokenizer, which: PromptSet) -> list[str]:
    made = prompts(study, tokenizer, which)
    lengths = {len(p.token_ids) for p in made}
    if study.workloads[which.workload].kind == "file":
        return [_of_file(model, made, which)]
    if lengths != {which.context_tokens} or len({tuple(p.token_ids) for p in made}) < len(made):
        raise SpecamortError(
            f"{study.file}: workloads.{which.workload}: prompts of {sorted(lengths)} tokens, some "
            f"of them alike, where {which.count} different ones of {which.context_tokens} are "
            f"asked for; this tokenizer ({model.name}) is not understood"
        )
    size = f"{len(made)} of {which.context_tokens} tokens, for {which.output_tokens} of output"
    head = f"prompts of {model.name}: {which.workload}, {size}"
    drafted = draftability(study, made, which)
    return [head] + [
        f"  an exact copy at gamma {r.gamma}: lookup alpha {r.alpha:.3f} (worst prompt "
        f"{r.alpha_worst:.3f}), coverage {r.coverage:.2f}, {r.tau:.2f} tokens a step"
        for r in drafted.itertuples()
    ]


def _of_file(model: Model, made: list[Prompt], which: PromptSet) -> str:
    tokens = sorted(len(p.token_ids) for p in made)
    size = f"{len(made)} of {tokens[0]} to {tokens[-1]} tokens, {median(tokens):g} in the median"
    kinds = Counter(p.category for p in made if p.category)
    said = f" ({', '.join(f'{n} {k}' for k, n in kinds.items())})" if kinds else ""
    head = f"prompts of {model.name}: {which.workload}, {size}{said}"
    return f"{head}, for {which.output_tokens} of output"


def _sets(study: Study, model: Model) -> list[PromptSet]:
    """What of the study's prompts a model is asked: all, or those of its traced decode step."""
    if model == study.model:
        return study.prompt_sets
    return [study.trace_prompts(study.tracing.context_tokens)]


def _require_room(study: Study, model: Model) -> None:
    limit = longest_input(model)
    traced = [c for c in study.trace_cells if c.model == model.name]
    needed = {"tracing.context_tokens": max(study.trace_length(c) for c in traced)}
    if model == study.model:
        needed = {"context_tokens": study.max_model_len} | needed
    for key, tokens in needed.items():
        if limit and tokens > limit:
            raise SpecamortError(
                f"{study.file}: {key}: prompt and output come to {tokens} tokens, {model.name} "
                f"takes {limit}; make it smaller"
            )
