"""What our harness adds: its gamma 0 TPOT beside vLLM's own `vllm bench latency`.

Same model, lengths, batch and engine options, the two alternating in one run. vLLM's tool times
whole requests; the difference between a long and a one-token output, over the added tokens, is
its TPOT. Both tools generate from as many prompt tokens; theirs are random.

    python benchmarks/harness.py [--study config/local.yaml] [--rounds 3]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from specamort.engine import Engine, _environment
from specamort.models import fetch, model_dir
from specamort.study import read_study
from specamort.workloads import prompt

ITERATIONS = 5


def ours(study, platform, model: Path, batch: int) -> float:
    """TPOT in ms: median over repetitions of the harness itself."""
    engine = Engine(model, study, platform, 0)
    workload = next(iter(study.workloads.values()))
    prompts = [prompt(engine.tokenizer, workload, i, study.context_tokens) for i in range(batch)]
    runs = [engine.run(prompts, study.output_tokens, {}, None) for _ in range(1 + ITERATIONS)]
    engine.close()
    pots = [statistics.mean(s["pot_ms"] for s in r["sequences"]) for r in runs[1:]]
    return statistics.median(pots)


def theirs(study, platform, model: Path, batch: int) -> float:
    """TPOT in ms: (latency of output_tokens - latency of one token) / (output_tokens - 1)."""
    _environment(platform)
    flags = ["--enforce-eager", "--no-enable-prefix-caching", "--no-async-scheduling"]
    options = {
        "model": model,
        "dtype": platform.dtype,
        "max-model-len": study.max_model_len,
        "max-num-seqs": max(study.batches),
        "max-num-batched-tokens": max(study.batches) * study.max_model_len,
        "input-len": study.context_tokens,
        "batch-size": batch,
        "num-iters-warmup": 1,
        "num-iters": ITERATIONS,
    }
    latency = {}
    for tokens in (1, study.output_tokens):
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            values = options | {"output-len": tokens, "output-json": out.name}
            command = ["vllm", "bench", "latency", *flags]
            command += [str(x) for k, v in values.items() for x in (f"--{k}", v)]
            environment = os.environ | {
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            }
            subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
            latency[tokens] = statistics.median(json.load(out)["latencies"])
    return 1e3 * (latency[study.output_tokens] - latency[1]) / (study.output_tokens - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", default="config/local.yaml")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    study = read_study(args.study)
    # Random prompts and ours decode alike; one output length for both tools.
    study = replace(study, gammas=(0,))
    model = model_dir(study.model)
    if not model.exists():
        fetch(study.model, model)
    platform, batch = study.calibration, min(study.batches)
    ratios = []
    for i in range(args.rounds):
        a, b = ours(study, platform, model, batch), theirs(study, platform, model, batch)
        ratios.append(a / b)
        print(f"round {i + 1}: ours {a:.2f} ms, vllm bench latency {b:.2f} ms, ratio {a / b:.3f}")
    print(
        f"ratio, median of {args.rounds} rounds: {statistics.median(ratios):.3f} (aim 0.98 to 1.02)"
    )


if __name__ == "__main__":
    main()
