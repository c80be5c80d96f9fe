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
FOLDER = {"name": "m", "source": "directory"}
GPU = {"role": "heldout", "device": "cuda", "dtype": "bfloat16", "label": "x", "gpu": "H100"}
CPU = "platforms.cpu-bf16"
COPY = {"kind": "repeat", "chat": False, "text": "sentences"}
GRID = {"gammas": [*range(10)], "batches": [*range(1, 65)]}
SHAPE = "tracing.models.0.shape"


def set_key(path, value):
    def change(raw):
        *parents, last = path.split(".")
        at = raw
        for p in parents:
            at = at[int(p) if isinstance(at, list) else p]
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


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        # numbers that are none, or not of their kind
        ("gammas", [0, 2.0], "gammas.1: must be integer, but is 2.0"),
        ("replicates", 1.0, "replicates: must be integer, but is 1.0"),
        ("seed", True, "seed: must be integer, but is True"),
        ("seed", float("nan"), "seed: must be a finite number"),
        ("workloads.open.sampling", {"top_p": float("inf")}, "workloads.open.sampling.top_p: must"),
        ("workloads.open.alpha_max", float("nan"), "workloads.open.alpha_max: must be a finite"),
        # sizes that no machine has
        ("gammas", [0, 257], "gammas.1: must be smaller than or equal to 256"),
        ("seed", 2**32, "seed: must be smaller than or equal to 4294967295"),
        ("seed", 10**400, "seed: must be a number of at most 64 bits"),
        ("context_tokens", 10**9, "context_tokens: must be smaller than or equal to 10000000"),
        ("tracing.tokens", [2, 3], "tracing.tokens: both come to 4 in whole steps of γ = 2"),
        (f"{SHAPE}.hidden_size", 513, f"{SHAPE}.hidden_size: is 513; make it a multiple of"),
        # names that are folders of ours, or would be taken for something else
        ("name", "models", "name: must be lower-case letters"),
        ("name", "a" * 65, "name: must be lower-case letters"),
        ("name", "small\n", "name: holds the control character U+000A"),
        ("tracing.models.0.name", "raw", "tracing.models.0.name: must be lower-case"),
        ("platforms.raw", GPU, "platforms: a name must be lower-case"),
        (f"{CPU}.label", "_", f"{CPU}.label: must be text with a letter or digit"),
        (f"{CPU}.label", "CPU fp32 ", "platforms.cpu-fp32.label: is 'CPU fp32', as that of cpu-"),
        (f"{CPU}.label", "bell\a", f"{CPU}.label: holds the control character U+0007"),
        ("workloads.open.text", "\ud800", "workloads.open.text: holds the control character U+D8"),
        ("platforms.x", GPU | {"gpu": " "}, "platforms.x.gpu: must be words of letters and digits"),
        ("model", HUB | {"repo": "../.."}, "model.repo: must be OWNER/NAME"),
        ("model", HUB | {"revision": "main"}, "model.revision: must be 40 hex digits"),
        ("model", {"name": "m", "source": "package", "package": "../x"}, "model.package: must be"),
        ("model", FOLDER | {"path": "{x}"}, "model.path: must be a path without braces"),
        ("model", FOLDER | {"path": "x" * 300}, "model.path: xxx"),
        # what would be ignored
        (f"{CPU}.gpu", "H100", f"{CPU}.gpu: means nothing for a cpu platform"),
        ("tracing.models.0.repo", "a/b", "tracing.models.0.repo: means nothing for source random"),
        # a dial that nothing can turn
        ("dial.acceptances", [0, 1.5], "dial.acceptances.1: must be smaller than or equal to 1"),
        ("dial.acceptances", [-0.1], "dial.acceptances.0: must be bigger than or equal to 0"),
        ("dial.acceptances", [1, 1.0], "dial.acceptances: must contain unique items"),
        ("dial.patterns", ["half"], "dial.patterns.0: must be one of"),
        ("dial.workload", "nowhere", "dial.workload: no workload is 'nowhere'; name one of repeat"),
        ("drafter.method", "dial", "drafter.method: a dial is no drafter of the study's cells"),
        ("workloads.open.sampling", {"temperature": 0.5}, "dial.workload: open samples at a"),
    ],
)
def test_a_senseless_value_is_refused_by_its_key(raw, path, value, said):
    set_key(path, value)(raw)
    with pytest.raises(SpecamortError) as e:
        parse_study(raw, "some.yaml")
    assert str(e.value).startswith(f"some.yaml: {said}")
    assert str(e.value).isprintable()


@pytest.mark.parametrize(
    ("said", "sizes"),
    [
        ("context_tokens: comes to 10,000,019,000", {"context_tokens": 10**7, "batches": [1000]}),
        ("repetitions: comes to ", {"repetitions": 9999, "output_tokens": 10**6}),
        ("dial.repetitions: comes to ", {"dial.repetitions": 9999, "output_tokens": 10**6}),
        ("tracing.pairs: comes to ", {"tracing.pairs": 1000, "tracing.tokens": [1, 10**6]}),
        (
            "gammas: comes to 40,960 cells",
            {**GRID, "workloads": {f"w{i}": COPY for i in range(64)}, "dial.workload": "w0"},
        ),
        ("replicates: comes to 2,560,000 cells", {**GRID, "replicates": 1000}),
    ],
)
def test_sizes_that_no_machine_has_together_are_refused(raw, said, sizes):
    for path, value in sizes.items():
        set_key(path, value)(raw)
    with pytest.raises(SpecamortError, match=rf"some\.yaml: {said}"):
        parse_study(raw, "some.yaml")


@pytest.mark.parametrize(
    "change",
    [
        set_key("name", "a" * 64 + "-rehearsal"),
        set_key(f"{CPU}.label", "x" * 40 + " (stand-in)"),
        set_key(f"{CPU}.label", "A$_{$ 漢"),
        set_key("workloads.open.alpha_max", 1),
        set_key("seed", 2**32 - 1),
        set_key("platforms.x", GPU | {"gpu": "NVIDIA A100-SXM4-40GB"}),
    ],
)
def test_what_is_valid_is_taken(raw, change):
    change(raw)
    parse_study(raw, "some.yaml")


def test_a_value_is_shown_in_part(raw):
    raw["gammas"] = [0] * 10_000
    with pytest.raises(SpecamortError) as e:
        parse_study(raw, "some.yaml")
    assert len(str(e.value)) < 200


def test_replicates_are_those_of_the_study(small):
    assert small.replicate(0) == 0
    for number in (-7, 1, 999):
        with pytest.raises(SpecamortError, match=rf"no replicate {number}; it has 0 to 0"):
            small.replicate(number)


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


def test_a_dial_is_refused_on_the_runner_that_takes_no_proposer(root):
    raw = yaml.safe_load((root / "config/study.yaml").read_text())
    raw["engine"]["model_runner"] = "v2"
    assert parse_study(copy.deepcopy(raw), "some.yaml").dial is None
    raw["dial"] = {"workload": "open", "acceptances": [0], "patterns": ["whole"], "repetitions": 1}
    with pytest.raises(SpecamortError, match=r"^some\.yaml: engine\.model_runner: is v2, on which"):
        parse_study(raw, "some.yaml")


def test_a_dial_is_measured_anew_for_what_its_numbers_depend_on_and_nothing_else(raw):
    def hash_of(raw):
        study = parse_study(raw, "x")
        return digest(study.dial_settings("cpu-bf16", study.dial_cells[0]))

    before = hash_of(raw)
    for path, value, same in (
        ("repetitions", 9, True),
        ("drafter.prompt_lookup_min", 2, True),
        ("dial.acceptances", [0.0, 1.0], True),
        ("seed", 1, False),
        ("gammas", [0, 2, 4], False),
        ("dial.acceptances", [0, 0.5, 1], False),
        ("dial.repetitions", 3, False),
        ("output_tokens", 31, False),
    ):
        other = copy.deepcopy(raw)
        set_key(path, value)(other)
        assert (hash_of(other) == before) == same, path
    copied = copy.deepcopy(raw)
    copied["dial"]["workload"] = "repeat"
    lookup = copy.deepcopy(copied)
    lookup["drafter"]["prompt_lookup_min"] = 2  # chooses which passage is copied
    assert len({before, hash_of(copied), hash_of(lookup)}) == 3


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
