"""What the device can do, measured with torch alone: whole-model passes, and a roofline's parts.

A pass is the device's part of a decode step: the GEMMs and the attention of every layer, each with
weights, keys and values of its own, and the head. As in an engine nothing is left in a cache from
one layer to the next. In every round the points of the grid are measured once, in an order drawn
anew: what drifts, warms up or is shared for a while falls on all of them alike.
"""

import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import SpecamortError
from ..model.roofline import (
    Bench,
    Estimate,
    Shape,
    gemm_cost,
    point,
    read_shape,
    verify_overhead,
)
from ..records import record
from ..records.block import Block
from ..records.types import Source
from ..study import layout
from ..study.grid import Platform, Study
from ..study.settings import Settings, digest
from .provenance import now, provenance, state

if TYPE_CHECKING:
    from torch import Tensor

Run = Callable[[], object]

# A reading of the clock spans at least so long: a launch, a synchronisation or a timer's tick is
# then below a thousandth of it.
_SAMPLE_MS = 50.0
# Rounds are begun for so long, so that two visits take a minute and a half on any device: 40 rounds
# of the local study fit; a model whose pass takes a second stops at the fewest rounds from which an
# interval is more than the extremes.
_BUDGET_S, _FEWEST = 40.0, 10
_STREAM_BYTES = 256 * 2**20  # well past the last cache: 32 MB here, 50 MB on an H100
_PEAK_ROWS = 2048


def microbench(study: Study, platform: Platform, model: Path, results: Path, progress=None) -> None:
    """Measure one platform's device at the study's grid, if not yet measured.

    Raises:
        SpecamortError: see `believable`.
    """
    folder = layout.folder(results, "microbench", platform.name)
    wanted = {n: study.microbench_settings(platform.name, n) for n in study.benched}
    with Block(folder, wanted, provenance(study, platform), progress) as block:
        for name in block.missing:
            block.write(name, _record(study, platform, model, block.source, wanted[name]))


def _record(
    study: Study, platform: Platform, model: Path, source: Source, settings: Settings
) -> dict:
    started, before = now(), state(platform)
    if platform.device == "cpu" and not study.rehearses:  # as the engine binds its worker
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-platform.threads :])
    measure = partial(
        measure_device,
        read_shape(model),
        platform,
        settings["context_tokens"],
        list(study.batches),
        list(study.gammas),
        settings["rounds"],
        settings["seed"],
    )
    # a rehearsal's times mean nothing, and its few rounds would be refused by chance
    measured = measure(1) if study.rehearses else believable(measure, platform.name)
    times = {"started": started, "finished": now()}
    return record.envelope(study, "microbenchmark", settings, source | times) | {
        "device_state": {"before": before, "after": state(platform)},
        "microbenchmark": {**measured, "hash": digest(measured)},
    }


def believable(measure: Callable[[int], Bench], platform: str) -> Bench:
    """The first visit, unless a d of it is below zero beyond its interval; then a second decides.

    More work in less time is what drift looks like, but also what a library's choice of kernels
    can do: oneDNN's for one row are slower than those for three to five on some CPUs. The second
    visit has memory and an order of its own. Where it comes as far below zero, it is the kernels,
    and the first stands; else the first was drift, and the second stands.

    Args:
        measure: gives a visit, by its number.

    Raises:
        SpecamortError: the second has a d below zero beyond its interval where the first had not.
    """
    first = measure(1)
    was = _overheads(first)
    below = [where for where, d in was.items() if d.high < 0]
    if not below:
        return first
    second = measure(2)
    found = _overheads(second)
    for (batch, gamma), d in found.items():
        before = was[batch, gamma]
        if d.high < 0 <= before.high and d.high < before.low:
            raise SpecamortError(
                f"microbenchmark of {platform}: at batch {batch}, gamma {gamma} a verify pass took "
                f"{100 * before.low:+.1f} to {100 * before.high:+.1f}% more than one without a "
                f"draft in one visit and {100 * d.low:+.1f} to {100 * d.high:+.1f}% in the next; "
                "see that nothing else runs on the device and run it again"
            )
    confirmed = all(found[where].low <= was[where].high for where in below)
    return {**(first if confirmed else second), "visits": 2}


def _overheads(bench: Bench) -> dict[tuple[int, int], Estimate]:
    points = [(p["batch"], p["gamma"]) for p in bench["passes"]]
    return {where: verify_overhead(bench, *where) for where in points}


def measure_device(
    shape: Shape,
    platform: Platform,
    context: int,
    batches: list[int],
    gammas: list[int],
    rounds: int,
    seed: int,
    visit: int = 1,
) -> Bench:
    """Passes at every batch and gamma, and what the roofline is made of; see `roofline.Bench`.

    Bandwidth, peak and the kinds of kernels at one row are measured in the same rounds. A kind's
    sample is one run of it in every layer, after a read of other memory that is not timed: alone,
    the layers' weights of a small model would stay in the cache.

    Args:
        rounds: at most; fewer if they take longer than `_BUDGET_S`, down to `_FEWEST`.
        seed, visit: what the order is drawn by.
    """
    import torch

    if platform.device == "cpu":
        torch.set_num_threads(platform.threads)
    points = {point(n, g): (n, g) for n in batches for g in gammas}
    began = time.monotonic()
    with torch.inference_mode():
        model = _Model(shape, platform, context, max(batches))
        stream = torch.ones(_STREAM_BYTES // 4, device=platform.device)
        ready = _captured if platform.device == "cuda" else _as_it_is
        clock = _cuda_ms if platform.device == "cuda" else _cpu_ms
        one_row = list(model.kernels(1, 0))
        kinds = dict.fromkeys(kind for kind, _ in one_row)
        peak_run, peak_flops = model.peak()
        read = ready(stream.sum)
        taken: dict[str, _Sampled] = {
            "bandwidth": _Sampled(read, clock),
            "peak": _Sampled(ready(peak_run), clock),
        }
        for kind in kinds:
            taken[kind] = _Sampled(ready(_all(run for k, run in one_row if k == kind)), clock, read)
        for name, where in points.items():
            taken[name] = _Sampled(ready(_all(run for _, run in model.kernels(*where))), clock)
        order = _rounds(taken, rounds, f"{seed}-{visit}")
    ms = {name: statistics.median(one.samples_ms) for name, one in taken.items()}
    return {
        "shape": asdict(shape),
        "itemsize": model.itemsize,
        "context": context,
        "seed": seed,
        "order": order,
        "bandwidth": 1e3 * _STREAM_BYTES / ms["bandwidth"],
        "peak": 1e3 * peak_flops / ms["peak"],
        "one_row_ms": {kind: ms[kind] for kind in kinds},
        "passes": [
            {
                "batch": n,
                "gamma": g,
                "passes_per_sample": taken[name].times,
                "samples_ms": taken[name].samples_ms,
            }
            for name, (n, g) in points.items()
        ],
        "seconds": time.monotonic() - began,
        "visits": visit,
    }


def _rounds(taken: dict[str, "_Sampled"], rounds: int, seed: str) -> list[list[str]]:
    """Fill the samples; the order of every round that counts."""
    rng, orders, began = random.Random(seed), [], time.monotonic()
    for one in taken.values():  # what is called first pays for set-up and memory
        one.sample()
    while len(orders) < rounds:
        if len(orders) >= _FEWEST and time.monotonic() - began > _BUDGET_S:
            break
        orders.append(rng.sample(list(taken), len(taken)))
        for name in orders[-1]:
            taken[name].samples_ms.append(taken[name].sample())
    return orders


class _Sampled:
    """Something that is timed once a round.

    Args:
        before: run before each time and not timed; a sample is a single run then.

    Attributes:
        times: runs in a sample.
    """

    def __init__(self, run: Run, clock: Callable[[Run, int], float], before: Run | None = None):
        self._run, self._clock, self._before = run, clock, before
        self.times = 1
        self.samples_ms: list[float] = []

    def sample(self) -> float:
        """Ms of a run, in the mean of as many as take `_SAMPLE_MS` together."""
        if self._before:
            self._before()
            return self._clock(self._run, 1)
        while (ms := self._clock(self._run, self.times)) < _SAMPLE_MS:
            # a fifth more, so that the next is seldom too short as well
            self.times = ceil(1.2 * self.times * _SAMPLE_MS / ms)
        return ms / self.times


class _Model:
    """Random weights of every layer, and keys and values of so many sequences, on the device."""

    def __init__(self, shape: Shape, platform: Platform, context: int, sequences: int):
        import torch

        self._shape, self._device = shape, platform.device
        self._dtype = getattr(torch, platform.dtype)
        self.itemsize = self._dtype.itemsize
        # vLLM on a CPU packs every layer's and the head's weights once for oneDNN; so do we.
        self._pack = platform.device == "cpu" and torch.backends.mkldnn.is_available()
        self._linear = _packed_linear if self._pack else torch.nn.functional.linear
        layers = range(shape.layers)
        self._weights = [
            {kind: self._weight(*size) for kind, size in shape.layer_gemms.items()} for _ in layers
        ]
        self._head = self._weight(*shape.head_gemm)
        heads = sequences * shape.kv_heads
        self._keys = [self._random(heads, shape.head_dim, context) for _ in layers]
        self._values = [self._random(heads, context, shape.head_dim) for _ in layers]

    def kernels(self, batch: int, gamma: int) -> Iterator[tuple[str, Run]]:
        """Every kernel of a pass in the order of a step: its kind, and what runs it."""
        shape, rows = self._shape, batch * (gamma + 1)
        sizes = {**shape.layer_gemms, "head": shape.head_gemm}
        x = {kind: self._random(rows, inputs) for kind, (_, inputs) in sizes.items()}
        # All heads that share a key head, and all their queries, are rows of one product.
        heads, per_key = batch * shape.kv_heads, shape.heads // shape.kv_heads * (gamma + 1)
        q = self._random(heads, per_key, shape.head_dim) * shape.head_dim**-0.5
        for weights, keys, values in zip(self._weights, self._keys, self._values, strict=True):
            attention = partial(_attention, q, keys[:heads], values[:heads])
            for kind, weight in weights.items():
                yield kind, partial(self._linear, x[kind], weight)
                if kind == "qkv":
                    yield "attention", attention
        yield "head", partial(self._linear, x["head"], self._head)

    def peak(self) -> tuple[Run, float]:
        """A GEMM of many rows, and its flops."""
        outputs, inputs = self._shape.layer_gemms["gate_up"]
        flops = gemm_cost(outputs, inputs, _PEAK_ROWS, self.itemsize)[1]
        x = self._random(_PEAK_ROWS, inputs)
        return partial(self._linear, x, self._weights[0]["gate_up"]), flops

    def _weight(self, outputs: int, inputs: int) -> "Tensor":
        import torch

        weight = self._random(outputs, inputs)
        return torch.ops.mkldnn._reorder_linear_weight(weight) if self._pack else weight

    def _random(self, *size: int) -> "Tensor":
        import torch

        return torch.randn(*size, device=self._device, dtype=self._dtype)


def _packed_linear(x: "Tensor", weight: "Tensor") -> "Tensor":
    import torch

    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


def _attention(q: "Tensor", keys: "Tensor", values: "Tensor") -> "Tensor":
    import torch

    return torch.bmm(torch.bmm(q, keys).softmax(-1), values)


def _all(runs: Iterable[Run]) -> Run:
    every = list(runs)

    def run() -> None:
        for one in every:
            one()

    return run


def _as_it_is(run: Run) -> Run:
    return run


def _captured(run: Run) -> Run:
    """The run as one CUDA graph: the device never waits for a launch, as the host would have it."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()  # libraries set themselves up, which a capture refuses
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay(operands: Run = run) -> None:  # a graph knows their addresses only
        graph.replay()

    return replay


def _cpu_ms(run: Run, times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        run()
    return 1e3 * (time.perf_counter() - begin)


def _cuda_ms(run: Run, times: int) -> float:
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)
