import errno
import json
import os
import signal
import subprocess
import sys
import time

import pytest

import synthetic
from specamort.errors import SpecamortError
from specamort.records import record
from specamort.study.grid import Cell


@pytest.fixture
def good(small):
    return synthetic.timing(small, "cpu-bf16", 0, Cell("repeat", 1, 2), d=0.1)


def test_round_trip(tmp_path, good):
    record.write(tmp_path / "a.json", good)
    assert record.read(tmp_path / "a.json") == good


def test_truncated_at_any_point(tmp_path, good):
    path = tmp_path / "a.json"
    whole = json.dumps(good)
    for cut in range(0, len(whole), 97):
        path.write_text(whole[:cut])
        with pytest.raises(SpecamortError, match=r"a\.json: truncated or not a record; move it"):
            record.read(path)


@pytest.mark.parametrize("foreign", [[], {}, {"schema_version": 3, "kind": "weather"}, 3])
def test_foreign(tmp_path, foreign):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(foreign))
    with pytest.raises(SpecamortError, match=r"a\.json: not a specamort record"):
        record.read(path)


def test_other_schema_version(tmp_path, good):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(good | {"schema_version": 99}))
    with pytest.raises(SpecamortError, match="schema_version is 99, this specamort reads 3"):
        record.read(path)


def test_disk_full_keeps_what_was_there(tmp_path, good, monkeypatch):
    path = tmp_path / "raw" / "a.json"
    record.write(path, good)

    def full(fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SpecamortError, match=r"a\.json: cannot be written \(No space left"):
        record.write(path, good | {"study": "other"})
    assert record.read(path) == good
    assert list(path.parent.iterdir()) == [path]


def test_killed_while_writing_leaves_whole_records(tmp_path, good):
    """SIGKILL a writer at many moments: what stands under the name always reads as a whole."""
    path = tmp_path / "raw" / "a.json"
    source = tmp_path / "source.json"
    source.write_text(json.dumps(good))
    loop = (
        "import json, sys; from pathlib import Path; from specamort.records import record\n"
        f"r = json.loads(Path({str(source)!r}).read_text())\n"
        "print('ready', flush=True)\n"
        f"while True: record.write(Path({str(path)!r}), r)"
    )
    for delay in (0.001, 0.005, 0.013, 0.029):
        writer = subprocess.Popen([sys.executable, "-c", loop], stdout=subprocess.PIPE)
        writer.stdout.readline()
        time.sleep(delay)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        if path.exists():
            assert record.read(path) == good
    assert len(list(tmp_path.rglob("a.json"))) > 1


def test_a_second_record_does_not_overwrite_the_first(tmp_path, good):
    path = tmp_path / "raw" / "counter" / "a.json"
    record.write(path, good)
    record.write(path, good | {"study": "other"})
    assert record.read(path)["study"] == "other"
    (old,) = (tmp_path / "raw/superseded").rglob("a.json")
    assert record.read(old) == good and old.parent.name == "counter"


def changed(r, repetition=None, **more):
    """A record with other keys, or with those of its third repetition."""
    runs = [x | (repetition or {}) if i == 2 else x for i, x in enumerate(r["repetitions"])]
    return r | {"repetitions": runs} | more


def test_visits_and_their_repetitions_agree(tmp_path, small, good):
    base = synthetic.timing(small, "cpu-bf16", 0, Cell("repeat", 1, 0), d=0.1)
    first, last = base["visits"]
    odd = first | {"visit": "other"}
    for wrong, said in (
        (changed(good, {"visit": "other"}), "repetitions: are of several visits"),
        (changed(good, {"step_drafts": [1]}), "step_drafts: does not add up to counters.drafts"),
        (changed(good, {"step_drafts": [2]}), "step_drafts: must hold numbers of sequences, 1 at"),
        (changed(base, {"visit": "other"}), "visits: are others than those of its repetitions"),
        (changed(base, {"when": "last"}), "visits: are others than those of its repetitions"),
        (changed(base, visits=[last, first]), "visits: must be the first, or the first and the"),
        (changed(base, visits=[first, first]), "visits: must be the first, or the first and the"),
        (changed(base, visits=[first, odd | {"when": "last"}]), "visits: must be the first, or"),
        (changed(base, visits=[first]), "visits: are others than those of its repetitions"),
        ({k: v for k, v in base.items() if k != "visits"}, "visits: is missing"),
    ):
        with pytest.raises(SpecamortError, match=said):
            record.write(tmp_path / "raw/a.json", wrong)
    record.write(tmp_path / "raw/a.json", changed(base, visits=[first, last]))


def test_a_cpus_readings_are_of_a_cpu(tmp_path, good):
    before = {"at_ns": 5, "steal_s": 0.0, "others_s": 1.5, "cores": 2}
    after = before | {"at_ns": 9}
    record.write(
        tmp_path / "raw/a.json", good | {"device_state": {"before": before, "after": after}}
    )
    gpu = synthetic.reading(at_ns=9)
    for state, said in (
        ({"before": after, "after": before}, "after.at_ns: is before that of before"),
        ({"before": before, "after": gpu}, "device_state.after: is of another kind of device"),
        ({"before": before, "after": after | {"cores": 0}}, "device_state.after.cores must be"),
    ):
        with pytest.raises(SpecamortError, match=said):
            record.write(tmp_path / "raw/a.json", good | {"device_state": state})
