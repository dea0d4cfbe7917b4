"""Triton kernel of attention whose scores are modified by an expression.

A row of a tile is a pair of a query and one of the heads that share a key head, so that keys are read once for all of them. `MODIFY` is
the expression as a function, which `_score_expressions` generates.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def tanh(x):
    """tanh; a sigmoid does not overflow, and a polynomial does not cancel near 0."""
    square = x * x
    near = x * (1.0 - square * (1.0 / 3.0 - square * (2.0 / 15.0 - square * (17.0 / 315.0 - square * (62.0 / 2835.0)))))
    far = 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0
    return tl.where(tl.abs(x) < 0.15, near, far)


@triton.jit
def minimum(a, b):
    """The smaller of two numbers; NaN if one is."""
    return tl.where(b < a, b, tl.where(b != b, b, a))


@triton.jit
def maximum(a, b):
    """The larger of two numbers; NaN if one is."""
    return tl.where(b > a, b, tl.where(b != b, b, a))


@triton.jit
def divide(a, b):
    """The correctly rounded quotient."""
    if a.dtype == tl.float32:
        return tl.div_rn(a, b)
    else:
        return a / b


@triton.jit
def floor_divide(a, b):
    """The quotient of integers, rounded down."""
    quotient = a // b
    rest = a - quotient * b
    return tl.where(rest == 0, quotient, tl.where((rest < 0) == (b < 0), quotient, quotient - 1))


@triton.jit
def modulo(a, b):
    """The remainder of integers with the sign of the divisor."""
    return a - floor_divide(a, b) * b


@triton.jit
def _add_keys(
    own, keys, values, mask, is_loaded, key, length, position, query, head, batch, slope, given, best, total, summed,
    mask_key, scale, soft_cap, window_left, window_right,
    MODIFY: tl.constexpr, REAL: tl.constexpr, BORDER: tl.constexpr, CAUSAL: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr,
    HAS_CAP: tl.constexpr, HAS_SLOPES: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """Adds some keys and values to the running softmax of a tile. Only with `BORDER` some of the keys may be hidden from some rows."""
    scores = tl.dot(own, keys, input_precision="tf32x3").to(REAL) * scale
    if HAS_CAP:
        scores = soft_cap * tanh(scores / soft_cap)
    if HAS_SLOPES:
        scores += slope[:, None] * (key[None, :] - position[:, None]).to(REAL)
    scores = MODIFY(scores, batch, head[:, None], query[:, None], key[None, :], position[:, None], given, REAL)
    scores = tl.broadcast_to(scores, (own.shape[0], keys.shape[1]))
    if MASK == 2:
        added = tl.load(mask + key[None, :].to(tl.int64) * mask_key, mask=is_loaded[:, None] & (key < length)[None, :], other=0.0)
        scores += added.to(REAL)
    if MASK == 1:
        shown = tl.load(mask + key[None, :].to(tl.int64) * mask_key, mask=is_loaded[:, None] & (key < length)[None, :], other=0)
        scores = tl.where(shown != 0, scores, -float("inf"))
    if BORDER:
        is_visible = (key < length)[None, :]
        if CAUSAL:
            is_visible = is_visible & (key[None, :] <= position[:, None])
        if HAS_LEFT:
            is_visible = is_visible & (key[None, :] >= position[:, None] - window_left)
        if HAS_RIGHT:
            is_visible = is_visible & (key[None, :] <= position[:, None] + window_right)
        scores = tl.where(is_visible, scores, -float("inf"))
    # In units of log 2, so that a score takes one fused multiplication and addition.
    highest = tl.maximum(best, tl.max(scores, 1) * _LOG2_E)
    # Without any key so far, differences to -inf would be NaN.
    base = tl.where(highest == -float("inf"), 0.0, highest)
    weights = tl.exp2((scores * _LOG2_E - base[:, None]).to(tl.float32))
    rescale = tl.exp2((best - base).to(tl.float32))
    total = total * rescale + tl.sum(weights, 1)
    summed = tl.dot(weights.to(values.dtype), values, summed * rescale[:, None], input_precision="tf32x3")
    return highest, total, summed


@triton.jit
def _load(
    own, keys, values, pages, key, start, k_page, k_token, v_page, v_token, page_size, is_key, is_key_feature, is_value_feature,
    PAGED: tl.constexpr, BORDER: tl.constexpr, WHOLE_KEYS: tl.constexpr, WHOLE_VALUES: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Keys and values of `key`, of which the first is `start`. `keys` and `values` point to those of the first position, with `PAGED` of all
    pages. Only with `BORDER` some positions are not keys. Strides are in units of `UNIT` elements."""
    if PAGED:
        page = tl.load(pages + key // page_size, mask=is_key, other=0).to(tl.int64)
        slot = (key % page_size).to(tl.int64)
        keys += ((page * k_page + slot * k_token) * UNIT)[None, :]
        values += ((page * v_page + slot * v_token) * UNIT)[:, None]
    else:
        at = tl.cast(start, tl.int64)
        keys += at * k_token * UNIT
        values += at * v_token * UNIT
    if BORDER:
        some_keys = tl.load(keys, mask=is_key[None, :] & is_key_feature, other=0.0)
        some_values = tl.load(values, mask=is_key[:, None] & is_value_feature, other=0.0)
    else:
        if WHOLE_KEYS:
            some_keys = tl.load(keys)
        else:
            some_keys = tl.load(keys, mask=is_key_feature, other=0.0)
        if WHOLE_VALUES:
            some_values = tl.load(values)
        else:
            some_values = tl.load(values, mask=is_value_feature, other=0.0)
    # Codes of FP8 caches are exact in the dtype of the queries.
    return some_keys.to(own.dtype), some_values.to(own.dtype)


@triton.jit(
    do_not_specialize=[
        "requests", "page_size", "seq_q", "seq_k", "heads", "kv_heads", "offset", "window_left", "window_right", "q_batch", "q_token", "q_head", "k_batch", "k_token", "k_head",
        "v_batch", "v_token", "v_head", "out_batch", "out_token", "out_head", "mask_batch", "mask_head", "mask_query", "mask_key", "slope_batch",
        "slope_head", "param_batch", "param_head", "param_item", "k_scale_head", "v_scale_head",
    ]
)  # fmt: skip
def attend(
    q, k, v, mask, slopes, sinks, parameters, lengths, qo_indptr, kv_indptr, kv_indices, last_page_len, k_scale, v_scale, out, lse, partial, stats,
    requests, page_size, seq_q, seq_k, heads, kv_heads, offset, window_left, window_right, q_batch, q_token, q_head, k_batch, k_token, k_head,
    v_batch, v_token, v_head, out_batch, out_token, out_head, mask_batch, mask_head, mask_query, mask_key, slope_batch, slope_head,
    param_batch, param_head, param_item, k_scale_head, v_scale_head, scale, soft_cap,
    MODIFY: tl.constexpr, REAL: tl.constexpr, PARAMETERS: tl.constexpr, CAUSAL: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr,
    HAS_CAP: tl.constexpr, HAS_SLOPES: tl.constexpr, HAS_SINKS: tl.constexpr, HAS_LENGTHS: tl.constexpr, HAS_LSE: tl.constexpr, MASK: tl.constexpr,
    UNIT: tl.constexpr, SPLITS: tl.constexpr, RAGGED: tl.constexpr, KEYS: tl.constexpr, REQUESTS: tl.constexpr,
    HAS_K_SCALE: tl.constexpr, HAS_V_SCALE: tl.constexpr, HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr, M_BLOCK: tl.constexpr, N_BLOCK: tl.constexpr, D_BLOCK: tl.constexpr, V_BLOCK: tl.constexpr,
):  # fmt: skip
    """One tile of the queries of one key head, over one of `SPLITS` parts of its visible keys. Strides of `q`, `k` and `v` are in units of
    `UNIT` elements, those of the outputs in rows. `REAL` is the type of scores. `MASK` is 1 for bools, 2 for floats. With `RAGGED` the
    queries of requests follow each other; `KEYS` is 1 if their keys do too, and 2 if they are in pages."""
    group = heads // kv_heads
    g, split = tl.program_id(0) % kv_heads, tl.program_id(1)
    query_start = 0
    if RAGGED:
        # Each request has tiles of its own; there may be more programs than tiles.
        each = tl.arange(0, REQUESTS)
        starts = tl.load(qo_indptr + each, mask=each < requests, other=0)
        ends = tl.load(qo_indptr + 1 + each, mask=each < requests, other=0)
        each_tiles = tl.cdiv((ends - starts) * group, M_BLOCK)
        tiles_until = tl.cumsum(each_tiles, 0)
        number = tl.program_id(0) // kv_heads
        batch = tl.minimum(tl.sum((tiles_until <= number).to(tl.int32), 0), requests - 1)
        query_start = tl.load(qo_indptr + batch)
        seq_q = tl.load(qo_indptr + batch + 1) - query_start
        tiles = tl.cdiv(seq_q * group, M_BLOCK)
        tile = tl.sum(tl.where(each == batch, tiles_until, 0), 0) - 1 - number
        if tile < 0:
            return
    else:
        tiles = tl.cdiv(seq_q * group, M_BLOCK)
        # With `causal`, the last tiles have the most keys, so they start first.
        tile = tiles - 1 - tl.program_id(0) // kv_heads % tiles
        batch = tl.program_id(0) // kv_heads // tiles
    pair = tile * M_BLOCK + tl.arange(0, M_BLOCK)
    query, head = pair // group, g * group + pair % group
    is_row = query < seq_q
    length = seq_k
    key_start = 0
    if HAS_LENGTHS:
        length = tl.load(lengths + batch)
        # The query of a decode step has the position of the last key.
        offset = length - 1
    if KEYS != 0:
        key_start = tl.load(kv_indptr + batch)
        length = tl.load(kv_indptr + batch + 1) - key_start
        if KEYS == 2:
            length = tl.where(length > 0, (length - 1) * page_size + tl.load(last_page_len + batch), 0)
        offset = length - seq_q
    position = query + offset
    first = tile * M_BLOCK // group + offset
    last = tl.minimum((tile * M_BLOCK + M_BLOCK - 1) // group, seq_q - 1) + offset
    # Keys from `low` to `high` are visible to some row, those from `all_low` to `all_high` to every row.
    low, high, all_low, all_high = 0, length, 0, length
    if CAUSAL:
        high, all_high = tl.minimum(high, last + 1), tl.minimum(all_high, first + 1)
    if HAS_RIGHT:
        high, all_high = tl.minimum(high, last + window_right + 1), tl.minimum(all_high, first + window_right + 1)
    if HAS_LEFT:
        low, all_low = tl.maximum(first - window_left, 0), tl.maximum(last - window_left, 0)
    low = low // N_BLOCK * N_BLOCK
    high = tl.maximum(high, low)
    if SPLITS > 1:
        each = tl.cdiv(tl.cdiv(high - low, SPLITS), N_BLOCK) * N_BLOCK
        low = tl.minimum(low + split * each, high)
        high = tl.minimum(low + each, high)
        inner_low, inner_high = high, high
    else:
        inner_low = tl.minimum(tl.cdiv(all_low, N_BLOCK) * N_BLOCK, tl.cdiv(high - low, N_BLOCK) * N_BLOCK + low)
        inner_high = tl.maximum(tl.maximum(all_high, 0) // N_BLOCK * N_BLOCK, inner_low)

    d, n, dv = tl.arange(0, D_BLOCK), tl.arange(0, N_BLOCK), tl.arange(0, V_BLOCK)
    wide_batch = batch.to(tl.int64)
    wide_query = query.to(tl.int64) + query_start
    own_rows = (wide_batch * q_batch + wide_query * q_token + head.to(tl.int64) * q_head) * UNIT
    own = tl.load(q + own_rows[:, None] + d[None, :], mask=is_row[:, None] & (d < HEAD_DIM)[None, :], other=0.0)
    wide_start = tl.cast(key_start, tl.int64)
    pages = kv_indices + wide_start
    if KEYS == 2:
        keys = k + g.to(tl.int64) * k_head * UNIT + d[:, None]
        values = v + g.to(tl.int64) * v_head * UNIT + dv[None, :]
    elif KEYS == 1:
        keys = k + (wide_start * k_token + g.to(tl.int64) * k_head) * UNIT + n[None, :].to(tl.int64) * k_token * UNIT + d[:, None]
        values = v + (wide_start * v_token + g.to(tl.int64) * v_head) * UNIT + n[:, None].to(tl.int64) * v_token * UNIT + dv[None, :]
    else:
        keys = k + (wide_batch * k_batch + g.to(tl.int64) * k_head) * UNIT + n[None, :].to(tl.int64) * k_token * UNIT + d[:, None]
        values = v + (wide_batch * v_batch + g.to(tl.int64) * v_head) * UNIT + n[:, None].to(tl.int64) * v_token * UNIT + dv[None, :]
    is_key_feature, is_value_feature = (d < HEAD_DIM)[:, None], (dv < VALUE_DIM)[None, :]
    mask += (wide_batch * mask_batch + head.to(tl.int64) * mask_head + query.to(tl.int64) * mask_query)[:, None]
    slope = tl.zeros((M_BLOCK,), tl.float32)
    if HAS_SLOPES:
        slope = tl.load(slopes + batch * slope_batch + head * slope_head, mask=is_row, other=0.0)
    given = (slope,)
    for item in tl.static_range(PARAMETERS):
        one = tl.load(parameters + wide_batch * param_batch + head * param_head + item * param_item, mask=is_row, other=0.0)
        given = given + (one.to(REAL)[:, None],)
    if HAS_K_SCALE:
        scale *= tl.load(k_scale + g * k_scale_head)
    best = tl.full((M_BLOCK,), -float("inf"), REAL)
    total = tl.zeros((M_BLOCK,), tl.float32)
    if HAS_SINKS:
        if split == 0:
            sink = tl.load(sinks + head, mask=is_row, other=0.0)
            best = sink.to(REAL) * _LOG2_E
            total = tl.where(sink == -float("inf"), 0.0, tl.where(sink < float("inf"), 1.0, float("nan")))
    summed = tl.zeros((M_BLOCK, V_BLOCK), tl.float32)
    # Keys before, among and after those that every row sees.
    if HAS_LEFT or SPLITS > 1:
        for start in range(low, tl.minimum(inner_low, high), N_BLOCK):
            key = start + n
            some_keys, some_values = _load(
                own, keys, values, pages, key, start, k_batch, k_token, v_batch, v_token, page_size, key < length, is_key_feature, is_value_feature,
                KEYS == 2, True, HEAD_DIM == D_BLOCK, VALUE_DIM == V_BLOCK, UNIT,
            )  # fmt: skip
            best, total, summed = _add_keys(
                own, some_keys, some_values, mask, is_row, key, length, position, query, head, batch, slope, given, best, total, summed,
                mask_key, scale, soft_cap, window_left, window_right,
                MODIFY, REAL, True, CAUSAL, HAS_LEFT, HAS_RIGHT, HAS_CAP, HAS_SLOPES, MASK,
            )  # fmt: skip
    if SPLITS == 1:
        for start in range(inner_low, inner_high, N_BLOCK):
            key = start + n
            some_keys, some_values = _load(
                own, keys, values, pages, key, start, k_batch, k_token, v_batch, v_token, page_size, key < length, is_key_feature, is_value_feature,
                KEYS == 2, False, HEAD_DIM == D_BLOCK, VALUE_DIM == V_BLOCK, UNIT,
            )  # fmt: skip
            best, total, summed = _add_keys(
                own, some_keys, some_values, mask, is_row, key, length, position, query, head, batch, slope, given, best, total, summed,
                mask_key, scale, soft_cap, window_left, window_right,
                MODIFY, REAL, False, CAUSAL, HAS_LEFT, HAS_RIGHT, HAS_CAP, HAS_SLOPES, MASK,
            )  # fmt: skip
        for start in range(inner_high, high, N_BLOCK):
            key = start + n
            some_keys, some_values = _load(
                own, keys, values, pages, key, start, k_batch, k_token, v_batch, v_token, page_size, key < length, is_key_feature, is_value_feature,
                KEYS == 2, True, HEAD_DIM == D_BLOCK, VALUE_DIM == V_BLOCK, UNIT,
            )  # fmt: skip
            best, total, summed = _add_keys(
                own, some_keys, some_values, mask, is_row, key, length, position, query, head, batch, slope, given, best, total, summed,
                mask_key, scale, soft_cap, window_left, window_right,
                MODIFY, REAL, True, CAUSAL, HAS_LEFT, HAS_RIGHT, HAS_CAP, HAS_SLOPES, MASK,
            )  # fmt: skip

    if HAS_V_SCALE:
        summed *= tl.load(v_scale + g * v_scale_head)
    row = wide_batch * out_batch + wide_query * out_token + head.to(tl.int64) * out_head
    inside = is_row[:, None] & is_value_feature
    if SPLITS == 1:
        divisor = tl.where(total == 0.0, 1.0, total)
        tl.store(out + row[:, None] * VALUE_DIM + dv[None, :], (summed / divisor[:, None]).to(out.dtype.element_ty), mask=inside)
        if HAS_LSE:
            tl.store(lse + row, tl.where(total == 0.0, -float("inf"), best * _LN_2 + tl.log(divisor)), mask=is_row)
    else:
        part = row * SPLITS + split
        tl.store(partial + part[:, None] * VALUE_DIM + dv[None, :], summed, mask=inside)
        tl.store(stats + part * 2, best * _LN_2, mask=is_row)
        tl.store(stats + part * 2 + 1, total, mask=is_row)
