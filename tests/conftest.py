from pathlib import Path

import pytest

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
