"""The dial's lots by hand, and that they have the mean that was asked for."""

from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specamort.model.draws import Dialled, alpha, dialled, drafts, lengths

SHARE = st.floats(0, 1)


def test_mean_acceptance_by_hand():
    assert alpha(0.5, 2) == (0.5 + 0.25) / 2
    assert alpha(0.8, 4) == pytest.approx((0.8 + 0.64 + 0.512 + 0.4096) / 4)
    assert (alpha(0, 6), alpha(1, 6)) == (0, 1)


@pytest.mark.parametrize("pattern", ["geometric", "whole"])
@pytest.mark.parametrize(("p", "gamma"), [(0.5, 2), (0.8, 4), (0.3, 6)])
def test_lots_have_the_mean_that_was_asked_for(pattern, p, gamma):
    drawn = lengths(Dialled(gamma, p, pattern), 200_001, Random(1))[:-1]
    share = fmean(drawn) / gamma
    # four standard errors of a share whose single values lie between 0 and 1
    assert abs(share - alpha(p, gamma)) < 4 * 0.5 / len(drawn) ** 0.5
    assert set(drawn) == ({0, gamma} if pattern == "whole" else set(range(gamma + 1)))


def test_a_token_holds_only_while_those_before_it_did():
    drawn = lengths(Dialled(3, 0.5, "geometric"), 200_001, Random(2))[:-1]
    for position in range(1, 4):
        share = fmean(n >= position for n in drawn)
        assert abs(share - 0.5**position) < 4 * 0.5 / len(drawn) ** 0.5


@given(SHARE, st.integers(1, 8), st.sampled_from(["geometric", "whole"]), st.integers(2, 60))
def test_steps_end_at_the_outputs_end(p, gamma, pattern, tokens):
    drawn = lengths(Dialled(gamma, p, pattern), tokens, Random(3))
    assert 1 + sum(n + 1 for n in drawn) == tokens
    assert all(0 <= n <= gamma for n in drawn)


def test_nothing_and_everything_and_no_draft():
    assert lengths(Dialled(2, 0.0, "geometric"), 4, Random(1)) == [0, 0, 0]
    assert lengths(Dialled(2, 1.0, "geometric"), 7, Random(1)) == [2, 2]
    assert lengths(Dialled(2, 1.0, "whole"), 6, Random(1)) == [2, 1]  # shortened to end there
    assert lengths(Dialled(0, None, None), 7, Random(1)) == []


def test_a_lot_is_its_seeds():
    asked = Dialled(4, 0.5, "geometric")
    first, same, other = (lengths(asked, 99, Random(s)) for s in ("a", "a", "b"))
    assert first == same != other


@given(SHARE, st.integers(1, 6), st.integers(2, 40))
def test_a_verifier_accepts_what_was_drawn(p, gamma, tokens):
    """The model itself, in a line: it takes a draft while it is the text, then its own token."""
    rng = Random(f"{p}{gamma}{tokens}")
    text = [rng.randrange(50) for _ in range(tokens + gamma)]
    drawn = lengths(Dialled(gamma, p, "geometric"), tokens, rng)
    proposed, at, accepted = drafts(text, gamma, drawn), 1, []
    while at < tokens:
        draft = proposed[at]
        assert len(draft) == gamma
        right = next((i for i in range(gamma) if draft[i] != text[at + i]), gamma)
        accepted.append(right)
        at += right + 1
    assert at == tokens and accepted == drawn


def test_drafts_by_hand():
    text = [10, 11, 12, 13, 14, 15]
    assert drafts(text, 2, []) == [[], [11, 12], [12, 13], [13, 14], [14, 15], [15]]
    assert drafts(text, 0, []) == [[]] * 6
    assert drafts([7, 0, 0, 0], 2, [0])[1] == [1, 0]  # another id, and none below 0
    with pytest.raises(ValueError, match="over before the draft of 2 after token 5"):
        drafts(text, 2, [2, 0, 0])


def test_each_combination_once():
    found = dialled([0, 1, 2], [0.0, 0.5, 1.0], ["geometric", "whole"])
    assert found == [
        (0, None, None),
        (1, 0.0, "geometric"),
        (1, 0.5, "geometric"),  # one token holds or not: the patterns are one
        (1, 1.0, "geometric"),
        (2, 0.0, "geometric"),
        (2, 0.5, "geometric"),
        (2, 0.5, "whole"),
        (2, 1.0, "geometric"),
    ]
    assert dialled([2], [1.0], ["whole"]) == [(2, 1.0, "whole")]
