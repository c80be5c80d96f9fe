"""The base install serves the planner: none of the extra `workflow` is imported on its way."""

import re
import subprocess
import sys
import tomllib

import pytest

from conftest import ROOT

BY_HAND = ["plan", "--t-base-ms", "9.4", "--d", "2:0.007,6:0.022", "--alpha", "0.6"]
BY_HAND += ["--at-gamma", "4"]


def extras() -> list[str]:
    """Modules of what the extra `workflow` adds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = project["optional-dependencies"]["workflow"]
    return [re.split(r"[^\w-]", requirement)[0].replace("-", "_") for requirement in named]


def without_extras(*arguments: str) -> subprocess.CompletedProcess:
    code = (
        "import sys; sys.modules |= dict.fromkeys(sys.argv.pop(1).split(','))\n"
        "from specamort import plan\n"
        "from specamort.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, ",".join(extras()), *arguments], capture_output=True, text=True
    )


def test_plan_by_hand():
    run = without_extras(*BY_HAND)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("Speculate with gamma 6")


def test_a_figure_says_what_it_needs(tmp_path):
    run = without_extras(*BY_HAND, "--figure", str(tmp_path / "map.png"))
    assert run.returncode == 1
    assert "--figure needs matplotlib, which is in the extra `workflow`" in run.stderr


@pytest.mark.parametrize("module", ["matplotlib", "snakemake", "submitit", "jinja2"])
def test_the_extra_holds_what_only_a_workflow_needs(module):
    assert module in extras()
