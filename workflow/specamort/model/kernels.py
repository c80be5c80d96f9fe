"""Families of kernels and operators, by the names that tracers give them."""

import re
from functools import cache

# By what a kernel or operator is called; the first that fits.
FAMILIES = {
    "attention": r"attention|attn|flash(?!infer)|fmha|kv_?cache|reshape_and_cache|paged"
    r"|scheduler_metadata|prepare_varlen|reduce_segments",
    "sampling": r"argmax|maxops|maxnan|softmax|sampl|(?<!s)top_?[kp]|min_p_|multinomial|gumbel"
    r"|exponential|temperature|penalt|bincount|reject|\bexpand_kernel|logit|log_p|residual_mass"
    r"|cumsum|devicescan|scan_by_key|sort",
    "gemm": r"gemm|gemv|(?:::|_)(?:b|add|baddb)?mm(?![a-z])|matmul|(?:::|_)linear(?![a-z])"
    r"|cublas|xmma|nvjet|splitkreduce",
    "norm": r"norm(?!al_)|rsqrt|::mean|::pow",
    "copy": r"memcpy|memset|(?<!fused__to_)copy|fused_(?:_to_copy|clone)_\d|::to\b|::clone"
    r"|index_select|indexselect|index_elementwise|_gather|slot_mapping|\bfill",
}


_FAMILIES = [(name, re.compile(pattern, re.IGNORECASE)) for name, pattern in FAMILIES.items()]


# Templates that say in their arguments what they do, first things first, so the leftmost word
# decides; any other's arguments are only types.
_WRAPPER = re.compile(r"cutlass::(device_kernel|Kernel)|elementwise|reduce_kernel|DeviceReduce")


# Inductor names its kernels after all operators around them, of which these are never inside.
_INDUCTOR = re.compile(r"triton_(poi|per|red)_fused_")
_NEVER_FUSED = ("attention", "gemm")
_ROUND = ("(", ")"), ("[", "]"), ("{", "}")
_ANGLE = (("<", ">"),)


@cache
def family(name: str) -> str:
    """Family of a kernel (demangled, as either tracer spells it) or operator, `other` if none.

    >>> family("void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128>>(Params)")
    'attention'
    >>> family("aten::mm"), family("Memcpy DtoD (Device -> Device)")
    ('gemm', 'copy')
    """
    whole = _without(_ROUND, name)  # parameters, casts, lambdas
    called = _without(_ANGLE, whole)
    if _WRAPPER.search(called):
        hits = [(m.start(), f) for f, pattern in _FAMILIES if (m := pattern.search(whole))]
        return min(hits, default=(0, "other"))[1]
    left_out = _NEVER_FUSED if _INDUCTOR.match(called) else ()
    fits = (f for f, pattern in _FAMILIES if f not in left_out and pattern.search(called))
    return next(fits, "other")


def _without(brackets: tuple[tuple[str, str], ...], text: str) -> str:
    """Text without what stands in brackets, however deep; those without a partner stay."""
    for opening, closing in brackets:
        kept: list[str] = []
        opened: list[int] = []
        for part in re.split(f"([{re.escape(opening + closing)}])", text):
            if part == closing and opened:
                del kept[opened.pop() :]
                continue
            if part == opening:
                opened.append(len(kept))
            kept.append(part)
        text = "".join(kept)
    return text
