"""docs/tables.md says every column of every table, and what it says holds."""

import re

import numpy as np
import pandas as pd
import pytest

import synthetic
from conftest import ROOT
from documents import quoted, rows, sections
from specamort.analysis import setups, tables
from specamort.records import record
from specamort.study.study_file import read_study

TEXT = sections((ROOT / "docs/tables.md").read_text())
SHARED = TEXT.pop("In several tables")
DICTIONARY = {title.removesuffix(".csv"): text for title, text in TEXT.items()}
UNITS = {"ms", "%", "x", "1", "text", "yes/no", "time", "number", "`unit`'s"}
COUNTED = {"tokens", "sequences", "steps", "drafts", "repetitions", "blocks", "cells", "pairs"}


def units(text: str) -> dict[str, str]:
    """Unit of every column that a section's table has."""
    return {name: row[1] for row in rows(text) for name in quoted(row[0])}


def shared(text: str) -> list[str]:
    """Columns that a section takes from those said once for all."""
    return quoted(re.search(r"^Shared: (.+)\.$", text, re.MULTILINE)[1])


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, pd.DataFrame]:
    """Every table of a synthetic study, as its files hold it.

    Some steps have no draft and the device is faster than its roofline, so that no two columns are
    equal only because everything is ideal.
    """
    study = read_study(ROOT / "config/local.yaml")
    results = tmp_path_factory.mktemp("results")
    synthetic.write_study(study, results, noise=0.02)
    for path in results.glob("raw/timing/**/*.json"):
        timed = record.read(path)
        for run in timed["repetitions"]:
            counted = run["counters"]
            del run["step_drafts"]  # they would have to add up
            if counted["accepted"]:
                run["decode_steps"] = round(1.1 * run["decode_steps"])
            elif counted["drafts"]:
                counted["drafts"] = round(0.9 * counted["drafts"])
                counted["drafted"] = counted["drafts"] * timed["cell"]["gamma"]
        record.write(path, timed)
    for path in results.glob("raw/trace/**/*-g[1-9]*.json"):
        traced = record.read(path)
        for pair in traced["trace"]["pairs"]:
            for run in pair["traced"]:
                run["trace"]["busy_ms"] *= 0.9
        record.write(path, traced)
    tables.write_tables(study, results)
    return {n: tables.read_table(results, n).drop(columns=setups.NAMES) for n in tables.NAMES}


def test_every_table_has_its_section_in_order():
    assert list(DICTIONARY) == tables.NAMES


@pytest.mark.parametrize("name", tables.NAMES)
def test_columns_said_are_columns_held(made, name):
    own, common = units(DICTIONARY[name]), shared(DICTIONARY[name])
    assert sorted([*own, *common]) == sorted(made[name].columns)


def test_what_is_shared_is_said_once():
    used = {c for text in DICTIONARY.values() for c in shared(text)}
    assert used == set(units(SHARED))
    assert not used & {c for text in DICTIONARY.values() for c in units(text)}


def test_units_fit_the_columns_names():
    for text in (SHARED, *DICTIONARY.values()):
        for column, unit in units(text).items():
            assert unit in UNITS | COUNTED, column
            stem = re.sub(r"_(low|high)$", "", column)
            assert stem.endswith("_ms") == (unit == "ms"), column
            assert stem.endswith("_pct") == (unit == "%"), column


FORMULAS = [
    (name, quoted(row[0])[0], quoted(row[3])[0])
    for name, text in DICTIONARY.items()
    for row in rows(text)
    if row[3]
]


@pytest.mark.parametrize(("name", "column", "formula"), FORMULAS)
def test_formulas_give_the_column(made, name, column, formula):
    expected = made[name].eval(formula)
    np.testing.assert_allclose(
        made[name][column].astype(float), expected.astype(float), rtol=1e-9, atol=1e-9
    )
