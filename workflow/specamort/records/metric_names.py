"""vLLM's names of what it counts, without the suffixes that its /metrics adds (vLLM 0.32)."""

SPECULATION = "vllm:spec_decode_num_"
PER_POSITION = f"{SPECULATION}accepted_tokens_per_pos"
STEPS = "vllm:iteration_tokens_total"
