"""The planner on a real server: two kinds of traffic, two different answers."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

import synthetic
from conftest import ROOT
from serve import load, server
from specamort import cli, models, plan, serving, tables
from specamort.study import read_study
from specamort.workloads import prompts

pytestmark = pytest.mark.engine


def token_ids(study, tokenizer, workload):
    return [p.token_ids for p in prompts(study, tokenizer, study.timing_prompts(workload))]


def test_two_kinds_of_traffic(tmp_path, monkeypatch, capsys):
    from transformers import AutoTokenizer

    study = read_study(ROOT / "config/local.yaml")
    monkeypatch.chdir(tmp_path)
    model = models.model_dir(study.model)
    models.fetch(study.model, model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    answers = {}
    step = plan.Calibration(17.0, {2: 0.15, 6: 0.45})
    with server(study, model, 2, tmp_path / "server.log") as url:
        before = serving.parse(serving.fetch(url), url)
        for w in study.workloads.values():
            asked = token_ids(study, tokenizer, w.name)[:2]
            assert load(url, study.model.name, asked, 61, w.sampling) > 0
            text = serving.fetch(url)
            (tmp_path / f"{w.name}.txt").write_text(text)
            after = serving.parse(text, url)
            now = serving.read(serving.difference(before, after))
            before, answers[w.name] = after, (now, plan.plan(step, now.acceptance, 6, now))
        now, answer = answers["repeat"]
        assert now.gamma == 2 and now.acceptance.survival == (1.0, 1.0)
        assert now.acceptance.coverage > 0.9 and 0.5 < now.batch <= 1.1
        assert answer.best.gamma == 6 and answer.choices[2].known == "measured"
        assert answer.choices[6].known == "extrapolated"
        now, answer = answers["open"]
        assert max(now.acceptance.survival) < 0.3 and now.acceptance.coverage < 0.9
        assert answer.choices[6].speedup < 1 < answers["repeat"][1].choices[6].speedup
        # as a user would, on the traffic of both: the scrape kept from after the first kind
        by_hand = ["--t-base-ms", "17", "--d", "2:0.15,6:0.45", "--json"]
        saved = ["--scrape", str(tmp_path / "open.txt"), "--before", str(tmp_path / "repeat.txt")]
        assert cli.main(["plan", *by_hand, *saved]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["acceptance"]["survival"] == list(now.acceptance.survival)
        copied = study.copied
        more = token_ids(study, tokenizer, copied.name)
        with ThreadPoolExecutor() as pool:
            busy = pool.submit(load, url, study.model.name, more, 61, copied.sampling)
            assert cli.main(["plan", *by_hand, "--url", url, "--window", "3"]) == 0
            busy.result()
        live = json.loads(capsys.readouterr().out)
        assert live["best"]["gamma"] == 6 and "in 3 s" in live["acceptance"]["source"]
        assert cli.main(["plan", *by_hand, "--url", url, "--window", "0"]) == 1
        assert "no draft was counted in 0 s" in capsys.readouterr().err


def test_the_studys_tables_are_a_calibration(tmp_path, monkeypatch):
    study = read_study(ROOT / "config/local.yaml")
    synthetic.write_study(study, tmp_path, noise=0.02)
    tables.write_tables(study, tmp_path)
    c = tables.read_calibration(study, tmp_path, "cpu-bf16", 1)
    assert c.t_base_ms == pytest.approx(10, rel=0.05) and 0 < c.error < 0.1
    assert c.batches == (1, 4) and c.eager
