"""SLURM's answers, given by stand-ins for its commands."""

import json
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

import synthetic
from specamort.cluster import cluster_file, launch, resources, slurm, status
from specamort.errors import SpecamortError
from specamort.study import layout
from specamort.study.study_file import read_study


def test_the_queue_of_a_checkout(site, tmp_path):
    rows = [
        f"7|RUNNING|rule_measure_wildcards_small_cpu-bf16_0|{tmp_path}|n1|1:02",
        f"8|PENDING|rule_count_wildcards_small_cpu-bf16|{tmp_path}||0:00",
        "9|RUNNING|rule_measure_wildcards_small_cpu-bf16_0|/elsewhere|n2|2-03:00:01",
        f"10|RUNNING|(null)|{tmp_path}|n1|5:00",
    ]
    site(squeue="\n".join(rows))
    found = slurm.live_jobs(tmp_path)
    assert [j.id for j in found] == ["7", "8"]
    assert found[0].what == layout.job_name("measure", "small", "cpu-bf16", 0)
    assert found[0].elapsed_s == 62 and found[0].node == "n1"
    site(squeue=rows[2].replace("/elsewhere", str(tmp_path)))
    assert slurm.live_jobs(tmp_path)[0].elapsed_s == 2 * 86400 + 3 * 3600 + 1


def test_gpu_hours_count_every_run_of_a_requeued_job(site):
    site(sacct="1800|cpu=8,gres/gpu=1\n3600|cpu=8,gres/gpu=2\n900|cpu=1")
    assert slurm.gpu_hours(["7", "7", "8"]) == 0.5 + 2
    site(sacct=None)
    assert slurm.gpu_hours(["7"]) is None
    assert slurm.gpu_hours([]) == 0


def test_a_site_without_accounting(site):
    site(sinfo="gpu-h100|gpu:h100:8(S:0-1)", sacctmgr=None)
    found = slurm.read_site()
    assert found.partitions == {"gpu-h100": {"gpu:h100:8"}} and found.accounts is None


@pytest.fixture
def measured(small, tmp_path):
    """Block cpu-bf16 r0 with one cell done and one waiting, nothing else."""
    home = layout.folder(tmp_path, "measure", "cpu-bf16", 0)
    for cell, where in zip(small.cells[:2], (home, home / "partial"), strict=True):
        one = synthetic.timing(small, "cpu-bf16", 0, cell, 0.1)
        one["provenance"] |= {"job_id": "5", "job_started": "2026-01-01T00:00:00+00:00"}
        where.mkdir(parents=True, exist_ok=True)
        (where / f"{cell}.json").write_text(json.dumps(one))
    return tmp_path


def test_status_by_hand(small, measured):
    name = layout.job_name("measure", "small", "cpu-bf16", 0)
    failed = {
        layout.job_name("measure", "small", "cpu-fp32", 0): [measured / "4.log"],
        name: [measured / "5.log"],
    }
    live = [slurm.Job("7", "RUNNING", name, "n1", 200)]
    live += [slurm.Job("8", "PENDING", layout.job_name("counter_run", "small", "cpu-bf16"), "", 0)]
    table = status.blocks(small, live, failed, measured).set_index("job")
    assert table["state"].to_dict() == {
        "cpu-bf16 r0": "running",
        "cpu-fp32 r0": "failed",
        "cpu-bf16 microbench": "to submit",
        "cpu-fp32 microbench": "to submit",
        "cpu-bf16 trace": "to submit",
        "cpu-fp32 trace": "to submit",
        "cpu-bf16 counter run": "queued",
        "cpu-bf16 reading cost": "to submit",
        "cpu-bf16 dial": "to submit",
        "cpu-fp32 dial": "to submit",
    }
    assert table.loc["cpu-bf16 r0", "done"] == 2
    assert table.loc["cpu-bf16 r0", "spent_by"] == {"5", "7"}
    # a minute for two cells, so half a minute for each of those that are left
    left = 12 + 2 * len(small.trace_cells) + 2 * len(small.dial_cells)
    assert status.remaining_hours(table) == pytest.approx(left * 30 / 3600)
    said = status.overview(table.reset_index(), 1.25)
    assert "2 of 22 cells done, 2 running, 2 queued, 4 failed, 12 to submit" in said
    assert "about 10 min of device time left" in said and "1.25 GPU-hours" in said
    assert "4.log" in said and "5.log" not in said


def test_a_record_of_other_settings_is_not_done(small, measured):
    table = status.blocks(replace(small, warmup=7), [], {}, measured)
    assert table["done"].sum() == 0


def test_a_block_waits_for_the_job_an_earlier_controller_left(site, root, tmp_path):
    study = read_study(root / "config/study.yaml")
    phoenix = cluster_file.read_cluster(root / "config/clusters/phoenix.yaml", study)
    what = layout.job_name("measure", "study", "h100", "1")
    site(squeue=f"7|RUNNING|{what}|{tmp_path}|n1|1:02\n8|PENDING|{what}|{tmp_path}||0:00")
    resources._leftovers.cache_clear()
    extra = resources.requests(study, phoenix, tmp_path, "measure")["slurm_extra"]
    assert extra(["study", "h100", "1"]) == "--dependency=afterany:7:8"
    assert extra(["study", "h100", "2"]) == ""
    resources._leftovers.cache_clear()
    site(squeue=None)
    assert extra(["study", "h100", "1"]) == ""


def test_modules_and_container(root, tmp_path):
    study = read_study(root / "config/study.yaml")
    phoenix = cluster_file.read_cluster(root / "config/clusters/phoenix.yaml", study)
    assert phoenix.prefix(tmp_path) == "set -euo pipefail; "
    image = tmp_path / "it.sif"
    both = replace(phoenix, modules=("cuda/13",), container=str(image))
    assert both.prefix(tmp_path) == (
        f"module load cuda/13 || exit; set -euo pipefail; apptainer exec --nv --bind {tmp_path} "
        f"--env PYTHONPATH={tmp_path}/workflow {image} "
    )
    text = (root / "config/clusters/phoenix.yaml").read_text()
    named = tmp_path / "site.yaml"
    named.write_text(text.replace("# container: specamort-gpu.sif", f"container: {image}"))
    with pytest.raises(SpecamortError, match=r"container: .*it\.sif is no image that is there"):
        cluster_file.read_cluster(named, study)
    image.touch()
    assert cluster_file.read_cluster(named, study).container == str(image)


@pytest.fixture
def phoenix(site, root, tmp_path, monkeypatch):
    """A site that has what phoenix.yaml names, and a model."""
    site(sinfo="gpu-h100|gpu:h100:8\ngpu-h200|gpu:h200:8", sacctmgr="gts-me|inferno,embers")
    site(sbatch="Submitted batch job 77", srun="")
    monkeypatch.setenv("SPECAMORT_ACCOUNT", "gts-me")
    monkeypatch.setenv("SPECAMORT_MAIL", "me@example.org")
    monkeypatch.setattr(launch, "check_prompts", lambda study: [])
    study = read_study(root / "config/study.yaml")
    for model in study.models:
        (tmp_path / "results/models" / model).mkdir(parents=True)
        (tmp_path / "results/models" / model / "config.json").touch()
    return study, cluster_file.read_cluster(root / "config/clusters/phoenix.yaml", study)


def test_launch_submits_a_controller_that_requeues_itself(phoenix, tmp_path):
    study, where = phoenix
    job, log = launch.launch(study, where, tmp_path / "results/study", ["--jobs", "3"])
    assert job == "77" and log.name == "77_0_log.out"
    asked = set((log.parent / "77_submission.sh").read_text().splitlines())
    assert asked >= {
        "#SBATCH --account=gts-me",
        "#SBATCH --qos=inferno",
        "#SBATCH --time=1440",
        "#SBATCH --signal=B:USR2@90",
        "#SBATCH --dependency=singleton",
        "#SBATCH --requeue",
        "#SBATCH --mail-user=me@example.org",
    }
    assert any(line.startswith("exec ") for line in asked)


def test_launch_refuses_without_a_model_or_a_partition(phoenix, site, tmp_path):
    study, where = phoenix
    shutil.rmtree(tmp_path / "results")
    with pytest.raises(SpecamortError, match=r"run `specamort model --study .* nothing was subm"):
        launch.launch(study, where, tmp_path / "results/study", [])
    site(sinfo="gpu-h100|gpu:h100:8")
    with pytest.raises(SpecamortError, match=r"partition gpu-h200: not at this site.*nothing was"):
        launch.launch(study, where, tmp_path / "results/study", [])
    assert not (tmp_path / "results").exists()


def test_launch_refuses_a_prompt_that_cannot_be_built(phoenix, tmp_path, monkeypatch):
    def too_short(study):
        raise SpecamortError("workloads.open: text 'alice' gives 3 passages")

    monkeypatch.setattr(launch, "check_prompts", too_short)
    with pytest.raises(SpecamortError, match="gives 3 passages"):
        launch.launch(*phoenix, tmp_path / "results/study", [])
    assert not (tmp_path / "results/study").exists()


def test_checkpoint_stops_snakemake_and_goes_on_with_the_same_command(small):
    controller = launch.Controller("study.yaml", ["sleep", "60"])
    controller._snakemake = subprocess.Popen(["sleep", "60"], start_new_session=True)
    again = controller.checkpoint()
    assert controller._snakemake.wait(5) == -9
    assert again.function.__dict__ == launch.Controller("study.yaml", ["sleep", "60"]).__dict__


def test_the_controller_waits_only_while_all_that_is_left_is_under_way(
    small, root, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    jobs = [
        layout.job_name(j.kind.rule, small.name, j.platform, j.replicate)
        for j in layout.jobs(small)
    ]
    queues = iter([jobs, None, jobs, jobs[1:]])

    def live_jobs(home):
        if (queue := next(queues)) is None:
            raise SpecamortError("squeue fails: timed out")
        return [slurm.Job("1", "PENDING", what, "", 0) for what in queue]

    monkeypatch.setattr(launch, "live_jobs", live_jobs)
    monkeypatch.setattr(slurm, "is_here", lambda: True)
    naps = []
    monkeypatch.setattr(time, "sleep", naps.append)
    launch.Controller("", [])._wait_for_leftovers(small)
    assert len(naps) == 3


@pytest.fixture
def controller(root, tmp_path, monkeypatch):
    """A controller in an empty checkout, which looks often and has little patience."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "_LOOK_S", 0.2)
    monkeypatch.setattr(launch, "_PATIENCE_S", 1)
    monkeypatch.setattr(launch, "live_jobs", lambda home: [])
    (tmp_path / "results/small/tables").mkdir(parents=True)
    return lambda *command: launch.Controller(str(root / "config/small.yaml"), list(command))


def test_a_snakemake_that_does_nothing_is_started_again(controller, tmp_path, capfd):
    once = "test -e begun || { touch begun; exec sleep 60; }"
    controller("bash", "-c", once)()
    assert "Snakemake starts again" in capfd.readouterr().out


def test_a_snakemake_that_is_content_too_early_is_started_again(controller, tmp_path, capfd):
    again = "echo >> runs; test $(wc -l < runs) = 2 || touch -d now results/small/tables/done"
    controller("bash", "-c", again)()
    assert "not all is done; Snakemake starts again" in capfd.readouterr().out
    assert (tmp_path / "runs").read_text() == "\n\n"


def test_one_that_does_nothing_again_is_given_up(controller):
    with pytest.raises(SpecamortError, match="again nothing runs and nothing is written"):
        controller("sleep", "60")()


def test_a_study_file_that_is_being_edited_ends_nothing(controller, root, tmp_path, monkeypatch):
    study = tmp_path / "study.yaml"
    study.write_text((root / "config/small.yaml").read_text())
    one = controller("bash", "-c", f"echo 'half: [' > {study}; sleep 1 & wait")
    monkeypatch.setattr(one, "_study", str(study))
    monkeypatch.setattr(launch, "_finished", lambda study: True)
    one()


@pytest.mark.parametrize("sign", ["a job in the queue", "no answer", "a rule", "a file"])
def test_one_that_may_do_something_is_left_alone(controller, monkeypatch, sign):
    command = "sleep 2.5"
    if sign == "a job in the queue":
        monkeypatch.setattr(launch, "live_jobs", lambda home: ["one"])
    elif sign == "no answer":

        def away(home):
            raise SpecamortError("squeue fails")

        monkeypatch.setattr(launch, "live_jobs", away)
    elif sign == "a rule":
        command = "sleep 2.5; true"  # a child of the shell's
    else:
        command = "for i in 1 2 3 4 5; do touch results/small/tables/$i; sleep 0.5 & wait; done"
    assert controller("bash", "-c", command)._run(Path("results/small")) == 0


def test_what_ended_an_attempt_decides_what_grows(site, root, tmp_path):
    study = read_study(root / "config/study.yaml")
    phoenix = cluster_file.read_cluster(root / "config/clusters/phoenix.yaml", study)
    asks = resources.requests(study, phoenix, tmp_path, "measure")
    wildcards = Wildcards(["study", "h100", "1"], platform="h100")
    site(sinfo="gpu-h100|gpu:h100:8|2:00:00|64|180000", sacctmgr="")
    resources._limits.cache_clear()
    resources.ENDED.clear()

    def asked(attempt=3):
        return asks["runtime"](wildcards, attempt), asks["mem_mb"](wildcards, attempt)

    first = asked(1)
    assert asked() == first == (99, 65536)
    resources.ENDED["measure", ("study", "h100", "2"), "TIMEOUT"] += 1
    resources.ENDED["measure", ("study", "h100", "1"), "FAILED"] += 1
    assert asked() == first
    resources.ENDED["measure", ("study", "h100", "1"), "OUT_OF_MEMORY"] += 1
    assert asked() == (99, 131072)
    resources.ENDED["measure", ("study", "h100", "1"), "OUT_OF_MEMORY"] += 1
    resources.ENDED["measure", ("study", "h100", "1"), "TIMEOUT"] += 1
    assert asked() == (120, 180000)  # what the partition gives at most
    site(sinfo=None)
    resources._limits.cache_clear()
    assert asked() == (198, 196608)
    resources.ENDED.clear()
    resources._limits.cache_clear()


class Wildcards(list):
    """Snakemake's: a list with names."""

    def __init__(self, values, **names):
        super().__init__(values)
        self.__dict__.update(names)


@pytest.mark.parametrize(
    ("sbatch", "why"),
    [
        ("sbatch: error: no\nsbatch: error: QOS", "Could not make sense"),
        (None, "refuses the controller: "),
    ],
)
def test_what_sbatch_says_is_one_sentence(phoenix, site, tmp_path, sbatch, why):
    site(sbatch=sbatch)
    with pytest.raises(SpecamortError, match=f"sbatch refuses the controller: .*{why}|{why}") as e:
        launch.launch(*phoenix, tmp_path / "results/study", [])
    assert "\n" not in str(e.value)
