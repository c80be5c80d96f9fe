"""The texts that prompts are made of, held against their hashes."""

import hashlib
from functools import cache
from pathlib import Path

import yaml

from ..errors import SpecamortError

TEXTS = Path(__file__).resolve().parent / "texts"


@cache
def read_text(name: str) -> str:
    """A text shipped with the package: passages separated by blank lines.

    Raises:
        SpecamortError: it is not the text that was shipped.
    """
    content = (TEXTS / f"{name}.txt").read_bytes()
    if hashlib.sha256(content).hexdigest() != text_sha256(name):
        raise SpecamortError(
            f"{TEXTS / name}.txt: was cut or edited since it was shipped; restore it "
            "(`git checkout`), its prompts would not be the study's"
        )
    return content.decode()


def texts() -> list[str]:
    """Names of the texts that are shipped."""
    return list(_shipped())


def text_sha256(name: str) -> str:
    return _shipped()[name]["sha256"]


@cache
def _shipped() -> dict[str, dict[str, str]]:
    shipped: dict[str, dict[str, str]] = yaml.safe_load(
        (TEXTS / "texts.yaml").read_text(encoding="utf-8")
    )
    return shipped
