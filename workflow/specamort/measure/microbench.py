"""What the device can do, measured with torch alone: streaming, GEMMs, attention."""

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from ..model.roofline import Shape, gemm_cost, read_shape
from ..records import record
from ..records.block import Block
from ..records.types import Source
from ..study import layout
from ..study.grid import Platform, Study
from ..study.settings import Settings, digest
from .provenance import now, provenance, state

_STREAM_BYTES = 256 * 2**20  # well past any last-level cache
_TIMED = 15


def microbench(study: Study, platform: Platform, model: Path, results: Path, progress=None) -> None:
    """Measure one platform's kernels at the row counts of the study's grid, if not yet measured."""
    folder = layout.folder(results, "microbench", platform.name)
    wanted = {"kernels": study.microbench_settings(platform.name)}
    with Block(folder, wanted, provenance(study, platform), progress) as block:
        for name in block.missing:
            block.write(name, _record(study, platform, model, block.source, wanted[name]))


def _record(
    study: Study, platform: Platform, model: Path, source: Source, settings: Settings
) -> dict:
    started, before = now(), state(platform)
    if platform.device == "cpu" and not study.rehearses:  # as the engine binds its worker
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-platform.threads :])
    rows = {n * (g + 1) for n in study.batches for g in study.gammas}
    measured = measure_kernels(
        read_shape(model),
        platform,
        study.context_tokens,
        batches=list(study.batches),
        gammas=list(study.gammas),
        rows=sorted({1, 2, 4, 8, 16} | rows),
    )
    times = {"started": started, "finished": now()}
    return record.envelope(study, "microbenchmark", settings, source | times) | {
        "device_state": {"before": before, "after": state(platform)},
        "microbenchmark": {**measured, "hash": digest(measured)},
    }


def measure_kernels(
    shape: Shape,
    platform: Platform,
    context: int,
    batches: list[int],
    gammas: list[int],
    rows: list[int],
) -> dict:
    """Times in ms of every kernel of a decode step; see `roofline.Bench` for the keys.

    Args:
        rows: of the GEMMs; attention is timed for every batch and gamma.
    """
    import torch

    dtype = getattr(torch, platform.dtype)
    item = torch.finfo(dtype).bits // 8
    if platform.device == "cpu":
        torch.set_num_threads(platform.threads)

    def tensor(*size: int) -> "torch.Tensor":
        return torch.randn(*size, device=platform.device, dtype=torch.float32).to(dtype)

    def timed(run: Callable[[], object]) -> float:
        """Median of several runs in ms, after one that does not count."""
        times = []
        for i in range(_TIMED + 1):
            begin = time.perf_counter()
            run()
            if platform.device == "cuda":
                torch.cuda.synchronize()
            if i:
                times.append(time.perf_counter() - begin)
        return 1e3 * statistics.median(times)

    def gemm_ms(outputs: int, inputs: int, rows: list[int]) -> dict[int, float]:
        # As many copies as it takes to stream the weights from memory, as a whole model does.
        copies = max(1, _STREAM_BYTES // (4 * outputs * inputs * item))
        weights = [tensor(outputs, inputs) for _ in range(copies)]
        linear = torch.nn.functional.linear
        if pack:
            linear = _packed_linear
            weights = [torch.ops.mkldnn._reorder_linear_weight(w) for w in weights]
        found = {}
        for m in rows:
            x = tensor(m, inputs)
            found[m] = timed(lambda x=x: [linear(x, w) for w in weights]) / copies
        return found

    # vLLM on a CPU packs every layer's and the head's weights once for oneDNN; so do we.
    pack = platform.device == "cpu" and torch.backends.mkldnn.is_available()
    with torch.inference_mode():
        stream = torch.ones(_STREAM_BYTES // 4, device=platform.device)
        bandwidth = 1e3 * _STREAM_BYTES / timed(stream.sum)
        sizes = {**shape.layer_gemms, "head": shape.head_gemm}
        gemm = {name: gemm_ms(*size, rows) for name, size in sizes.items()}
        largest, many = shape.layer_gemms["gate_up"], 512
        peak = 1e3 * gemm_cost(*largest, many, item)[1] / gemm_ms(*largest, [many])[many]
        attention = {}
        for n in batches:
            keys = tensor(n * shape.kv_heads, shape.head_dim, context)
            values = tensor(n * shape.kv_heads, context, shape.head_dim)
            attention[n] = {}
            for g in gammas:
                # All heads that share a key head, and all their queries, are rows of one product.
                rows_per_key = shape.heads // shape.kv_heads * (g + 1)
                q = tensor(n * shape.kv_heads, rows_per_key, shape.head_dim)
                attention[n][g + 1] = timed(
                    lambda q=q, k=keys, v=values: torch.bmm(torch.bmm(q, k).softmax(-1), v)
                )
    return {
        "shape": asdict(shape),
        "itemsize": item,
        "context": context,
        "bandwidth": bandwidth,
        "peak": peak,
        "gemm": gemm,
        "attention": attention,
    }


def _packed_linear(x, weight):
    import torch

    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
