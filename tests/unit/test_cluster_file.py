import re
from collections import namedtuple
from dataclasses import replace
from math import ceil
from pathlib import Path

import pytest
import yaml

from specamort.cluster import cluster_file, resources
from specamort.errors import SpecamortError
from specamort.study.study_file import read_study
from specamort.study.yaml_file import load_yaml


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


Wildcards = namedtuple("Wildcards", ["study", "platform", "replicate"])


def asked(study, where, platform):
    wildcards = Wildcards(study.name, platform, "0")
    asks = resources.requests(study, where, Path("/nowhere"), "measure")
    return {k: f(wildcards, 1) for k, f in asks.items() if k != "slurm_extra"}


def test_phoenix_asks_for_what_the_site_calls_it(published, phoenix, monkeypatch):
    monkeypatch.setenv("SPECAMORT_ACCOUNT", "gts-me")
    got = asked(published, phoenix, "h200")
    assert got["slurm_partition"] == "gpu-h200" and got["gres"] == "gpu:h200:1"
    assert got["slurm_account"] == "gts-me" and got["qos"] == "inferno"
    assert got["mem_mb"] == 64 * 1024 and got["cpus_per_task"] == 8


def test_time_covers_a_block(published, phoenix):
    # 5 starts of 5 min, 2 of a self-check; 4 cells x 22 repetitions x 5 x 211 tokens of 20 ms
    tokens = sum(published.tokens_to_generate(g) for g in (*published.gammas, 0))
    minutes = 1.5 * (35 + 4 * 22 * tokens * 0.020 / 60)
    assert asked(published, phoenix, "h100")["runtime"] == pytest.approx(minutes, abs=1)


def test_time_covers_a_dial_of_one_engine_for_every_draft_length(small, phoenix):
    # 3 starts of 5 min, 2 of a self-check. Of 16 tokens each: 4 texts at 2 draft lengths, 2 x 3
    # runs of the plain engine, 2 rounds of gamma 0 and of gamma 2 at two acceptances
    assert small.dial_steps == 16 * (4 * 2 + 2 * 3 + 2 * 3)
    request = phoenix.platforms["h100"]
    assert resources.block_minutes(small, request, "dial") == ceil(1.5 * (25 + 320 * 0.020 / 60))
    assert not replace(small, dial=None).dial_steps


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


H100 = "platforms.h100"


@pytest.fixture
def changed(root, tmp_path, published):
    """phoenix.yaml with a key changed, read for the published study."""

    def read(key, value):
        raw = load_yaml(root / "config/clusters/phoenix.yaml")
        *parents, last = key.split(".")
        home = raw
        for p in parents:
            home = home[p]
        if value is None:
            del home[last]
        else:
            home[last] = value
        file = tmp_path / "site.yaml"
        file.write_text(yaml.safe_dump(raw))
        return cluster_file.read_cluster(file, published)

    return read


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (f"{H100}.step_ms", float("nan")),
        (f"{H100}.step_ms", 1e308),
        (f"{H100}.start_minutes", float("inf")),
        (f"{H100}.start_minutes", 0),
        (f"{H100}.mem_gb", 1e-12),
        (f"{H100}.mem_gb", 1e300),
        (f"{H100}.cpus", 2.0),
        (f"{H100}.cpus", True),
        (f"{H100}.cpus", 10**6),
        ("controller.minutes", 1440.0),
        ("controller.mem_gb", float("inf")),
        ("controller.partition", "cpu\n#SBATCH --uid=0"),
        ("controller.qos", ""),
        (f"{H100}.partition", "gpu; touch x"),
        (f"{H100}.partition", ""),
        (f"{H100}.qos", "$(x)"),
        (f"{H100}.qos", None),
        (f"{H100}.gres", ""),
        (f"{H100}.gres", "gpu:h100:-1"),
        (f"{H100}.gres", "gpu:0"),
        (f"{H100}.gres", "gpu:h100:1 --uid=0"),
        (f"{H100}.gres", None),
        (f"{H100}.constraint", ""),
        (f"{H100}.constraint", "a b"),
        (f"{H100}.constraint", "a&b"),
        ("modules", ["a; touch x"]),
        ("modules", ["-x"]),
        ("container", ""),
        ("container", "/"),
        ("container", "x" * 300),
    ],
)
def test_what_slurm_has_no_use_for_is_refused_by_its_key(changed, key, value):
    # a constraint for one platform alone is missing for the other
    where = r"platforms\.h200\.constraint" if value == "a&b" else re.escape(key)
    with pytest.raises(SpecamortError, match=rf"site\.yaml: {where}(\.0)?: ") as e:
        changed(key, value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (f"{H100}.gres", "gpu"),
        (f"{H100}.gres", "gpu:1"),
        (f"{H100}.gres", "gpu:nvidia_h100_80gb_hbm3:1"),
        (f"{H100}.mem_gb", 64.5),
        ("modules", ["python/3.11", "gcc/12.3.0-x+y"]),
    ],
)
def test_what_a_site_may_say_is_taken(changed, key, value):
    changed(key, value)


def test_a_constraint_may_join_features(root, published, tmp_path):
    text = (root / "config/clusters/phoenix.yaml").read_text()
    file = tmp_path / "site.yaml"
    file.write_text(text.replace("cpus: 8", "constraint: a&b|c, cpus: 8"))
    found = cluster_file.read_cluster(file, published)
    assert {r.constraint for r in found.platforms.values()} == {"a&b|c"}


@pytest.mark.parametrize(
    "content",
    [
        b"account gts-me", b"- account: x", b"[]", b"0", b"account: [a]", b"account: 12",
        b"account:", b"account: a b", b"account: $(x)", b"account: a\naccount: b", b"a: b: c",
        b"acount: x", b"mail: a b", b"\xff\xfe", b"account: \xe9", b"\0", b"[" * 9000,
    ],
)  # fmt: skip
def test_a_malformed_file_of_the_users_is_a_sentence(content):
    cluster_file.USER_FILE.write_bytes(content)
    with pytest.raises(SpecamortError, match=r"specamort\.yaml: ") as e:
        cluster_file.user_setting("account")
    assert "\n" not in str(e.value)


def test_the_users_file_may_be_empty_or_not_there(monkeypatch):
    assert cluster_file.user_setting("mail") is None
    cluster_file.USER_FILE.write_text("# nothing yet\n")
    assert cluster_file.user_setting("mail") is None
    cluster_file.USER_FILE.write_bytes(b"\xef\xbb\xbfmail: me@x.org\r\n")
    assert cluster_file.user_setting("mail") == "me@x.org"


def test_an_odd_account_in_the_environment_is_a_sentence(monkeypatch):
    monkeypatch.setenv("SPECAMORT_ACCOUNT", "a\nb")
    with pytest.raises(SpecamortError, match="SPECAMORT_ACCOUNT: account: "):
        cluster_file.user_setting("account")
