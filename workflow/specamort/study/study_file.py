"""A study file: read, validate, refuse with a sentence."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ..errors import SpecamortError
from .grid import Model, Platform, Study, Tracing, Workload
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
    _validate(raw, file)
    rest: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v
        for k, v in raw.items()
        if k not in ("model", "platforms", "workloads", "tracing")
    }
    tracing = raw["tracing"]
    study = Study(
        file=file,
        model=Model(**raw["model"]),
        platforms={k: Platform(k, **v) for k, v in raw["platforms"].items()},
        workloads={k: Workload(k, **v) for k, v in raw["workloads"].items()},
        tracing=Tracing(
            **tracing
            | {
                "tokens": tuple(sorted(tracing["tokens"])),
                "models": tuple(Model(**m) for m in tracing["models"]),
            }
        ),
        **rest,
    )
    _check(study)
    return study


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
    if study.drafter["prompt_lookup_min"] > study.drafter["prompt_lookup_max"]:
        refuse("drafter.prompt_lookup_min", "is larger than prompt_lookup_max")
    for p in study.platforms.values():
        if p.device == "cpu" and study.engine["model_runner"] == "v2":
            refuse(
                "engine.model_runner",
                f"v2 needs Triton, which the CPU engine of platform {p.name} lacks; say v1",
            )
    if "repeat" not in {w.kind for w in study.workloads.values()}:
        refuse("workloads", "has none of kind repeat; traces and figure 3 need full acceptance")
    _check_model(study.model, "model", refuse)
    if study.model.source == "random":
        refuse("model.source", "is random; acceptance needs a trained model")
    for i, m in enumerate(study.tracing.models):
        _check_model(m, f"tracing.models.{i}", refuse)
    if len(study.models) != 1 + len(study.tracing.models):
        refuse("tracing.models", "two models have one name; rename one")
    for p in study.platforms.values():
        key = {"cpu": "threads", "cuda": "gpu"}[p.device]
        if getattr(p, key) is None:
            refuse(f"platforms.{p.name}.{key}", f"is missing; a {p.device} platform needs it")
    for w in study.workloads.values():
        if w.alpha_min > w.alpha_max:
            refuse(f"workloads.{w.name}.alpha_min", "is larger than alpha_max")
        if w.text not in texts():
            refuse(f"workloads.{w.name}.text", f"no text is {w.text!r}; name one of {texts()}")
        read_text(w.text)


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
    if model.source == "directory" and model.path:
        config = Path(model.path) / "config.json"
        if not config.is_file():
            refuse(f"{where}.path", f"{config} does not exist; name a directory that vLLM can load")


_validate = validator("study")
