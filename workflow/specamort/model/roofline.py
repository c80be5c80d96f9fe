"""Device roofline: standalone efficiencies and the model's shape give the verify overhead d.

A kernel that moves `bytes` and does `flops` cannot take less than
max(bytes / bandwidth, flops / peak) (Williams, Waterman and Patterson, 2009). What it does take
is that bound divided by an efficiency, measured once per kernel and number of rows by
`microbench`, on the platform, with no engine and no speculation in sight.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class Shape:
    """What of a Llama-like model the roofline needs (the model's config.json)."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @property
    def layer_gemms(self) -> dict[str, tuple[int, int]]:
        """Per layer, weight matrices as (outputs, inputs); q, k, v and gate, up run fused."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "qkv": (q + 2 * kv, self.hidden),
            "out": (self.hidden, q),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }

    @property
    def head_gemm(self) -> tuple[int, int]:
        return (self.vocab, self.hidden)


def read_shape(model: Path) -> Shape:
    c = json.loads((model / "config.json").read_text(encoding="utf-8"))
    heads = c["num_attention_heads"]
    return Shape(
        hidden=c["hidden_size"],
        intermediate=c["intermediate_size"],
        layers=c["num_hidden_layers"],
        heads=heads,
        kv_heads=c.get("num_key_value_heads", heads),
        head_dim=c.get("head_dim") or c["hidden_size"] // heads,
        vocab=c["vocab_size"],
    )


class Bench(TypedDict):
    """A device's microbenchmark.

    Attributes:
        itemsize: bytes of a weight.
        context: tokens that attention looks back at.
        bandwidth: bytes/s.
        peak: flop/s.
        gemm: name -> rows -> ms.
        attention: batch -> queries -> ms.
    """

    shape: dict[str, int]
    itemsize: int
    context: int
    bandwidth: float
    peak: float
    gemm: dict[str, dict[str, float]]
    attention: dict[str, dict[str, float]]


class Efficiencies(TypedDict):
    """Bound over measured time: `gemm` by name and rows, `attention` by batch and queries."""

    gemm: dict[str, dict[int, float]]
    attention: dict[int, dict[int, float]]


class Gpu(TypedDict):
    """A GPU by its datasheet: `bandwidth` in bytes/s, `peak` in flop/s."""

    name: str
    bandwidth: float
    peak: float
    source: str


def gemm_cost(outputs: int, inputs: int, rows: int, itemsize: int) -> tuple[float, float]:
    """(bytes, flops) of `rows` x inputs times inputs x outputs; the weights are read once.

    6 weights, 2 values in and 3 out, of 2 bytes each; 6 multiplications and additions:

    >>> gemm_cost(outputs=3, inputs=2, rows=1, itemsize=2)
    (22, 12.0)
    """
    moved = (outputs * inputs + rows * (inputs + outputs)) * itemsize
    return moved, 2.0 * rows * outputs * inputs


def attention_cost(
    shape: Shape, batch: int, queries: int, context: int, itemsize: int
) -> tuple[float, float]:
    """(bytes, flops) of one layer: each sequence's keys and values are read once per step.

    3 keys and 3 values of 2 numbers, 2 queries and 2 answers of as many, in 2 bytes each:

    >>> tiny = Shape(4, 8, layers=1, heads=2, kv_heads=1, head_dim=2, vocab=16)
    >>> attention_cost(tiny, batch=1, queries=1, context=3, itemsize=2)
    (40, 48.0)
    """
    kv = 2 * batch * shape.kv_heads * context * shape.head_dim
    qo = 2 * batch * queries * shape.heads * shape.head_dim
    return (kv + qo) * itemsize, 4.0 * batch * queries * shape.heads * context * shape.head_dim


def bound_ms(moved_bytes: float, flops: float, bandwidth: float, peak: float) -> float:
    """The roofline: bandwidth in bytes/s, peak in flop/s.

    8 MB at 4 GB/s take 2 ms, whatever else a fast device does meanwhile:

    >>> bound_ms(8e6, 1e6, bandwidth=4e9, peak=1e12)
    2.0
    """
    return 1e3 * max(moved_bytes / bandwidth, flops / peak)


def efficiencies(bench: Bench) -> Efficiencies:
    """Bound over measured time, per kernel and row count, from a microbenchmark."""
    shape, item = Shape(**bench["shape"]), bench["itemsize"]
    roof = (bench["bandwidth"], bench["peak"])
    sizes = {**shape.layer_gemms, "head": shape.head_gemm}
    return {
        "gemm": {
            name: {
                int(m): bound_ms(*gemm_cost(*sizes[name], int(m), item), *roof) / ms
                for m, ms in by_rows.items()
            }
            for name, by_rows in bench["gemm"].items()
        },
        "attention": {
            int(n): {
                int(q): bound_ms(
                    *attention_cost(shape, int(n), int(q), bench["context"], item), *roof
                )
                / ms
                for q, ms in by_queries.items()
            }
            for n, by_queries in bench["attention"].items()
        },
    }


def device_ms(
    shape: Shape,
    batch: int,
    gamma: int,
    context: int,
    itemsize: int,
    bandwidth: float,
    peak: float,
    efficiency: Efficiencies,
) -> float:
    """Predicted device time of one step that verifies gamma + 1 positions of `batch` sequences."""
    rows, roof = batch * (gamma + 1), (bandwidth, peak)

    def at(table: dict[int, float], x: int) -> float:
        xs = sorted(table)
        return float(np.interp(x, xs, [table[i] for i in xs]))

    def gemm(name: str, size: tuple[int, int]) -> float:
        cost = gemm_cost(*size, rows, itemsize)
        return bound_ms(*cost, *roof) / at(efficiency["gemm"][name], rows)

    layer = sum(gemm(name, size) for name, size in shape.layer_gemms.items())
    nearest = min(efficiency["attention"], key=lambda n: abs(n - batch))
    attention = bound_ms(*attention_cost(shape, batch, gamma + 1, context, itemsize), *roof) / at(
        efficiency["attention"][nearest], gamma + 1
    )
    return shape.layers * (layer + attention) + gemm("head", shape.head_gemm)


def verify_overhead(bench: Bench, batch: int, gamma: int) -> float:
    """d(gamma): device time of a verify step over that of a one-token step, minus one.

    Study section "A Closed-Form Per-Output-Token Model", d(gamma).
    """
    args = (bench["context"], bench["itemsize"], bench["bandwidth"], bench["peak"])
    e = efficiencies(bench)
    shape = Shape(**bench["shape"])
    return device_ms(shape, batch, gamma, *args, e) / device_ms(shape, batch, 0, *args, e) - 1


LLAMA_8B = Shape(
    hidden=4096, intermediate=14336, layers=32, heads=32, kv_heads=8, head_dim=128, vocab=128256
)


TYPICAL_EFFICIENCY = 0.7


def vendor_verify_overhead(gpus: Iterable[Gpu]) -> pd.DataFrame:
    """d of Llama-3.1-8B at 1024 tokens on GPUs known by their datasheets, the study's grid.

    Nothing here is measured: one typical efficiency stands for every kernel and row count, so it
    cancels, and d is that of the roofline itself.

    Returns:
        One row per GPU, batch and gamma: `origin`, `gpu`, `source`, `device_ms` (ms per step), `d`
        and `study_at_most`, the largest that the study prints (shares of a step).
    """
    flat = {1: TYPICAL_EFFICIENCY}
    rows = []
    for gpu in gpus:
        roof = (1024, 2, gpu["bandwidth"], gpu["peak"])
        names = [*LLAMA_8B.layer_gemms, "head"]
        e: Efficiencies = {"gemm": dict.fromkeys(names, flat), "attention": {1: flat}}
        for n in (1, 4):
            step = {g: device_ms(LLAMA_8B, n, g, *roof, e) for g in (0, 2, 4, 6)}
            rows += [
                {"origin": "datasheet", "gpu": gpu["name"], "source": gpu["source"]}
                | {"batch": n, "gamma": g}
                | {"device_ms": step[g], "d": step[g] / step[0] - 1, "study_at_most": 0.023}
                for g in (2, 4, 6)
            ]
    return pd.DataFrame(rows)
