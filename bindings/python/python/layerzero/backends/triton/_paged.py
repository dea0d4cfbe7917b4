"""Attention of few queries over a paged cache."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from layerzero.backends import triton as launching
from layerzero.backends.triton import _paged_kernels as kernels

#: Keys that a program reads at once, and the largest number of programs that share the keys of one head.
_KEYS, _MAX_SPLITS = 64, 32


@cache
def _processors(device: int) -> int:
    """Multiprocessors of a GPU; a few for the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device >= 0 else 4


def _splits(programs: int, capacity: int, device: int) -> int:
    """Enough programs to use every multiprocessor twice, but no more than there are blocks of keys."""
    wanted = -(-2 * _processors(device) // max(programs, 1))
    return min(launching._power(wanted), launching._power(-(-capacity // _KEYS)), _MAX_SPLITS)


def prefill_paged(
    q: Any, k_cache: Any, v_cache: Any, qo_indptr: Any, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any, alibi_slopes: Any = None, *,
    causal: bool, window_left: int, window_right: int, soft_cap: float, sm_scale: float, return_lse: bool, layout: str, out: Any = None,
) -> Any:  # fmt: skip
    """Every token finds its request and reads its own keys: the values of the tables are never read on the host."""
    if k_cache.stride() != v_cache.stride() or k_cache.stride(-1) != 1:
        raise NotImplementedError("caches with different strides")
    tokens, heads, head_dim = q.shape
    slot, head = (1, 2) if layout == "NHD" else (2, 1)
    kv_heads, page_size, requests = k_cache.shape[head], k_cache.shape[slot], kv_last_page_len.shape[0]
    result, lse = out if isinstance(out, tuple) else (out, None)
    if result is None:
        result = torch.empty_like(q)
    if return_lse and lse is None:
        lse = torch.empty((tokens, heads), dtype=torch.float32, device=q.device)
    if tokens == 0:
        return (result, lse) if return_lse else result
    device = q.get_device()
    splits = _splits(tokens * kv_heads, kv_indices.shape[0] * page_size, device)
    partial = stats = result
    if splits > 1:
        partial = torch.empty((tokens, heads, splits, head_dim), dtype=torch.float32, device=q.device)
        stats = torch.empty((tokens, heads, splits, 2), dtype=torch.float32, device=q.device)
    slopes = None if alibi_slopes is None else alibi_slopes.expand(requests, heads).contiguous()
    strides = k_cache.stride()
    integers = (requests, heads, kv_heads, head_dim, page_size, strides[0], strides[slot], strides[head], heads)
    numbers = (*integers, sm_scale, soft_cap, window_left, window_right)
    blocks = (splits, launching._power(requests), max(16, launching._power(heads // kv_heads)), max(16, launching._power(head_dim)))
    flags = (causal, soft_cap > 0, slopes is not None, return_lse)
    # Whether a number is 1 or a multiple of 16 is compiled in.
    key = ("attend", *integers, window_left, window_right, *flags, *blocks, q.dtype, device)
    tensors = (
        q, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, kv_last_page_len, q if slopes is None else slopes, result,
        result if lse is None else lse, partial, stats,
    )  # fmt: skip

    def recipe() -> Any:
        return launching._Recipe(kernels.attend, (*flags, *blocks, _KEYS), 4, 2)

    launching._launch(key, tokens * kv_heads, splits, tensors, numbers, recipe)
    if splits > 1:
        whole = (partial, stats, result, result if lse is None else lse)

        def joining() -> Any:
            return launching._Recipe(kernels.combine, (return_lse, splits, blocks[3]), 4)

        launching._launch(("combine", head_dim, return_lse, splits, q.dtype, device), tokens * heads, 1, whole, (head_dim,), joining)
    return (result, lse) if return_lse else result
