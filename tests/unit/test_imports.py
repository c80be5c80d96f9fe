"""Packages import in one direction; engines and their libraries stay below `measure`."""

import ast
from pathlib import Path

import pytest

from conftest import ROOT

PACKAGE = ROOT / "workflow/specamort"
ALLOWED = {
    "model": set(),
    "study": {"model"},
    "records": {"study", "model"},
    "measure": {"study", "records", "model"},
    "analysis": {"study", "records", "model"},
    "cluster": {"study", "records"},
    "planner": {"study", "records", "model", "analysis"},
    "report": {"study", "records", "model", "analysis", "planner"},
    "cli": {"study", "records", "model", "measure", "analysis", "cluster", "planner", "report"},
}
COMMON = {"errors", "files", "checks"}  # what every package but `model` may use
BELOW_MEASURE = {"vllm", "torch", "pynvml"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it, by its absolute name."""
    here = ("specamort", *path.relative_to(PACKAGE).with_suffix("").parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = [*here[: len(here) - node.level]] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            found |= {f"{module}.{a.name}" for a in node.names}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    inside = path.relative_to(PACKAGE).parts
    own = inside[0] if len(inside) > 1 else None
    for name in imported(path):
        parts = name.split(".")
        if parts[0] in BELOW_MEASURE:
            assert own == "measure", f"{name} is imported outside measure/"
        if parts[0] != "specamort" or own is None:
            continue
        to = parts[1]
        if to in COMMON:
            assert own != "model", f"model imports {name}"
        elif to != own:
            assert to in ALLOWED[own], f"{own} imports {name}"


def test_measure_and_analysis_never_meet():
    assert "measure" not in ALLOWED["analysis"] and "analysis" not in ALLOWED["measure"]
    assert {p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name[0] != "_"} == set(ALLOWED)
