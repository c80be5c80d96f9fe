"""A real vLLM server on this machine's CPU, and a client's load on it."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from specamort.measure import engine
from specamort.study.grid import Study


@contextmanager
def server(study: Study, model: Path, gamma: int, log: Path, batch: int = 4):
    """Serve the study's model as its calibration platform would; yields the server's URL."""
    engine.environment(study, study.calibration)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", study.model.name, "--port", str(port)]
    command += ["--dtype", study.calibration.dtype, "--max-model-len", "768"]
    command += ["--max-num-seqs", str(batch), "--max-num-batched-tokens", str(768 * batch)]
    command += ["--enforce-eager", "--no-enable-prefix-caching", "--no-async-scheduling"]
    if gamma:
        drafter = study.drafter | {"num_speculative_tokens": gamma}
        command += ["--speculative-config", json.dumps(drafter)]
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as f:
        running = subprocess.Popen(command, stdout=f, stderr=f, start_new_session=True)
        try:
            deadline = time.monotonic() + 240
            while True:
                assert running.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < deadline, "the server did not come up"
                try:
                    urllib.request.urlopen(f"{url}/health", timeout=2)
                    break
                except OSError:
                    time.sleep(0.5)
            yield url
        finally:
            os.killpg(running.pid, 9)
            running.wait()


def load(url: str, model: str, prompts: list[list[int]], tokens: int, sampling: dict) -> float:
    """One request after another; the median time per output token in ms, as the client sees it."""
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    tpots = []
    for prompt in prompts:
        stream = client.completions.create(
            model=model,
            prompt=prompt,
            max_tokens=tokens,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True, **sampling},
        )
        arrivals = [time.perf_counter() for _ in stream]
        tpots.append(1e3 * (arrivals[-1] - arrivals[0]) / (tokens - 1))
    return sorted(tpots)[len(tpots) // 2]
