"""nsys: is it there, and is it new enough?"""

import re
import shutil

from ..errors import SpecamortError
from ..files import run_command

MINIMUM = (2024, 2)  # older ones are not tested for, by export or by option


def require() -> str:
    """Path of nsys.

    Raises:
        SpecamortError: it is not on the PATH; says what to do.
    """
    found = shutil.which("nsys")
    if not found:
        raise SpecamortError(
            "nsys is not on the PATH; load its module (`modules:` in the cluster file) or set "
            "`tracing.tracer: kineto` in the study file"
        )
    return found


def require_version() -> str:
    """nsys' version, as it says it.

    Raises:
        SpecamortError: nsys is not here, older than MINIMUM, or says none.
    """
    return new_enough(run_command(require(), "--version"))


def new_enough(answer: str) -> str:
    """The version in what `nsys --version` answer.

    Raises:
        SpecamortError: it is older than MINIMUM, or there is none.
    """
    found = re.search(r"version ((\d{4})\.(\d+)\S*)", answer)
    if not found:
        raise SpecamortError(
            f"nsys says {answer.strip()[:80]!r} for its version; is it NVIDIA Nsight Systems?"
        )
    if (int(found[2]), int(found[3])) < MINIMUM:
        wanted = ".".join(map(str, MINIMUM))
        raise SpecamortError(
            f"nsys is version {found[1]}, older than {wanted}; load a newer module (`modules:` in "
            "the cluster file) or set `tracing.tracer: kineto` in the study file"
        )
    return found[1]
