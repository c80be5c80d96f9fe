import errno
import os
import subprocess
import sys
import time

import pytest

from specamort import files
from specamort.errors import SpecamortError, Unreadable


def test_a_killed_writer_leaves_no_file_and_a_temporary_that_is_known(tmp_path):
    path = tmp_path / "a-g2.json"
    code = (
        "import os, sys; from pathlib import Path; from specamort import files\n"
        "with files.atomic(Path(sys.argv[1])) as t:\n    t.write_text('half'); os._exit(9)"
    )
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == 9
    left = files.temporaries(tmp_path)
    assert len(left) == 2 and not path.exists() and not list(tmp_path.glob("*.json"))
    files.write_text(path, "whole")
    assert path.read_text() == "whole" and files.temporaries(tmp_path) == left


def test_what_the_filesystem_does_not_give_is_not_what_is_wrong(tmp_path, monkeypatch):
    with pytest.raises(Unreadable, match=r"gone: cannot be read \(No such file"):
        files.read_text(tmp_path / "gone")
    with pytest.raises(Unreadable, match="cannot be read"):
        files.read_text(tmp_path / "a\0b")
    (tmp_path / "latin").write_bytes(b"\xfc")
    with pytest.raises(SpecamortError, match=r"latin: is not text in UTF-8 \(byte 0\)") as e:
        files.read_text(tmp_path / "latin")
    assert not isinstance(e.value, Unreadable)


def test_processes_take_turns(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from specamort import files\n"
        "with files.locked(Path(sys.argv[1])): print('in', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / ".lock")], stdout=subprocess.PIPE
    )
    holder.stdout.readline()
    began = time.monotonic()
    with files.locked(tmp_path / ".lock", patience_s=0.3):
        assert time.monotonic() - began >= 0.3  # the holder does not let go
    holder.kill()
    holder.wait()
    began = time.monotonic()
    with files.locked(tmp_path / ".lock", patience_s=30):
        assert time.monotonic() - began < 30


def test_a_filesystem_without_locks_is_no_obstacle(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(files.fcntl, "lockf", unsupported)
    with files.locked(tmp_path / ".lock"):
        pass


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo first >&2; echo complaint >&2; exit 3", "bash fails: complaint"),
        ("exit 3", "bash fails: status 3"),
        ("echo complaint >&2; sleep 60", "bash fails: no answer in 0.5 s; complaint"),
        ("sleep 60 & sleep 60", "bash fails: no answer in 0.5 s"),
    ],
)
def test_a_command_that_fails_or_hangs(script, why):
    with pytest.raises(SpecamortError) as e:
        files.run_command("bash", "-c", script, timeout_s=0.5)
    assert str(e.value) == why


def test_a_command_is_done_when_it_ends_whatever_it_leaves_behind(tmp_path):
    script = f"setsid sleep 60 & echo $! > {tmp_path}/pid; printf '\\xff said'"
    assert files.run_command("bash", "-c", script, timeout_s=30) == "\ufffd said"
    os.kill(int((tmp_path / "pid").read_text()), 9)
    with pytest.raises(SpecamortError, match="nowhere is not here"):
        files.run_command("nowhere")


def test_a_users_defaults_hide_nothing_and_a_full_disk_neither(monkeypatch, tmp_path):
    """SLURM's tools write nothing to a full disk, and say that all is well."""
    monkeypatch.setenv("SQUEUE_STATES", "RUNNING")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    assert files.run_command("bash", "-c", "echo ${SQUEUE_STATES-all}") == "all\n"
