"""The microbenchmark's samples, order and second visit; on a tiny model with a clock of its own."""

import json
from collections import Counter
from dataclasses import replace

import pytest

import synthetic
from specamort.errors import SpecamortError
from specamort.measure import microbench
from specamort.model.roofline import Shape, attention_cost, gemm_cost
from specamort.records import record
from specamort.study import layout
from specamort.study.grid import Platform

TINY = Shape(hidden=8, intermediate=12, layers=3, heads=4, kv_heads=2, head_dim=2, vocab=16)
CPU = Platform("cpu", "calibration", "cpu", "float32", "CPU", threads=1)
KINDS = ["qkv", "attention", "out", "gate_up", "down", "head"]


@pytest.fixture
def clock(monkeypatch):
    """Every run takes `clock["ms"]`; how often each was timed, and in how many runs."""
    pytest.importorskip("torch")
    seen = {"ms": 20.0, "timed": Counter()}

    def ms(run, times):
        run()
        seen["timed"][times] += 1
        return times * (seen["ms"] + 0.5 * sum(seen["timed"].values()))

    monkeypatch.setattr(microbench, "_cpu_ms", ms)
    monkeypatch.setattr(microbench, "_STREAM_BYTES", 2**12)
    monkeypatch.setattr(microbench, "_PEAK_ROWS", 4)
    return seen


def measured(seed=7, rounds=3, visit=1, batches=(1, 2), gammas=(0, 2)):
    return microbench.measure_device(
        *(TINY, CPU, 5, list(batches), list(gammas), rounds, seed, visit)
    )


def test_every_round_has_every_point_once_in_an_order_of_its_own(clock):
    first, again, other = measured(), measured(), measured(visit=2)
    names = {"n1-g0", "n1-g2", "n2-g0", "n2-g2", "bandwidth", "peak", *KINDS}
    assert [set(o) for o in first["order"]] == [names] * 3
    assert [len(o) for o in first["order"]] == [len(names)] * 3
    assert len({tuple(o) for o in first["order"]}) == 3
    assert first["order"] == again["order"] != other["order"]
    assert [len(p["samples_ms"]) for p in first["passes"]] == [3] * 4


def test_a_sample_is_taken_in_the_order_that_is_recorded(clock):
    """The clock's times only grow, so that sorting the samples gives the order back."""
    made = measured()
    names = {f"n{p['batch']}-g{p['gamma']}": p["samples_ms"] for p in made["passes"]}
    for i, order in enumerate(made["order"]):
        by_time = sorted(names, key=lambda name: names[name][i])
        assert by_time == [name for name in order if name in names]


def test_the_warm_up_round_does_not_count(clock, monkeypatch):
    """Everything is a hundred times slower when it is called first."""
    called = Counter()

    def cold(run, times):
        called[id(run)] += 1
        return times * (6000.0 if called[id(run)] == 1 else 60.0)

    monkeypatch.setattr(microbench, "_cpu_ms", cold)
    made = measured()
    assert {ms for p in made["passes"] for ms in p["samples_ms"]} == {60.0}
    assert set(made["one_row_ms"].values()) == {60.0}


def test_a_sample_lasts_as_long_as_the_clock_needs(clock, monkeypatch):
    """A pass of 20 ms: one is too short, so three run under one reading, and 20 is what it took."""
    monkeypatch.setattr(microbench, "_cpu_ms", lambda run, times: 20.0 * times)
    made = measured()
    assert {p["passes_per_sample"] for p in made["passes"]} == {3}
    assert {ms for p in made["passes"] for ms in p["samples_ms"]} == {20.0}
    monkeypatch.setattr(microbench, "_cpu_ms", lambda run, times: 70.0 * times)
    assert {p["passes_per_sample"] for p in measured()["passes"]} == {1}


def test_a_slow_device_stops_at_the_fewest_rounds_once_its_time_is_up(clock, monkeypatch):
    monkeypatch.setattr(microbench, "_BUDGET_S", -1.0)
    assert len(measured(rounds=12)["order"]) == microbench._FEWEST
    assert len(measured(rounds=3)["order"]) == 3


def test_a_pass_is_a_whole_model_and_no_layer_shares_its_weights_or_keys(clock, monkeypatch):
    """Batch 2 of gamma 2: six rows in every GEMM; four groups of heads that have three queries."""
    # a packed weight has no address to tell it by
    monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: False)
    model = microbench._Model(TINY, CPU, context=5, sequences=2)
    kernels = list(model.kernels(2, 2))
    layer = ["qkv", "attention", "out", "gate_up", "down"]
    assert [kind for kind, _ in kernels] == [*layer * 3, "head"]
    operands = {kind: [] for kind in KINDS}
    for kind, run in kernels:
        operands[kind].append(run.args)
    for kind in set(KINDS) - {"attention"}:
        assert {x.shape[0] for x, _ in operands[kind]} == {6}
    for q, keys, values in operands["attention"]:
        assert q.shape == (4, 2 * 3, 2)  # two heads to a key head
        assert keys.shape == (4, 2, 5) and values.shape == (4, 5, 2)
    held = [x.data_ptr() for kind in KINDS for args in operands[kind] for x in args[1:]]
    assert len(held) == len(set(held)) == 3 * 4 + 3 * 2 + 1


def test_what_a_pass_reads_is_what_the_roofline_counts(clock):
    """The operands' bytes are those of `gemm_cost` and `attention_cost`, outputs with them."""
    model = microbench._Model(TINY, CPU, context=5, sequences=2)
    for kind, run in model.kernels(2, 2):
        moved = 4 * (sum(x.numel() for x in run.args) + run().numel())
        if kind == "attention":
            assert moved == attention_cost(TINY, 2, 3, 5, 4)[0]
        else:
            sizes = {**TINY.layer_gemms, "head": TINY.head_gemm}
            assert moved == gemm_cost(*sizes[kind], 6, 4)[0]


def test_the_real_clock_gives_times(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(microbench, "_SAMPLE_MS", 0.1)
    monkeypatch.setattr(microbench, "_STREAM_BYTES", 2**20)
    made = measured(rounds=2, batches=[1], gammas=[0])
    assert made["bandwidth"] > 0 and made["peak"] > 0
    assert all(ms > 0 for ms in [*made["one_row_ms"].values(), *made["passes"][0]["samples_ms"]])


def visits(*ratios):
    """Visits in which a pass at gamma 2 took so many times one without a draft, by round."""
    made = [
        {
            "passes": [
                {"batch": 4, "gamma": 0, "passes_per_sample": 1, "samples_ms": [1.0] * len(of)},
                {"batch": 4, "gamma": 2, "passes_per_sample": 1, "samples_ms": of},
            ]
        }
        for of in ratios
    ]
    asked = []

    def measure(visit):
        asked.append(visit)
        return made[visit - 1]

    return made, asked, measure


QUICKER, SLOWER = [0.90, 0.91, 0.92], [1.10, 1.11, 1.12]


def test_a_d_that_is_not_below_zero_is_believed_at_once():
    made, asked, measure = visits([0.99, 1.0, 1.01])
    assert microbench.believable(measure, "p") is made[0] and asked == [1]


@pytest.mark.parametrize(
    ("second", "stands"),
    [(SLOWER, 1), ([0.99, 1.0, 1.01], 1), (QUICKER, 0), ([0.8, 0.8, 0.8], 0), ([0.8, 1, 1.1], 0)],
)
def test_a_d_below_zero_is_measured_again(second, stands):
    """What the second visit confirms is the kernels' own; what it does not was drift."""
    made, asked, measure = visits(QUICKER, second)
    believed = microbench.believable(measure, "p")
    assert asked == [1, 2] and believed["visits"] == 2
    assert believed["passes"] is made[stands]["passes"]


def test_visits_that_contradict_each_other_are_refused():
    """Another point sent it to a second visit; there this one, of 10% before, has lost its 10%."""
    (first, second), _, measure = visits(SLOWER, QUICKER)
    for visit in (first, second):
        visit["passes"] += [
            {"batch": 1, "gamma": 0, "passes_per_sample": 1, "samples_ms": [1.0] * 3},
            {"batch": 1, "gamma": 2, "passes_per_sample": 1, "samples_ms": QUICKER},
        ]
    with pytest.raises(SpecamortError) as e:
        microbench.believable(measure, "h100")
    told = str(e.value)
    assert "h100: at batch 4, gamma 2" in told and "+10.0 to +12.0%" in told
    assert "-10.0 to -8.0% in the next" in told and "\n" not in told


def test_it_depends_on_nothing_speculative(local):
    """Other workloads, another drafter and engine: the same settings, so the same record."""
    asked = local.microbench_settings("cpu-bf16", "kernels")
    other = replace(
        *(local,),
        workloads={},
        drafters={"x": {"method": "ngram", "prompt_lookup_min": 3, "prompt_lookup_max": 9}},
        modes={"y": local.engine | {"model_runner": "v2"}},
        output_tokens=7,
        repetitions=9,
    )
    assert other.microbench_settings("cpu-bf16", "kernels") == asked
    assert asked["rounds"] == 40 and asked["seed"] == local.seed
    rehearsal = replace(local, rehearses="x").microbench_settings("cpu-bf16", "kernels")
    assert rehearsal["rounds"] == 5


def kernels_record(study, results, change):
    synthetic.write_study(study, results)
    path = layout.folder(results, "microbench", "cpu-bf16") / "kernels.json"
    content = json.loads(path.read_text())
    change(content["microbenchmark"])
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda b: b["passes"].pop(), "microbenchmark.passes: lacks n4-g6"),
        (lambda b: b["passes"].append(b["passes"][0]), "microbenchmark.passes: has n1-g0 twice"),
        (lambda b: b["passes"][2]["samples_ms"].pop(), "microbenchmark.passes.2.samples_ms"),
        (lambda b: b["order"][1].remove("n4-g0"), "microbenchmark.order.1: lacks n4-g0"),
        (lambda b: b["one_row_ms"].pop("head"), "one_row_ms"),
        (lambda b: b.update(seed=1), "microbenchmark.seed"),
        (lambda b: b.update(context=1), "microbenchmark.context"),
    ],
)
def test_a_record_that_lacks_a_sample_is_refused(local, tmp_path, change, told):
    path = kernels_record(local, tmp_path, change)
    with pytest.raises(SpecamortError) as e:
        record.read(path)
    assert told in str(e.value)
