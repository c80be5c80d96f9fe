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
