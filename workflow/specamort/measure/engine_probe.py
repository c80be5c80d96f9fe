"""What vLLM really chose, asked where it runs: vLLM mixes this class into its workers.

Not an option that was given but what became of it: runner, drafter, attention backend, CUDA graph
mode, and the environment variables of vLLM's that change something.
"""

import os

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
