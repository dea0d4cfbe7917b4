"""FlashAttention 2, as its own package. Since 2.1 causal masks are aligned at the last key, as in the
operations; the lse is a natural logarithm.

Rows without a visible key give 0 with an lse of +∞, which is converted to -∞.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache


def _convert_lse(lse: Any) -> Any:
    return lse.masked_fill(lse == float("inf"), float("-inf"))


def _prefill(
    q: Any, k: Any, v: Any, mask: Any, alibi_slopes: Any = None, *,
    causal: bool, causal_offset: int, window_left: int, window_right: int, soft_cap: float, sm_scale: float, return_lse: bool,
    layout: str,
) -> Any:  # fmt: skip
    result = flash_attn_func(
        q, k, v, softmax_scale=sm_scale, causal=causal, window_size=(window_left, window_right), softcap=soft_cap,
        return_attn_probs=return_lse,
    )  # fmt: skip
    return (result[0], _convert_lse(result[1]).transpose(1, 2)) if return_lse else result


def _decode(
    q: Any, k: Any, v: Any, kv_lens: Any, alibi_slopes: Any = None, *,
    window_left: int, soft_cap: float, sm_scale: float, return_lse: bool, layout: str,
) -> Any:  # fmt: skip
    result = flash_attn_with_kvcache(
        q[:, None], k, v, cache_seqlens=kv_lens, softmax_scale=sm_scale, causal=True, window_size=(window_left, -1),
        softcap=soft_cap, return_softmax_lse=return_lse,
    )  # fmt: skip
    return (result[0][:, 0], _convert_lse(result[1])[:, :, 0]) if return_lse else result[:, 0]


def _ragged(
    q: Any, k: Any, v: Any, qo_indptr: Any, kv_indptr: Any, alibi_slopes: Any = None, *,
    causal: bool, window_left: int, window_right: int, soft_cap: float, sm_scale: float, return_lse: bool,
) -> Any:  # fmt: skip
    # The library takes the length of the longest request; the totals are upper bounds that need no device
    # synchronization.
    result = flash_attn_varlen_func(
        q, k, v, qo_indptr, kv_indptr, q.shape[0], k.shape[0], softmax_scale=sm_scale, causal=causal,
        window_size=(window_left, window_right), softcap=soft_cap, return_attn_probs=return_lse,
    )  # fmt: skip
    return (result[0], _convert_lse(result[1]).T) if return_lse else result


#: Kernels by id.
KERNELS: dict[str, Callable[..., Any]] = {}
for _family in ("standard", "gqa"):
    KERNELS[f"flash_attn.v2.{_family}.prefill"] = _prefill
    KERNELS[f"flash_attn.v2.{_family}.decode"] = _decode
    KERNELS[f"flash_attn.v2.{_family}.prefill.ragged"] = _ragged
