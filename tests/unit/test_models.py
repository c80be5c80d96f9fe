from types import SimpleNamespace

import pytest

from specamort.errors import SpecamortError
from specamort.measure import models
from specamort.study import model_files
from specamort.study.grid import Model
from specamort.study.study_file import read_study

HUB = Model("m", "huggingface", repo="meta-llama/gated", revision="0" * 40)


def test_where_a_model_is():
    assert str(model_files.model_dir(HUB)) == "results/models/m"
    assert str(model_files.model_dir(Model("m", "directory", path="/data/m"))) == "/data/m"


def test_package_not_installed(tmp_path):
    absent = Model("m", "package", package="no-such-model-package")
    with pytest.raises(SpecamortError, match=r"model\.package: no-such-model-package is not inst"):
        models.fetch(absent, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_package_without_a_model(tmp_path):
    with pytest.raises(SpecamortError, match="pytest carries 0 GGUF files, not 1"):
        models.fetch(Model("m", "package", package="pytest"), tmp_path / "m")


def test_gated_repository_tells_of_licence_and_token(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")

    def refuse(*args, **kwargs):
        response = SimpleNamespace(headers={}, request=None, status_code=403)
        raise hub.errors.GatedRepoError("gated", response=response)

    monkeypatch.setattr(hub, "snapshot_download", refuse)
    with pytest.raises(SpecamortError, match=r"meta-llama/gated is gated.*licence.*HF_TOKEN"):
        models.fetch(HUB, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_no_network(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")

    def unreachable(*args, **kwargs):
        raise OSError("no route")

    monkeypatch.setattr(hub, "snapshot_download", unreachable)
    with pytest.raises(SpecamortError, match=r"cannot be fetched .*source: directory"):
        models.fetch(HUB, tmp_path / "m")


def test_a_random_model_has_the_shape_and_the_vocabulary(root, tmp_path):
    transformers = pytest.importorskip("transformers")
    small = read_study(root / "config/small.yaml")
    like = tmp_path / "like"
    models.fetch(small.model, like)
    (random,) = small.tracing.models
    models.fetch(random, tmp_path / "random", like)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "random")
    assert config.hidden_size == random.shape["hidden_size"]
    assert config.vocab_size == transformers.AutoConfig.from_pretrained(like).vocab_size
    assert (tmp_path / "random" / "tokenizer.json").exists()
    assert not list(tmp_path.glob("*.unfinished"))
