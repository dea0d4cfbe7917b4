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


@triton.jit(
    do_not_specialize=[
        "seq_q", "seq_k", "heads", "kv_heads", "offset", "window_left", "window_right", "q_batch", "q_token", "q_head", "k_batch", "k_token", "k_head",
        "v_batch", "v_token", "v_head", "out_batch", "out_token", "out_head", "mask_batch", "mask_head", "mask_query", "mask_key", "slope_batch",
        "slope_head", "param_batch", "param_head", "param_item",
    ]
)  # fmt: skip
def attend(
    q, k, v, mask, slopes, sinks, parameters, lengths, out, lse, partial, stats,
    seq_q, seq_k, heads, kv_heads, offset, window_left, window_right, q_batch, q_token, q_head, k_batch, k_token, k_head,
    v_batch, v_token, v_head, out_batch, out_token, out_head, mask_batch, mask_head, mask_query, mask_key, slope_batch, slope_head,
    param_batch, param_head, param_item, scale, soft_cap,
    MODIFY: tl.constexpr, REAL: tl.constexpr, PARAMETERS: tl.constexpr, CAUSAL: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr,
    HAS_CAP: tl.constexpr, HAS_SLOPES: tl.constexpr, HAS_SINKS: tl.constexpr, HAS_LENGTHS: tl.constexpr, HAS_LSE: tl.constexpr, MASK: tl.constexpr,
    UNIT: tl.constexpr, SPLITS: tl.constexpr, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, M_BLOCK: tl.constexpr, N_BLOCK: tl.constexpr,
    D_BLOCK: tl.constexpr, V_BLOCK: tl.constexpr,
):  # fmt: skip
    """One tile of the queries of one key head, over one of `SPLITS` parts of its visible keys. Strides of `q`, `k` and `v` are in units of
    `UNIT` elements, those of the outputs in rows. `REAL` is the type of scores. `MASK` is 1 for bools, 2 for floats."""
    group = heads // kv_heads
    tiles = tl.cdiv(seq_q * group, M_BLOCK)
    # With `causal`, the last tiles have the most keys, so they start first.
    tile = tiles - 1 - tl.program_id(0) // kv_heads % tiles
    batch, g, split = tl.program_id(0) // kv_heads // tiles, tl.program_id(0) % kv_heads, tl.program_id(1)
    pair = tile * M_BLOCK + tl.arange(0, M_BLOCK)
    query, head = pair // group, g * group + pair % group
    is_row = query < seq_q
    length = seq_k
    if HAS_LENGTHS:
        length = tl.load(lengths + batch)
        # The query of a decode step has the position of the last key.
        offset = length - 1
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
    own_rows = (wide_batch * q_batch + query.to(tl.int64) * q_token + head.to(tl.int64) * q_head) * UNIT
    own = tl.load(q + own_rows[:, None] + d[None, :], mask=is_row[:, None] & (d < HEAD_DIM)[None, :], other=0.0)
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
            at = tl.cast(start, tl.int64)
            some_keys = tl.load(keys + at * k_token * UNIT, mask=(key < length)[None, :] & is_key_feature, other=0.0)
            some_values = tl.load(values + at * v_token * UNIT, mask=(key < length)[:, None] & is_value_feature, other=0.0)
            best, total, summed = _add_keys(
                own, some_keys, some_values, mask, is_row, key, length, position, query, head, batch, slope, given, best, total, summed,
                mask_key, scale, soft_cap, window_left, window_right,
                MODIFY, REAL, True, CAUSAL, HAS_LEFT, HAS_RIGHT, HAS_CAP, HAS_SLOPES, MASK,
            )  # fmt: skip
    if SPLITS == 1:
        for start in range(inner_low, inner_high, N_BLOCK):
            key = start + n
            at = tl.cast(start, tl.int64)
            if HEAD_DIM == D_BLOCK:
                some_keys = tl.load(keys + at * k_token * UNIT)
            else:
                some_keys = tl.load(keys + at * k_token * UNIT, mask=is_key_feature, other=0.0)
            if VALUE_DIM == V_BLOCK:
                some_values = tl.load(values + at * v_token * UNIT)
            else:
                some_values = tl.load(values + at * v_token * UNIT, mask=is_value_feature, other=0.0)
            best, total, summed = _add_keys(
                own, some_keys, some_values, mask, is_row, key, length, position, query, head, batch, slope, given, best, total, summed,
                mask_key, scale, soft_cap, window_left, window_right,
                MODIFY, REAL, False, CAUSAL, HAS_LEFT, HAS_RIGHT, HAS_CAP, HAS_SLOPES, MASK,
            )  # fmt: skip
        for start in range(inner_high, high, N_BLOCK):
            key = start + n
            at = tl.cast(start, tl.int64)
            some_keys = tl.load(keys + at * k_token * UNIT, mask=(key < length)[None, :] & is_key_feature, other=0.0)
            some_values = tl.load(values + at * v_token * UNIT, mask=(key < length)[:, None] & is_value_feature, other=0.0)
            best, total, summed = _add_keys(
                own, some_keys, some_values, mask, is_row, key, length, position, query, head, batch, slope, given, best, total, summed,
                mask_key, scale, soft_cap, window_left, window_right,
                MODIFY, REAL, True, CAUSAL, HAS_LEFT, HAS_RIGHT, HAS_CAP, HAS_SLOPES, MASK,
            )  # fmt: skip

    row = wide_batch * out_batch + query.to(tl.int64) * out_token + head.to(tl.int64) * out_head
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
