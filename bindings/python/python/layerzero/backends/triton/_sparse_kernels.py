"""Triton kernels of block-sparse attention. A row of a tile is a pair of a query and one of the heads that share a key head, so that keys are
read once for all of them. Scores are kept in units of log 2."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _add_keys(own, keys, values, is_seen, best, total, summed, scale, soft_cap, HAS_CAP: tl.constexpr):
    """Adds some keys and values to the running softmax of a tile."""
    scores = tl.dot(own, keys, input_precision="tf32x3") * scale
    if HAS_CAP:
        # tanh as a sigmoid, which neither overflows nor cancels.
        scores = soft_cap * (2.0 / (1.0 + tl.exp(-2.0 * scores / soft_cap)) - 1.0)
    scores = tl.where(is_seen[None, :], scores * _LOG2_E, -float("inf"))
    highest = tl.maximum(best, tl.max(scores, 1))
    # Without any key so far, differences to -inf would be NaN.
    base = tl.where(highest == -float("inf"), 0.0, highest)
    weights = tl.exp2(scores - base[:, None])
    rescale = tl.exp2(best - base)
    total = total * rescale + tl.sum(weights, 1)
    summed = tl.dot(weights.to(values.dtype), values, summed * rescale[:, None], input_precision="tf32x3")
    return highest, total, summed


@triton.jit
def _store(out, lse, row, is_row, d, is_feature, head_dim, best, total, summed, HAS_LSE: tl.constexpr):
    """Writes the outputs and the natural logarithms of the sums of a tile."""
    divisor = tl.where(total == 0.0, 1.0, total)
    where = out + row[:, None] * head_dim + d[None, :]
    tl.store(where, (summed / divisor[:, None]).to(out.dtype.element_ty), mask=is_row[:, None] & is_feature[None, :])
    if HAS_LSE:
        tl.store(lse + row, tl.where(total == 0.0, -float("inf"), best * _LN_2 + tl.log(divisor)), mask=is_row)


@triton.jit
def block(
    q, k, v, indptr, indices, out, lse, m, n, heads, kv_heads, head_dim, block_rows, block_cols, scale, soft_cap, HAS_CAP: tl.constexpr,
    HAS_LSE: tl.constexpr, WHOLE: tl.constexpr, TILES: tl.constexpr, M_BLOCK: tl.constexpr, N_BLOCK: tl.constexpr, D_BLOCK: tl.constexpr,
):  # fmt: skip
    """One of the `TILES` tiles of a block of queries, for one key head. With `WHOLE`, blocks of keys are multiples of `N_BLOCK`."""
    r, tile, g = tl.program_id(0) // TILES, tl.program_id(0) % TILES, tl.program_id(1)
    group = heads // kv_heads
    pair = tile * M_BLOCK + tl.arange(0, M_BLOCK)
    query = r * block_rows + pair // group
    is_row = (pair < block_rows * group) & (query < m)
    d = tl.arange(0, D_BLOCK)
    is_feature = d < head_dim
    row = query.to(tl.int64) * heads + g * group + pair % group
    own = tl.load(q + row[:, None] * head_dim + d[None, :], mask=is_row[:, None] & is_feature[None, :], other=0.0)
    first = tl.load(indptr + r)
    count = (tl.load(indptr + r + 1) - first) * block_cols
    best = tl.full((M_BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((M_BLOCK,), tl.float32)
    summed = tl.zeros((M_BLOCK, D_BLOCK), tl.float32)
    for start in range(0, count, N_BLOCK):
        if WHOLE:
            key = tl.load(indices + first + start // block_cols) * block_cols + start % block_cols + tl.arange(0, N_BLOCK)
            is_key = key < n
        else:
            at = start + tl.arange(0, N_BLOCK)
            key = tl.load(indices + first + at // block_cols, mask=at < count, other=0) * block_cols + at % block_cols
            is_key = (at < count) & (key < n)
        where = (key.to(tl.int64) * kv_heads + g) * head_dim
        keys = tl.load(k + where[None, :] + d[:, None], mask=is_key[None, :] & is_feature[:, None], other=0.0)
        values = tl.load(v + where[:, None] + d[None, :], mask=is_key[:, None] & is_feature[None, :], other=0.0)
        best, total, summed = _add_keys(own, keys, values, is_key, best, total, summed, scale, soft_cap, HAS_CAP)
    _store(out, lse, row, is_row, d, is_feature, head_dim, best, total, summed, HAS_LSE)


@triton.jit
def blocks_of_keys(sizes, numbers, n, blocks, N_BLOCK: tl.constexpr, BLOCK: tl.constexpr):
    """The number of the block of some keys of one key head."""
    g = tl.program_id(1)
    key = tl.program_id(0) * N_BLOCK + tl.arange(0, N_BLOCK)
    found = tl.zeros((N_BLOCK,), tl.int32)
    before = 0
    for start in range(0, blocks, BLOCK):
        at = start + tl.arange(0, BLOCK)
        size = tl.load(sizes + g * blocks + at, mask=at < blocks, other=0)
        end = before + tl.cumsum(size, 0)
        found += tl.sum(((end[None, :] <= key[:, None]) & (at < blocks)[None, :]).to(tl.int32), 1)
        before += tl.sum(size, 0)
    tl.store(numbers + g.to(tl.int64) * n + key, found, mask=key < n)


@triton.jit
def visible_keys(mask, numbers, keys, counts, n, row_blocks, col_blocks, BLOCK: tl.constexpr):
    """The keys that one block of queries sees, in order, for one key head, and their number."""
    r, g = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row = g * row_blocks + r
    count = 0
    for start in range(0, n, BLOCK):
        key = start + tl.arange(0, BLOCK)
        number = tl.load(numbers + g * n + key, mask=key < n, other=0)
        is_seen = ((key < n) & (tl.load(mask + row * col_blocks + number, mask=key < n, other=0) != 0)).to(tl.int32)
        tl.store(keys + row * n + count + tl.cumsum(is_seen, 0) - 1, key, mask=is_seen != 0)
        count += tl.sum(is_seen, 0)
    tl.store(counts + row, count)


@triton.jit
def variable_block(
    q, k, v, row_sizes, visible, counts, out, lse, m, n, heads, kv_heads, head_dim, row_blocks, scale, soft_cap, HAS_CAP: tl.constexpr,
    HAS_LSE: tl.constexpr, R_BLOCK: tl.constexpr, M_BLOCK: tl.constexpr, N_BLOCK: tl.constexpr, D_BLOCK: tl.constexpr,
):  # fmt: skip
    """One tile of a block of queries, for one key head. Tiles are numbered over the blocks in order, so the program first finds its block."""
    tile, g = tl.program_id(0), tl.program_id(1).to(tl.int64)
    group = heads // kv_heads
    r = 0
    first_query = 0
    first_tile = 0
    tiles_before = 0
    length = 0
    for start in range(0, row_blocks, R_BLOCK):
        at = start + tl.arange(0, R_BLOCK)
        size = tl.load(row_sizes + g * row_blocks + at, mask=at < row_blocks, other=0)
        tiles = (size * group + M_BLOCK - 1) // M_BLOCK
        end = tiles_before + tl.cumsum(tiles, 0)
        is_before = (end <= tile) & (at < row_blocks)
        r += tl.sum(is_before.to(tl.int32), 0)
        first_query += tl.sum(tl.where(is_before, size, 0), 0)
        first_tile += tl.sum(tl.where(is_before, tiles, 0), 0)
        length += tl.sum(tl.where((end > tile) & (end - tiles <= tile), size, 0), 0)
        tiles_before += tl.sum(tiles, 0)
    # The grid is sized for partial tiles in every block.
    if r < row_blocks:
        pair = (tile - first_tile) * M_BLOCK + tl.arange(0, M_BLOCK)
        query = first_query + pair // group
        is_row = (pair < length * group) & (query < m)
        d = tl.arange(0, D_BLOCK)
        is_feature = d < head_dim
        row = (g * group + pair % group) * m + query
        own = tl.load(q + row[:, None] * head_dim + d[None, :], mask=is_row[:, None] & is_feature[None, :], other=0.0)
        best = tl.full((M_BLOCK,), -float("inf"), tl.float32)
        total = tl.zeros((M_BLOCK,), tl.float32)
        summed = tl.zeros((M_BLOCK, D_BLOCK), tl.float32)
        own_keys = visible + (g * row_blocks + r) * n
        count = tl.load(counts + g * row_blocks + r)
        for start in range(0, count, N_BLOCK):
            at = start + tl.arange(0, N_BLOCK)
            is_key = at < count
            where = (g * n + tl.load(own_keys + at, mask=is_key, other=0)) * head_dim
            keys = tl.load(k + where[None, :] + d[:, None], mask=is_key[None, :] & is_feature[:, None], other=0.0)
            values = tl.load(v + where[:, None] + d[None, :], mask=is_key[:, None] & is_feature[None, :], other=0.0)
            best, total, summed = _add_keys(own, keys, values, is_key, best, total, summed, scale, soft_cap, HAS_CAP)
        _store(out, lse, row, is_row, d, is_feature, head_dim, best, total, summed, HAS_LSE)
