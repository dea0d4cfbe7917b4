"""Triton kernels of attention over a paged cache for few queries: decoding, and short continuations."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def attend(
    q, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, last_page_len, slopes, out, lse, partial, stats,
    requests, heads, kv_heads, head_dim, page_size, by_page, by_slot, by_head, by_request, scale, soft_cap, window_left, window_right,
    CAUSAL: tl.constexpr, HAS_CAP: tl.constexpr, HAS_SLOPES: tl.constexpr, HAS_LSE: tl.constexpr, SPLITS: tl.constexpr,
    REQUESTS: tl.constexpr, H_BLOCK: tl.constexpr, D_BLOCK: tl.constexpr, N_BLOCK: tl.constexpr,
):  # fmt: skip
    """The query heads of one key head of one token, over one of `SPLITS` parts of the visible keys."""
    token, g, split = tl.program_id(0) // kv_heads, tl.program_id(0) % kv_heads, tl.program_id(1)
    group = heads // kv_heads
    # Requests that end before the token.
    each = tl.arange(0, REQUESTS)
    ends = tl.load(qo_indptr + 1 + each, mask=each < requests, other=2147483647)
    request = tl.sum((ends <= token).to(tl.int32), 0)
    first, end = tl.load(qo_indptr + request), tl.load(qo_indptr + request + 1)
    page_start = tl.load(kv_indptr + request)
    pages = tl.load(kv_indptr + request + 1) - page_start
    length = tl.where(pages > 0, (pages - 1) * page_size + tl.load(last_page_len + request), 0)
    position = token - first + length - (end - first)
    low, high = 0, length
    if CAUSAL:
        high = tl.minimum(high, position + 1)
    low = tl.where(window_left >= 0, tl.maximum(position - window_left, 0), low)
    high = tl.where(window_right >= 0, tl.minimum(high, position + window_right + 1), high)
    span = tl.maximum(high - low, 0)
    each_split = tl.cdiv(tl.cdiv(span, SPLITS), N_BLOCK) * N_BLOCK
    begin = low + split * each_split
    stop = tl.minimum(begin + each_split, high)
    h = tl.arange(0, H_BLOCK)
    head = g * group + h
    d = tl.arange(0, D_BLOCK)
    is_head, is_feature = h < group, d < head_dim
    row = token.to(tl.int64) * heads
    own = tl.load(q + (row + head)[:, None] * head_dim + d[None, :], mask=is_head[:, None] & is_feature[None, :], other=0.0)
    slope = tl.zeros((H_BLOCK,), tl.float32)
    if HAS_SLOPES:
        slope = tl.load(slopes + request * by_request + head, mask=is_head, other=0.0)
    best = tl.full((H_BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((H_BLOCK,), tl.float32)
    summed = tl.zeros((H_BLOCK, D_BLOCK), tl.float32)
    for start in range(begin, stop, N_BLOCK):
        j = start + tl.arange(0, N_BLOCK)
        is_key = j < stop
        page = tl.load(kv_indices + page_start + j // page_size, mask=is_key, other=0).to(tl.int64)
        where = page * by_page + (j % page_size) * by_slot + g * by_head
        keys = tl.load(k_cache + where[None, :] + d[:, None], mask=is_key[None, :] & is_feature[:, None], other=0.0)
        scores = tl.dot(own, keys, input_precision="ieee") * scale
        if HAS_CAP:
            scores = soft_cap * (2.0 / (1.0 + tl.exp(-2.0 * scores / soft_cap)) - 1.0)
        if HAS_SLOPES:
            scores += slope[:, None] * (j - position).to(tl.float32)[None, :]
        scores = tl.where(is_key[None, :], scores, -float("inf"))
        highest = tl.maximum(best, tl.max(scores, 1))
        # Without any key so far, differences to -inf would be NaN.
        base = tl.where(highest == -float("inf"), 0.0, highest)
        weights = tl.exp(scores - base[:, None])
        rescale = tl.exp(best - base)
        total = total * rescale + tl.sum(weights, 1)
        values = tl.load(v_cache + where[:, None] + d[None, :], mask=is_key[:, None] & is_feature[None, :], other=0.0)
        summed = summed * rescale[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        best = highest
    inside = is_head[:, None] & is_feature[None, :]
    if SPLITS == 1:
        divisor = tl.where(total == 0.0, 1.0, total)
        tl.store(out + (row + head)[:, None] * head_dim + d[None, :], (summed / divisor[:, None]).to(out.dtype.element_ty), mask=inside)
        if HAS_LSE:
            tl.store(lse + row + head, tl.where(total == 0.0, -float("inf"), best + tl.log(divisor)), mask=is_head)
    else:
        part = (row + head) * SPLITS + split
        tl.store(partial + part[:, None] * head_dim + d[None, :], summed, mask=inside)
        tl.store(stats + part * 2, best, mask=is_head)
        tl.store(stats + part * 2 + 1, total, mask=is_head)


@triton.jit
def combine(partial, stats, out, lse, head_dim, HAS_LSE: tl.constexpr, SPLITS: tl.constexpr, D_BLOCK: tl.constexpr):
    """Joins the parts of one head of one token."""
    row = tl.program_id(0).to(tl.int64)
    split, d = tl.arange(0, SPLITS), tl.arange(0, D_BLOCK)
    is_feature = d < head_dim
    best = tl.load(stats + (row * SPLITS + split) * 2)
    total = tl.load(stats + (row * SPLITS + split) * 2 + 1)
    highest = tl.max(best, 0)
    base = tl.where(highest == -float("inf"), 0.0, highest)
    weight = tl.exp(best - base)
    parts = tl.load(partial + (row * SPLITS + split)[:, None] * head_dim + d[None, :], mask=is_feature[None, :], other=0.0)
    summed = tl.sum(parts * weight[:, None], 0)
    whole = tl.sum(total * weight, 0)
    divisor = tl.where(whole == 0.0, 1.0, whole)
    tl.store(out + row * head_dim + d, (summed / divisor).to(out.dtype.element_ty), mask=is_feature)
    if HAS_LSE:
        tl.store(lse + row, tl.where(whole == 0.0, -float("inf"), base + tl.log(divisor)))
