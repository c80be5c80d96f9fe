"""Prompts of an exact length in tokens: `repeat` copies what it has seen, `open` does not."""

from typing import Protocol

from .errors import SpecamortError
from .study import Workload, read_text

_REQUEST = {
    "repeat": "{}\n\nRepeat the passage above word for word, from its first word to its last, "
    "and write nothing else.",
    "open": "Here is the beginning of a story.\n\n{}\n\nTell what happens next, with new people, "
    "new places and new words in every sentence.",
}


class Tokenizer(Protocol):
    chat_template: str | None

    def encode(self, text: str, add_special_tokens: bool) -> list[int]: ...

    def apply_chat_template(self, messages, tokenize: bool, add_generation_prompt: bool) -> str: ...


def prompt(tokenizer: Tokenizer, workload: Workload, index: int, length: int) -> list[int]:
    """Token ids of the prompt of sequence `index` in a batch, exactly `length` long.

    Sequences of a batch start from different passages of the workload's text, so that a batch
    is not one sequence measured N times.

    Raises:
        SpecamortError: the text is too short for `length`, or the template leaves it no room.
    """

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    passages = [" ".join(p.split()) for p in read_text(workload.text).strip().split("\n\n")]
    index %= len(passages)
    if workload.kind == "repeat" and not workload.chat:
        cycle = encode(" " + passages[index])
        return (cycle * (length // len(cycle) + 1))[:length]
    body = encode("\n\n".join(passages[index:] + passages[:index]))
    before, after = [], []
    if workload.chat:
        if tokenizer.chat_template is None:
            raise SpecamortError(
                f"workloads.{workload.name}.chat: this model has no chat template; set it to false"
            )
        request = [{"role": "user", "content": _REQUEST[workload.kind]}]
        text = tokenizer.apply_chat_template(request, tokenize=False, add_generation_prompt=True)
        before, after = map(encode, text.split("{}"))
    room = length - len(before) - len(after)
    if not 0 < room <= len(body):
        raise SpecamortError(
            f"workloads.{workload.name}: text {workload.text!r} has {len(body)} tokens, the chat "
            f"template {length - room}: no prompt of context_tokens {length}; change one of them"
        )
    return before + body[:room] + after
