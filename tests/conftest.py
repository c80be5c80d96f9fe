import os
import shutil
import subprocess
from pathlib import Path

import pytest

import synthetic
from specamort.analysis import tables
from specamort.study.study_file import read_study

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session", autouse=True)
def slurm_answers_or_is_not_here(tmp_path_factory):
    """SLURM's tools without their daemons take ten seconds each to say so, at every import."""
    if not shutil.which("scontrol") or not subprocess.run(["scontrol", "ping"]).returncode:
        return
    absent = tmp_path_factory.mktemp("absent")
    for name in ("scontrol", "sinfo", "squeue", "sacct", "sacctmgr", "sbatch", "scancel"):
        (absent / name).write_text("#!/bin/sh\necho 'there is no SLURM here' >&2\nexit 1\n")
        (absent / name).chmod(0o755)
    os.environ["PATH"] = f"{absent}:{os.environ['PATH']}"


@pytest.fixture
def root() -> Path:
    return ROOT


@pytest.fixture
def small():
    return read_study(ROOT / "config/small.yaml")


@pytest.fixture
def local():
    return read_study(ROOT / "config/local.yaml")


@pytest.fixture
def made(local, tmp_path):
    """Tables of a synthetic study that obeys equation (1)."""
    synthetic.write_study(local, tmp_path)
    tables.write_tables(local, tmp_path)
    return {n: tables.read_table(tmp_path, n) for n in tables.NAMES}


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Commands of a site: `site(squeue="...")` makes squeue print that; None makes it fail."""
    commands = tmp_path / "bin"
    commands.mkdir()
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("USER", "me")
    monkeypatch.chdir(tmp_path)

    def answer(**outputs):
        for name, text in outputs.items():
            path = commands / name
            path.write_text(
                "#!/bin/sh\nexit 1\n" if text is None else f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n"
            )
            path.chmod(0o755)

    return answer
