"""Triton kernels of linear attention (gated delta rule), state space models and short convolutions."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _inverse_norm(rows):
    """The factor that normalizes each row."""
    return 1.0 / tl.sqrt(tl.sum(rows * rows, 1) + 1e-6)


@triton.jit
def delta_step(
    q, k, v, g, beta, first, out, last, length, key_heads, heads, key_dim, value_dim, scale, CHANNEL: tl.constexpr, NORM: tl.constexpr,
    HAS_FIRST: tl.constexpr, HAS_LAST: tl.constexpr, K_BLOCK: tl.constexpr, V_BLOCK: tl.constexpr,
):  # fmt: skip
    """Some value features of one head, position after position. Reads the state before it writes it, so that both may be one tensor."""
    both = tl.program_id(1).to(tl.int64)
    batch, head = both // heads, both % heads
    key_head = head // (heads // key_heads)
    i, j = tl.arange(0, K_BLOCK), tl.program_id(0) * V_BLOCK + tl.arange(0, V_BLOCK)
    is_key, is_value = i < key_dim, j < value_dim
    inside = is_key[:, None] & is_value[None, :]
    at_state = both * key_dim * value_dim + i[:, None] * value_dim + j[None, :]
    state = tl.zeros((K_BLOCK, V_BLOCK), tl.float32)
    if HAS_FIRST:
        state = tl.load(first + at_state, mask=inside, other=0.0)
    for t in range(0, length):
        position = batch * length + t
        at_key = (position * key_heads + key_head) * key_dim + i
        at_head = position * heads + head
        query = tl.load(q + at_key, mask=is_key, other=0.0).to(tl.float32)
        key = tl.load(k + at_key, mask=is_key, other=0.0).to(tl.float32)
        if NORM:
            query /= tl.sqrt(tl.sum(query * query, 0) + 1e-6)
            key /= tl.sqrt(tl.sum(key * key, 0) + 1e-6)
        value = tl.load(v + at_head * value_dim + j, mask=is_value, other=0.0).to(tl.float32)
        if CHANNEL:
            state *= tl.exp(tl.load(g + at_head * key_dim + i, mask=is_key, other=0.0))[:, None]
        else:
            state *= tl.exp(tl.load(g + at_head))
        change = tl.load(beta + at_head).to(tl.float32) * (value - tl.sum(key[:, None] * state, 0))
        state += key[:, None] * change[None, :]
        result = tl.sum(query[:, None] * state, 0) * scale
        tl.store(out + at_head * value_dim + j, result.to(out.dtype.element_ty), mask=is_value)
    if HAS_LAST:
        # All threads have read the state, which may be the same tensor.
        tl.debug_barrier()
        tl.store(last + at_state, state, mask=inside)


@triton.jit
def _merged(lower, inverse, at, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    """From the inverses of diagonal blocks to those of twice the size: two neighbors with the inverses X and Y and the block B below X have
    the block -Y B X in their inverse."""
    is_pair = (at[:, None] // (2 * BLOCK) == at[None, :] // (2 * BLOCK)) & (at[:, None] // BLOCK != at[None, :] // BLOCK)
    below = tl.dot(tl.where(is_pair, lower, 0.0), inverse, input_precision=PRECISION)
    return inverse - tl.dot(inverse, below, input_precision=PRECISION)


@triton.jit
def _unit_inverse(lower, SIZE: tl.constexpr, PRECISION: tl.constexpr):
    """The inverse of a unit lower triangular matrix; `lower` is the part below its diagonal.

    Diagonal blocks of 8 by the product (1 - A)(1 + A²)(1 + A⁴), which is exact because A⁸ is 0; larger ones would lose digits to the growth
    of the powers.
    """
    tl.static_assert(SIZE == 64)
    at = tl.arange(0, SIZE)
    one = tl.where(at[:, None] == at[None, :], 1.0, 0.0)
    power = tl.where(at[:, None] // 8 == at[None, :] // 8, lower, 0.0)
    inverse = one - power
    power = tl.dot(power, power, input_precision=PRECISION)
    inverse = tl.dot(inverse, one + power, input_precision=PRECISION)
    power = tl.dot(power, power, input_precision=PRECISION)
    inverse = tl.dot(inverse, one + power, input_precision=PRECISION)
    inverse = _merged(lower, inverse, at, 8, PRECISION)
    inverse = _merged(lower, inverse, at, 16, PRECISION)
    inverse = _merged(lower, inverse, at, 32, PRECISION)
    return inverse


@triton.jit
def delta_solve(
    k, v, g, beta, solved_keys, solved_values, length, key_heads, heads, key_dim, value_dim, NORM: tl.constexpr, PRECISION: tl.constexpr,
    CHUNK: tl.constexpr, K_BLOCK: tl.constexpr, V_BLOCK: tl.constexpr,
):  # fmt: skip
    """Solves the triangular system of one chunk: the change of a position depends on those before it. `solved_values` are the changes
    without the state before the chunk, and `solved_keys` times that state is what it takes from them."""
    both = tl.program_id(1).to(tl.int64)
    batch, head = both // heads, both % heads
    key_head = head // (heads // key_heads)
    at = tl.arange(0, CHUNK)
    t = tl.program_id(0) * CHUNK + at
    is_position = t < length
    position = batch * length + t
    at_head = position * heads + head
    i, j = tl.arange(0, K_BLOCK), tl.arange(0, V_BLOCK)
    keys = tl.load(
        k + (position * key_heads + key_head)[:, None] * key_dim + i[None, :], mask=is_position[:, None] & (i < key_dim)[None, :], other=0.0
    )
    norms = tl.zeros((CHUNK,), tl.float32) + 1.0
    if NORM:
        norms = _inverse_norm(keys.to(tl.float32))
    factor = tl.load(beta + at_head, mask=is_position, other=0.0).to(tl.float32)
    decay = tl.load(g + at_head, mask=is_position, other=0.0).to(tl.float64)
    # Sums of logarithms in f64, because only their differences matter.
    total = tl.cumsum(tl.where(decay < -1e4, -1e4, decay), 0)
    earlier = at[:, None] > at[None, :]
    between = tl.exp(tl.where(earlier, total[:, None] - total[None, :], float("-inf")).to(tl.float32))
    system = tl.dot(keys, tl.trans(keys), input_precision=PRECISION) * norms[:, None] * norms[None, :] * between * factor[:, None]
    inverse = _unit_inverse(system, CHUNK, PRECISION)
    since = tl.exp(total.to(tl.float32))
    decayed = keys.to(tl.float32) * (norms * factor * since)[:, None]
    at_keys = solved_keys + at_head[:, None] * key_dim + i[None, :]
    tl.store(at_keys, tl.dot(inverse, decayed, input_precision=PRECISION), mask=is_position[:, None] & (i < key_dim)[None, :])
    for start in range(0, value_dim, V_BLOCK):
        inside = is_position[:, None] & (start + j < value_dim)[None, :]
        offsets = at_head[:, None] * value_dim + start + j[None, :]
        values = tl.load(v + offsets, mask=inside, other=0.0).to(tl.float32) * factor[:, None]
        tl.store(solved_values + offsets, tl.dot(inverse, values, input_precision=PRECISION), mask=inside)


@triton.jit
def delta_chunks(
    q, k, g, solved_keys, solved_values, first, out, last, length, key_heads, heads, key_dim, value_dim, scale, NORM: tl.constexpr,
    HAS_FIRST: tl.constexpr, HAS_LAST: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr, K_BLOCK: tl.constexpr,
    V_BLOCK: tl.constexpr,
):  # fmt: skip
    """Some value features of one head, chunk after chunk."""
    both = tl.program_id(1).to(tl.int64)
    batch, head = both // heads, both % heads
    key_head = head // (heads // key_heads)
    at, i, j = tl.arange(0, CHUNK), tl.arange(0, K_BLOCK), tl.program_id(0) * V_BLOCK + tl.arange(0, V_BLOCK)
    is_key, is_value = i < key_dim, j < value_dim
    at_state = both * key_dim * value_dim + i[:, None] * value_dim + j[None, :]
    state = tl.zeros((K_BLOCK, V_BLOCK), tl.float32)
    if HAS_FIRST:
        state = tl.load(first + at_state, mask=is_key[:, None] & is_value[None, :], other=0.0)
    for start in range(0, length, CHUNK):
        t = start + at
        is_position = t < length
        position = batch * length + t
        at_head = position * heads + head
        at_keys = (position * key_heads + key_head)[:, None] * key_dim + i[None, :]
        of_keys = is_position[:, None] & is_key[None, :]
        queries = tl.load(q + at_keys, mask=of_keys, other=0.0)
        keys = tl.load(k + at_keys, mask=of_keys, other=0.0)
        query_norms = tl.zeros((CHUNK,), tl.float32) + 1.0
        key_norms = tl.zeros((CHUNK,), tl.float32) + 1.0
        if NORM:
            query_norms = _inverse_norm(queries.to(tl.float32))
            key_norms = _inverse_norm(keys.to(tl.float32))
        decay = tl.load(g + at_head, mask=is_position, other=0.0).to(tl.float64)
        decay = tl.where(decay < -1e4, -1e4, decay)
        total = tl.cumsum(decay, 0)
        end = tl.sum(decay, 0)
        not_later = at[:, None] >= at[None, :]
        between = tl.exp(tl.where(not_later, total[:, None] - total[None, :], float("-inf")).to(tl.float32))
        scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * query_norms[:, None] * key_norms[None, :] * between
        taken = tl.load(solved_keys + at_head[:, None] * key_dim + i[None, :], mask=of_keys, other=0.0)
        of_values = is_position[:, None] & is_value[None, :]
        change = tl.load(solved_values + at_head[:, None] * value_dim + j[None, :], mask=of_values, other=0.0)
        change -= tl.dot(taken, state, input_precision=PRECISION)
        since = query_norms * tl.exp(total.to(tl.float32))
        result = tl.dot(queries.to(tl.float32), state, input_precision=PRECISION) * since[:, None]
        result = tl.dot(scores, change, result, input_precision=PRECISION) * scale
        tl.store(out + at_head[:, None] * value_dim + j[None, :], result.to(out.dtype.element_ty), mask=of_values)
        until = key_norms * tl.exp((end - total).to(tl.float32))
        state *= tl.exp(end.to(tl.float32))
        state = tl.dot(tl.trans(keys.to(tl.float32) * until[:, None]), change, state, input_precision=PRECISION)
    if HAS_LAST:
        tl.store(last + at_state, state, mask=is_key[:, None] & is_value[None, :])


@triton.jit
def _time_step(dt, low, high, SOFTPLUS: tl.constexpr):
    """The time step. Comparisons keep NaN."""
    if SOFTPLUS:
        e = tl.exp(dt)
        # The logarithm loses small values.
        small = e * (1.0 - e * (0.5 - e * 0.33333334))
        dt = tl.where(dt > 20.0, dt, tl.where(e < 1e-3, small, tl.log(1.0 + e)))
    dt = tl.where(dt < low, low, dt)
    return tl.where((high > 0.0) & (dt > high), high, dt)


@triton.jit
def ssm_step(
    x, dt, a, b, c, state, d, dt_bias, out, heads, head_dim, groups, state_dim, low, high, HAS_D: tl.constexpr, HAS_BIAS: tl.constexpr,
    SOFTPLUS: tl.constexpr, P_BLOCK: tl.constexpr, N_BLOCK: tl.constexpr,
):  # fmt: skip
    """Some features of one head; the state is replaced."""
    both = tl.program_id(1).to(tl.int64)
    batch, head = both // heads, both % heads
    group = batch * groups + head // (heads // groups)
    p, n = tl.program_id(0) * P_BLOCK + tl.arange(0, P_BLOCK), tl.arange(0, N_BLOCK)
    is_feature, is_state = p < head_dim, n < state_dim
    inside = is_feature[:, None] & is_state[None, :]
    time = tl.load(dt + both).to(tl.float32)
    if HAS_BIAS:
        time += tl.load(dt_bias + head)
    time = _time_step(time, low, high, SOFTPLUS)
    features = tl.load(x + both * head_dim + p, mask=is_feature, other=0.0).to(tl.float32)
    into = tl.load(b + group * state_dim + n, mask=is_state, other=0.0).to(tl.float32)
    outward = tl.load(c + group * state_dim + n, mask=is_state, other=0.0).to(tl.float32)
    at_state = state + (both * head_dim + p)[:, None] * state_dim + n[None, :]
    after = tl.load(at_state, mask=inside, other=0.0) * tl.exp(time * tl.load(a + head)) + (time * features)[:, None] * into[None, :]
    # All threads have read the state.
    tl.debug_barrier()
    tl.store(at_state, after, mask=inside)
    result = tl.sum(after * outward[None, :], 1)
    if HAS_D:
        result += tl.load(d + head) * features
    tl.store(out + both * head_dim + p, result.to(out.dtype.element_ty), mask=is_feature)


@triton.jit
def ssm_chunks(
    x, dt, a, b, c, d, dt_bias, first, out, last, length, heads, head_dim, groups, state_dim, low, high, HAS_D: tl.constexpr,
    HAS_BIAS: tl.constexpr, SOFTPLUS: tl.constexpr, HAS_FIRST: tl.constexpr, HAS_LAST: tl.constexpr, PRECISION: tl.constexpr,
    CHUNK: tl.constexpr, P_BLOCK: tl.constexpr, N_BLOCK: tl.constexpr,
):  # fmt: skip
    """Some features of one head, chunk after chunk: linear attention without the delta rule."""
    both = tl.program_id(1).to(tl.int64)
    batch, head = both // heads, both % heads
    group = head // (heads // groups)
    at, n, p = tl.arange(0, CHUNK), tl.arange(0, N_BLOCK), tl.program_id(0) * P_BLOCK + tl.arange(0, P_BLOCK)
    is_state, is_feature = n < state_dim, p < head_dim
    # The state with its features last.
    at_state = (both * head_dim + p)[None, :] * state_dim + n[:, None]
    state = tl.zeros((N_BLOCK, P_BLOCK), tl.float32)
    if HAS_FIRST:
        state = tl.load(first + at_state, mask=is_state[:, None] & is_feature[None, :], other=0.0)
    rate = tl.load(a + head)
    for start in range(0, length, CHUNK):
        t = start + at
        is_position = t < length
        position = batch * length + t
        at_head = position * heads + head
        time = tl.load(dt + at_head, mask=is_position, other=0.0).to(tl.float32)
        if HAS_BIAS:
            time += tl.load(dt_bias + head)
        # Positions after the end neither decay nor add.
        time = tl.where(is_position, _time_step(time, low, high, SOFTPLUS), 0.0)
        decay = (time * rate).to(tl.float64)
        decay = tl.where(decay < -1e4, -1e4, decay)
        total = tl.cumsum(decay, 0)
        end = tl.sum(decay, 0)
        of_states = is_position[:, None] & is_state[None, :]
        at_group = (position * groups + group)[:, None] * state_dim + n[None, :]
        into = tl.load(b + at_group, mask=of_states, other=0.0)
        outward = tl.load(c + at_group, mask=of_states, other=0.0)
        of_features = is_position[:, None] & is_feature[None, :]
        at_feature = at_head[:, None] * head_dim + p[None, :]
        features = tl.load(x + at_feature, mask=of_features, other=0.0).to(tl.float32)
        values = features * time[:, None]
        not_later = at[:, None] >= at[None, :]
        between = tl.exp(tl.where(not_later, total[:, None] - total[None, :], float("-inf")).to(tl.float32))
        scores = tl.dot(outward, tl.trans(into), input_precision=PRECISION) * between
        result = tl.dot(outward.to(tl.float32), state, input_precision=PRECISION) * tl.exp(total.to(tl.float32))[:, None]
        result = tl.dot(scores, values, result, input_precision=PRECISION)
        if HAS_D:
            result += tl.load(d + head) * features
        tl.store(out + at_feature, result.to(out.dtype.element_ty), mask=of_features)
        until = tl.exp((end - total).to(tl.float32))
        state *= tl.exp(end.to(tl.float32))
        state = tl.dot(tl.trans(into.to(tl.float32) * until[:, None]), values, state, input_precision=PRECISION)
    if HAS_LAST:
        tl.store(last + at_state, state, mask=is_state[:, None] & is_feature[None, :])


@triton.jit
def causal_conv(
    x, weight, bias, first, out, last, length, channels, HAS_BIAS: tl.constexpr, SILU: tl.constexpr, HAS_FIRST: tl.constexpr,
    HAS_LAST: tl.constexpr, WIDTH: tl.constexpr, TAPS: tl.constexpr, T_BLOCK: tl.constexpr, C_BLOCK: tl.constexpr,
):  # fmt: skip
    """Some positions and channels of a causal convolution of `WIDTH` taps; the last block also writes the final state."""
    blocks = (length + T_BLOCK - 1) // T_BLOCK
    block = tl.program_id(0)
    batch = (block // blocks).to(tl.int64)
    t = (block % blocks) * T_BLOCK + tl.arange(0, T_BLOCK)
    channel = tl.program_id(1) * C_BLOCK + tl.arange(0, C_BLOCK)
    is_channel = channel < channels
    inside = (t < length)[:, None] & is_channel[None, :]
    sums = tl.zeros((T_BLOCK, C_BLOCK), tl.float32)
    for tap in tl.static_range(WIDTH):
        source = t + tap - (WIDTH - 1)
        values = tl.load(x + (batch * length + source)[:, None] * channels + channel[None, :], mask=inside & (source >= 0)[:, None], other=0.0)
        if HAS_FIRST:
            # The state has the positions before the first one.
            at = first + (batch * channels + channel)[None, :] * (WIDTH - 1) + (source + WIDTH - 1)[:, None]
            values = tl.where((source < 0)[:, None], tl.load(at, mask=inside & (source < 0)[:, None], other=0.0), values)
        sums += values.to(tl.float32) * tl.load(weight + channel * WIDTH + tap, mask=is_channel, other=0.0).to(tl.float32)[None, :]
    if HAS_BIAS:
        sums += tl.load(bias + channel, mask=is_channel, other=0.0).to(tl.float32)[None, :]
    if SILU:
        # Without the bound, -inf would give NaN.
        sums = tl.where(sums < -3.4028234663852886e38, -3.4028234663852886e38, sums)
        sums = sums / (1.0 + tl.exp(-sums))
    tl.store(out + (batch * length + t)[:, None] * channels + channel[None, :], sums.to(out.dtype.element_ty), mask=inside)
    if HAS_LAST:
        taps = tl.arange(0, TAPS)
        source = length + taps - (WIDTH - 1)
        # The block that has the last position writes the state.
        is_tap = (taps < WIDTH - 1) & (block % blocks + 0 * taps == blocks - 1)
        mine = is_channel[:, None] & is_tap[None, :]
        is_past = mine & (source < 0)[None, :]
        at = batch * length * channels + source[None, :] * channels + channel[:, None]
        values = tl.load(x + at, mask=mine & (source >= 0)[None, :], other=0.0)
        states = (batch * channels + channel)[:, None] * (WIDTH - 1)
        if HAS_FIRST:
            values = tl.where(is_past, tl.load(first + states + (source + WIDTH - 1)[None, :], mask=is_past, other=0.0), values)
        # All threads have read the state, which may be the same tensor.
        tl.debug_barrier()
        tl.store(last + states + taps[None, :], values, mask=mine)
