"""What vLLM really chose, asked where it runs: vLLM mixes this class into its workers.

Not an option that was given but what became of it: runner, drafter, attention backend, CUDA graph
mode, and the environment variables of vLLM's that change something.
"""

import os
import time

_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")


class Probe:
    """Mixed into vLLM's worker through `worker_extension_cls`; has its attributes."""

    def specamort_used(self) -> dict:
        from vllm import envs

        runner = self.model_runner
        drafter = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)
        backends = {group.backend.get_name() for groups in runner.attn_groups for group in groups}
        mode = self.vllm_config.compilation_config.cudagraph_mode
        return {
            "model_runner": "v2" if self.vllm_config.use_v2_model_runner else "v1",
            "runner_class": _name(runner),
            "drafter": _name(drafter) if drafter else None,
            "attention_backend": ", ".join(sorted(backends)),
            "cudagraph_mode": mode.name if mode else "NONE",
            "environment": changed(envs.environment_variables),
        }

    def specamort_time_drafts(self, on: bool) -> list[float]:
        """Begin or end timing what each step's drafts take; the times in ms when it ends.

        A device is waited for before and after, so a step is longer meanwhile.
        """
        runner = self.model_runner
        where, name = runner, "propose_draft_token_ids"
        if not hasattr(runner, name):
            where, name = getattr(runner, "speculator", None), "propose"
        if where is None:
            return []
        if not on:
            vars(where).pop(name, None)
            return self._specamort_draft_ms
        times = self._specamort_draft_ms = []
        propose, wait = getattr(where, name), _waiting(runner.device)

        def timed(*args, **options):
            wait()
            began = time.perf_counter()
            made = propose(*args, **options)
            wait()
            times.append(1e3 * (time.perf_counter() - began))
            return made

        setattr(where, name, timed)
        return []


def _waiting(device):
    if device.type == "cpu":
        return lambda: None
    import torch

    return torch.accelerator.synchronize


def changed(variables: dict) -> dict[str, str]:
    """Variables in this process's environment that are not what they would be without it.

    Args:
        variables: name -> function that reads it, as in `vllm.envs`.
    """
    found = {}
    for name, read in variables.items():
        if name not in os.environ:
            continue
        given, with_it = os.environ[name], read()
        del os.environ[name]
        try:
            if read() != with_it:
                found[name] = "(set)" if any(s in name for s in _SECRET) else given
        finally:
            os.environ[name] = given
    return found


def _name(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__name__}"
