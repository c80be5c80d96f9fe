"""The dial's job and its proposer, with a model in a line in the engine's place."""

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import synthetic
from letters import Letters
from specamort.analysis import dial as analysed
from specamort.errors import SpecamortError
from specamort.measure import dial_run
from specamort.measure.dial import PLAN, PROPOSER, Dial
from specamort.records import record
from specamort.study import layout
from specamort.study.grid import DialCell
from specamort.study.layout import Wanted
from specamort.study.study_file import read_study

PROMPTS = [[1, 2, 3], [1, 2, 4]]


def plan(path, version, drafts):
    told = [{"prompt": p, "drafts": d} for p, d in zip(PROMPTS, drafts, strict=True)]
    path.write_text(json.dumps({"version": version, "sequences": told}))


def rows(*outputs, order=(0, 1)):
    """vLLM's arrays of a batch: what was sampled last, lengths, tokens of each row."""
    tokens = np.zeros((4, 16), np.int32)
    lengths = np.zeros(4, np.int32)
    for row, i in enumerate(order):
        whole = [*PROMPTS[i], *outputs[i]]
        tokens[row, : len(whole)], lengths[row] = whole, len(whole)
    return [[outputs[i][-1]] for i in order], lengths, tokens


@pytest.fixture
def told(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    monkeypatch.setenv(PLAN, str(path))
    return path


def test_the_proposer_drafts_the_plan_by_sequence_and_position(told):
    plan(told, 1, [[[], [5, 6], [6, 7]], [[], [8, 9], [9, 9]]])
    proposer = Dial(None)
    assert proposer.propose(*rows([4], [7])) == [[5, 6], [8, 9]]
    assert proposer.propose(*rows([4, 5], [7, 8])) == [[6, 7], [9, 9]]
    # rows of a batch move
    assert proposer.propose(*rows([4, 5], [7], order=(1, 0))) == [[8, 9], [6, 7]]
    assert proposer.propose(*rows([4, 5, 6], [7], order=(0,))) == [[]]  # the plan is over


def test_the_proposer_reads_the_plan_again_when_a_run_begins_and_not_in_its_steps(told):
    plan(told, 1, [[[], [5], [6]], [[], [5], [6]]])
    proposer = Dial(None)
    assert proposer.propose(*rows([4], [4])) == [[5], [5]]
    plan(told, 2, [[[], [], []], [[], [], []]])
    assert proposer.propose(*rows([4, 5], [4, 5])) == [[6], [6]]
    assert proposer.propose(*rows([4], [4])) == [[], []]
    assert proposer.propose(*rows([4, 5], [4, 5])) == [[], []]


def test_without_a_plan_or_with_a_stranger_nothing_is_drafted(told, monkeypatch):
    plan(told, 1, [[[], [5]], [[], [5]]])
    sampled, lengths, tokens = rows([4], [4])
    tokens[0, 0] = 9
    assert Dial(None).propose(sampled, lengths, tokens) == [[], [5]]
    assert Dial(None).propose([[], [4]], lengths, tokens) == [[], [5]]  # nothing sampled in row 0
    monkeypatch.delenv(PLAN)
    assert Dial(None).propose(*rows([4], [4])) == [[], []]


class Model:
    """An engine whose text depends on the draft length's row count, and which verifies drafts.

    `flips` further runs of speculation come out differently, as a near tie may.
    """

    started: list
    flips: int = 0
    fail: bool = False

    def __init__(self, model, study, platform, gamma, drafter=None, max_model_len=None):
        self.gamma, self.tokenizer, self.used = gamma, Letters(), synthetic.ENGINE
        assert (drafter == PROPOSER) == bool(gamma)
        self.proposer = Dial(None) if drafter else None
        type(self).started.append(gamma)

    def close(self):
        pass

    def run(self, prompts, tokens, sampling, seed):
        if type(self).fail:
            raise SpecamortError("the engine died")
        texts, drafts = [[self._token(p, 0, 0)] for p in prompts], 0
        drafted, by, steps = 0, [0] * self.gamma, 0
        turned = None
        while len(texts[0]) < tokens:
            proposed = self._propose(prompts, texts)
            if turned is None:
                turned = type(self).flips > 0 and len(proposed[0]) > 0
                type(self).flips -= turned
            steps += len(prompts)
            for p, text, draft in zip(prompts, texts, proposed, strict=True):
                drafts += bool(draft)
                drafted += len(draft)
                rows = len(draft) + 100 * turned
                for i, token in enumerate([*draft, None]):
                    right = self._token(p, len(text), rows)
                    text.append(right)
                    if token != right:
                        break
                    by[i] += 1
        counters = {"engine_steps": steps // len(prompts) + 1, "drafts": drafts}
        counters |= {"drafted": drafted, "accepted": sum(by), "accepted_per_pos": by}
        texts = [t[:tokens] for t in texts]
        return {
            "sequences": [
                {
                    "tokens": tokens,
                    "pot_ms": 5.0,
                    "arrival_pot_ms": 5.0,
                    "sha256": str(hash(str(t))),
                }
                for t in texts
            ],
            "decode_steps": steps,
            "counters": counters,
            "token_ids": texts,
        }

    def _propose(self, prompts, texts):
        if not self.proposer:
            return [[] for _ in texts]
        longest = len(prompts[0]) + max(map(len, texts))
        tokens = np.zeros((len(texts), longest), np.int32)
        for row, (p, t) in enumerate(zip(prompts, texts, strict=True)):
            tokens[row, : len(p) + len(t)] = [*p, *t]
        lengths = np.array([len(p) + len(t) for p, t in zip(prompts, texts, strict=True)])
        return self.proposer.propose([t[-1:] for t in texts], lengths, tokens)

    @staticmethod
    def _token(prompt, at, rows):
        """At every seventh place a tie that row counts decide."""
        return (sum(prompt) + 31 * at + (rows if at % 7 == 6 else 0)) % 90


@pytest.fixture
def engine():
    return type("Fresh", (Model,), {"started": [], "flips": 0, "fail": False})


@pytest.fixture
def study(root):
    study = read_study(root / "config/small.yaml")
    dial = replace(study.dial, acceptances=(0.0, 0.5, 1.0), patterns=("geometric", "whole"))
    return replace(study, context_tokens=400, gammas=(0, 2, 4), batches=(1, 2), dial=dial)


@pytest.fixture(autouse=True)
def device(monkeypatch):
    monkeypatch.setattr(
        dial_run, "provenance", lambda s, p: synthetic.provenance(s, p.name, "gpu-1")
    )


def measure(study, results, engine):
    platform = study.calibration
    dial_run.dial_run(study, platform, Path("m"), results, start=engine)
    (job,) = [j for j in layout.jobs(study, results, "dial") if j.platform == platform.name]
    return [record.held(w, study) for w in job.wanted]


def test_one_engine_serves_every_draft_length_between_two_that_cannot_speculate(
    study, tmp_path, engine
):
    records = measure(study, tmp_path, engine)
    assert engine.started == [0, 4, 0] and [r["dial"]["batch"] for r in records] == [1, 2]
    for r in records:
        order = [(x["engine"], x["warmup"]) for x in r["repetitions"]]
        plain = [("plain", True), ("plain", False), ("plain", False)]
        assert order == [*plain, *[("dial", False)] * 2 * len(study.dialled), *plain]
        rounds = [(x["gamma"], x["acceptance"], x["pattern"]) for x in r["repetitions"][3:-3]]
        first, second = rounds[: len(study.dialled)], rounds[len(study.dialled) :]
        assert set(first) == set(second) == set(study.dialled) and first != second
        assert len({x["visit"] for x in r["repetitions"]}) == 1


def test_what_was_drawn_is_counted_and_the_text_stays_the_same(study, tmp_path, engine):
    records = measure(study, tmp_path, engine)
    for r in records:
        texts = {}
        for run in (x for x in r["repetitions"] if x["engine"] == "dial"):
            counters, n = run["counters"], r["dial"]["batch"]
            assert counters["accepted"] == n * sum(run["lengths"])
            assert counters["drafted"] == n * len(run["lengths"]) * run["gamma"]
            shas = tuple(s["sha256"] for s in run["sequences"])
            texts.setdefault(run["gamma"], set()).add(shas)
        assert {g: len(t) for g, t in texts.items()} == {0: 1, 2: 1, 4: 1}
        assert len(set.union(*texts.values())) == 3  # each draft length has a text of its own
        # the first drafts are the text without any; where ties turn, it takes a run more
        assert r["dial"]["text_runs"] == {"0": 1, "2": 2, "4": 2}
        kept = [(x["engine"], x["gamma"]) for x in r["repetitions"] if "token_ids" in x]
        assert sorted(kept) == [("dial", 0), ("dial", 2), ("dial", 4), ("plain", 0)]
    cells = analysed.cells(analysed.repetitions(records), seed=1).query("gamma > 0")
    assert (cells["coverage"] == 1).all()
    for p, found in ((0.0, 0.0), (1.0, 1.0)):
        assert (cells.loc[cells["acceptance"] == p, "alpha"] == found).all()
    half = cells[cells["acceptance"] == 0.5]
    assert ((half["alpha"] > 0) & (half["alpha"] < 1)).all() and len(half) == 2 * 2 * 2


def test_every_platform_draws_the_same_lots(study, tmp_path, engine):
    def drawn(platform, folder):
        dial_run.dial_run(study, platform, Path("m"), folder, start=engine)
        found = record.read(layout.folder(folder, "dial", platform.name) / "n2.json")
        return sorted(str([x["gamma"], x["lengths"]]) for x in found["repetitions"])

    first, second = (
        drawn(p, tmp_path / name) for name, p in study.platforms.items() if p is not None
    )
    assert first == second


def test_a_second_run_starts_nothing_and_a_lost_record_is_measured_alone(study, tmp_path, engine):
    first = measure(study, tmp_path, engine)
    engine.started.clear()
    assert measure(study, tmp_path, engine) == first and engine.started == []
    (layout.folder(tmp_path, "dial", study.calibration.name) / "n2.json").unlink()
    again = measure(study, tmp_path, engine)
    assert engine.started == [0, 4, 0]
    assert again[0] == first[0] and again[1] != first[1]


def test_a_near_tie_is_tried_once_more_and_then_said(study, tmp_path, engine):
    class Turns(engine):
        """Flips ties in the first speculative runs of the rounds."""

        times = 1

        def run(self, prompts, tokens, sampling, seed):
            # a text is recorded with some tokens more
            timed = tokens in {study.tokens_to_generate(g) for g in (2, 4)} and self.proposer
            if timed and type(self).times:
                type(self).times -= 1
                type(self).flips = 1
            return super().run(prompts, tokens, sampling, seed)

    Turns.started = []
    assert len(measure(study, tmp_path / "once", Turns)) == 2
    Turns.times = 99
    with pytest.raises(SpecamortError) as e:
        measure(study, tmp_path / "always", Turns)
    said = str(e.value)
    assert said.startswith(f"{study.file}: dial: {study.calibration.name} n") and "\n" not in said
    assert "in another text, 2 times; run again, or name another workload" in said
    assert not list((tmp_path / "always").rglob("n*.json"))


def test_a_text_that_does_not_settle_is_said(study, tmp_path, engine):
    class Restless(engine):
        runs = 0

        def run(self, prompts, tokens, sampling, seed):
            type(self).runs += 1
            run = super().run(prompts, tokens, sampling, seed)
            return run | {"token_ids": [[*t[:-1], type(self).runs] for t in run["token_ids"]]}

    Restless.started = []
    with pytest.raises(SpecamortError, match="the text at gamma 0 is another in each of 4 runs"):
        measure(study, tmp_path, Restless)


def test_a_text_that_is_over_before_the_drafts_are_is_said(study, tmp_path, engine, monkeypatch):
    learn = dial_run.Dialler.learn

    def forgetful(self, batch):
        found = learn(self, batch)
        self._texts = {k: [t[:5] for t in texts] for k, texts in self._texts.items()}
        return found

    monkeypatch.setattr(dial_run.Dialler, "learn", forgetful)
    with pytest.raises(SpecamortError, match=r"n1 gamma \d: a text of 5 tokens is over before"):
        measure(replace(study, gammas=(0, 2)), tmp_path, engine)


def test_a_failure_leaves_no_record_and_no_plan(study, tmp_path, engine, monkeypatch):
    engine.fail = True
    with pytest.raises(SpecamortError, match="the engine died"):
        measure(study, tmp_path, engine)
    assert not list(tmp_path.rglob("n*.json")) and PLAN not in dial_run.os.environ


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r["dial"].update(batch=3), "dial.batch: is 3, its settings.batch 2"),
        (lambda r: r["repetitions"].pop(), "repetitions: has 3 plain gamma 0 acceptance None, its"),
        (lambda r: r["repetitions"][4].update(gamma=6), "repetitions.4: is dial gamma 6"),
        (lambda r: drafting(r)["lengths"].append(0), "lengths: come to"),
        (lambda r: drafting(r)["lengths"].__setitem__(0, 9), "lengths: must hold numbers"),
        (lambda r: drafting(r).update(lengths=swapped(r)), "counters.accepted_per_pos: is not"),
        (lambda r: drafting(r).update(counters=None), "counters: is null"),
        (lambda r: drafting(r)["counters"].update(drafts=0, drafted=0), "counters"),
    ],
)
def test_a_record_that_no_dial_can_have_given_is_refused(study, tmp_path, change, said):
    made = synthetic.dial(study, study.calibration.name, DialCell(2), {2: 0.1, 4: 0.2})
    record.write(tmp_path / "good.json", deepcopy(made))
    change(made)
    with pytest.raises(SpecamortError, match=said.replace(".", r"\.")):
        record.write(tmp_path / "bad.json", made)


def drafting(made):
    """A repetition whose drafts are accepted in part."""
    return next(x for x in made["repetitions"] if x["acceptance"] == 0.5 and sum(x["lengths"]) > 0)


def swapped(made):
    """As many tokens in as many steps, at other positions."""
    lengths = drafting(made)["lengths"]
    high, low = max(lengths), min(lengths)
    assert high - low > 1
    changed = list(lengths)
    changed[lengths.index(high)], changed[lengths.index(low)] = high - 1, low + 1
    return changed


def test_a_record_stays_in_its_place(study, tmp_path):
    made = synthetic.dial(study, study.calibration.name, DialCell(2), {2: 0.1, 4: 0.2})
    path = tmp_path / "n1.json"
    record.write(path, made)
    (one, two) = study.dial_cells
    name = study.calibration.name
    record.held(Wanted(path, "dial", study.dial_settings(name, two)), study)
    with pytest.raises(SpecamortError, match="measured with other settings"):
        record.held(Wanted(path, "dial", study.dial_settings(name, one)), study)
