import pytest
import yaml

from specamort.cli import main
from specamort.errors import SpecamortError
from specamort.study.effort import effort
from specamort.study.new import Answers, study_text
from specamort.study.study_file import parse_study, read_study


def made(**answers):
    return parse_study(yaml.safe_load(study_text("mine", Answers(**answers))), "mine.yaml")


def test_nothing_said_is_a_study_of_this_machine():
    study = made()
    assert [p.device for p in study.platforms.values()] == ["cpu"]
    assert study.model.source == "package" and study.drafter["method"] == "ngram"


def test_a_gpu_a_model_and_a_head():
    commit = "0" * 40
    study = made(
        gpu="A100 PCIe",
        model=f"Org/Big-Model@{commit}",
        drafter="eagle3",
        drafter_model=f"Org/Head@{commit}",
    )
    assert study.calibration.gpu == "A100 PCIe" and study.tracing.tracer == "nsys"
    assert study.model.repo == "Org/Big-Model" and study.model.name == "big-model"
    assert study.models["head"].repo == "Org/Head"


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"model": "Org/Model"}, "OWNER/NAME@COMMIT"),
        ({"model": "no/such/folder"}, "is no folder here"),
        ({"drafter": "eagle3"}, "drafter.model: missing key"),
        ({"gpu": "{x}"}, "gpu: must be words"),
    ],
)
def test_answers_that_make_no_study_are_a_sentence(answers, said):
    with pytest.raises(SpecamortError, match=said):
        made(**answers)


def test_it_is_written_once(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    assert main(["new", "--study", str(path), "--gpu", "H100"]) == 0
    assert read_study(path).name == "mine"
    assert main(["new", "--study", str(path)]) == 1
    assert "is there already" in capsys.readouterr().err


def test_engine_starts_are_those_of_the_jobs(local, small):
    """Four blocks of γ 0, 2, 4, 6, 0; 3 counter runs; 2 readings; 5 traces and 3 of a dial each."""
    assert effort(local).starts == 4 * 5 + 3 + 2 + 2 * 5 + 2 * 3
    assert effort(small).starts == 2 * 3 + 1 + 2 + 2 * 3 + 2 * 3
