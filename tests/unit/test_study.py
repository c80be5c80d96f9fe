import copy

import pytest
import yaml

from specamort.errors import SpecamortError
from specamort.study.grid import Cell
from specamort.study.settings import digest
from specamort.study.study_file import parse_study, read_study


@pytest.fixture
def raw(root):
    return yaml.safe_load((root / "config/small.yaml").read_text())


def test_published_grid(root):
    s = read_study(root / "config/study.yaml")
    assert s.calibration.gpu == "H100"
    assert [p.gpu for p in s.heldout] == ["H200"]
    assert s.model.repo == "meta-llama/Llama-3.1-8B-Instruct"
    assert (s.gammas, s.batches, s.context_tokens) == ((0, 2, 4, 6), (1, 4), 1024)
    assert (s.warmup, s.repetitions) == (12, 10)
    assert set(s.workloads) == {"repeat", "open"}
    assert s.engine["enforce_eager"] and not s.engine["enable_prefix_caching"]
    speculative = [c for c in s.cells if c.gamma]
    assert len(speculative) * len(s.platforms) == 24


HUB = {"name": "m", "source": "huggingface", "repo": "a/b"}


def set_key(path, value):
    def change(raw):
        *parents, last = path.split(".")
        at = raw
        for p in parents:
            at = at[p]
        at[last] = value

    return change


def drop(key):
    return lambda raw: raw.pop(key)


@pytest.mark.parametrize(
    ("change", "key", "why"),
    [
        (set_key("gamas", [1]), "the file", "unknown key gamas"),
        (set_key("platforms.cpu-bf16.cores", 2), "platforms.cpu-bf16", "unknown key cores"),
        (set_key("gammas", [0, -1]), "gammas.1", "-1"),
        (set_key("gammas", []), "gammas", "[]"),
        (set_key("batches", []), "batches", "[]"),
        (set_key("platforms", {}), "platforms", "{}"),
        (set_key("workloads", {}), "workloads", "{}"),
        (set_key("gammas", [2, 4]), "gammas", "has no 0"),
        (set_key("gammas", [0]), "gammas", "only 0"),
        (set_key("gammas", [0, 2, 2]), "gammas", "unique"),
        (set_key("platforms.cpu-bf16.role", "heldout"), "platforms", "exactly one"),
        (set_key("platforms.cpu-fp32.role", "calibration"), "platforms", "exactly one"),
        (set_key("platforms.cpu-bf16.device", "cuda"), "platforms.cpu-bf16.gpu", "missing"),
        (set_key("workloads.open.text", "nowhere"), "workloads.open.text", "no text"),
        (set_key("workloads.open.alpha_min", 0.9), "workloads.open.alpha_min", "larger"),
        (set_key("drafter.prompt_lookup_min", 9), "drafter.prompt_lookup_min", "larger"),
        (set_key("model", dict(HUB, source="directory", path="/no")), "model.path", "not exist"),
        (set_key("model", HUB), "model.revision", "missing"),
        (set_key("repetitions", "ten"), "repetitions", "integer"),
        (drop("seed"), "the file", "missing key seed"),
    ],
)  # fmt: skip
def test_refused_with_a_sentence(raw, change, key, why):
    change(raw)
    with pytest.raises(SpecamortError) as e:
        parse_study(raw, "some.yaml")
    assert str(e.value).startswith(f"some.yaml: {key}: ")
    assert why in str(e.value)
    assert "\n" not in str(e.value)


def test_duplicate_name_is_refused(root, tmp_path):
    text = (root / "config/small.yaml").read_text()
    doubled = tmp_path / "doubled.yaml"
    doubled.write_text(text.replace("cpu-fp32:", "cpu-bf16:"))
    with pytest.raises(SpecamortError, match="duplicate name 'cpu-bf16'"):
        read_study(doubled)


def test_missing_and_broken_files(tmp_path):
    with pytest.raises(SpecamortError, match=r"none\.yaml: cannot be read"):
        read_study(tmp_path / "none.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: [")
    with pytest.raises(SpecamortError, match="not valid YAML"):
        read_study(broken)
    broken.write_text("just words")
    with pytest.raises(SpecamortError, match="must be object"):
        read_study(broken)


def test_output_is_whole_steps(small):
    for gamma in range(12):
        tokens = small.tokens_to_generate(gamma)
        assert (tokens - 1) % (gamma + 1) == 0
        assert 0 <= tokens - small.output_tokens <= gamma


def test_settings_hold_what_a_number_depends_on(raw):
    cell = Cell("repeat", 1, 2)

    def hash_of(raw):
        return digest(parse_study(raw, "x").timing_settings("cpu-bf16", cell))

    before = hash_of(raw)
    same = copy.deepcopy(raw)
    same["gammas"] = [0, 2, 4]
    same["workloads"]["open"]["alpha_max"] = 0.9
    same["platforms"]["cpu-bf16"]["label"] = "renamed"
    assert hash_of(same) == before
    for change in (set_key("context_tokens", 128), set_key("drafter.prompt_lookup_min", 2)):
        other = copy.deepcopy(raw)
        change(other)
        assert hash_of(other) != before
