import json

import pytest

import synthetic
from specamort.model import roofline
from specamort.model.roofline import Shape

SHAPE = synthetic.SHAPE


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


def test_efficiencies_are_bound_over_measured(small):
    e = roofline.efficiencies(synthetic.microbenchmark(small))
    for table in [*e["gemm"].values(), *e["attention"].values()]:
        assert list(table.values()) == pytest.approx([0.5] * len(table))


def test_no_draft_no_overhead(small):
    assert roofline.verify_overhead(synthetic.microbenchmark(small), 1, 0) == 0


def test_memory_bound_verify_is_almost_free(small):
    bench = synthetic.microbenchmark(small) | {"peak": 1e15}
    for by_rows in bench["gemm"].values():
        first = by_rows["1"]
        by_rows.update(dict.fromkeys(by_rows, first))
    assert 0 <= roofline.verify_overhead(bench, 1, 2) < 0.05


def test_overhead_is_the_measured_ratio_when_kernels_scale(small):
    """Kernels that take twice as long at 3 rows as at 1 give d(2) = 1."""
    bench = synthetic.microbenchmark(small)
    for by_rows in bench["gemm"].values():
        by_rows |= {"1": 1.0, "2": 1.5, "3": 2.0}
    for by_queries in bench["attention"].values():
        by_queries |= {"1": 1.0, "3": 2.0}
    assert roofline.verify_overhead(bench, 1, 2) == pytest.approx(1)
