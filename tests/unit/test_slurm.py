"""What SLURM's tools may say, and what is made of it."""

import os
from pathlib import Path

import pytest

from specamort.cluster import slurm
from specamort.cluster.slurm import Limit
from specamort.errors import SpecamortError

WHAT = "rule_measure_wildcards_small_cpu-bf16_0"


def test_a_comment_of_somebodys_may_hold_what_divides_the_fields(site, tmp_path):
    site(squeue=f"7|RUNNING|a|b||{tmp_path}|n1|1:02\n8|RUNNING|{WHAT}|{tmp_path}|n1|INVALID")
    (found,) = slurm.live_jobs(tmp_path)
    assert (found.id, found.elapsed_s) == ("8", 0)


def test_a_folder_may_hold_what_divides_the_fields(site, tmp_path):
    odd = tmp_path / "a|b"
    odd.mkdir()
    site(squeue=f"7|RUNNING|{WHAT}|{odd}|n1|1:02\n8|RUNNING|{WHAT}|{tmp_path}|n1|1:02")
    assert [j.id for j in slurm.live_jobs(odd)] == ["7"]
    assert [j.id for j in slurm.live_jobs(tmp_path)] == ["8"]


@pytest.mark.parametrize("tool", ["sinfo", "sacctmgr", "squeue"])
@pytest.mark.parametrize("said", ["garbage", "|", "\x1b[31mno\x1b[0m", "Traceback: no\n  more"])
def test_what_cannot_be_read_is_a_sentence_that_names_the_tool(site, tmp_path, tool, said):
    site(**{"sinfo": "cpu|(null)", "sacctmgr": "", "squeue": "", tool: said})
    with pytest.raises(SpecamortError, match=f"^{tool} says '") as e:
        slurm.read_site()
        slurm.live_jobs(tmp_path)
    assert "\n" not in str(e.value)


def test_a_word_of_the_sites_before_the_rows_is_left_out(site):
    site(sinfo="Welcome!\ncpu|(null)", sacctmgr="Note: new\ngts-me|a,b")
    assert slurm.read_site().accounts == {"gts-me": {"a", "b"}}
    assert slurm.read_site().partitions.keys() == {"cpu"}


@pytest.mark.parametrize("said", ["", "\n", None])
def test_an_account_that_sacctmgr_does_not_say_is_unknown(site, said):
    site(sinfo="cpu|(null)", sacctmgr=said)
    assert slurm.read_site().accounts is None


def test_limits_are_those_of_the_largest_node(site):
    rows = ["a|gpu:h100:8|2-00:00:00|64|1031000", "a|gpu:h100:4|2-00:00:00|96+|512000+"]
    rows += ["b|(null)|infinite|n/a|", "c|(null)"]
    site(sinfo="\n".join(rows), sacctmgr="")
    assert slurm.read_site().limits == {
        "a": Limit(2880, 96, 1031000),
        "b": Limit(),
        "c": Limit(),
    }


def test_clones_are_told_apart_by_name(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    names = {slurm.controller_name("small", home) for home in (one, other)}
    assert len(names) == 2 and slurm.controller_name("small", one / "../one") in names
    name = slurm.block_name(WHAT, one)
    assert name.startswith("specamort-measure-small_cpu-bf16_0-")
    assert name != slurm.block_name(WHAT, other)


def test_a_controller_is_its_name_and_its_user(site, tmp_path):
    name, uid = slurm.controller_name("small", tmp_path), os.getuid()
    site(squeue=f"5|{uid + 1}|you|RUNNING|{name}x\n6|{uid + 1}|you|PENDING|{name}")
    assert slurm.controller("small", tmp_path) == slurm.ControllerJob("6", "you", False, False)
    site(squeue=f"7|{uid}|me|RUNNING|{name}")
    assert slurm.controller("small", tmp_path) == slurm.ControllerJob("7", "me", True, True)
    site(squeue=f"7|RUNNING|{WHAT}|{tmp_path}|n|1:00")
    assert slurm.controller("small", tmp_path) is None


def test_what_squeue_forgot_sacct_may_know(site):
    site(squeue="1|RUNNING\n2|PENDING", sacct="3|CANCELLED by 1000\n4|RUNNING\n5|TIMEOUT")
    queue, told = slurm.states(["1", "3", "4", "5", "6"])
    assert queue == {"1": "RUNNING", "2": "PENDING"}
    assert told == {"3": "CANCELLED", "4": "RUNNING", "5": "TIMEOUT"}
    site(sacct=None)
    assert slurm.states(["1", "3"])[1] == {}
    site(squeue=None)
    with pytest.raises(SpecamortError, match="squeue fails"):
        slurm.states(["1"])


def test_a_log_that_vanishes_is_of_a_job_that_succeeded(tmp_path, monkeypatch):
    logs = tmp_path / ".snakemake/slurm_logs/rule_measure/small_cpu-bf16_0"
    logs.mkdir(parents=True)
    for number in ("7", "8"):
        (logs / f"{number}.log").touch()
    stat = Path.stat

    def vanishing(path, **how):
        if path.name == "7.log":
            raise FileNotFoundError(path)
        return stat(path, **how)

    monkeypatch.setattr(Path, "stat", vanishing)
    assert slurm.failed_jobs(tmp_path) == {WHAT: [logs / "8.log"]}
