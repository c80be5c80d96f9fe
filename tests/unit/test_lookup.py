"""What a lookup drafts of a copy, by hand and against vLLM's own proposer."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

from specamort.model.lookup import copy_acceptance, draftable_share


def test_a_copy_of_distinct_tokens_is_drafted_perfectly():
    passage = list(range(100))
    found = copy_acceptance(passage, passage, 15, 6, (1, 4))
    assert (found.steps, found.drafts, found.drafted, found.accepted) == (2, 2, 12, 12)
    assert (found.alpha, found.coverage, found.tau) == (1.0, 1.0, 7.0)


def test_a_repeated_token_drafts_from_its_first_place():
    # after 5 the lookup proposes 6 7, which followed the first 5; the copy means 8 9. Worked by
    # hand: 1 -> (5 6) right; then 7; its draft (5 8): right, emitting 5 8 and then 9; done.
    passage = [1, 5, 6, 7, 5, 8, 9, 2, 3]
    found = copy_acceptance(passage, passage, 7, 2, (1, 1))
    assert (found.steps, found.drafted, found.accepted) == (2, 4, 4)
    # begun inside, its one-token suffix is the second 5, and the draft is wrong
    found = copy_acceptance(passage, [5, 8, 9, 2], 3, 2, (1, 1))
    assert (found.steps, found.accepted) == (2, 2)


def test_a_window_that_starts_above_one_is_silent_on_the_first_token():
    passage = list(range(50))
    found = copy_acceptance(passage, passage, 15, 6, (2, 4))
    assert found.drafts == found.steps - 1


def test_a_draft_at_the_end_of_the_text_is_short():
    found = copy_acceptance([1, 1], [1, 1, 1, 1], 4, 6, (1, 4))
    assert found.drafted < 6 * found.drafts


def test_share_of_places_that_draft_rightly():
    passage = [1, 2, 3, 4, 5, 6, 7, 8]
    assert draftable_share(passage, passage, 6, 3, (1, 4)) == 1
    # 2 occurs twice, and its first place goes on otherwise: of places 1 to 4 the second is wrong
    passage = [1, 2, 3, 9, 2, 4, 6, 7, 8]
    assert draftable_share(passage, passage[3:], 4, 2, (1, 1)) == 2 / 3


def test_a_share_of_one_is_perfect_at_every_gamma():
    rng = random.Random(0)
    seen = 0
    for _ in range(300):
        passage = [rng.randrange(60) for _ in range(60)]
        if draftable_share(passage, passage, 40, 8, (1, 4)) == 1:
            seen += 1
            for gamma in range(1, 9):
                found = copy_acceptance(passage, passage, 40, gamma, (1, 4))
                assert found.alpha == 1
    assert seen > 3


@pytest.mark.parametrize("window", [(1, 4), (2, 4), (3, 5), (1, 1)])
@pytest.mark.parametrize("gamma", [2, 6])
def test_vllms_own_proposer_is_the_judge(window, gamma):
    """The same drafts, step by step, on texts full of repetitions."""
    proposer_of = pytest.importorskip("vllm.v1.spec_decode.ngram_proposer").NgramProposer
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(
            prompt_lookup_min=window[0], prompt_lookup_max=window[1], num_speculative_tokens=gamma
        ),
        model_config=SimpleNamespace(max_model_len=400),
        scheduler_config=SimpleNamespace(max_num_seqs=1024),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )
    proposer = proposer_of(config)
    rng = random.Random(f"{window}-{gamma}")
    for words in (3, 10, 60):
        prompt = [rng.randrange(words) for _ in range(120)]
        copy = prompt[:40] if words == 60 else [rng.randrange(words) for _ in range(40)]
        ids = np.zeros((1, 400), dtype=np.int32)
        ids[0, :160] = prompt + copy
        end, steps, drafts, drafted, accepted = 121, 0, 0, 0, 0
        while end < 120 + 30:
            (draft,) = proposer.propose(gamma, [[1]], np.array([end], dtype=np.int32), ids)
            truth = [*prompt, *copy][end : end + len(draft)]
            right = next(
                (i for i, (a, b) in enumerate(zip(draft, truth, strict=False)) if a != b),
                min(len(draft), len(truth)),
            )
            steps, drafts = steps + 1, drafts + bool(draft)
            drafted, accepted, end = drafted + len(draft), accepted + right, end + right + 1
        found = copy_acceptance(prompt, copy, 30, gamma, window)
        assert (found.steps, found.drafts, found.drafted, found.accepted) == (
            steps,
            drafts,
            drafted,
            accepted,
        )
