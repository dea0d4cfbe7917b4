"""Rotates queries and keys, and writes keys and values into a paged cache, in one kernel."""

from __future__ import annotations

from typing import Any

import torch

from layerzero.backends import triton as launching
from layerzero.backends.triton import _rope_append_kernels as kernels


def rope_append(
    q: Any, k: Any, v: Any, cos: Any, sin: Any, positions: Any, k_cache: Any, v_cache: Any, slots: Any, *, interleaved: bool, layout: str
) -> Any:
    """`rope.append`."""
    if k_cache.stride() != v_cache.stride() or k_cache.stride(-1) != 1:
        raise NotImplementedError("caches with different strides")
    tokens, heads, head_dim = q.shape
    kv_heads, half = k.shape[1], cos.shape[1]
    out = torch.empty((tokens, heads, head_dim), dtype=q.dtype, device=q.device)
    # Heads of a token must follow each other; tokens of a slice of joined queries, keys and values may be further apart.
    q, k, v = (one if one.stride()[1:] == (head_dim, 1) else one.contiguous() for one in (q, k, v))
    cos, sin, positions, slots = (one.contiguous() for one in (cos, sin, positions, slots))
    slot_dim, head_dim_of_cache = (1, 2) if layout == "NHD" else (2, 1)
    strides = k_cache.stride()
    sizes = (tokens, heads, kv_heads, head_dim, half, k_cache.shape[slot_dim])
    numbers = (*sizes, strides[0], strides[slot_dim], strides[head_dim_of_cache], q.stride(0), k.stride(0), v.stride(0))

    def recipe() -> Any:
        largest = launching._LARGEST.get(k_cache.dtype, 0.0)
        constants = (interleaved, largest, launching._power(half), launching._power(max(head_dim - 2 * half, 1)), 1024)
        return launching._Recipe(kernels.rope_append, constants, 1 if half <= 64 else 2)

    key = ("rope.append", *numbers, interleaved, q.dtype, cos.dtype, positions.dtype, k_cache.dtype, q.get_device())
    tensors = (q, k, v, cos, sin, positions, k_cache, v_cache, slots, out)
    launching._launch(key, tokens, heads + kv_heads, tensors, numbers, recipe)
    return out
