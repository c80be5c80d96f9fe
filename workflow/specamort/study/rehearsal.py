"""The study file of a rehearsal: the same study without its GPUs.

The grid, the lengths of the prompts, the rules, blocks, traces and the report are the study's. The
devices, the model and the tracer are stand-ins, and outputs are as short as the rules accept, so
no number of it is a result: its records, tables and figures say `rehearsal`.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from .. import files
from .grid import Study
from .model_files import EMBEDDED
from .study_file import parse_study, read_study
from .yaml_file import load_yaml

_SHAPE = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 10,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}


def rehearsal(raw: dict[str, Any], file: str, full: bool = False) -> dict[str, Any]:
    """The study mapping that rehearses `raw`, which was read from `file`.

    Args:
        full: keep warm-ups, repetitions, output and trace lengths.
    """
    made = deepcopy(raw)
    made |= {"name": f"{raw['name']}-rehearsal", "rehearses": file}
    made["model"] = {k: v for k, v in vars(EMBEDDED).items() if v is not None}
    for p in made["platforms"].values():
        if p["device"] == "cuda":
            del p["gpu"]
            p |= {"device": "cpu", "threads": 1, "label": f"{p['label']} (stand-in)"}
    for w in made["workloads"].values():
        if w["kind"] == "repeat":
            w["chat"] = False
        else:  # what the stand-in's text is like says nothing of the model's
            w |= {"alpha_min": 0.0, "alpha_max": 1.0}
    # every repetition of a cell has the same prompts: their prefill is paid once
    here = {"enable_prefix_caching": True, "model_runner": "v1", "async_scheduling": False}
    made["engine"] = _core(made["engine"]) | here
    for mode in made.get("modes", {}).values():
        kept = _core(mode)
        mode.clear()
        mode.update(kept | {k: v for k, v in here.items() if k in kept})
    for drafter in [made["drafter"]] if "drafter" in made else made["drafters"].values():
        stand_in = dict(_drafter(drafter))
        drafter.clear()
        drafter.update(stand_in)
    tracing = made["tracing"]
    tracing["tracer"] = "kineto"
    tracing["models"] = [
        m
        if m["source"] == "random"
        else {"name": f"{m['name']}-stand-in", "source": "random", "shape": _SHAPE}
        for m in tracing["models"]
    ]
    if not full:
        verify = max(made["gammas"]) + 1
        made |= {"warmup": 1, "repetitions": 1, "output_tokens": 1 + 2 * verify}
        first = min(tracing["tokens"])
        tracing |= {"pairs": 1, "tokens": [first, first + 2 * verify]}
        if "dial" in made:
            made["dial"]["repetitions"] = 1
    return made


_CORE = ("model_runner", "enforce_eager", "enable_prefix_caching", "async_scheduling")


def _core(engine: dict[str, Any]) -> dict[str, Any]:
    """What of an engine's options the stand-in has too."""
    return {k: v for k, v in engine.items() if k in _CORE}


def _drafter(drafter: dict[str, Any]) -> dict[str, Any]:
    """A lookup for one on the host; for a model or a head, the stand-in drafts for itself."""
    if drafter["method"] == "ngram":
        return drafter
    if "model" in drafter:
        return {"method": "draft_model", "model": {k: v for k, v in vars(EMBEDDED).items() if v}}
    return {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 4}


def write_rehearsal(study: Study, full: bool) -> Study:
    """The study that rehearses `study`, in a file of its own results folder."""
    made = rehearsal(load_yaml(study.file), study.file, full)
    parse_study(made, f"the rehearsal of {study.file}")
    path = Path("results") / made["name"] / "study.yaml"
    text = f"# Made by `specamort rehearse`.\n{yaml.safe_dump(made, sort_keys=False)}"
    if not path.is_file() or path.read_bytes() != text.encode():
        files.write_text(path, text)
    return read_study(path)
