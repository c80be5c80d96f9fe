"""A proposer that drafts what it is told; vLLM's worker loads it by its name.

The measuring job writes a plan to a file named in the environment before it asks for a run. The
worker is another process: it reads the plan when a sequence has its first token, which is part of
no decode step. All else is computed before, since here it would be part of every one.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

PLAN = "SPECAMORT_DIAL"  # names the file
PROPOSER = {"method": "custom_class", "model": f"{__name__}.Dial"}


class Dial:
    """Drafts by the plan; none for a sequence that it does not know.

    A plan is `{"version": number, "sequences": [{"prompt": [id], "drafts": [[id]]}]}`, the drafts
    by how many tokens of output there are.
    """

    def __init__(self, vllm_config: Any):
        self._version: int | None = None
        self._prompt_tokens = 0
        self._drafts: dict[bytes, list[list[int]]] = {}  # by prompt

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """vLLM's interface: drafts of each row of the batch.

        Args:
            num_tokens_no_spec: of each row, prompt and output so far.
            token_ids_cpu: the rows' tokens. A sequence's row may change, so it is known by its
                prompt.
        """
        rows = range(len(sampled_token_ids))
        if any(num_tokens_no_spec[i] <= self._prompt_tokens + 1 for i in rows) or not self._drafts:
            self._read(token_ids_cpu.dtype)
        found = []
        for i in rows:
            drafts = self._drafts.get(token_ids_cpu[i, : self._prompt_tokens].tobytes(), [])
            at = int(num_tokens_no_spec[i]) - self._prompt_tokens
            found.append(drafts[at] if sampled_token_ids[i] and 0 <= at < len(drafts) else [])
        return found

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """vLLM's CPU runner asks every drafter to load its model; here is none."""

    def _read(self, dtype: Any) -> None:
        """The plan, if it is a new one."""
        if not (name := os.environ.get(PLAN)):
            return
        plan = json.loads(Path(name).read_text(encoding="utf-8"))
        if plan["version"] == self._version:
            return
        self._version, sequences = plan["version"], plan["sequences"]
        self._prompt_tokens = len(sequences[0]["prompt"])
        self._drafts = {np.array(s["prompt"], dtype).tobytes(): s["drafts"] for s in sequences}
