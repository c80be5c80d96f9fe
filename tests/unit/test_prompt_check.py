"""Every prompt of every study in config/, with the embedded tokenizer and with Llama 3's own."""

from dataclasses import replace
from pathlib import Path

import pytest

from conftest import ROOT
from letters import Letters
from specamort.cli import main
from specamort.errors import SpecamortError
from specamort.study import texts
from specamort.study.model_files import EMBEDDED, load_tokenizer
from specamort.study.prompt_check import check_prompts
from specamort.study.prompts import prompts
from specamort.study.study_file import read_study

STUDIES = sorted((ROOT / "config").glob("*.yaml"))


@pytest.fixture(scope="session")
def llama3():
    pytest.importorskip("llama_models")
    from llama3_tokenizer import Llama3Tokenizer

    return Llama3Tokenizer()


@pytest.fixture(scope="session")
def embedded():
    pytest.importorskip("transformers")
    from importlib import metadata

    from transformers import AutoTokenizer

    (gguf,) = (f for f in metadata.files(EMBEDDED.package) if f.suffix == ".gguf")
    path = Path(gguf.locate())
    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@pytest.mark.parametrize("path", STUDIES, ids=lambda p: p.stem)
@pytest.mark.parametrize("vocabulary", ["embedded", "llama3"])
def test_every_prompt_of_every_study(path, vocabulary, request):
    tokenizer = request.getfixturevalue(vocabulary)
    study = read_study(path)
    lines = check_prompts(study, lambda model: tokenizer)
    built = [line for line in lines if line.startswith("prompts of")]
    assert len(built) == len(study.prompt_sets) + len(study.tracing.models)
    assert not [line for line in lines if "not built" in line]
    worst = [float(line.split("worst prompt ")[1][:5]) for line in lines if "worst prompt" in line]
    assert worst and min(worst) == 1  # what a counter shows below it is the model's doing


def test_the_published_study_needs_what_the_first_text_did_not_have(llama3, monkeypatch):
    """The kind of mistake this is for: 885 tokens of text where a prompt needs 967."""
    study = read_study(ROOT / "config/study.yaml")
    whole = texts.read_text("alice")
    monkeypatch.setattr("specamort.study.prompts.read_text", lambda name: whole[:3800])
    with pytest.raises(SpecamortError, match=r"text 'alice' gives \d+ passages of 9\d\d tokens"):
        check_prompts(study, lambda model: llama3)


def test_half_the_text_is_refused(tmp_path, monkeypatch, capsys):
    for path in (ROOT / "workflow/specamort/study/texts").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    text = (tmp_path / "alice.txt").read_bytes()
    (tmp_path / "alice.txt").write_bytes(text[: len(text) // 2])
    monkeypatch.setattr(texts, "TEXTS", tmp_path)
    texts.read_text.cache_clear()
    assert main(["check", "--study", str(ROOT / "config/study.yaml")]) == 1
    assert "alice.txt: was cut or edited since it was shipped" in capsys.readouterr().err
    texts.read_text.cache_clear()


def test_a_context_beyond_the_models_limit(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "results/models" / small.model.name
    home.mkdir(parents=True)
    (home / "config.json").write_text('{"max_position_embeddings": 512}')
    long = replace(small, context_tokens=500)
    with pytest.raises(SpecamortError, match=r"context_tokens: prompt and output come to \d+"):
        check_prompts(long, lambda model: Letters())


def test_a_damaged_tokenizer_is_a_sentence(small, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "results/models" / small.model.name
    home.mkdir(parents=True)
    (home / "config.json").write_text("{}")
    (home / "tokenizer.json").write_text('{"half')
    with pytest.raises(SpecamortError, match="holds no tokenizer that can be read"):
        load_tokenizer(small.model)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"half', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "max_position_embeddings: is no number"),
        ('{"max_position_embeddings": "512"}', "max_position_embeddings: is no number"),
        ('{"max_position_embeddings": true}', "max_position_embeddings: is no number"),
        ('{"max_position_embeddings": NaN}', "max_position_embeddings: is no number"),
    ],
)
def test_a_damaged_config_is_a_sentence(small, tmp_path, monkeypatch, content, why):
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "results/models" / small.model.name
    home.mkdir(parents=True)
    (home / "config.json").write_text(content)
    with pytest.raises(SpecamortError, match=rf"config\.json: {why}"):
        check_prompts(small, lambda model: Letters())


def test_a_chat_template_that_fails_is_a_sentence(small):
    class Broken(Letters):
        def apply_chat_template(self, *args, **kwargs):
            raise KeyError("bos")

    with pytest.raises(SpecamortError, match=r"workloads\.open\.chat: .* fails \(KeyError"):
        prompts(small, Broken(), small.timing_prompts("open"))
