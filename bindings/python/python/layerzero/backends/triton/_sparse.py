"""Block-sparse attention: with which tiles the kernels run. The patterns are never read on the host."""

from __future__ import annotations

from typing import Any

import torch

from layerzero.backends import triton as launching
from layerzero.backends.triton import _sparse_kernels as kernels

#: Keys whose block a program finds at once, blocks that it reads at once, and keys that it lists at once.
_FOUND, _READ, _LISTED = 128, 128, 1024


def tile(pairs: int, head_dim: int, wide: bool) -> tuple[int, int, int, int, int]:
    """Rows of a tile (pairs of a query and a head), keys that are read at once, features, warps, and stages of the pipeline, for blocks of
    queries with `pairs` rows."""
    features = max(16, launching._power(head_dim))
    if wide:
        return min(max(16, launching._power(pairs)), 32), 32, features, 4, 1
    rows = min(max(16, launching._power(pairs)), 64 if features > 128 else 128)
    return rows, 32 if features > 128 else 64, features, 8 if rows > 64 else 4, 2


def block(
    q: Any, k: Any, v: Any, indptr: Any, indices: Any, *, block_rows: int, block_cols: int, soft_cap: float, sm_scale: float, return_lse: bool
) -> Any:
    """`attention.sparse.block`."""
    m, heads, head_dim = q.shape
    n, kv_heads, _ = k.shape
    block_rows, block_cols = min(block_rows, m), min(block_cols, n)
    out = torch.empty_like(q)
    lse = torch.empty((m, heads), dtype=torch.float32, device=q.device) if return_lse else None
    pairs = block_rows * (heads // kv_heads)
    rows, keys, features, warps, stages = tile(pairs, head_dim, q.dtype == torch.float32)
    tiles = -(-pairs // rows)
    flags = (soft_cap > 0, return_lse, block_cols % keys == 0, tiles, rows, keys, features)
    integers = (m, n, heads, kv_heads, head_dim, block_rows, block_cols)

    def recipe() -> Any:
        return launching._Recipe(kernels.block, flags, warps, stages)

    key = ("sparse.block", *integers, *flags, q.dtype, q.get_device())
    tensors = (q, k, v, indptr, indices, out, out if lse is None else lse)
    launching._launch(key, -(-m // block_rows) * tiles, kv_heads, tensors, (*integers, sm_scale, soft_cap), recipe)
    return out if lse is None else (out, lse)


def variable_block(
    q: Any, k: Any, v: Any, block_mask: Any, block_row_sizes: Any, block_col_sizes: Any, *, soft_cap: float, sm_scale: float, return_lse: bool
) -> Any:
    """`attention.sparse.variable_block`."""
    heads, m, head_dim = q.shape
    kv_heads, n, _ = k.shape
    row_blocks, col_blocks = block_mask.shape[1:]
    device = q.get_device()
    out = torch.empty_like(q)
    lse = torch.empty((heads, m), dtype=torch.float32, device=q.device) if return_lse else None
    group, on = heads // kv_heads, {"dtype": torch.int32, "device": q.device}
    numbers, counts = torch.empty((kv_heads, n), **on), torch.empty((kv_heads, row_blocks), **on)
    # Lists make tiles of keys dense, however small the blocks are.
    visible = torch.empty((kv_heads, row_blocks, n), **on)
    launching._launch(
        ("sparse.blocks", n, col_blocks, device), -(-n // _FOUND), kv_heads, (block_col_sizes, numbers), (n, col_blocks),
        lambda: launching._Recipe(kernels.blocks_of_keys, (_FOUND, _READ), 4),
    )  # fmt: skip
    launching._launch(
        ("sparse.visible", n, row_blocks, col_blocks, device), row_blocks, kv_heads, (block_mask, numbers, visible, counts),
        (n, row_blocks, col_blocks), lambda: launching._Recipe(kernels.visible_keys, (_LISTED,), 4),
    )  # fmt: skip
    rows, keys, features, warps, stages = tile(-(-m // row_blocks) * group, head_dim, q.dtype == torch.float32)
    flags = (soft_cap > 0, return_lse, min(launching._power(row_blocks), _READ), rows, keys, features)
    integers = (m, n, heads, kv_heads, head_dim, row_blocks)

    def recipe() -> Any:
        return launching._Recipe(kernels.variable_block, flags, warps, stages)

    key = ("sparse.variable", *integers, *flags, q.dtype, device)
    tensors = (q, k, v, block_row_sizes, visible, counts, out, out if lse is None else lse)
    # Every block may end with a partial tile.
    launching._launch(key, m * group // rows + min(row_blocks, m), kv_heads, tensors, (*integers, sm_scale, soft_cap), recipe)
    return out if lse is None else (out, lse)
