from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import specamort.study.prompts as module
from letters import Letters
from specamort.errors import SpecamortError
from specamort.study.grid import PromptSet, Workload
from specamort.study.prompts import draftability, prompts

COPY = Workload("copy", "repeat", True, "alice", alpha_min=0.98)
REPEAT = Workload("repeat", "repeat", False, "sentences")
OPEN = Workload("open", "open", True, "alice")


@pytest.fixture
def study(small):
    return replace(small, workloads={w.name: w for w in (COPY, REPEAT, OPEN)})


def text(prompt):
    return "".join(map(chr, prompt.token_ids))


def made(study, workload, length, count=1, tokens=None):
    which = PromptSet(workload.name, length, count, 16, tokens or {0: 16, 2: 16})
    return prompts(study, Letters(), which)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(length=st.integers(700, 2000), count=st.integers(1, 5))
def test_exact_length_and_no_two_alike(study, length, count):
    for w in (REPEAT, OPEN, replace(COPY, name="copy", alpha_min=0.0)):
        study.workloads[w.name] = w
        found = made(study, w, length, count)
        assert {len(p.token_ids) for p in found} == {length}
        assert len({tuple(p.token_ids) for p in found}) == count


def test_repeat_repeats_one_passage_and_goes_on_with_it(study):
    (one,) = made(study, REPEAT, 1000)
    said, copied = text(one), "".join(map(chr, one.copy))
    assert said.startswith(" Alice was beginning") and said.count(said[:100]) >= 5
    seam = (said + copied)[len(said) - 50 : len(said) + 50]
    assert seam in said


def test_a_copy_is_of_the_passage_that_the_prompt_holds(study):
    (one,) = made(study, COPY, 900)
    said, copied = text(one), "".join(map(chr, one.copy))
    assert said == f"<user>{copied}\n\nRepeat the passage above word for word, from its first " + (
        "word to its last, and write nothing else.<assistant>"
    )


def test_chat_asks_and_leaves_the_answer_open(study):
    (one,) = made(study, OPEN, 800)
    said = text(one)
    assert said.startswith("<user>Here is the beginning of a story.\n\nCHAPTER I. Down the Rabbit")
    assert said.endswith("in every sentence.<assistant>") and one.copy == []


def test_passages_do_not_overlap(study):
    found = [text(p)[40:-120] for p in made(study, OPEN, 1000, count=6)]
    for i, one in enumerate(found):
        assert not any(one[100:160] in other for other in found[:i] + found[i + 1 :])


def test_more_prompts_or_other_draft_lengths_do_not_change_the_first(study):
    for w in (COPY, REPEAT, OPEN):
        study.workloads[w.name] = replace(w, alpha_min=0.0)
        few = [p.token_ids for p in made(study, w, 900, count=2)]
        for more in ({"count": 5}, {"count": 2, "tokens": {0: 16, 3: 17, 7: 17}}):
            assert [p.token_ids for p in made(study, w, 900, **more)][:2] == few


def test_a_passage_that_drafts_badly_is_passed_over(study, monkeypatch):
    """A sentence that says `of the` twice drafts from its first place when it means the second."""
    monkeypatch.setattr(
        module,
        "read_text",
        lambda name: (
            "the cat of the house of the man sat in the sun by the sea of the east\n\n"
            "Jackdaws love my big sphinx of quartz, and five boxing wizards jump quickly over it."
        ),
    )
    which = PromptSet("copy", 200, 1, 40, {0: 40, 4: 41})
    (one,) = prompts(study, Letters(), which)
    assert "Jackdaws" in text(one)
    found = draftability(study, [one], which).iloc[0]
    assert found["alpha"] >= 0.98 and found["gamma"] == 4
    with pytest.raises(SpecamortError, match=r"that a lookup drafts with alpha >= 0\.98"):
        prompts(study, Letters(), replace(which, count=2))


def test_text_too_short_and_context_too_small(study):
    with pytest.raises(SpecamortError, match=r"workloads\.open: text 'alice' gives 0 passages of"):
        made(study, OPEN, 200_000)
    with pytest.raises(SpecamortError, match=r"gives 1\d passages of \d+ .* needs 40"):
        made(study, OPEN, 10_000, count=40)
    with pytest.raises(SpecamortError, match="context_tokens 40"):
        made(study, OPEN, 40)
    with pytest.raises(SpecamortError, match=r"copy of 3578 tokens, but a passage .* has \d+"):
        made(study, COPY, 1024, tokens={0: 512, 6: 3578})


def test_no_chat_template(study):
    plain = Letters()
    plain.chat_template = None
    with pytest.raises(SpecamortError, match=r"workloads\.open\.chat: this model has no chat"):
        prompts(study, plain, PromptSet("open", 800, 1, 16, {0: 16}))


def test_a_template_that_drops_the_request(study):
    class Drops(Letters):
        def apply_chat_template(self, *a, **k):
            return "<user><assistant>"

    with pytest.raises(SpecamortError, match="does not hold the request once"):
        prompts(study, Drops(), PromptSet("open", 800, 1, 16, {0: 16}))
