"""Triton kernel that rotates queries and keys, and writes keys and values into a paged cache."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _stored(values, cache, LARGEST: tl.constexpr):
    """Converted to the dtype of the cache; eight-bit formats saturate and keep NaN."""
    if LARGEST > 0.0:
        values = values.to(tl.float32)
        values = tl.where(values != values, values, tl.minimum(tl.maximum(values, -LARGEST), LARGEST))
    return values.to(cache.dtype.element_ty)


@triton.jit
def rope_append(
    q, k, v, cos, sin, positions, k_cache, v_cache, slots, out, tokens, heads, kv_heads, head_dim, half, page_size, by_page, by_slot, by_head,
    q_token, k_token, v_token, INTERLEAVED: tl.constexpr, LARGEST: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One head of one token: a query head, or a head of keys and values."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(positions + token).to(tl.int64)
    at, rest = tl.arange(0, HALF), 2 * half + tl.arange(0, REST)
    inside, is_rest = at < half, rest < head_dim
    c = tl.load(cos + position * half + at, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + position * half + at, mask=inside, other=0.0).to(tl.float32)
    if INTERLEAVED:
        first, second = 2 * at, 2 * at + 1
    else:
        first, second = at, at + half
    if head < heads:
        source = q + token * q_token + head * head_dim
        target = out + (token * heads + head) * head_dim
        a, b = tl.load(source + first, mask=inside, other=0.0), tl.load(source + second, mask=inside, other=0.0)
        af, bf = a.to(tl.float32), b.to(tl.float32)
        tl.store(target + first, (af * c - bf * s).to(a.dtype), mask=inside)
        tl.store(target + second, (bf * c + af * s).to(a.dtype), mask=inside)
        tl.store(target + rest, tl.load(source + rest, mask=is_rest), mask=is_rest)
    else:
        slot = tl.load(slots + token).to(tl.int64)
        # Tokens run in any order, and the last one of those with the same slot must win.
        overwritten = 0
        for ahead in range(token + 1, tokens, BLOCK):
            others = ahead + tl.arange(0, BLOCK)
            overwritten += tl.sum((tl.load(slots + others, mask=others < tokens, other=-1) == slot).to(tl.int32), 0)
        if (slot >= 0) & (overwritten == 0):
            kv_head = head - heads
            cell = (slot // page_size) * by_page + (slot % page_size) * by_slot + kv_head * by_head
            source = k + token * k_token + kv_head * head_dim
            a, b = tl.load(source + first, mask=inside, other=0.0), tl.load(source + second, mask=inside, other=0.0)
            af, bf = a.to(tl.float32), b.to(tl.float32)
            # Rounded to the dtype of the keys first.
            tl.store(k_cache + cell + first, _stored((af * c - bf * s).to(a.dtype), k_cache, LARGEST), mask=inside)
            tl.store(k_cache + cell + second, _stored((bf * c + af * s).to(a.dtype), k_cache, LARGEST), mask=inside)
            tl.store(k_cache + cell + rest, _stored(tl.load(source + rest, mask=is_rest, other=0.0), k_cache, LARGEST), mask=is_rest)
            values = v + token * v_token + kv_head * head_dim
            for start in tl.static_range(2):
                part = at + start * half
                tl.store(v_cache + cell + part, _stored(tl.load(values + part, mask=inside, other=0.0), v_cache, LARGEST), mask=inside)
            tl.store(v_cache + cell + rest, _stored(tl.load(values + rest, mask=is_rest, other=0.0), v_cache, LARGEST), mask=is_rest)
