"""What our harness adds: its gamma 0 TPOT beside vLLM's own `vllm bench latency`.

Same model, lengths, batch and engine options, the two alternating in one run. vLLM's tool times
whole requests; the difference between a long and a one-token output, over the added tokens, is
its TPOT. Both tools generate from as many prompt tokens; theirs are random.

    python benchmarks/harness.py [--study config/local.yaml] [--rounds 3]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from specamort.measure.engine import Engine, environment
from specamort.measure.models import fetch
from specamort.study.model_files import model_dir
from specamort.study.prompts import prompts
from specamort.study.study_file import read_study

ITERATIONS = 5
# What `vllm bench latency` runs; the `vllm` command itself stops at start in the CPU package, which
# looks for its own version under another name.
LATENCY = """
from vllm.benchmarks import latency
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
latency.add_cli_args(parser)
latency.main(parser.parse_args())
"""


def ours(study, platform, model: Path, batch: int) -> float:
    """TPOT in ms: median over repetitions of the harness itself."""
    engine = Engine(model, study, platform, 0)
    workload = next(iter(study.workloads.values()))
    made = prompts(study, engine.tokenizer, study.timing_prompts(workload.name))
    batch_ids = [p.token_ids for p in made[:batch]]
    runs = [engine.run(batch_ids, study.output_tokens, {}, None) for _ in range(1 + ITERATIONS)]
    engine.close()
    pots = [statistics.mean(s["pot_ms"] for s in r["sequences"]) for r in runs[1:]]
    return statistics.median(pots)


def theirs(study, platform, model: Path, batch: int) -> float:
    """TPOT in ms: (latency of output_tokens - latency of one token) / (output_tokens - 1)."""
    environment(study, platform)
    flags = ["--enforce-eager", "--no-enable-prefix-caching", "--no-async-scheduling"]
    flags.append("--disable-detokenize")  # ours times token ids, too
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
            command = [sys.executable, "-c", LATENCY, *flags]
            command += [str(x) for k, v in values.items() for x in (f"--{k}", v)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            latency[tokens] = statistics.median(json.load(out)["latencies"])
    return 1e3 * (latency[study.output_tokens] - latency[1]) / (study.output_tokens - 1)


def same_engine(study, platform, model: Path, batch: int) -> float:
    """Our TPOT over that of `LLM.generate`, the call vLLM's tool times, alternating on one engine.

    Two engines of the same options differ by several percent on a small machine; one does not
    differ from itself.
    """
    from vllm import SamplingParams

    engine = Engine(model, study, platform, 0)
    workload = next(iter(study.workloads.values()))
    made = prompts(study, engine.tokenizer, study.timing_prompts(workload.name))
    batch_ids = [p.token_ids for p in made[:batch]]

    def generate_s(tokens: int) -> float:
        parameters = SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        begin = time.perf_counter()
        requests = [{"prompt_token_ids": p} for p in batch_ids]
        engine._llm.generate(requests, parameters, use_tqdm=False)
        return time.perf_counter() - begin

    mine, long, short = [], [], []
    for _ in range(4 * ITERATIONS):
        run = engine.run(batch_ids, study.output_tokens, {}, None)
        mine.append(statistics.mean(s["pot_ms"] for s in run["sequences"]))
        long.append(generate_s(study.output_tokens))
        short.append(generate_s(1))
    engine.close()
    added = statistics.median(long) - statistics.median(short)
    return statistics.median(mine) / (1e3 * added / (study.output_tokens - 1))


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
    ratio = same_engine(study, platform, model, batch)
    print(f"one engine, alternating with LLM.generate: ratio {ratio:.3f}", flush=True)
    ratios = []
    for i in range(args.rounds):
        a, b = ours(study, platform, model, batch), theirs(study, platform, model, batch)
        ratios.append(a / b)
        print(
            f"round {i + 1}: ours {a:.2f} ms, vllm bench latency {b:.2f} ms, ratio {a / b:.3f}",
            flush=True,
        )
    if ratios:
        middle = statistics.median(ratios)
        print(f"ratio, median of {args.rounds} rounds: {middle:.3f} (aim 0.98 to 1.02)")


if __name__ == "__main__":
    main()
