"""FlashAttention 3 for Hopper, as its own package (`flash_attn_interface`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flash_attn_interface import flash_attn_func


def _prefill(
    q: Any, k: Any, v: Any, mask: Any, alibi_slopes: Any = None, *,
    causal: bool, causal_offset: int, window_left: int, window_right: int, soft_cap: float, sm_scale: float, return_lse: bool,
    layout: str,
) -> Any:  # fmt: skip
    result = flash_attn_func(
        q, k, v, softmax_scale=sm_scale, causal=causal, window_size=(window_left, window_right), softcap=soft_cap
    )
    # Early releases always return the lse with the output, later ones never do.
    return result[0] if isinstance(result, tuple) else result


#: Kernels by id.
KERNELS: dict[str, Callable[..., Any]] = {f"flash_attn.v3.{family}.prefill": _prefill for family in ("standard", "gqa")}
