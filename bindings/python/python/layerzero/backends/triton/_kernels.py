"""The device code: one program per row or block of elements. Everything is computed in float32 and rounded once."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rms_norm(x, residual, weight, out, hidden, eps, offset, HAS_WEIGHT: tl.constexpr, ADDS: tl.constexpr, BLOCK: tl.constexpr):
    """One row: adds the residual, rounds and stores the sum, and normalizes it by its root mean square."""
    start = tl.program_id(0).to(tl.int64) * hidden
    at = tl.arange(0, BLOCK)
    inside = at < hidden
    row = tl.load(x + start + at, mask=inside, other=0.0)
    if ADDS:
        summed = row.to(tl.float32) + tl.load(residual + start + at, mask=inside, other=0.0).to(tl.float32)
        row = summed.to(row.dtype)
        tl.store(residual + start + at, row, mask=inside)
    values = row.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, 0) / hidden + eps)
    values = values * scale
    if HAS_WEIGHT:
        values = values * (tl.load(weight + at, mask=inside, other=0.0).to(tl.float32) + offset)
    tl.store(out + start + at, values.to(row.dtype), mask=inside)


@triton.jit
def silu_mul(gate, up, out, count, BLOCK: tl.constexpr):
    """A block of elements."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    first = tl.load(gate + at, mask=inside, other=0.0)
    values = first.to(tl.float32)
    other = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, (values / (1.0 + tl.exp(-values)) * other).to(first.dtype), mask=inside)


@triton.jit
def gelu_mul(gate, up, out, count, TANH: tl.constexpr, BLOCK: tl.constexpr):
    """A block of elements; with the error function, or with the tanh approximation."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    first = tl.load(gate + at, mask=inside, other=0.0)
    x = first.to(tl.float32)
    if TANH:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        # tanh as a sigmoid, which neither overflows nor cancels.
        activated = x * (1.0 / (1.0 + tl.exp(-2.0 * inner)))
    else:
        activated = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    other = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, (activated * other).to(first.dtype), mask=inside)


@triton.jit
def rope(
    x, cos, sin, positions, out, heads, seq, head_dim, half,
    by_batch, by_seq, by_head, out_batch, out_seq, out_head,
    HAS_POSITIONS: tl.constexpr, INTERLEAVED: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """One head of one token: rotates its pairs and copies the rest."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, index = token // seq, token % seq
    position = index
    if HAS_POSITIONS:
        position = tl.load(positions + token).to(tl.int64)
    source = x + batch * by_batch + index * by_seq + head * by_head
    target = out + batch * out_batch + index * out_seq + head * out_head
    at = tl.arange(0, HALF)
    inside = at < half
    c = tl.load(cos + position * half + at, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + position * half + at, mask=inside, other=0.0).to(tl.float32)
    if INTERLEAVED:
        first, second = 2 * at, 2 * at + 1
    else:
        first, second = at, at + half
    a = tl.load(source + first, mask=inside, other=0.0)
    b = tl.load(source + second, mask=inside, other=0.0)
    af, bf = a.to(tl.float32), b.to(tl.float32)
    tl.store(target + first, (af * c - bf * s).to(a.dtype), mask=inside)
    tl.store(target + second, (bf * c + af * s).to(a.dtype), mask=inside)
    if REST > 0:
        rest = 2 * half + tl.arange(0, REST)
        tl.store(target + rest, tl.load(source + rest, mask=rest < head_dim), mask=rest < head_dim)


@triton.jit
def merge(v, s, out, lse, states, heads, head_dim, BLOCK: tl.constexpr):
    """One head of one row: merges states by their weights; states without keys are ignored whatever their values."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, BLOCK)
    inside = at < head_dim
    best = -float("inf")
    for state in range(states):
        score = tl.load(s + (row * states + state) * heads + head)
        # Not `maximum`, which may drop a NaN.
        best = tl.where((score > best) | (score != score), score, best)
    total = 0.0
    summed = tl.zeros((BLOCK,), tl.float32)
    for state in range(states):
        score = tl.load(s + (row * states + state) * heads + head)
        if score != -float("inf"):
            weight = tl.exp(score - best)
            total += weight
            values = tl.load(v + ((row * states + state) * heads + head) * head_dim + at, mask=inside, other=0.0)
            summed += weight * values.to(tl.float32)
    # No state has keys: the sum is 0, and so is the result.
    divisor = tl.where(total == 0.0, 1.0, total)
    tl.store(out + (row * heads + head) * head_dim + at, (summed / divisor).to(out.dtype.element_ty), mask=inside)
    found = tl.where(total == 0.0, -float("inf"), best + tl.log(divisor))
    tl.store(lse + row * heads + head, found)


@triton.jit
def append(
    k, v, k_cache, v_cache, slots, tokens, heads, head_dim, page_size, by_page, by_slot, by_head, k_token, v_token,
    SATURATES: tl.constexpr, LARGEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One token: writes its keys and values to its slot, or skips it."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    # Tokens run in any order, and the last one of those with the same slot must win.
    overwritten = 0
    for ahead in range(token + 1, tokens, BLOCK):
        others = ahead + tl.arange(0, BLOCK)
        later = tl.load(slots + others, mask=others < tokens, other=-1)
        overwritten += tl.sum((later == slot).to(tl.int32), 0)
    if (slot >= 0) & (overwritten == 0):
        page, offset = slot // page_size, slot % page_size
        for start in range(0, heads * head_dim, BLOCK):
            at = start + tl.arange(0, BLOCK)
            inside = at < heads * head_dim
            target = page * by_page + offset * by_slot + (at // head_dim) * by_head + at % head_dim
            keys = tl.load(k + token * k_token + at, mask=inside, other=0.0)
            values = tl.load(v + token * v_token + at, mask=inside, other=0.0)
            if SATURATES:
                keys, values = keys.to(tl.float32), values.to(tl.float32)
                keys = tl.where(keys != keys, keys, tl.minimum(tl.maximum(keys, -LARGEST), LARGEST))
                values = tl.where(values != values, values, tl.minimum(tl.maximum(values, -LARGEST), LARGEST))
            tl.store(k_cache + target, keys.to(k_cache.dtype.element_ty), mask=inside)
            tl.store(v_cache + target, values.to(v_cache.dtype.element_ty), mask=inside)


@triton.jit
def _scale_of(bits, LARGEST: tl.constexpr):
    """The scale of groups from the bits of their largest magnitudes: 1 if that is 0, never 0 otherwise, NaN if it is NaN."""
    top = bits.to(tl.float32, bitcast=True)
    scale = tl.div_rn(top, tl.full(top.shape, LARGEST, tl.float32))
    smallest = tl.full(top.shape, 1, tl.int32).to(tl.float32, bitcast=True)
    return tl.where(top == 0.0, 1.0, tl.where(scale == 0.0, smallest, scale))


@triton.jit
def _codes_of(values, by, zero, IS_GIVEN: tl.constexpr, NARROW: tl.constexpr, HAS_ZERO: tl.constexpr, LARGEST: tl.constexpr, kind: tl.constexpr):
    """Quotients of values and scales, which broadcast, in an 8-bit format, rounded to nearest even and saturated. NaN becomes 0 in integer
    formats. `NARROW` values have at most 11 significant bits.

    A division per element is most of the arithmetic. With a scale that was computed here, nothing overflows or saturates, and a reciprocal
    per scale with a correction by the remainder gives the codes of a division: with two, quotients are correctly rounded; narrow values need
    only one, as all of them were compared."""
    if HAS_ZERO:
        # The sum with a zero point is exact: values far out of range saturate anyway, and f64 represents all others.
        ratio = tl.div_rn(values, tl.zeros(values.shape, tl.float32) + by)
        wide = tl.minimum(tl.maximum(tl.where(ratio != ratio, 0.0, ratio), -1e12), 1e12).to(tl.float64)
        # Adding and subtracting 1.5 * 2^52 rounds to an integer.
        whole = (wide + 6755399441055744.0) - 6755399441055744.0 + zero.to(tl.float64)
        return tl.minimum(tl.maximum(whole, -128.0), 127.0).to(tl.int8)
    if not IS_GIVEN and tl.min(((by > 1e-15) & (by < 1e15)).to(tl.int32)) != 0:
        inverse = tl.div_rn(tl.full(by.shape, 1.0, tl.float32), by)
        ratio = values * inverse
        ratio = tl.fma(tl.fma(-ratio, by, values), inverse, ratio)
        if not NARROW:
            ratio = tl.fma(tl.fma(-ratio, by, values), inverse, ratio)
        # The correction of -0 is 0.
        sign = values.to(tl.uint32, bitcast=True) & 0x80000000
        ratio = (ratio.to(tl.uint32, bitcast=True) | sign).to(tl.float32, bitcast=True)
    else:
        ratio = tl.div_rn(values, tl.zeros(values.shape, tl.float32) + by)
        if kind == tl.int8:
            ratio = tl.minimum(tl.maximum(tl.where(ratio != ratio, 0.0, ratio), -128.0), 127.0)
        else:
            ratio = tl.clamp(ratio, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    if kind == tl.int8:
        # Adding 1.5 * 2^23 rounds to an integer, whose lowest bits are then the lowest bits of the sum.
        return (ratio + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8)
    return ratio.to(kind)


@triton.jit
def largest(x, parts, count, outer, channels, inner, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """One part of the rows of one group: the bits of the largest magnitude. The bits of magnitudes have the
    order of the values, and NaN is above all."""
    program = tl.program_id(0)
    group, part = program // PARTS, program % PARTS
    at = tl.arange(0, BLOCK)
    most = tl.zeros((BLOCK,), tl.int32)
    for row in range(part, outer, PARTS):
        start = (tl.cast(row, tl.int64) * channels + group) * inner
        for column in range(0, inner, BLOCK):
            columns = column + at
            inside = (columns < inner) & (start + columns < count)
            values = tl.load(x + start + columns, mask=inside, other=0.0).to(tl.float32)
            most = tl.maximum(most, values.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    tl.store(parts + group * PARTS + part, tl.max(most, 0))


@triton.jit
def quantize(
    x, parts, scale, zero, out, channels, inner, chunks, HAS_SCALE: tl.constexpr, HAS_ZERO: tl.constexpr, LARGEST: tl.constexpr,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of one row, scaled by the scale of its group, which is given, or is computed from the group's parts and stored."""
    program = tl.program_id(0)
    row, chunk = program // chunks, program % chunks
    group = row % channels
    if HAS_SCALE:
        by = tl.load(scale + group)
    else:
        by = _scale_of(tl.max(tl.load(parts + group * PARTS + tl.arange(0, PARTS)), 0), LARGEST)
        if (row < channels) & (chunk == 0):
            tl.store(scale + group, by)
    columns = tl.cast(chunk, tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < inner
    start = tl.cast(row, tl.int64) * inner
    values = tl.load(x + start + columns, mask=inside, other=0.0)
    from_zero = tl.load(zero + group) if HAS_ZERO else 0
    scales = by + tl.zeros((1,), tl.float32)
    narrow: tl.constexpr = values.dtype != tl.float32
    codes = _codes_of(values.to(tl.float32), scales, from_zero, HAS_SCALE, narrow, HAS_ZERO, LARGEST, out.dtype.element_ty)
    tl.store(out + start + columns, codes, mask=inside)


@triton.jit
def quantize_blocks(
    x, scale, zero, out, groups, blocks, inner, size, HAS_SCALE: tl.constexpr, HAS_ZERO: tl.constexpr, LARGEST: tl.constexpr,
    GROUPS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Some groups, each contiguous in one row, read once: their scales, given or computed here, and the quantized values."""
    group = tl.cast(tl.program_id(0), tl.int64) * GROUPS + tl.arange(0, GROUPS)
    is_group = group < groups
    row, block = group // blocks, group % blocks
    at = tl.arange(0, SIZE)
    column = block[:, None] * size + at[None, :]
    inside = is_group[:, None] & (at < size)[None, :] & (column < inner)
    where = row[:, None] * inner + column
    loaded = tl.load(x + where, mask=inside, other=0.0)
    values = loaded.to(tl.float32)
    if HAS_SCALE:
        by = tl.load(scale + group, mask=is_group, other=1.0)
    else:
        by = _scale_of(tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1), LARGEST)
        tl.store(scale + group, by, mask=is_group)
    from_zero = tl.load(zero + group, mask=is_group, other=0)[:, None] if HAS_ZERO else 0
    narrow: tl.constexpr = loaded.dtype != tl.float32
    codes = _codes_of(values, by[:, None], from_zero, HAS_SCALE, narrow, HAS_ZERO, LARGEST, out.dtype.element_ty)
    tl.store(out + where, codes, mask=inside)


@triton.jit
def dequantize(
    quantized, scale, zero, out, channels, inner, chunks, size, blocks, PER_BLOCK: tl.constexpr, HAS_ZERO: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of one row, with a scale per block or one for the row's channel."""
    program = tl.program_id(0)
    row, chunk = tl.cast(program // chunks, tl.int64), program % chunks
    columns = tl.cast(chunk, tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < inner
    start = row * inner
    if PER_BLOCK:
        group = row * blocks + columns // size
        by = tl.load(scale + group, mask=inside, other=0.0)
    else:
        group = row % channels
        by = tl.load(scale + group)
    values = tl.load(quantized + start + columns, mask=inside, other=0.0)
    if HAS_ZERO:
        from_zero = tl.load(zero + group, mask=inside, other=0) if PER_BLOCK else tl.load(zero + group)
        result = ((values.to(tl.float64) - from_zero.to(tl.float64)) * by.to(tl.float64)).to(tl.float32)
    else:
        result = values.to(tl.float32) * by
    tl.store(out + start + columns, result.to(out.dtype.element_ty), mask=inside)
