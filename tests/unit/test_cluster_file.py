from pathlib import Path
from types import SimpleNamespace

import pytest

from specamort.cluster import cluster_file, resources
from specamort.errors import SpecamortError
from specamort.study.study_file import read_study


@pytest.fixture
def published(root):
    return read_study(root / "config/study.yaml")


@pytest.fixture
def phoenix(root, published):
    return cluster_file.read_cluster(root / "config/clusters/phoenix.yaml", published)


@pytest.fixture(autouse=True)
def nobody(monkeypatch, tmp_path):
    """A user who has said nothing yet."""
    monkeypatch.delenv("SPECAMORT_ACCOUNT", raising=False)
    monkeypatch.setattr(cluster_file, "USER_FILE", tmp_path / "specamort.yaml")


def asked(study, where, platform, attempt=1):
    wildcards = SimpleNamespace(platform=platform)
    asks = resources.requests(study, where, Path("/nowhere"), "measure")
    return {k: f(wildcards, attempt) for k, f in asks.items() if k != "slurm_extra"}


def test_phoenix_asks_for_what_the_site_calls_it(published, phoenix, monkeypatch):
    monkeypatch.setenv("SPECAMORT_ACCOUNT", "gts-me")
    got = asked(published, phoenix, "h200")
    assert got["slurm_partition"] == "gpu-h200" and got["gres"] == "gpu:h200:1"
    assert got["slurm_account"] == "gts-me" and got["qos"] == "inferno"
    assert got["mem_mb"] == 64 * 1024 and got["cpus_per_task"] == 8


def test_time_covers_a_block_and_grows(published, phoenix):
    # 4 starts of 5 min, 2 of a self-check; 4 cells x 22 repetitions x 4 x 211 tokens of 20 ms
    tokens = sum(published.tokens_to_generate(g) for g in published.gammas)
    minutes = 1.5 * (30 + 4 * 22 * tokens * 0.020 / 60)
    first = asked(published, phoenix, "h100")["runtime"]
    assert first == pytest.approx(minutes, abs=1)
    assert asked(published, phoenix, "h100", attempt=2)["runtime"] == 2 * first


def test_account_is_the_users(published, phoenix, monkeypatch):
    assert "slurm_account" not in asked(published, phoenix, "h100")
    assert cluster_file.user_setting("account") is None
    cluster_file.USER_FILE.write_text("account: from-file\n")
    assert cluster_file.user_setting("account") == "from-file"
    monkeypatch.setenv("SPECAMORT_ACCOUNT", "from-environment")
    assert cluster_file.user_setting("account") == "from-environment"


def test_bad_cluster_files(root, published, local, tmp_path):
    good = (root / "config/clusters/phoenix.yaml").read_text()
    bad = tmp_path / "site.yaml"
    bad.write_text(good.replace("cpus: 8", "cpus: 0"))
    with pytest.raises(SpecamortError, match=r"site\.yaml: platforms\.h[12]00\.cpus: must be"):
        cluster_file.read_cluster(bad, published)
    bad.write_text(good.replace("qos: inferno, cpus: 8", "queue: inferno, cpus: 8"))
    with pytest.raises(SpecamortError, match=r"platforms\.h[12]00: unknown key queue"):
        cluster_file.read_cluster(bad, published)
    bad.write_text(good)
    with pytest.raises(SpecamortError, match=r"platforms\.cpu-bf16: is missing; .*local\.yaml"):
        cluster_file.read_cluster(bad, local)
