"""What verifying gamma + 1 positions costs the device: measured passes, and a roofline beside them.

A pass is the device's part of one decode step, timed by `measure.microbench` with no engine and no
speculation in sight. The passes of one round belong together: increments and shares are differences
and ratios within rounds, so that a device that grows slower over the rounds moves neither.

The roofline has seen one row count only. A kernel that moves `bytes` and does `flops` cannot take
less than max(bytes / bandwidth, flops / peak) (Williams, Waterman and Patterson, 2009). What it
does take is that bound divided by an efficiency; one for each kind of kernel is calibrated at one
row and then frozen, and every other row count is a prediction.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np
import pandas as pd
from numpy.typing import NDArray

LEVEL = 0.95


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


class Pass(TypedDict):
    """Passes at one point of the grid.

    Attributes:
        samples_ms: a pass's time, one sample a round, in the order of the rounds.
        passes_per_sample: how many ran under one reading of the clock.
    """

    batch: int
    gamma: int
    passes_per_sample: int
    samples_ms: list[float]


class Bench(TypedDict):
    """A device's microbenchmark.

    Attributes:
        itemsize: bytes of a weight.
        context: tokens that attention looks back at.
        seed: of the study, that the order was drawn by.
        order: by round, what was measured one after the other: `point` names of the passes, and
            what the roofline is made of.
        bandwidth: bytes/s.
        peak: flop/s.
        one_row_ms: by kind of kernel, all layers' together, at batch 1 and gamma 0.
        passes: every batch and gamma of the grid.
        seconds: that the rounds took.
        visits: 2 where a d of the first was below zero beyond its interval.
    """

    shape: dict[str, int]
    itemsize: int
    context: int
    seed: int
    order: list[list[str]]
    bandwidth: float
    peak: float
    one_row_ms: dict[str, float]
    passes: list[Pass]
    seconds: float
    visits: int


class Estimate(NamedTuple):
    """A value and the ends of its interval at `LEVEL`."""

    value: float
    low: float
    high: float


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


def point(batch: int, gamma: int) -> str:
    """
    >>> point(batch=4, gamma=2)
    'n4-g2'
    """
    return f"n{batch}-g{gamma}"


def median(samples: NDArray[np.float64]) -> Estimate:
    """The median, and an interval that holds the true one whatever the distribution.

    Its ends are the k-th smallest and the k-th largest sample: k is the largest number for which
    fewer than k of n samples fall below the true median in (1 - LEVEL) / 2 of all cases at most
    (the sign test's interval). Under six samples even the extremes hold it less often; they are
    the ends then.

    Of ten samples fewer than two fall below it in 1.1% of all cases, fewer than three in 5.5%:

    >>> median(np.arange(1.0, 11.0))
    Estimate(value=5.5, low=2.0, high=9.0)
    """
    x, n = np.sort(samples), len(samples)
    k, tail = 1, 1 + n
    while tail <= (1 - LEVEL) / 2 * 2**n:
        k, tail = k + 1, tail + comb(n, k + 1)
    return Estimate(float(np.median(x)), float(x[k - 1]), float(x[n - k]))


def device_ms(bench: Bench, batch: int, gamma: int) -> Estimate:
    """A pass that verifies gamma + 1 positions of `batch` sequences, in ms.

    Raises:
        KeyError: the point is not in the grid that was measured.
    """
    return median(_samples(bench, batch, gamma))


def increment_ms(bench: Bench, batch: int, gamma: int) -> Estimate:
    """What a pass takes more than one without a draft, in ms: median of the rounds' differences.

    Raises:
        KeyError: the point, or gamma 0 of its batch, is not in the grid that was measured.
    """
    return median(_samples(bench, batch, gamma) - _samples(bench, batch, 0))


def verify_overhead(bench: Bench, batch: int, gamma: int) -> Estimate:
    """d(gamma): a verify pass over one without a draft, minus one: median of the rounds' ratios.

    Study section "A Closed-Form Per-Output-Token Model", d(gamma).

    Raises:
        KeyError: the point, or gamma 0 of its batch, is not in the grid that was measured.
    """
    return median(_samples(bench, batch, gamma) / _samples(bench, batch, 0) - 1)


def _samples(bench: Bench, batch: int, gamma: int) -> NDArray[np.float64]:
    by_point = {(p["batch"], p["gamma"]): p["samples_ms"] for p in bench["passes"]}
    return np.array(by_point[batch, gamma], dtype=float)


def costs(
    shape: Shape, batch: int, gamma: int, context: int, itemsize: int
) -> dict[str, tuple[float, float]]:
    """(bytes, flops) of a pass by kind of kernel, all layers' together."""
    rows = batch * (gamma + 1)
    layer = {k: gemm_cost(*size, rows, itemsize) for k, size in shape.layer_gemms.items()}
    layer["attention"] = attention_cost(shape, batch, gamma + 1, context, itemsize)
    whole = {k: (shape.layers * moved, shape.layers * flops) for k, (moved, flops) in layer.items()}
    return whole | {"head": gemm_cost(*shape.head_gemm, rows, itemsize)}


def predicted_ms(
    shape: Shape,
    batch: int,
    gamma: int,
    context: int,
    itemsize: int,
    bandwidth: float,
    peak: float,
    efficiency: Mapping[str, float],
) -> float:
    """The roofline of a pass: each kind's bound over its efficiency, summed."""
    parts = costs(shape, batch, gamma, context, itemsize)
    return sum(bound_ms(*cost, bandwidth, peak) / efficiency[k] for k, cost in parts.items())


def efficiencies(bench: Bench) -> dict[str, float]:
    """By kind of kernel, bound over measured time at one row: all that is calibrated."""
    one = costs(Shape(**bench["shape"]), 1, 0, bench["context"], bench["itemsize"])
    roof = (bench["bandwidth"], bench["peak"])
    return {k: bound_ms(*one[k], *roof) / ms for k, ms in bench["one_row_ms"].items()}


def roofline_ms(bench: Bench, batch: int, gamma: int) -> float:
    """What the roofline, which knows the kernels at one row, predicts for a pass, in ms.

    Any batch and gamma: the passes of the microbenchmark are not looked at.
    """
    return predicted_ms(
        Shape(**bench["shape"]),
        batch,
        gamma,
        bench["context"],
        bench["itemsize"],
        bench["bandwidth"],
        bench["peak"],
        efficiencies(bench),
    )


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
    flat = dict.fromkeys([*LLAMA_8B.layer_gemms, "attention", "head"], TYPICAL_EFFICIENCY)
    rows = []
    for gpu in gpus:
        roof = (1024, 2, gpu["bandwidth"], gpu["peak"])
        for n in (1, 4):
            step = {g: predicted_ms(LLAMA_8B, n, g, *roof, flat) for g in (0, 2, 4, 6)}
            rows += [
                {"origin": "datasheet", "gpu": gpu["name"], "source": gpu["source"]}
                | {"batch": n, "gamma": g}
                | {"device_ms": step[g], "d": step[g] / step[0] - 1, "study_at_most": 0.023}
                for g in (2, 4, 6)
            ]
    return pd.DataFrame(rows)
