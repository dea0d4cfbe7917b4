"""xFormers' memory-efficient attention: it selects among the kernels that it was built with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xformers.ops import memory_efficient_attention
from xformers.ops.fmha.attn_bias import LowerTriangularFromBottomRightMask


def _prefill(
    q: Any, k: Any, v: Any, mask: Any, alibi_slopes: Any = None, *,
    causal: bool, causal_offset: int, window_left: int, window_right: int, soft_cap: float, sm_scale: float, return_lse: bool,
    layout: str,
) -> Any:  # fmt: skip
    bias = LowerTriangularFromBottomRightMask() if causal else None
    return memory_efficient_attention(q, k, v, attn_bias=bias, scale=sm_scale)


def _decode(
    q: Any, k: Any, v: Any, kv_lens: Any, alibi_slopes: Any = None, *,
    window_left: int, soft_cap: float, sm_scale: float, return_lse: bool, layout: str,
) -> Any:  # fmt: skip
    return memory_efficient_attention(q[:, None], k, v, scale=sm_scale)[:, 0]


#: Kernels by id.
KERNELS: dict[str, Callable[..., Any]] = {
    "xformers.standard.prefill": _prefill,
    "xformers.standard.decode": _decode,
}
