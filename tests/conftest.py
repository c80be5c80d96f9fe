from pathlib import Path

import pytest

import synthetic
from specamort.analysis import tables
from specamort.study.study_file import read_study

ROOT = Path(__file__).parent.parent


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
