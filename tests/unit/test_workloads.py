from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specamort.errors import SpecamortError
from specamort.study import Workload
from specamort.workloads import prompt


class Letters:
    """A tokenizer whose tokens are characters."""

    chat_template = "yes"

    def encode(self, text, add_special_tokens):
        assert not add_special_tokens
        return [ord(c) for c in text]

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        assert not tokenize and add_generation_prompt
        return f"<user>{messages[0]['content']}<assistant>"


def text(ids):
    return "".join(map(chr, ids))


REPEAT = Workload("repeat", "repeat", False, "sentences")
OPEN = Workload("open", "open", True, "alice")


@given(st.integers(300, 2000), st.integers(0, 20))
def test_exact_length(length, index):
    for w in (REPEAT, OPEN, replace(REPEAT, chat=True, text="alice")):
        assert len(prompt(Letters(), w, index, length)) == length


def test_repeat_repeats_one_passage():
    said = text(prompt(Letters(), REPEAT, 0, 1000))
    first = said[:100]
    assert first.startswith(" Alice was beginning")
    assert said.count(first) >= 5


def test_chat_asks_and_leaves_the_answer_open():
    said = text(prompt(Letters(), OPEN, 0, 800))
    assert said.startswith("<user>Here is the beginning of a story.\n\nAlice was")
    assert said.endswith("in every sentence.<assistant>")


def test_sequences_differ():
    prompts = [tuple(prompt(Letters(), REPEAT, i, 400)) for i in range(8)]
    assert len(set(prompts)) == 8


def test_text_too_short_and_context_too_small():
    with pytest.raises(SpecamortError, match=r"workloads\.open: text 'alice' has \d+ tokens"):
        prompt(Letters(), OPEN, 0, 100_000)
    with pytest.raises(SpecamortError, match="context_tokens 40"):
        prompt(Letters(), OPEN, 0, 40)


def test_no_chat_template():
    plain = Letters()
    plain.chat_template = None
    with pytest.raises(SpecamortError, match=r"workloads\.open\.chat: this model has no chat"):
        prompt(plain, OPEN, 0, 800)
