"""The text of a new study file, from a few answers."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from ..errors import SpecamortError
from .model_files import EMBEDDED
from .study_file import parse_study

# What is asked where it is not given as an option: by its name, the question and the default.
QUESTIONS = {
    "model": ("model: OWNER/NAME@COMMIT, a folder, or empty for the small one that is here", ""),
    "gpu": ("GPU, such as H100; empty for this machine's CPU", ""),
    "drafter": ("drafter: vLLM's name of it", "ngram"),
    "drafter_model": ("its model or head, as above; empty if it has none", ""),
    "prompts": ("your prompts, a JSONL file; empty for the built-in ones", ""),
}


@dataclass(frozen=True)
class Answers:
    """See `QUESTIONS`; empty for what was left open."""

    model: str = ""
    gpu: str = ""
    drafter: str = "ngram"
    drafter_model: str = ""
    prompts: str = ""


def study_text(name: str, answers: Answers) -> str:
    """A commented study file.

    Raises:
        SpecamortError: the answers make no study; the sentence is the study file's own.
    """
    a = answers
    gpu, quoted = bool(a.gpu), json.dumps(a.gpu)
    device = (
        f"gpu: {{role: calibration, device: cuda, gpu: {quoted}, dtype: bfloat16, label: {quoted}}}"
        if gpu
        else "cpu: {role: calibration, device: cpu, dtype: bfloat16, threads: 1, label: CPU}"
    )
    drafter = f"method: {json.dumps(a.drafter)}"
    if a.drafter == "ngram":
        drafter += ", prompt_lookup_min: 1, prompt_lookup_max: 4"
    if a.drafter_model:
        drafter += f", model: {_model(a.drafter_model)}"
    own = (
        f"  mine: {{kind: file, path: {json.dumps(a.prompts)}, chat: true}}\n" if a.prompts else ""
    )
    tracer = "nsys" if gpu else "kineto"
    text = f"""\
# What is measured, where, and how often; every key is in docs/configuration.md. Check it with
# `specamort check --study FILE` before you run it.
name: {json.dumps(name)}
model: {_model(a.model)}
platforms:
  # exactly one has role calibration; others, role heldout, are predicted from it
  {device}
workloads:
  # copies its prompt: drafts are accepted
  repeat: {{kind: repeat, chat: {str(gpu).lower()}, text: {"alice" if gpu else "sentences"}}}
  # new text: most drafts are refused
  open: {{kind: open, chat: true, text: alice}}
{own}\
gammas: [0, 2, 4, 6]       # draft lengths; 0 is the baseline
batches: [1, 4]            # sequences side by side
context_tokens: {1024 if gpu else 256}
output_tokens: {211 if gpu else 43}
warmup: {3 if gpu else 1}
repetitions: {10 if gpu else 2}
replicates: {3 if gpu else 2}              # blocks: what intervals come from
seed: 20260101
drafter: {{{drafter}}}     # several: drafters, by name
# vLLM's engine arguments; several modes of it: modes, by name
engine:
  {{model_runner: v1, enforce_eager: {str(not gpu).lower()}, enable_prefix_caching: false,
   async_scheduling: false}}
tracing:
  {{tracer: {tracer}, tokens: [2, {512 if gpu else 30}], context_tokens: {1024 if gpu else 256},
   pairs: 2, models: []}}
"""
    parse_study(yaml.safe_load(text), "the answers")
    return text


def _model(said: str) -> str:
    """A model's entry in a study file.

    Raises:
        SpecamortError: it is neither a repository at a commit nor a folder.
    """
    if not said:
        given = {k: v for k, v in vars(EMBEDDED).items() if v is not None}
    elif found := re.fullmatch(r"([^@\s]+/([^@\s/]+))@([0-9a-f]{40})", said):
        given = {"name": found[2].lower(), "source": "huggingface"}
        given |= {"repo": found[1], "revision": found[3]}
    elif Path(said).is_dir():
        given = {"name": Path(said).resolve().name.lower(), "source": "directory", "path": said}
    else:
        raise SpecamortError(
            f"model {said!r:.80}: is no folder here; a repository is OWNER/NAME@COMMIT, with all "
            "40 digits of the commit"
        )
    return json.dumps(given)
