"""Kernels of the Hugging Face Hub through `kernels`: what a project locked, from what lies on this machine.

Nothing is downloaded: a kernel that is not locked, or is not in the cache, declines with what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

_REPOSITORY = "kernels-community/flash-attn2"


@cache
def _module(repository: str) -> Any:
    from kernels import load_kernel

    try:
        return load_kernel(repository)
    except Exception as error:
        message = f"{repository} is not locked or not here ({error}); `kernels lock` and `kernels download` bring it"
        raise NotImplementedError(message) from error


def _prefill(
    q: Any, k: Any, v: Any, mask: Any, alibi_slopes: Any = None, *,
    causal: bool, causal_offset: int, window_left: int, window_right: int, soft_cap: float, sm_scale: float, return_lse: bool,
    layout: str,
) -> Any:  # fmt: skip
    result = _module(_REPOSITORY).flash_attn_func(
        q, k, v, softmax_scale=sm_scale, causal=causal, window_size=(window_left, window_right), softcap=soft_cap
    )
    return result[0] if isinstance(result, tuple) else result


#: Kernels by id.
KERNELS: dict[str, Callable[..., Any]] = {f"hf_kernels.flash_attn2.{family}.prefill": _prefill for family in ("standard", "gqa")}
