"""Prompts of an exact length in tokens: `repeat` copies what it has seen, `open` does not.

Every sequence of every replicate has a passage of its own. A passage to be copied is chosen by
what a lookup would draft of it (`lookup.py`), so that alpha below 1 is the model's doing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from random import Random
from typing import Protocol

import pandas as pd

from ..errors import SpecamortError
from ..model.lookup import Lookup, copy_acceptance, draftable_share
from .grid import PromptSet, Study, Workload
from .prompt_files import read_asked
from .texts import read_text

_REQUEST = {
    "repeat": "{}\n\nRepeat the passage above word for word, from its first word to its last, "
    "and write nothing else.",
    "open": "Here is the beginning of a story.\n\n{}\n\nTell what happens next, with new people, "
    "new places and new words in every sentence.",
}


_PLACE = "THE-PASSAGE-GOES-HERE"
_AHEAD = 8  # tokens a draft must have right: every gamma up to it is then drafted perfectly
_LEAST_CYCLES = 3  # a raw text must have repeated before a model goes on repeating it


class Tokenizer(Protocol):
    chat_template: str | None

    def encode(self, text: str, add_special_tokens: bool) -> list[int]: ...

    def apply_chat_template(
        self,
        messages: list[dict[str, str]],
        tokenize: bool,
        add_generation_prompt: bool,
        date_string: str,
    ) -> str: ...


@dataclass(frozen=True)
class Prompt:
    """Attributes:
    token_ids: exactly as many as the set's context; of a file at most so many.
    copy: what an exact copy writes after it; of kind `repeat` only.
    category: of kind `file`, where its lines say one.
    """

    token_ids: list[int]
    copy: list[int]
    category: str = ""

    @property
    def sha256(self) -> str:
        """What a record says of it, so that two alike are found out."""
        return sha256(repr(self.token_ids).encode()).hexdigest()


_Candidate = tuple[int, int, Prompt]  # begin and end of its passage: two must not overlap
_Passage = tuple[int, int, list[int], list[int]]  # begin, end, its tokens, those of its copy


def prompts(study: Study, tokenizer: Tokenizer, which: PromptSet) -> list[Prompt]:
    """The prompts of a set, no two from one passage.

    Sequence i of replicate r has prompt `r * max(batches) + i`.

    Raises:
        SpecamortError: the text has too few or too short passages, the lookup drafts too few of
            them within the workload's band, or there is no chat template.
    """
    workload = study.workloads[which.workload]
    where = f"{study.file}: workloads.{workload.name}"

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    if workload.kind == "file":
        return _from_file(study, tokenizer, workload, which, encode)
    passages = [" ".join(p.split()) for p in read_text(workload.text).strip().split("\n\n")]
    before, after = _frame(tokenizer, workload, encode, where)
    room = which.context_tokens - len(before) - len(after)
    if room <= 0:
        raise SpecamortError(
            f"{where}: the chat template alone has {len(before) + len(after)} tokens: no prompt "
            f"of context_tokens {which.context_tokens}; make it larger"
        )
    if workload.kind == "repeat" and not workload.chat:
        candidates = _cycles([encode(" " + p) for p in passages], room, max(which.tokens.values()))
    else:
        candidates = _stretches([encode(p + "\n\n") for p in passages], room)
        longest = max(which.tokens.values())
        if workload.kind == "repeat" and longest > room:
            raise SpecamortError(
                f"{where}: asks for a copy of {longest} tokens, but a passage in context_tokens "
                f"{which.context_tokens} has {room}; shorten output_tokens or tracing.tokens"
            )
    made = [
        (begin, end, Prompt([*before, *body, *after], copy if workload.kind == "repeat" else []))
        for begin, end, body, copy in candidates
    ]
    chosen = _choose(study, workload, which, made)
    if len(chosen) < which.count:
        draftable = f" that a lookup drafts with alpha >= {workload.alpha_min}" * bool(
            workload.kind == "repeat" and len(made) >= which.count
        )
        raise SpecamortError(
            f"{where}: text {workload.text!r} gives {len(chosen)} passages of {room} tokens"
            f"{draftable}, the study needs {which.count} for context_tokens "
            f"{which.context_tokens} (replicates x largest batch): give it a longer text, or "
            "lower one of them"
        )
    return chosen


def draftability(study: Study, made: list[Prompt], which: PromptSet) -> pd.DataFrame:
    """What a lookup would accept of exact copies: the most that the set's counters can show.

    One row per gamma: prompts, alpha (mean and worst prompt), coverage, tau; empty for `open`.

    Args:
        made: `prompts` of the set.
    """
    if study.workloads[which.workload].kind != "repeat":
        return pd.DataFrame()
    rows = []
    for gamma in (g for g in which.tokens if g):
        found = [_lookup(study, which, p, gamma) for p in made]
        rows.append(
            {"gamma": gamma, "prompts": len(made)}
            | {"alpha": sum(x.alpha for x in found) / len(found)}
            | {"alpha_worst": min(x.alpha for x in found)}
            | {"coverage": sum(x.coverage for x in found) / len(found)}
            | {"tau": sum(x.tokens for x in found) / sum(x.steps for x in found)}
        )
    return pd.DataFrame(rows)


def _from_file(
    study: Study,
    tokenizer: Tokenizer,
    workload: Workload,
    which: PromptSet,
    encode: Callable[[str], list[int]],
) -> list[Prompt]:
    """The first that fit, of the file's requests in an order drawn by the seed.

    Raises:
        SpecamortError: there are too few.
    """
    asked = list(read_asked(workload.path, workload.category))
    Random(study.seed).shuffle(asked)
    where, context = f"{study.file}: workloads.{workload.name}", which.context_tokens
    exact = workload.lengths == "exact"
    least, most = workload.tokens or (1, 10**9 if exact else context)
    least, most = (max(least, context), most) if exact else (least, min(most, context))
    chosen: dict[tuple[int, ...], str] = {}
    longer = 0
    for one in asked:
        if len(chosen) == which.count:
            break
        ids = encode(_templated(tokenizer, one.messages, where) if workload.chat else one.text)
        longer += len(ids) > most
        if least <= len(ids) <= most:
            chosen.setdefault(tuple(ids[:context]), one.category)
    if len(chosen) < which.count:
        said = f"{least} tokens or more" if exact and most >= 10**9 else f"{least} to {most} tokens"
        raise SpecamortError(
            f"{where}.path: {workload.path} has {len(chosen)} different prompts of {said}, of "
            f"{len(asked)} ({longer} are longer), and the study needs {which.count} (replicates x "
            "largest batch): give it more, or change tokens or context_tokens"
        )
    return [Prompt(list(ids), [], category) for ids, category in chosen.items()]


def _templated(tokenizer: Tokenizer, messages: list[dict[str, str]], where: str) -> str:
    if tokenizer.chat_template is None:
        raise SpecamortError(f"{where}.chat: this model has no chat template; set it to false")
    try:
        # some templates write today's date, and prompts must be the same tomorrow
        return tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, date_string="26 Jul 2024"
        )
    except Exception as e:  # a template is a program of its own, and raises what it likes
        raise SpecamortError(
            f"{where}.chat: this model's chat template fails ({type(e).__name__}: {e!s:.200}); set "
            "it to false"
        ) from e


def _frame(
    tokenizer: Tokenizer, workload: Workload, encode: Callable[[str], list[int]], where: str
) -> tuple[list[int], list[int]]:
    """Tokens of the chat template before and after the passage."""
    if not workload.chat:
        return [], []
    request = [{"role": "user", "content": _REQUEST[workload.kind].format(_PLACE)}]
    text = _templated(tokenizer, request, where)
    if text.count(_PLACE) != 1:
        raise SpecamortError(
            f"{where}.chat: this model's chat template does not hold the request once; set it to "
            "false"
        )
    before, after = map(encode, text.split(_PLACE))
    return before, after


def _stretches(passages: list[list[int]], room: int) -> Iterator[_Passage]:
    """From each paragraph `room` tokens of running text."""
    running = [token for p in passages for token in p]
    for begin in accumulate(map(len, passages[:-1]), initial=0):
        if begin + room > len(running):
            return
        body = running[begin : begin + room]
        yield begin, begin + room, body, body


def _cycles(passages: list[list[int]], room: int, longest: int) -> Iterator[_Passage]:
    """Each paragraph over and over, `room` tokens of it, and how it goes on."""
    for i, cycle in enumerate(passages):
        if _LEAST_CYCLES * len(cycle) <= room:
            whole = cycle * ((room + 2 * longest) // len(cycle) + 1)
            yield i, i + 1, whole[:room], whole[room : room + 2 * longest]


def _choose(
    study: Study, workload: Workload, which: PromptSet, made: list[_Candidate]
) -> list[Prompt]:
    """The first that do not overlap; of copies those drafted perfectly, then those in the band.

    More prompts never change which the first are, nor do other draft lengths.
    """
    if workload.kind == "open" or not any(which.tokens):
        return [p for _, _, p in _apart(made, which.count, [], lambda _: True)]
    share: dict[int, float] = {}

    def drafted(item: _Candidate) -> float:
        begin, _, prompt = item
        if begin not in share:
            share[begin] = draftable_share(
                prompt.token_ids, prompt.copy, which.output_tokens, _AHEAD, study.window
            )
        return share[begin]

    chosen = _apart(made, which.count, [], lambda item: drafted(item) == 1)
    chosen = _apart(made, which.count, chosen, lambda item: drafted(item) >= workload.alpha_min)
    return [prompt for _, _, prompt in chosen]


def _apart(
    made: list[_Candidate],
    count: int,
    chosen: list[_Candidate],
    good: Callable[[_Candidate], bool],
) -> list[_Candidate]:
    """`chosen` with good ones after it, up to `count`, none alike or overlapping another."""
    chosen = list(chosen)
    for begin, end, prompt in made:
        if len(chosen) == count:
            break
        apart = all(
            (end <= b or e <= begin) and p.token_ids != prompt.token_ids for b, e, p in chosen
        )
        if apart and good((begin, end, prompt)):
            chosen.append((begin, end, prompt))
    return chosen


def _lookup(study: Study, which: PromptSet, prompt: Prompt, gamma: int) -> Lookup:
    tokens = which.tokens[gamma]
    return copy_acceptance(prompt.token_ids, prompt.copy, tokens, gamma, study.window)
