import itertools
import json

import numpy as np
import pytest

import synthetic
from specamort.model import roofline
from specamort.model.roofline import Shape


def test_shape_of_llama_3_1_8b(tmp_path):
    config = {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = roofline.read_shape(tmp_path)
    weights = shape.layers * sum(a * b for a, b in shape.layer_gemms.values())
    head = shape.vocab * shape.hidden
    # 8.03 billion parameters, of which one embedding table is only looked up
    assert weights + 2 * head == pytest.approx(8.03e9, rel=1e-3)


def test_gemm_cost_by_hand():
    # 3 x 4 weights, 2 rows, 2 bytes: (12 + 2 * 7) * 2 bytes, 2 * 2 * 12 flops
    assert roofline.gemm_cost(3, 4, 2, 2) == (52, 48)


def test_attention_cost_by_hand():
    s = Shape(8, 8, 1, heads=4, kv_heads=2, head_dim=2, vocab=8)
    # keys and values 2*1*2*10*2 = 80, queries and outputs 2*1*3*4*2 = 48, 2 bytes each
    # flops 4*1*3*4*10*2
    assert roofline.attention_cost(s, 1, 3, 10, 2) == (256, 960)


def test_bound_is_the_slower_of_the_two():
    assert roofline.bound_ms(1e9, 1e9, bandwidth=1e9, peak=1e12) == 1000
    assert roofline.bound_ms(1e3, 2e12, bandwidth=1e9, peak=1e12) == 2000


def bench(**samples):
    """A bench whose passes at `n1_g2` and so on took what is given, round by round."""
    points = {name: [int(x[1:]) for x in name.split("_")] for name in samples}
    passes = [
        {"batch": n, "gamma": g, "passes_per_sample": 1, "samples_ms": samples[name]}
        for name, (n, g) in points.items()
    ]
    return {"passes": passes}


def test_a_median_and_the_samples_that_hold_it():
    """Of 40, fewer than 14 below the true median is 1.9%, fewer than 15 would be 4.0%."""
    shuffled = np.random.default_rng(1).permutation(np.arange(1.0, 41.0))
    assert roofline.median(shuffled) == (20.5, 14, 27)
    assert roofline.median(np.array([3.0, 1.0, 2.0])) == (2, 1, 3)


def test_the_interval_holds_the_true_median_as_often_as_it_says():
    """Of a skewed distribution, whose mean is another; 0.95 to 0.99 by the binomial at n = 20."""
    drawn = np.random.default_rng(2).lognormal(size=(2000, 20))
    held = [low <= 1 <= high for _, low, high in map(roofline.median, drawn)]
    assert 0.945 < np.mean(held) < 0.975


def test_rounds_are_paired():
    """The device grows slower from round to round; the difference of 1 ms does not."""
    drifting = bench(n1_g0=[10.0, 20.0, 40.0], n1_g2=[11.0, 21.0, 41.0])
    assert roofline.device_ms(drifting, 1, 0) == (20, 10, 40)
    assert roofline.increment_ms(drifting, 1, 2) == (1, 1, 1)
    d = roofline.verify_overhead(drifting, 1, 2)
    assert d == pytest.approx((0.05, 0.025, 0.1))


def test_no_draft_no_overhead():
    drifting = bench(n1_g0=[10.0, 20.0, 40.0])
    assert roofline.verify_overhead(drifting, 1, 0) == (0, 0, 0)
    assert roofline.increment_ms(drifting, 1, 0) == (0, 0, 0)


def test_a_point_that_was_not_measured_has_no_value():
    with pytest.raises(KeyError):
        roofline.device_ms(bench(n1_g0=[1.0]), 1, 6)


# Two layers of hidden 2, heads 1 of 2, intermediate 3, vocabulary 5; context 4, 2 bytes. Per layer
# weights: qkv 6 x 2, out 2 x 2, gate_up 6 x 2, down 2 x 3; the head 5 x 2.
TINY = Shape(hidden=2, intermediate=3, layers=2, heads=1, kv_heads=1, head_dim=2, vocab=5)


def test_costs_of_a_pass_by_hand():
    """3 rows: (weights + rows (in + out)) x 2 bytes, 2 x 3 x weights flops, both layers."""
    assert roofline.costs(TINY, 1, 2, 4, 2) == {
        "qkv": (2 * 2 * (12 + 3 * 8), 2 * 72),
        "out": (2 * 2 * (4 + 3 * 4), 2 * 24),
        "gate_up": (2 * 2 * (12 + 3 * 8), 2 * 72),
        "down": (2 * 2 * (6 + 3 * 5), 2 * 36),
        # keys and values 2 x 4 x 2, queries and answers 2 x 3 x 2; flops 4 x 3 x 4 x 2
        "attention": (2 * 2 * (16 + 12), 2 * 96),
        "head": (2 * (10 + 3 * 7), 60),
    }


def of_the_tiny(peak):
    one = dict(qkv=1.0, out=1.0, gate_up=1.0, down=1.0, attention=1.0, head=2.0)
    return {"shape": vars(TINY), "itemsize": 2, "context": 4, "bandwidth": 1e3, "peak": peak} | {
        "one_row_ms": one,
        "passes": [],
    }


def test_the_roofline_gives_one_row_back_and_predicts_the_others_by_bytes():
    """Memory-bound: each kind's ms grow as its bytes do."""
    memory = of_the_tiny(peak=1e12)
    assert roofline.roofline_ms(memory, 1, 0) == pytest.approx(7)
    assert roofline.efficiencies(memory)["qkv"] == pytest.approx(80 / 1)  # 80 bytes at 1 kB/s
    grown = 36 / 20 + 16 / 8 + 36 / 20 + 21 / 11 + 28 / 20 + 2 * 31 / 17
    assert roofline.roofline_ms(memory, 1, 2) == pytest.approx(grown)


def test_the_roofline_turns_to_flops_where_they_bind():
    """Bound by arithmetic at one row already: three rows take thrice as long."""
    assert roofline.roofline_ms(of_the_tiny(peak=1.0), 1, 2) == pytest.approx(21)


def test_the_roofline_never_sees_the_passes(local):
    made = synthetic.microbenchmark(local)
    blind = made | {"passes": []}
    for n, g in itertools.product(local.batches, local.gammas):
        assert roofline.roofline_ms(blind, n, g) == roofline.roofline_ms(made, n, g)


def test_the_roofline_is_right_where_one_efficiency_holds(local):
    """The synthetic device is at half its roofline in every kernel at every row count."""
    made = synthetic.microbenchmark(local)
    for n, g in itertools.product(local.batches, local.gammas):
        assert roofline.roofline_ms(made, n, g) == pytest.approx(roofline.device_ms(made, n, g)[0])
