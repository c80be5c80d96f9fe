"""What `throttled or shared` means, and which records are left out for it."""

from contextlib import suppress
from pathlib import Path
from typing import cast

from ..errors import Unreadable
from ..study import layout
from ..study.grid import Study
from . import record
from .types import CpuReading, DeviceState, Reading, Record


def set_marked_aside(study: Study, results: Path) -> list[Path]:
    """Move the study's records of throttled or shared cells aside, to be measured again.

    Of a block's cells also those without a quiet baseline of their own visit. Gamma 0 stays: every
    visit adds to it, and what is marked in it is left out by itself.

    Raises:
        SpecamortError: a record cannot be read; nothing is moved.
    """
    marked = []
    for job in layout.jobs(study, results):
        found: dict[Path, Record] = {}
        for path in (p for w in job.wanted for p in w.places):
            try:
                found[path] = record.for_study(record.read(path), study)
            except Unreadable as e:
                if not isinstance(e.__cause__, FileNotFoundError):
                    raise
        marked += _marked(found)
    for path in marked:
        with suppress(FileNotFoundError):  # a job that measures has moved it
            record.set_aside(path)
    return marked


def _marked(found: dict[Path, Record]) -> list[Path]:
    """Of one job's records those that must be measured again."""
    timed = {path: r for path, r in found.items() if r["kind"] == "timing"}
    quiet: dict[tuple[str, int], set[str]] = {}
    for r in timed.values():
        if r["cell"]["gamma"] == 0:
            known = quiet.setdefault((r["cell"]["workload"], r["cell"]["batch"]), set())
            known |= quiet_visits(r)
    marked = []
    for path, r in found.items():
        if path not in timed:
            again = bool(record_exclusions(r))
        elif r["cell"]["gamma"] == 0:
            again = False
        else:
            own = quiet.get((r["cell"]["workload"], r["cell"]["batch"]))
            lacks = own is not None and r["repetitions"][0]["visit"] not in own
            again = lacks or bool(record_exclusions(r))
        if again:
            marked.append(path)
    return marked


def quiet_visits(baseline: Record) -> set[str]:
    """The visits of which no gamma 0 is marked, first or last."""
    runs = list(zip(baseline["repetitions"], run_exclusions(baseline), strict=True))
    return {run["visit"] for run, _ in runs} - {run["visit"] for run, marks in runs if marks}


def run_exclusions(timing: Record) -> list[list[str]]:
    """`exclusions` of each of a timing record's repetitions: at gamma 0 those of its own hour."""
    if "visits" not in timing:
        return [record_exclusions(timing)] * len(timing["repetitions"])
    of = {(v["visit"], v["when"]): _exclusions(timing, v["device_state"]) for v in timing["visits"]}
    return [of[run["visit"], run["when"]] for run in timing["repetitions"]]


def record_exclusions(found: Record) -> list[str]:
    """`exclusions` of a record that was measured in one go."""
    return _exclusions(found, found.get("device_state"))


def _exclusions(found: Record, state: DeviceState | None) -> list[str]:
    if found["origin"] == "rehearsal":  # it measures nothing, and may share what it runs on
        return []
    return exclusions(state, found.get("shared_above", SHARED_ABOVE))


# NVML's clocks throttle reasons: software power cap, hardware slowdown, software thermal, hardware
# thermal, power brake. Idle, and clocks somebody asked for, are not among them.
_THROTTLED = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
_THROTTLED_SHARE = 0.01
SHARED_ABOVE = 0.1


def exclusions(device_state: DeviceState | None, shared_above: float = SHARED_ABOVE) -> list[str]:
    """Why a cell with the readings `before` and `after` it must stay out of the medians.

    `throttled`: a throttle reason at either end, or clocks held down for over 1% of the time
    between them. `shared`: another process on the GPU at either end; on a CPU, other processes and
    the hypervisor took more than `shared_above` of a core between them, on average. Without
    readings nothing is known and nothing marked.

    >>> before = {"at_ns": 0, "steal_s": 1.0, "others_s": 5.0, "cores": 2}
    >>> after = {"at_ns": 10**10, "steal_s": 1.5, "others_s": 6.0, "cores": 2}
    >>> exclusions({"before": before, "after": after})
    ['shared']
    >>> exclusions({"before": before, "after": after}, shared_above=0.2)
    []
    """
    if not device_state or not device_state["before"] or not device_state["after"]:
        return []
    if "others_s" in device_state["before"]:
        taken = _taken_by_others(
            cast(CpuReading, device_state["before"]), cast(CpuReading, device_state["after"])
        )
        return ["shared"] if taken > shared_above else []
    before, after = cast(Reading, device_state["before"]), cast(Reading, device_state["after"])
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


def _taken_by_others(before: CpuReading, after: CpuReading) -> float:
    """Cores that were not this job's to use between two readings, on average."""
    seconds = (after["at_ns"] - before["at_ns"]) / 1e9
    taken = sum(after[k] - before[k] for k in ("steal_s", "others_s"))
    return taken / seconds if seconds > 0 else 0.0
