"""A study file: read, validate, refuse with a sentence."""

import os
from collections import Counter
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn, cast

from ..errors import SpecamortError
from .grid import (
    Dial,
    Drafter,
    EngineOptions,
    Model,
    Platform,
    Study,
    Tracing,
    Workload,
    takes_proposers,
)
from .prompt_files import read_asked
from .schema import validator
from .texts import read_text, texts
from .yaml_file import load_yaml


def read_study(path: str | Path) -> Study:
    """Read and validate a study file.

    Raises:
        SpecamortError: naming the file and the key at fault.
    """
    return parse_study(load_yaml(path), str(path))


def parse_study(raw: dict[str, Any], file: str) -> Study:
    """The study in the mapping `raw`; see `read_study`."""
    _no_drafter(raw, file)
    _validate(raw, file)
    modes = _modes(raw, file)
    drafters = _drafters(raw, file)
    given = raw["context_tokens"]
    contexts = given if isinstance(given, list) else [given]
    rest: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in raw.items() if k in _AS_THEY_ARE
    }
    tracing = raw["tracing"]
    study = Study(
        file=file,
        model=Model(**raw["model"]),
        platforms={k: Platform(k, **v) for k, v in raw["platforms"].items()},
        workloads={k: _workload(k, v) for k, v in raw["workloads"].items()},
        tracing=Tracing(
            **tracing
            | {
                "tokens": tuple(sorted(tracing["tokens"])),
                "models": tuple(Model(**m) for m in tracing["models"]),
                "batches": tuple(tracing.get("batches", ())),
                "gammas": tuple(tracing.get("gammas", ())),
            }
        ),
        context_tokens=contexts[0],
        more_contexts=tuple(contexts[1:]),
        modes=modes,
        drafters=drafters,
        window=_window(drafters.values()),
        dial=_dial(raw["dial"]) if "dial" in raw else None,
        **rest,
    )
    _check(study)
    return study


_AS_THEY_ARE = (
    *("name", "gammas", "batches", "output_tokens", "warmup", "repetitions", "replicates", "seed"),
    "rehearses",
)


def _workload(name: str, raw: dict[str, Any]) -> Workload:
    tokens = {"tokens": tuple(sorted(raw["tokens"]))} if "tokens" in raw else {}
    return Workload(name, **raw | tokens)


def _modes(raw: dict[str, Any], file: str) -> dict[str, EngineOptions]:
    """By name, what an engine is started with; `default` where the study has one mode."""
    if "modes" not in raw:
        return {"default": cast(EngineOptions, raw["engine"])}
    modes = {name: raw["engine"] | changed for name, changed in raw["modes"].items()}
    for name, mode in modes.items():
        _validate(raw | {"engine": mode}, f"{file}: modes.{name}, with `engine`")
    return cast(dict[str, EngineOptions], modes)


def _drafters(raw: dict[str, Any], file: str) -> dict[str, Drafter]:
    """By name; by its method where the study has one."""
    if ("drafter" in raw) == ("drafters" in raw):
        raise SpecamortError(f"{file}: drafter: give this or drafters, one of them")
    return raw["drafters"] if "drafters" in raw else {raw["drafter"]["method"]: raw["drafter"]}


def _window(drafters: Iterable[Drafter]) -> tuple[int, int]:
    """Of the first lookup; where there is none, one that most would take."""
    lookups = (d for d in drafters if d["method"] == "ngram" and {*_LOOKUP} <= d.keys())
    first = next(lookups, dict(zip(_LOOKUP, (1, 4), strict=True)))
    return first["prompt_lookup_min"], first["prompt_lookup_max"]


def _dial(raw: dict[str, Any]) -> Dial:
    # 1 and 1.0 are one acceptance, in a hash as well
    acceptances = tuple(map(float, raw["acceptances"]))
    return Dial(**raw | {"acceptances": acceptances, "patterns": tuple(raw["patterns"])})


def _no_drafter(raw: Any, file: str) -> None:
    """The schema would only say that there is no such drafter."""
    drafter = raw.get("drafter") if isinstance(raw, dict) else None
    if isinstance(drafter, dict) and drafter.get("method") == "dial":
        raise SpecamortError(
            f"{file}: drafter.method: a dial is no drafter of the study's cells; leave ngram here "
            "and ask for it in a section of its own, `dial:` (docs/configuration.md)"
        )


def _check(study: Study) -> None:
    """What a schema cannot say."""

    def refuse(key: str, why: str) -> NoReturn:
        raise SpecamortError(f"{study.file}: {key}: {why}")

    roles = Counter(p.role for p in study.platforms.values())
    if roles["calibration"] != 1:
        refuse("platforms", f"{roles['calibration']} have role calibration; give it to exactly one")
    if 0 not in study.gammas:
        refuse("gammas", "has no 0; every speedup needs the baseline without speculation, add 0")
    if max(study.gammas) == 0:
        refuse("gammas", "has only 0; add at least one draft length to measure")
    for where, drafter in _drafters_by_key(study):
        _check_drafter(drafter, where, refuse)
    for where, mode in _modes_by_key(study):
        _check_mode(study, mode, where, refuse)
    names = Counter(s.name for s in study.setups)
    if same := [n for n, times in names.items() if times > 1]:
        refuse("drafters", f"two setups of modes, contexts, drafters are called {same[0]}; rename")
    for label, n in Counter(p.label.strip() for p in study.platforms.values()).items():
        if n > 1:
            same = [p.name for p in study.platforms.values() if p.label.strip() == label]
            refuse(f"platforms.{same[1]}.label", f"is {label!r}, as that of {same[0]}; rename one")
    if "repeat" not in {w.kind for w in study.workloads.values()}:
        refuse("workloads", "has none of kind repeat; traces and figure 3 need full acceptance")
    _check_model(study.model, "model", refuse)
    if study.model.source == "random":
        refuse("model.source", "is random; acceptance needs a trained model")
    for i, m in enumerate(study.tracing.models):
        _check_model(m, f"tracing.models.{i}", refuse)
    if len(study.traced_models) != 1 + len(study.tracing.models):
        refuse("tracing.models", "two models have one name; rename one")
    for where, drafter in _drafters_by_key(study):
        if "model" in drafter:
            model = Model(**drafter["model"])
            _check_model(model, f"{where}.model", refuse)
            same_name = study.models[model.name], study.traced_models.get(model.name, model)
            if any(m != model for m in same_name):
                refuse(f"{where}.model.name", f"another model of the study is {model.name}; rename")
    for key in ("batches", "gammas"):
        if strange := {*getattr(study.tracing, key)}.difference(getattr(study, key)):
            refuse(f"tracing.{key}", f"{min(strange)} is none of the study's {key}")
    if study.tracing.gammas and 0 not in study.tracing.gammas:
        refuse("tracing.gammas", "has no 0, the step that a verify step is held against; add it")
    for p in study.platforms.values():
        needed, other = {"cpu": ("threads", "gpu"), "cuda": ("gpu", "threads")}[p.device]
        if getattr(p, needed) is None:
            refuse(f"platforms.{p.name}.{needed}", f"is missing; a {p.device} platform needs it")
        if getattr(p, other) is not None:
            refuse(
                f"platforms.{p.name}.{other}", f"means nothing for a {p.device} platform; remove it"
            )
        if p.device == "cuda" and p.shared_above is not None:
            refuse(
                f"platforms.{p.name}.shared_above",
                "means nothing for a cuda platform, where any other process is told; remove it",
            )
    for gamma in study.gammas:
        short, long = study.trace_tokens(gamma)
        if short == long:
            refuse(
                "tracing.tokens", f"both come to {long} in whole steps of γ = {gamma}; part them"
            )
    for w in study.workloads.values():
        if w.alpha_min > w.alpha_max:
            refuse(f"workloads.{w.name}.alpha_min", "is larger than alpha_max")
        _check_workload(w, f"workloads.{w.name}", refuse)
    if study.dial:
        _check_dial(study, study.dial, refuse)
    _check_size(study, refuse)


def _check_workload(w: Workload, where: str, refuse: Callable[[str, str], NoReturn]) -> None:
    if w.kind != "file":
        if not w.text:
            refuse(f"{where}.text", f"missing key; kind {w.kind} needs it")
        if w.text not in texts():
            refuse(f"{where}.text", f"no text is {w.text!r:.80}; name one of {texts()}")
        for key in ("path", "category", "tokens"):
            if getattr(w, key):
                refuse(f"{where}.{key}", "is only of kind file; remove it")
        read_text(w.text)
        return
    if w.text:
        refuse(f"{where}.text", "is not of kind file, whose prompts come from path; remove it")
    if not w.path:
        refuse(f"{where}.path", "missing key; kind file needs it")
    if w.lengths == "exact" and w.chat:
        refuse(
            f"{where}.lengths",
            "exact would cut off the chat template's end; say as_they_are, or chat: false",
        )
    try:
        read_asked(w.path, w.category)
    except SpecamortError as e:
        refuse(f"{where}.path", str(e))


def _modes_by_key(study: Study) -> Iterable[tuple[str, EngineOptions]]:
    """Each mode with its key in the study file."""
    return [("engine" if k == "default" else f"modes.{k}", v) for k, v in study.modes.items()]


def _drafters_by_key(study: Study) -> Iterable[tuple[str, Drafter]]:
    """Each drafter with its key in the study file."""
    alone = len(study.drafters) == 1
    return [
        ("drafter" if alone and k == v["method"] else f"drafters.{k}", v)
        for k, v in study.drafters.items()
    ]


@cache
def _known(what: str) -> list[str]:
    """Names of vLLM's options that a study may give."""
    names = load_yaml(Path(__file__).parent / "vllm_names.yaml")[what]
    return [*names, "model_runner"] if what == "engine" else names


def _check_names(
    given: Iterable[str], what: str, where: str, refuse: Callable[[str, str], NoReturn]
) -> None:
    for key in given:
        if key not in _known(what):
            why = "unknown key; it is no option of vLLM's that a study may give"
            refuse(f"{where}.{key:.80}", why + _meant(key, what))


def _meant(word: str, what: str) -> str:
    near = get_close_matches(word, _known(what), 1)
    return f", did you mean {near[0]}?" if near else ""


def _check_drafter(drafter: Drafter, where: str, refuse: Callable[[str, str], NoReturn]) -> None:
    _check_names(drafter, "drafter", where, refuse)
    method = drafter["method"]
    if method not in _known("methods"):
        refuse(f"{where}.method", f"vLLM has no drafter {method}" + _meant(method, "methods"))
    for key in _LOOKUP:
        if method == "ngram" and key not in drafter:
            refuse(f"{where}.{key}", "missing key; method ngram needs it")
    if method == "ngram" and drafter[_LOOKUP[0]] > drafter[_LOOKUP[1]]:
        refuse(f"{where}.prompt_lookup_min", "is larger than prompt_lookup_max")
    if method in _WITH_MODEL and "model" not in drafter:
        refuse(f"{where}.model", f"missing key; method {method} needs its model or head")


def _check_mode(
    study: Study, mode: EngineOptions, where: str, refuse: Callable[[str, str], NoReturn]
) -> None:
    _check_names(mode, "engine", where, refuse)
    for p in study.platforms.values():
        if p.device == "cpu" and mode["model_runner"] == "v2":
            refuse(
                f"{where}.model_runner",
                f"v2 needs Triton, which the CPU engine of platform {p.name} lacks; say v1",
            )
        if p.device == "cpu" and mode["async_scheduling"]:
            refuse(
                f"{where}.async_scheduling",
                f"vLLM's CPU engine, that of platform {p.name}, has none; say false",
            )
    for drafter in study.drafters.values():
        if mode["async_scheduling"] and drafter["method"] in _SYNCHRONOUS:
            refuse(
                f"{where}.async_scheduling",
                f"vLLM does not take it with drafter {drafter['method']}; say false",
            )


_LOOKUP = ("prompt_lookup_min", "prompt_lookup_max")
_WITH_MODEL = ("draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "dflash", "dspark")
_SYNCHRONOUS = ("ngram", "suffix", "medusa", "mlp_speculator")


def _check_dial(study: Study, dial: Dial, refuse: Callable[[str, str], NoReturn]) -> None:
    if not any(map(takes_proposers, study.modes.values())):
        v2 = study.engine["model_runner"] != "v1"
        key, value = ("model_runner", "v1") if v2 else ("async_scheduling", "false")
        refuse(
            f"engine.{key}",
            f"is {study.engine[key]}, on which vLLM takes no proposer of one's own, and "  # type: ignore[literal-required]
            f"a dial is one; say {value}, or remove the section dial",
        )
    if dial.workload not in study.workloads:
        known = ", ".join(study.workloads)
        refuse("dial.workload", f"no workload is {dial.workload!r:.80}; name one of {known}")
    if study.workloads[dial.workload].sampling.get("temperature", 0) > 0:
        refuse(
            "dial.workload",
            f"{dial.workload} samples at a temperature, and what is drafted must be what comes; "
            "name a greedy one",
        )


def _check_size(study: Study, refuse: Callable[[str, str], NoReturn]) -> None:
    """What each key allows may still come to more, together, than a machine does in a year."""
    cells, traced = study.cells, study.trace_cells
    blocks = len(study.platforms) * study.replicates
    steps = sum(study.tokens_to_generate(c.gamma) for c in cells)
    steps_traced = sum(2 * sum(study.trace_tokens(c.gamma)) for c in traced)
    longest = max(c.batch * study.trace_length(c) for c in traced)
    for key, number, what, most in (
        ("gammas", len(cells), "cells in a block", 10_000),
        ("replicates", len(cells) * blocks, "cells in all blocks", 1_000_000),
        ("context_tokens", max(study.batches) * study.max_model_len, "tokens in a batch", 10**8),
        ("tracing.context_tokens", longest, "tokens in a batch", 10**8),
        ("repetitions", steps * (study.warmup + study.repetitions), "steps in a block", 10**9),
        ("dial.repetitions", study.dial_steps, "steps of a dial", 10**9),
        ("tracing.pairs", steps_traced * study.tracing.pairs, "traced steps", 10**9),
    ):
        if number > most:
            refuse(key, f"comes to {number:,} {what}, the most is {most:,}; make the study smaller")


def _check_model(model: Model, where: str, refuse: Callable[[str, str], NoReturn]) -> None:
    needs = {
        "package": ("package",),
        "huggingface": ("repo", "revision"),
        "directory": ("path",),
        "random": ("shape",),
    }
    for key in needs[model.source]:
        if getattr(model, key) is None:
            refuse(f"{where}.{key}", f"is missing; source {model.source} needs it")
    if model.path:
        config = os.path.join(model.path, "config.json")
        if not os.path.isfile(config):
            refuse(f"{where}.path", f"{config} does not exist; name a directory that vLLM can load")
    if model.shape:
        _check_shape(model.shape, f"{where}.shape", refuse)
    for key in chain(*needs.values()):
        if key not in needs[model.source] and getattr(model, key) is not None:
            refuse(f"{where}.{key}", f"means nothing for source {model.source}; remove it")


def _check_shape(shape: dict[str, int], where: str, refuse: Callable[[str, str], NoReturn]) -> None:
    for key, of in (
        ("hidden_size", "num_attention_heads"),
        ("num_attention_heads", "num_key_value_heads"),
    ):
        if shape[key] % shape[of]:
            refuse(f"{where}.{key}", f"is {shape[key]}; make it a multiple of {of}, {shape[of]}")
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    weights = shape["num_hidden_layers"] * hidden * (4 * hidden + 3 * inner)
    if weights > 10**12:
        refuse(where, f"comes to {weights:,} weights, the most is {10**12:,}; make it smaller")


_validate = validator("study")
