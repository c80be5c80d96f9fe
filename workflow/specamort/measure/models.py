"""Bring a model to a directory that vLLM loads: from a package, a repository, or made at random."""

import os
import shutil
from importlib import metadata
from pathlib import Path

from ..errors import SpecamortError
from ..study.grid import Model


def fetch(model: Model, target: Path, like: Path | None = None) -> None:
    """Make `target`, whole or not at all.

    Args:
        like: a model whose tokenizer and vocabulary a random one takes.

    Raises:
        SpecamortError: the package is missing, or the repository refuses.
    """
    unfinished = target.with_name(target.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    if model.source == "random":
        _at_random(model, unfinished, like)
    else:
        {"package": _from_package, "huggingface": _from_hub}[model.source](model, unfinished)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(unfinished, target)


def _from_package(model: Model, target: Path) -> None:
    """A Python package that carries one GGUF file: dequantize it to safetensors."""
    try:
        files = metadata.files(model.package) or []
    except metadata.PackageNotFoundError as e:
        raise SpecamortError(
            f"model.package: {model.package} is not installed; run `make env`"
        ) from e
    gguf = [Path(f.locate()) for f in files if f.suffix == ".gguf"]
    if len(gguf) != 1:
        raise SpecamortError(
            f"model.package: {model.package} carries {len(gguf)} GGUF files, not 1"
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"pretrained_model_name_or_path": str(gguf[0].parent), "gguf_file": gguf[0].name}
    weights = AutoModelForCausalLM.from_pretrained(
        **where, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    weights.save_pretrained(target)
    AutoTokenizer.from_pretrained(**where).save_pretrained(target)


def _at_random(model: Model, target: Path, like: Path) -> None:
    """A Llama of the given shape: its time is a model's of that size, its words mean nothing."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    theirs = LlamaConfig.from_pretrained(like)
    config = LlamaConfig(
        vocab_size=theirs.vocab_size,
        max_position_embeddings=theirs.max_position_embeddings,
        tie_word_embeddings=True,
        **model.shape,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(target)
    AutoTokenizer.from_pretrained(like).save_pretrained(target)


def _from_hub(model: Model, target: Path) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        snapshot_download(
            model.repo,
            revision=model.revision,
            local_dir=target,
            ignore_patterns=["original/*", "*.pth"],
        )
    except (GatedRepoError, RepositoryNotFoundError) as e:
        raise SpecamortError(
            f"model.repo: {model.repo} is gated or unknown; accept its licence on its page, then "
            "`hf auth login` or set HF_TOKEN to a token of the account that accepted it"
        ) from e
    except Exception as e:  # the hub's client raises many kinds when the network is not there
        raise SpecamortError(
            f"model.repo: {model.repo}@{model.revision} cannot be fetched "
            f"({type(e).__name__}); fetch it where there is a network and use source: directory"
        ) from e
