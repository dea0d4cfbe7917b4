"""The device code: one program a row, or a stretch of elements. Everything is computed in single precision and rounded once."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rms_norm(x, residual, weight, out, hidden, eps, offset, HAS_WEIGHT: tl.constexpr, ADDS: tl.constexpr, BLOCK: tl.constexpr):
    """One row: its sum with the residual, rounded and kept, and that by its root mean square."""
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
    """Elements, one after the other."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    first = tl.load(gate + at, mask=inside, other=0.0)
    values = first.to(tl.float32)
    other = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, (values / (1.0 + tl.exp(-values)) * other).to(first.dtype), mask=inside)


@triton.jit
def gelu_mul(gate, up, out, count, TANH: tl.constexpr, BLOCK: tl.constexpr):
    """Elements, one after the other; by the error function, or by the approximation with a hyperbolic tangent."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    first = tl.load(gate + at, mask=inside, other=0.0)
    x = first.to(tl.float32)
    if TANH:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        # tanh by a sigmoid, which neither overflows nor cancels.
        activated = x * (1.0 / (1.0 + tl.exp(-2.0 * inner)))
    else:
        activated = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    other = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, (activated * other).to(first.dtype), mask=inside)


@triton.jit
def rope(
    x, cos, sin, positions, out, heads, seq, head_dim, half,
    by_batch, by_place, by_head, out_batch, out_place, out_head,
    HAS_POSITIONS: tl.constexpr, INTERLEAVED: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """One head of one token: its pairs are turned, what is behind them is copied."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, place = token // seq, token % seq
    position = place
    if HAS_POSITIONS:
        position = tl.load(positions + token).to(tl.int64)
    source = x + batch * by_batch + place * by_place + head * by_head
    target = out + batch * out_batch + place * out_place + head * out_head
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
        behind = 2 * half + tl.arange(0, REST)
        tl.store(target + behind, tl.load(source + behind, mask=behind < head_dim), mask=behind < head_dim)


@triton.jit
def merge(v, s, out, lse, states, heads, head_dim, BLOCK: tl.constexpr):
    """One head of one row: states by their weights, those without keys left out whatever they hold."""
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
    # Nothing took part: the sum is 0 and so is the result.
    divisor = tl.where(total == 0.0, 1.0, total)
    tl.store(out + (row * heads + head) * head_dim + at, (summed / divisor).to(out.dtype.element_ty), mask=inside)
    found = tl.where(total == 0.0, -float("inf"), best + tl.log(divisor))
    tl.store(lse + row * heads + head, found)


@triton.jit
def append(
    k, v, k_cache, v_cache, slots, tokens, heads, head_dim, page_size, by_page, by_place, by_head, SATURATES: tl.constexpr,
    LARGEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One token: its keys and values go where its slot says, or nowhere."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    # Tokens run in any order, and the last one of those with the same slot must win.
    overwritten = 0
    for ahead in range(token + 1, tokens, BLOCK):
        others = ahead + tl.arange(0, BLOCK)
        later = tl.load(slots + others, mask=others < tokens, other=-1)
        overwritten += tl.sum((later == slot).to(tl.int32), 0)
    if (slot >= 0) & (overwritten == 0):
        page, place = slot // page_size, slot % page_size
        for start in range(0, heads * head_dim, BLOCK):
            at = start + tl.arange(0, BLOCK)
            inside = at < heads * head_dim
            target = page * by_page + place * by_place + (at // head_dim) * by_head + at % head_dim
            keys = tl.load(k + token * heads * head_dim + at, mask=inside, other=0.0)
            values = tl.load(v + token * heads * head_dim + at, mask=inside, other=0.0)
            if SATURATES:
                keys, values = keys.to(tl.float32), values.to(tl.float32)
                keys = tl.where(keys != keys, keys, tl.minimum(tl.maximum(keys, -LARGEST), LARGEST))
                values = tl.where(values != values, values, tl.minimum(tl.maximum(values, -LARGEST), LARGEST))
            tl.store(k_cache + target, keys.to(k_cache.dtype.element_ty), mask=inside)
            tl.store(v_cache + target, values.to(v_cache.dtype.element_ty), mask=inside)
