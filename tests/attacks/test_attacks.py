"""Both tools, a group and a fault at a time, so that they run beside each other."""

import subprocess
import sys
from pathlib import Path

import faults
import fuzz
import pytest

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]


def run(tool, name):
    command = [sys.executable, str(HERE / f"{tool}.py"), name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("group", fuzz.GROUPS)
def test_malformed_input_is_refused_in_a_sentence(group):
    run("fuzz", group)


@pytest.mark.parametrize("fault", faults.FAULTS)
def test_gone(fault):
    run("faults", fault)
