"""Accepted lengths by lot, and drafts that are accepted just so far: acceptance as a dial."""

from collections.abc import Iterable
from itertools import accumulate
from random import Random
from typing import NamedTuple


class Dialled(NamedTuple):
    """What one repetition asks for.

    Attributes:
        acceptance: probability that a token of a draft holds while those before it did; null where
            nothing is drafted.
        pattern: geometric (token by token) or whole (all of a draft or nothing of it).
    """

    gamma: int
    acceptance: float | None
    pattern: str | None


def dialled(
    gammas: Iterable[int], acceptances: Iterable[float], patterns: Iterable[str]
) -> list[Dialled]:
    """Every combination once.

    Where nothing or everything holds, and in a draft of one token, all patterns are the same: the
    first stands for them.

    >>> len(dialled([0, 2], [0, 0.5, 1], ["geometric", "whole"]))
    5
    """
    acceptances, patterns = list(acceptances), list(patterns)
    found = []
    for gamma in gammas:
        if not gamma:
            found.append(Dialled(0, None, None))
            continue
        for p in acceptances:
            apart = 0 < p < 1 and gamma > 1
            found += [Dialled(gamma, p, one) for one in (patterns if apart else patterns[:1])]
    return found


def alpha(acceptance: float, gamma: int) -> float:
    """Mean share of a draft that is accepted, whatever the pattern: (p + p² + … + p^γ) / γ.

    A draft's token holds only if those before it did.

    >>> alpha(0.5, 2)
    0.375
    """
    return sum(acceptance**i for i in range(1, gamma + 1)) / gamma


def lengths(asked: Dialled, tokens: int, rng: Random) -> list[int]:
    """How many tokens of each step's draft are accepted, until `tokens` are there.

    The first token is the prefill's; a step gives what it accepts and one more. The last is
    shortened to end at `tokens`. Empty where nothing is drafted.

    Args:
        tokens: of the output, all in all.
    """
    if asked.acceptance is None:
        return []
    found = []
    missing = tokens - 1
    while missing > 0:
        found.append(min(_length(asked.gamma, asked.acceptance, asked.pattern, rng), missing - 1))
        missing -= found[-1] + 1
    return found


def _length(gamma: int, acceptance: float, pattern: str | None, rng: Random) -> int:
    if pattern == "whole":
        return gamma * (rng.random() < alpha(acceptance, gamma))
    holds = 0
    while holds < gamma and rng.random() < acceptance:
        holds += 1
    return holds


def drafts(text: list[int], gamma: int, lengths: list[int]) -> list[list[int]]:
    """What to propose after so many tokens of the output, by that number.

    It is how the text goes on. Where a step begins, the token after the accepted ones is another;
    with no lengths nothing is spoiled. None is proposed before the first token, nor for gamma 0.

    Args:
        text: token ids that the model itself gives.

    Raises:
        ValueError: the text is over before the draft of the last step is.

    >>> drafts([5, 6, 7, 8, 9], 2, [1, 0])
    [[], [6, 6], [7, 8], [7, 9], [9]]
    """
    proposed = [text[at : at + gamma] if at else [] for at in range(len(text))]
    for at, holds in zip(_starts(lengths), lengths, strict=False):
        if at + gamma > len(text):
            raise ValueError(
                f"a text of {len(text)} tokens is over before the draft of {gamma} after token {at}"
            )
        if holds < gamma:
            # any other id of the vocabulary: it is refused before what follows it is looked at
            right = proposed[at][holds]
            proposed[at][holds] = right - 1 if right else 1
    return proposed


def _starts(lengths: list[int]) -> Iterable[int]:
    """Tokens of the output before each step."""
    return accumulate((holds + 1 for holds in lengths), initial=1)
