"""Llama 3's own tokenizer file, from the package `llama-models`, behind the interface we use.

Ten times the vocabulary of the embedded model's, and the published study's. The file is Meta's
and not shipped with this project.
"""

from pathlib import Path

import llama_models
from tiktoken import Encoding
from tiktoken.load import load_tiktoken_bpe

_SPECIAL = ("begin_of_text", "start_header_id", "end_header_id", "eot_id")
# the split pattern of Llama 3's tokenizer, as its model card and tokenizer.json have it
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Llama3Tokenizer:
    chat_template = "Llama 3.1 instruct, without tools"

    def __init__(self):
        ranks = load_tiktoken_bpe(
            str(Path(llama_models.__file__).parent / "llama3/tokenizer.model")
        )
        special = {f"<|{name}|>": len(ranks) + i for i, name in enumerate(_SPECIAL)}
        self._encoding = Encoding(
            "llama3", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens=special
        )

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self._encoding.encode(text, allowed_special="all")

    def apply_chat_template(
        self, messages, tokenize: bool, add_generation_prompt: bool, date_string: str
    ) -> str:
        system = f"Cutting Knowledge Date: December 2023\nToday Date: {date_string}\n\n"
        turns = [("system", system), *((m["role"], m["content"].strip()) for m in messages)]
        heads = [f"<|start_header_id|>{r}<|end_header_id|>\n\n{c}<|eot_id|>" for r, c in turns]
        return (
            "<|begin_of_text|>"
            + "".join(heads)
            + ("<|start_header_id|>assistant<|end_header_id|>\n\n" * add_generation_prompt)
        )
