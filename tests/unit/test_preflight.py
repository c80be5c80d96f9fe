from dataclasses import replace

import pytest

from specamort.cluster import preflight, slurm
from specamort.cluster.cluster_file import read_cluster
from specamort.cluster.slurm import Limit, Site
from specamort.errors import SpecamortError
from specamort.study.study_file import read_study

SITE = Site(
    {"gpu-h100": {"gpu:h100:8"}, "gpu-h200": {"gpu:h200:8"}, "cpu": {"null"}},
    {"gts-me": {"inferno", "embers"}},
)


@pytest.fixture
def checked(root):
    study = read_study(root / "config/study.yaml")
    cluster = read_cluster(root / "config/clusters/phoenix.yaml", study)

    def run(site=SITE, account="gts-me"):
        return [str(c) for c in preflight.check_site(study, cluster, site, account)]

    return run


def test_all_is_well(checked):
    lines = checked()
    assert len(lines) == 9 and all(line.startswith("pass") for line in lines)


def test_each_wrong_name_is_told_with_what_there_is(checked):
    assert "no SLURM account: put `account: YOURS`" in checked(account=None)[0]
    assert "not checked" in checked(Site(SITE.partitions, None))[0]
    assert "yours are: gts-me" in checked(account="gts-you")[0]
    partitions = {"gpu-h100": {"gpu:h100:8"}, "gpu-h200-new": {"gpu:h200:8"}}
    (wrong,) = [c for c in checked(Site(partitions, SITE.accounts)) if c.startswith("fix")]
    assert "h200: partition gpu-h200: not at this site" in wrong
    assert "gpu-h200-new" in wrong and "platforms.h200.partition" in wrong
    partitions = SITE.partitions | {"gpu-h200": {"gpu:h20:8", "gpu:h2000:1"}}
    (wrong,) = [c for c in checked(Site(partitions, SITE.accounts)) if c.startswith("fix")]
    assert "gres gpu:h200:1: gpu-h200 offers gpu:h2000:1, gpu:h20:8" in wrong
    only_free = Site(SITE.partitions, {"gts-me": {"embers"}})
    assert sum("gts-me may use embers" in c for c in checked(only_free)) == 3


def test_the_first_request_is_held_against_the_partitions_limits(checked):
    """The longest of a platform's jobs: 99 minutes of a block, on h100 and on h200."""
    limits = {
        "gpu-h100": Limit(minutes=60, cpus=4, mem_mb=65535),
        "gpu-h200": Limit(minutes=99, cpus=8, mem_mb=65536),
    }
    lines = checked(Site(SITE.partitions, SITE.accounts, limits))
    time, cpus, memory = [c for c in lines if c.startswith("fix")]
    assert "h100: 99 minutes: gpu-h100 gives 60 at most; lower" in time
    assert "platforms.h100.start_minutes or .step_ms" in time and "change" in time
    assert "h100: 8 CPUs: gpu-h100 gives 4 at most; lower" in cpus
    assert "h100: 65536 MB of memory: gpu-h100 gives 65535 at most; lower" in memory
    assert "pass  h200: 99 minutes" in lines and "pass  h200: 65536 MB of memory" in lines


def test_an_account_that_cannot_be_checked_is_left_to_sbatch(checked):
    for accounts in (None, {}):
        lines = checked(Site(SITE.partitions, accounts))
        assert all(line.startswith("pass") for line in lines) and "sbatch decides" in lines[0]


def test_without_slurm_it_says_where_to_go(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SpecamortError, match="sinfo is not here; run this on a login node"):
        slurm.read_site()


def test_room_is_asked_of_the_filesystem(tmp_path, monkeypatch):
    assert "fix" not in str(preflight._space(tmp_path))
    monkeypatch.setattr(preflight, "_SPACE_GB", 10**6)
    assert "fix   disk" in str(preflight._space(tmp_path))

    def full(*command):
        raise SpecamortError("fallocate fails: Disk quota exceeded")

    monkeypatch.setattr(preflight, "_SPACE_GB", 0.001)
    monkeypatch.setattr(preflight, "run_command", full)
    assert "Disk quota exceeded" in str(preflight._space(tmp_path))
    assert not list(tmp_path.iterdir())


def test_nsys_is_looked_for_as_a_job_would(root, tmp_path, monkeypatch):
    study = read_study(root / "config/study.yaml")
    cluster = read_cluster(root / "config/clusters/phoenix.yaml", study)
    asked = []
    for release, good in (("2024.5.1.113-245134619542v0", True), ("2023.4.4.54-0v0", False)):
        said = f"NVIDIA Nsight Systems version {release}"
        monkeypatch.setattr(
            preflight, "run_command", lambda *c, said=said: asked.append(c[-1]) or said
        )
        (found,) = preflight._tracer(study, replace(cluster, modules=("nsight",)))
        assert release in str(found) and (found.fix is None) == good
    assert set(asked) == {"module load nsight || exit; set -euo pipefail; nsys --version"}

    def missing(*command):
        raise SpecamortError("bash fails")

    monkeypatch.setattr(preflight, "run_command", missing)
    (lost,) = preflight._tracer(study, cluster)
    assert "add its module to" in lost.fix and "tracing.tracer: kineto" in lost.fix
    assert not list(preflight._tracer(read_study(root / "config/local.yaml"), cluster))
