"""What `throttled or shared` means, and which records are left out for it."""

from contextlib import suppress
from pathlib import Path

from ..errors import Unreadable
from ..study import layout
from ..study.grid import Study
from . import record
from .types import DeviceState


def set_marked_aside(study: Study, results: Path) -> list[Path]:
    """Move the study's records of throttled or shared cells aside, to be measured again.

    Raises:
        SpecamortError: a record cannot be read; nothing is moved.
    """
    marked = []
    for wanted in (w for job in layout.jobs(study, results) for w in job.wanted):
        for path in wanted.places:
            try:
                found = record.read(path)
            except Unreadable as e:
                if isinstance(e.__cause__, FileNotFoundError):
                    continue
                raise
            if exclusions(found.get("device_state")):
                marked.append(path)
    for path in marked:
        with suppress(FileNotFoundError):  # a job that measures has moved it
            record.set_aside(path)
    return marked


# NVML's clocks throttle reasons: software power cap, hardware slowdown, software thermal, hardware
# thermal, power brake. Idle, and clocks somebody asked for, are not among them.
_THROTTLED = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
_THROTTLED_SHARE = 0.01


def exclusions(device_state: DeviceState | None) -> list[str]:
    """Why a cell with the readings `before` and `after` it must stay out of the medians.

    `throttled`: a throttle reason at either end, or clocks held down for over 1% of the time
    between them. `shared`: another process on the GPU at either end. Without readings (a CPU)
    nothing is known and nothing marked.
    """
    if not device_state or not device_state["before"] or not device_state["after"]:
        return []
    before, after = device_state["before"], device_state["after"]
    found = []
    held_ns = 0
    if before["throttled_ns"] and after["throttled_ns"]:
        held_ns = max(after["throttled_ns"][k] - v for k, v in before["throttled_ns"].items())
    if (before["throttle_reasons"] | after["throttle_reasons"]) & _THROTTLED or (
        held_ns > _THROTTLED_SHARE * (after["at_ns"] - before["at_ns"])
    ):
        found.append("throttled")
    if before["other_processes"] or after["other_processes"]:
        found.append("shared")
    return found
