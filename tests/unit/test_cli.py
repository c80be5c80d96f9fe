"""What the command line says when something goes wrong, and where."""

import os
import subprocess
import sys
from contextlib import suppress

import pytest

from conftest import ROOT
from specamort import cli
from specamort.errors import SpecamortError

SMALL = str(ROOT / "config/small.yaml")


def fails_with(monkeypatch, e):
    def fail(args, terminal):
        raise e

    monkeypatch.setattr(cli.study, "_check", fail)


@pytest.mark.parametrize(
    ("e", "said"),
    [
        (SpecamortError("a\nb\x07: is c"), "a b\\x07: is c"),
        (PermissionError(13, "Permission denied", "there"), "there: Permission denied; mend that"),
        (OSError(28, "No space left on device"), "No space left on device; mend that"),
        (MemoryError(), "there is not enough memory"),
        (RecursionError(), "something that was read is nested too deeply"),
        (KeyboardInterrupt(), "stopped; what is finished is kept"),
    ],
)
def test_what_a_person_can_mend_is_one_line(monkeypatch, capsys, e, said):
    fails_with(monkeypatch, e)
    assert cli.main(["check", "--study", SMALL])
    told = capsys.readouterr().err
    assert told.startswith(f"specamort: {said}") and told.count("\n") == 1


def test_what_nobody_expected_has_its_traceback(monkeypatch, capsys):
    fails_with(monkeypatch, ZeroDivisionError("x"))
    assert cli.main(["check", "--study", SMALL]) == 1
    told = capsys.readouterr().err
    assert "Traceback" in told and "stopped by an unexpected ZeroDivisionError" in told


PLAIN = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_a_letter_that_the_locale_lacks_is_escaped(tmp_path):
    study = tmp_path / "small.yaml"
    study.write_text((ROOT / "config/small.yaml").read_text().replace("cpu-fp32:", "γ:"))
    run = [sys.executable, "-m", "specamort", "check", "--study", study]
    ended = subprocess.run(run, env=PLAIN, capture_output=True, timeout=60)
    assert ended.returncode == 1 and ended.stderr.endswith(b"but is '\\u03b3'\n")


def test_a_log_is_utf_8_whatever_the_locale(tmp_path):
    divert = "from specamort import cli; cli._divert(cli.Path('it.log')); print(chr(0x3b3))"
    run = [sys.executable, "-c", divert]
    subprocess.run(run, env=PLAIN, cwd=tmp_path, timeout=60, check=True)
    assert (tmp_path / "it.log").read_text(encoding="utf-8") == "γ\n"


@pytest.mark.parametrize("name", ["", "/", "pipe", "file/below"])
def test_a_log_that_cannot_be_written_is_a_sentence(tmp_path, monkeypatch, capfd, name):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    (tmp_path / "file").touch()
    assert cli.main(["check", "--study", SMALL, "--log", name]) == 1
    told = capfd.readouterr().err
    assert told.startswith("specamort: --log ") and "cannot be written" in told
    assert told.count("\n") == 1


def test_a_reader_that_has_seen_enough_is_no_error():
    read, write = os.pipe()
    os.close(read)
    run = [sys.executable, "-m", "specamort", "check", "--study", SMALL]
    ended = subprocess.run(run, stdout=write, stderr=subprocess.PIPE, timeout=60)
    os.close(write)
    assert ended.stderr == b""


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_stream_does_not_matter(closed):
    run = f'exec "$0" -m specamort check --study "$1" {closed}'
    assert subprocess.run(["bash", "-c", run, sys.executable, SMALL], timeout=60).returncode == 0


@pytest.mark.parametrize(
    "argv",
    [
        ("plan", "--uri", "http://me:hunter2@host:8000"),
        ("plan", "--uri=http://me:hunter2@host"),
        ("status", "--study", "http://me:hunter2@host/study.yaml"),
        ("status", "--study", "a.yaml", "me:hunter2@host"),
        ("plan", "http://me:hunter2@host"),
        ("status", "--study", "http://me:hun hunter2@host/x"),
        ("plan", "--uri", "a:" * 60_000 + "hunter2@host"),
    ],
)
def test_an_address_in_the_wrong_place_is_not_repeated_with_its_password(capsys, argv):
    with suppress(SystemExit):
        assert cli.main(list(argv)) != 0
    said = capsys.readouterr()
    assert "hunter2" not in said.out + said.err and said.err.startswith(("usage: ", "specamort: "))
