"""What an n-gram lookup would have accepted of an exact copy: no engine, no model, no clock.

A copy is perfect and still drafted badly where the passage says the same few words twice: the
lookup takes one earlier place, and it may be the wrong one. Semantics of vLLM 0.32's
`NgramProposer`: the longest n-gram of the window that ends the text and occurred before, at its
earliest place; the draft is what followed there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Lookup:
    """Counts of one simulated copy.

    Attributes:
        tokens: decode tokens, after the first.
    """

    steps: int
    drafts: int
    drafted: int
    accepted: int
    tokens: int

    @property
    def alpha(self) -> float:
        """Accepted over drafted; 0 without a draft."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def coverage(self) -> float:
        """Drafts per decode step."""
        return self.drafts / self.steps

    @property
    def tau(self) -> float:
        """Tokens per decode step."""
        return self.tokens / self.steps


def copy_acceptance(
    prompt: Sequence[int], copy: Sequence[int], tokens: int, gamma: int, window: tuple[int, int]
) -> Lookup:
    """Greedy verification of lookup drafts against a model that writes `copy` after `prompt`.

    Args:
        tokens: output length; drafts are held against what `copy` has beyond it, too.
        gamma: draft length, at least 1.
        window: shortest and longest n-gram, as `prompt_lookup_min` and `prompt_lookup_max`.

    The first token is prefill's; the step after it drafts the other 3, all of them right:

    >>> copy_acceptance([1, 2, 3, 4], [1, 2, 3, 4], tokens=4, gamma=3, window=(1, 1))
    Lookup(steps=1, drafts=1, drafted=3, accepted=3, tokens=3)
    """
    text = [*prompt, *copy]
    starts = dict(_starts(text, len(prompt) + 1, len(prompt) + tokens, window))
    end, stop = len(prompt) + 1, len(prompt) + tokens
    steps = drafts = drafted = accepted = 0
    while end < stop:
        draft = text[starts[end] : min(starts[end] + gamma, end)]
        right = _agree(draft, text[end : end + gamma])
        steps += 1
        drafts += bool(draft)
        drafted += len(draft)
        accepted += right
        end += right + 1
    return Lookup(steps, drafts, drafted, accepted, min(end, stop) - len(prompt) - 1)


def draftable_share(
    prompt: Sequence[int], copy: Sequence[int], tokens: int, ahead: int, window: tuple[int, int]
) -> float:
    """Share of the first `tokens` of a copy at which the next `ahead` are drafted rightly.

    At 1 every draft of up to `ahead` tokens is accepted, wherever a step begins.

    After the second 1 the lookup of single tokens proposes what followed the first, a 2 for a 3:

    >>> round(draftable_share([1, 2, 1, 3], [1, 2, 1, 3], tokens=4, ahead=1, window=(1, 1)), 3)
    0.667
    >>> draftable_share([1, 2, 1, 3], [1, 2, 1, 3], tokens=4, ahead=1, window=(1, 2))
    1.0
    """
    text = [*prompt, *copy]
    first, stop = len(prompt) + 1, len(prompt) + tokens
    right = sum(
        _agree(text[start : min(start + ahead, end)], text[end : end + ahead]) == ahead
        for end, start in _starts(text, first, stop, window)
    )
    return right / (stop - first)


def _starts(
    text: list[int], first: int, stop: int, window: tuple[int, int]
) -> Iterator[tuple[int, int]]:
    """For each end of the text so far, where its draft begins; at the end itself if nowhere."""
    earliest: dict[tuple[int, ...], int] = {}
    indexed = 0  # every n-gram that ends before this place is in `earliest`
    for end in range(first, stop):
        for at in range(indexed, end - 1):
            for n in range(window[0], min(window[1], at + 1) + 1):
                earliest.setdefault(tuple(text[at + 1 - n : at + 1]), at + 1)
        indexed = end - 1
        suffixes = (tuple(text[end - n : end]) for n in range(window[1], window[0] - 1, -1))
        yield end, next((earliest[s] for s in suffixes if s in earliest), end)


def _agree(draft: list[int], truth: list[int]) -> int:
    """How many tokens of the draft are right before the first that is not."""
    pairs = enumerate(zip(draft, truth, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(draft), len(truth)))
