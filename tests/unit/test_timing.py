"""The measuring jobs with a stand-in for the engine; nothing here is a measurement."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import synthetic
from letters import Letters
from specamort.analysis import cells, repetitions
from specamort.errors import SpecamortError
from specamort.measure import counter_run, reading_cost, timing
from specamort.records import exclusions, record
from specamort.records.software import SOFTWARE
from specamort.study import layout
from specamort.study.study_file import read_study


class Stub:
    """Counts what it is asked; an engine whose numbers mean nothing."""

    started: list
    fail_at: int | None = None
    pot_ms = 5.0

    def __init__(self, model, study, platform, gamma, statistics=True):
        self.gamma, self.tokenizer, self.used = gamma, Letters(), synthetic.ENGINE
        type(self).started.append(gamma)

    def run(self, prompts, tokens, sampling, seed):
        cls = type(self)
        if cls.fail_at is not None:
            cls.fail_at -= 1
            if cls.fail_at < 0:
                raise SpecamortError("the engine died")
        run = synthetic.repetition(0, False, len(prompts), self.gamma, cls.pot_ms, 1.0, tokens)
        return {k: v for k, v in run.items() if k not in ("index", "warmup", "seed", "visit")}

    def close(self):
        pass


@pytest.fixture
def engine():
    return type("Fresh", (Stub,), {"started": [], "fail_at": None})


@pytest.fixture
def study(root):
    # room for a chat request in a tokenizer of letters, whose copies a lookup drafts badly
    study = read_study(root / "config/small.yaml")
    any_alpha = {k: replace(w, alpha_min=0.0) for k, w in study.workloads.items()}
    return replace(study, context_tokens=400, workloads=any_alpha)


@pytest.fixture(autouse=True)
def device(monkeypatch):
    """The device a block runs on; tests move it."""
    where = {"uuid": "gpu-1", "software": {}}
    for job in (timing, counter_run, reading_cost):
        monkeypatch.setattr(
            job,
            "provenance",
            lambda s, p: synthetic.provenance(s, p.name, where["uuid"]) | where["software"],
        )
    monkeypatch.setattr(timing, "state", lambda p: synthetic.reading())
    return where


def block(study, results, engine, replicate=0):
    platform = study.calibration
    timing.measure_block(study, platform, replicate, Path("m"), results, start=engine)
    home = layout.folder(results, "measure", platform.name, replicate)
    return {c: record.read(home / f"{c}.json") for c in study.cells}


def test_block_is_whole_and_says_where_it_is_from(study, tmp_path, engine):
    records = block(study, tmp_path, engine)
    assert engine.started == [0, 2, 0]  # one start serves all cells of a gamma
    assert len({r["block"]["id"] for r in records.values()}) == 1
    base, one = (records[c] for c in study.cells[:2])
    assert one["block"]["gamma_order"] == engine.started
    assert one["origin"] == "measured"
    assert [x["warmup"] for x in one["repetitions"]] == [True, False, False]
    assert [x["warmup"] for x in base["repetitions"]] == [True, False, False] * 2
    assert [x["when"] for x in base["repetitions"]] == ["first"] * 3 + ["last"] * 3
    assert len({x["visit"] for r in records.values() for x in r["repetitions"]}) == 1
    assert one["device_state"] == {"before": synthetic.reading(), "after": synthetic.reading()}
    assert one["prompt"]["tokens"] == 400
    assert not list(tmp_path.rglob("partial"))


def test_second_run_starts_nothing(study, tmp_path, engine):
    block(study, tmp_path, engine)
    engine.started.clear()
    block(study, tmp_path, engine)
    assert engine.started == []


def test_deleted_record_is_measured_again_and_nothing_else(study, tmp_path, engine):
    before = block(study, tmp_path, engine)
    gone = next(c for c in study.cells if c.gamma == 2)
    base = replace(gone, gamma=0)
    home = layout.folder(tmp_path, "measure", study.calibration.name, 0)
    (home / f"{gone}.json").unlink()
    stamps = {p: p.stat().st_mtime_ns for p in home.glob("*.json") if p.stem != str(base)}
    engine.started.clear()
    after = block(study, tmp_path, engine)
    assert engine.started == [0, 2, 0]
    assert len(stamps) == 2 and {p: p.stat().st_mtime_ns for p in stamps} == stamps
    assert after[gone]["block"]["id"] == before[gone]["block"]["id"]
    # the visit's own baseline comes behind the earlier ones
    assert after[base]["repetitions"][:6] == before[base]["repetitions"]
    assert after[base]["visits"][:2] == before[base]["visits"]
    (visit,) = {x["visit"] for x in after[gone]["repetitions"]}
    assert [(v["visit"], v["when"]) for v in after[base]["visits"][2:]] == [
        (visit, "first"),
        (visit, "last"),
    ]
    assert not list(tmp_path.rglob("superseded"))


def test_a_cell_is_compared_with_the_baseline_of_its_own_visit(study, tmp_path, engine):
    """An hour and a half later the machine is slow: 95 against 5 ms would be no speedup at all."""
    before = block(study, tmp_path, engine)
    gone = next(c for c in study.cells if c.gamma == 2)
    home = layout.folder(tmp_path, "measure", study.calibration.name, 0)
    (home / f"{gone}.json").unlink()
    engine.pot_ms = 95.0
    after = block(study, tmp_path, engine)
    table = cells.cells(repetitions.repetitions(after.values()), 0)
    table = table.set_index(["workload", "gamma"])
    late, early = table.loc[(gone.workload, 2)], table.loc[("open", 2)]
    assert late[["pot_ms", "t_base_ms", "speedup", "visits"]].to_list() == [95, 95, 1, 2]
    assert early[["pot_ms", "t_base_ms", "speedup", "visits"]].to_list() == [5, 5, 1, 1]
    assert late["speedup_low"] == late["speedup_high"] == 1
    assert table.loc[(gone.workload, 0), "pot_ms"] == 50  # the median of the two visits'
    assert before[gone] not in after.values()


def test_without_its_visits_baseline_a_cell_is_measured_again(study, tmp_path, engine):
    before = block(study, tmp_path, engine)
    base, gone, *others = study.cells
    home = layout.folder(tmp_path, "measure", study.calibration.name, 0)
    (home / f"{base}.json").unlink()
    engine.started.clear()
    after = block(study, tmp_path, engine)
    assert engine.started == [0, 2, 0]
    assert [c for c in study.cells if after[c] == before[c]] == others
    assert {x["visit"] for x in after[gone]["repetitions"]} == {
        v["visit"] for v in after[base]["visits"]
    }
    (old,) = tmp_path.rglob("superseded/**/*.json")
    assert record.read(old) == before[gone]


def test_a_visit_that_is_killed_before_its_last_baseline_has_its_first(study, tmp_path, engine):
    engine.fail_at = 12  # two baselines and two cells, of three runs each
    with pytest.raises(SpecamortError, match="the engine died"):
        block(study, tmp_path, engine)
    engine.fail_at = None
    engine.started.clear()
    records = block(study, tmp_path, engine)
    assert engine.started == [] and len(records) == 4
    assert [v["when"] for v in records[study.cells[0]]["visits"]] == ["first"]
    table = cells.cells(repetitions.repetitions(records.values()), 0)
    assert table["speedup"].to_list() == [1] * 4
    assert table["drift_pct"].isna().all() and table["noise_pct"].isna().all()


def test_no_repetition_of_a_baseline_is_lost(study, tmp_path, engine):
    records = block(study, tmp_path, engine)
    base = study.cells[0]
    path = layout.folder(tmp_path, "measure", study.calibration.name, 0) / f"{base}.json"
    fewer = dict(records[base])
    fewer |= {"repetitions": fewer["repetitions"][:3], "visits": fewer["visits"][:1]}
    record.write(path, fewer)
    (kept,) = tmp_path.rglob("superseded/**/*.json")
    assert record.read(kept) == records[base] and record.read(path)["visits"] == fewer["visits"]


def test_what_was_finished_survives_a_failure(study, tmp_path, engine):
    engine.fail_at = 4  # in the second cell
    with pytest.raises(SpecamortError, match="the engine died"):
        block(study, tmp_path, engine)
    kept = list(tmp_path.rglob("partial/*.json"))
    assert len(kept) == 1
    (kept[0].parent / f".{kept[0].name}.123.tmp").write_text('{"schema')
    ran_before = len(engine.started)
    engine.fail_at = None
    records = block(study, tmp_path, engine)
    assert len(records) == 4 and len(engine.started) == ran_before + 3
    assert not kept[0].parent.exists()
    assert len({r["block"]["id"] for r in records.values()}) == 1


def test_a_whole_block_that_is_measured_again_waits_aside_until_it_is_whole(
    study, tmp_path, engine
):
    """Workflow managers delete the outputs of a failed job; what was measured must not be there."""
    before = block(study, tmp_path, engine)
    home = layout.folder(tmp_path, "measure", study.calibration.name, 0)
    (home / f"{study.cells[0]}.json").unlink()
    engine.fail_at = 0
    with pytest.raises(SpecamortError, match="the engine died"):
        block(study, tmp_path, engine)
    assert not list(home.glob("*.json"))
    engine.fail_at = None
    after = block(study, tmp_path, engine)
    assert {c for c in before if before[c] == after[c]} == set(study.cells[2:])


def test_an_earlier_job_that_is_still_alive_stops(study, tmp_path, engine):
    """Two jobs of one block: the later owns it, the earlier writes no record any more."""
    taken = []

    class Overtaken(engine):
        def run(self, *a):
            if not taken:
                taken.append(True)
                taken.append(block(study, tmp_path, engine))
            return super().run(*a)

    with pytest.raises(SpecamortError, match="now measured by a job that finished it"):
        block(study, tmp_path, Overtaken)
    home = layout.folder(tmp_path, "measure", study.calibration.name, 0)
    assert {c: record.read(home / f"{c}.json") for c in study.cells} == taken[1]
    assert not list(tmp_path.rglob("superseded"))


def test_a_second_record_of_a_cell_is_set_aside_and_never_deleted(study, tmp_path, engine):
    block(study, tmp_path, engine)
    home = layout.folder(tmp_path, "measure", study.calibration.name, 0)
    name, other = f"{study.cells[0]}.json", f"{study.cells[1]}.json"
    (home / "partial").mkdir()
    (home / "partial" / name).write_text((home / name).read_text())
    changed = record.read(home / other)
    changed["provenance"]["host"] = "elsewhere"
    (home / "partial" / other).write_text(json.dumps(changed))
    engine.started.clear()
    block(study, tmp_path, engine)
    assert engine.started == []
    assert len(list(tmp_path.rglob("superseded/**/*.json"))) == 2


def test_block_on_another_device_starts_anew(study, tmp_path, engine, device):
    engine.fail_at = 4
    with pytest.raises(SpecamortError):
        block(study, tmp_path, engine)
    engine.fail_at, device["uuid"] = None, "gpu-2"
    records = block(study, tmp_path, engine)
    assert {r["provenance"]["device"]["uuid"] for r in records.values()} == {"gpu-2"}
    (old,) = tmp_path.rglob("superseded/**/*.json")
    assert record.read(old)["provenance"]["device"]["uuid"] == "gpu-1"


@pytest.mark.parametrize("changed", SOFTWARE)
def test_an_upgrade_in_the_middle_measures_the_block_anew_and_says_so(
    study, tmp_path, engine, device, changed
):
    engine.fail_at = 4
    with pytest.raises(SpecamortError):
        block(study, tmp_path, engine)
    engine.fail_at, device["software"] = None, {changed: "newer"}
    said = io.StringIO()
    timing.measure_block(
        study, study.calibration, 0, Path("m"), tmp_path, progress=said, start=engine
    )
    home = layout.folder(tmp_path, "measure", study.calibration.name, 0)
    records = [record.read(home / f"{c}.json") for c in study.cells]
    assert {r["provenance"][changed] for r in records} == {"newer"}
    assert len(list(tmp_path.rglob("superseded/**/*.json"))) == 1
    assert f"{changed} " in said.getvalue() and "is now newer: the block is measured anew" in (
        said.getvalue()
    )


def test_every_replicate_and_sequence_has_a_prompt_of_its_own(study, tmp_path, engine):
    study = replace(study, batches=(1, 4), replicates=2, context_tokens=1400)
    seen = {}
    for r in range(2):
        for cell, found in block(study, tmp_path, engine, r).items():
            for i, sha in enumerate(found["prompt"]["sha256"]):
                seen.setdefault((cell.workload, sha), set()).add((r, i))
    assert len(seen) == 2 * 2 * 4
    assert all(len(places) == 1 for places in seen.values())


def test_other_settings_and_broken_records_are_set_aside(study, tmp_path, engine):
    block(study, tmp_path, engine)
    home = layout.folder(tmp_path, "measure", study.calibration.name, 0)
    broken = home / f"{study.cells[0]}.json"
    broken.write_text(broken.read_text()[:100])
    changed = replace(study, output_tokens=31)
    records = block(changed, tmp_path, engine)
    assert all(r["settings"]["output_tokens"] >= 31 for r in records.values())
    assert len(list(tmp_path.rglob("superseded/**/*.json"))) == 4


def test_sampling_is_seeded_and_said(study, tmp_path, engine):
    hot = {k: replace(w, sampling={"temperature": 0.7}) for k, w in study.workloads.items()}
    records = block(replace(study, workloads=hot), tmp_path, engine)
    seeds = [x["seed"] for x in records[study.cells[1]]["repetitions"]]
    assert None not in seeds and len(set(seeds)) == len(seeds)


def test_marked_cells_are_measured_again_on_request(study, tmp_path, engine, monkeypatch):
    hot = synthetic.reading(throttle_reasons=0x20)
    monkeypatch.setattr(timing, "state", lambda p: hot if len(engine.started) == 2 else None)
    before = block(study, tmp_path, engine)
    marked = [c for c, r in before.items() if c.gamma and r["device_state"]["after"]]
    assert len(marked) == 2
    monkeypatch.setattr(timing, "state", lambda p: synthetic.reading())
    assert len(exclusions.set_marked_aside(study, tmp_path)) == 2
    after = block(study, tmp_path, engine)
    for c in study.cells:
        runs = before[c]["repetitions"]
        assert (after[c]["repetitions"][: len(runs)] == runs) == (c not in marked)
    assert exclusions.set_marked_aside(study, tmp_path) == []


@pytest.mark.parametrize("start", [1, 3])
def test_cells_of_a_marked_baseline_are_measured_again_and_the_baseline_stays(
    study, tmp_path, engine, monkeypatch, start
):
    busy = {"at_ns": 0, "steal_s": 0.0, "others_s": 0.0, "cores": 2}
    now = {"n": 0}

    def state(platform):
        now["n"] += 1
        shared = len(engine.started) == start
        return busy | {"at_ns": now["n"] * 10**9, "others_s": 101.0 * now["n"] * shared}

    monkeypatch.setattr(timing, "state", state)
    before = block(study, tmp_path, engine)
    with pytest.raises(SpecamortError, match=r"4 cells were throttled or shared.*remeasure"):
        held = [record.for_study(r, study) for r in before.values()]
        cells.cells(repetitions.repetitions(held), 0)
    moved = exclusions.set_marked_aside(study, tmp_path)
    assert sorted(p.stem for p in moved) == sorted(str(c) for c in study.cells if c.gamma)
    engine.started.clear()
    monkeypatch.setattr(timing, "state", lambda p: synthetic.reading())
    after = block(study, tmp_path, engine)
    assert engine.started == [0, 2, 0]
    held = [record.for_study(r, study) for r in after.values()]
    table = cells.cells(repetitions.repetitions(held), 0)
    assert table["timed"].to_list() == [4 if g == 0 else 2 for g in table["gamma"]]
    assert table["blocks_left_out"].to_list() == [0] * 4
    assert exclusions.set_marked_aside(study, tmp_path) == []


def test_what_is_quiet_is_the_study_files_to_say_and_makes_nothing_stale(study, tmp_path, engine):
    block(study, tmp_path, engine)
    quiet = replace(study.calibration, shared_above=1e-9)
    strict = replace(study, platforms=study.platforms | {quiet.name: quiet})
    wanted = layout.jobs(strict, tmp_path, "measure")[0].wanted[1]
    found = record.held(wanted, strict)
    assert found["cell"]["gamma"] == 2 and exclusions.record_exclusions(found) == []
    busy = {"at_ns": 10**9, "steal_s": 0.0, "others_s": 1e-3, "cores": 2}
    found["device_state"] = {"before": busy | {"at_ns": 0, "others_s": 0.0}, "after": busy}
    assert exclusions.record_exclusions(found) == ["shared"]
    assert exclusions.record_exclusions(found | {"origin": "rehearsal"}) == []
    del found["shared_above"]
    assert exclusions.record_exclusions(found) == []
    engine.started.clear()
    block(strict, tmp_path, engine)
    assert engine.started == []


def test_a_counter_run_is_read_from_its_first_replicate_to_its_last(
    study, tmp_path, engine, monkeypatch
):
    read = []

    def state(platform):
        read.append(synthetic.reading(at_ns=len(read)))
        return read[-1]

    monkeypatch.setattr(timing, "state", state)
    study = replace(study, replicates=3)
    counter_run.counter_run(study, study.calibration, Path("m"), tmp_path, start=engine)
    for path in (tmp_path / "raw/counter_run").rglob("*.json"):
        made = record.read(path)["device_state"]
        assert made["after"]["at_ns"] - made["before"]["at_ns"] == 5  # two readings each


def test_counter_and_overhead_runs(study, tmp_path, engine):
    counter_run.counter_run(study, study.calibration, Path("m"), tmp_path, start=engine)
    counted = [record.read(p) for p in (tmp_path / "raw/counter_run").rglob("*.json")]
    assert {r["kind"] for r in counted} == {"counter_run"} and len(counted) == 2
    assert not any(x["warmup"] for r in counted for x in r["repetitions"])
    engine.started.clear()
    counter_run.counter_run(study, study.calibration, Path("m"), tmp_path, start=engine)
    assert engine.started == []
    reading_cost.reading_cost(study, study.calibration, Path("m"), tmp_path, start=engine)
    assert len(list((tmp_path / "raw/reading_cost").rglob("*.json"))) == 2


KILLED = """
import sys
sys.path[:0] = {paths!r}
import time, synthetic, test_timing as t
from pathlib import Path
from dataclasses import replace
from specamort.measure import timing
from specamort.study.study_file import read_study
timing.provenance = lambda s, p: synthetic.provenance(s, p.name, "gpu-1")
class Slow(t.Stub):
    started = []
    def run(self, *a):
        time.sleep(0.01)
        return super().run(*a)
study = replace(read_study({study!r}), context_tokens=400)
for w in study.workloads:
    study.workloads[w] = replace(study.workloads[w], alpha_min=0.0)
print("ready", flush=True)
timing.measure_block(study, study.calibration, 0, Path("m"), Path({results!r}), start=Slow)
"""


def test_sigkill_at_any_moment_then_the_next_run_continues(study, root, tmp_path, engine):
    script = KILLED.format(
        paths=[str(root / p) for p in ("tests", "tests/support", "tests/unit")],
        study=str(root / "config/small.yaml"),
        results=str(tmp_path),
    )
    for delay in (0.0, 0.02, 0.05, 0.08, 0.11):
        job = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        job.stdout.readline()
        time.sleep(delay)
        os.kill(job.pid, signal.SIGKILL)
        job.wait()
        for path in tmp_path.rglob("*-g*.json"):
            json.loads(path.read_text())
            record.read(path)
    assert len(block(study, tmp_path, engine)) == 4
    assert not list(tmp_path.rglob("superseded"))
