"""Triton kernels of speculative sampling: parts of the vocabulary are added up by different programs, in f64."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

#: The constant that separates the random numbers of this operation, as the high word of 3 * 2^56.
_STREAM = tl.constexpr(3 << 24)


@triton.jit
def _uniforms(number, seed, offset, seed_low, seed_high, offset_low, offset_high, HAS_SEED: tl.constexpr, HAS_OFFSET: tl.constexpr):
    """The two uniforms of the Philox4x32-10 block of each number."""
    if HAS_SEED:
        given = tl.load(seed)
        key0, key1 = (given & 0xFFFFFFFF).to(tl.uint32), ((given >> 32) & 0xFFFFFFFF).to(tl.uint32)
    else:
        key0, key1 = seed_low.to(tl.uint32, bitcast=True), seed_high.to(tl.uint32, bitcast=True)
    if HAS_OFFSET:
        given = tl.load(offset)
        low, high = (given & 0xFFFFFFFF).to(tl.uint32), ((given >> 32) & 0xFFFFFFFF).to(tl.uint32)
    else:
        low, high = offset_low.to(tl.uint32, bitcast=True), offset_high.to(tl.uint32, bitcast=True)
    zero = tl.zeros(number.shape, tl.uint32)
    a, b = zero + low, zero + high
    c, d = (number & 0xFFFFFFFF).to(tl.uint32), (number >> 32).to(tl.uint32) + _STREAM
    d = d.to(tl.uint32)
    for _ in tl.static_range(10):
        first, second = a.to(tl.uint64) * 0xD2511F53, c.to(tl.uint64) * 0xCD9E8D57
        a, b, c, d = (
            (second >> 32).to(tl.uint32) ^ b ^ key0, (second & 0xFFFFFFFF).to(tl.uint32), (first >> 32).to(tl.uint32) ^ d ^ key1,
            (first & 0xFFFFFFFF).to(tl.uint32),
        )  # fmt: skip
        key0 = ((key0.to(tl.uint64) + 0x9E3779B9) & 0xFFFFFFFF).to(tl.uint32)
        key1 = ((key1.to(tl.uint64) + 0xBB67AE85) & 0xFFFFFFFF).to(tl.uint32)
    accept = (((b.to(tl.uint64) << 32) | a.to(tl.uint64)) >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16
    emit = (((d.to(tl.uint64) << 32) | c.to(tl.uint64)) >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16
    return accept, emit


@triton.jit
def _clean(probabilities):
    """In f64; NaN and negative ones count as 0."""
    return tl.where(probabilities > 0.0, probabilities, 0.0).to(tl.float64)


@triton.jit
def _weights(draft_row, target_row, at, vocab, drafts):
    """The weights of tokens after a rejection, and those of the target alone, which are the same without drafts."""
    target = _clean(tl.load(target_row + at, mask=at < vocab, other=0.0))
    draft = _clean(tl.load(draft_row + at, mask=at < tl.where(drafts > 0, vocab, 0), other=0.0))
    rest = target - draft
    # The difference of infinities is NaN.
    return tl.where(rest > 0.0, rest, 0.0), target


@triton.jit(do_not_specialize=["seed_low", "seed_high", "offset_low", "offset_high"])
def verify(
    draft, drafted, target, seed, offset, tokens, accepted, uniforms, sums, seed_low, seed_high, offset_low, offset_high, length, vocab, parts,
    HAS_SEED: tl.constexpr, HAS_OFFSET: tl.constexpr, POSITIONS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """One part of the vocabulary of one request: finds the first rejected draft token, and adds up the weights there. The program of the
    first part writes the accepted tokens."""
    request, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.arange(0, POSITIONS)
    is_draft = position < length
    accept, emit = _uniforms(
        request * (length + 1) + position, seed, offset, seed_low, seed_high, offset_low, offset_high, HAS_SEED, HAS_OFFSET
    )
    token = tl.load(drafted + request * length + position, mask=is_draft, other=-1)
    of_draft = _clean(tl.load(draft + (request * length + position) * vocab + token, mask=is_draft, other=0.0))
    of_target = _clean(tl.load(target + (request * (length + 1) + position) * vocab + token, mask=is_draft, other=0.0))
    is_accepted = is_draft & (accept * of_draft < of_target)
    stop = tl.min(tl.where(is_accepted | (position > length), length, position), 0)
    if part == 0:
        written = tl.where(position < stop, token, -1)
        # The token at `stop` is written by `emit`.
        tl.store(tokens + request * (length + 1) + position, written, mask=(position <= length) & (position != stop))
        tl.store(accepted + request, stop)
        tl.store(uniforms + request, tl.sum(tl.where(position == stop, emit, 0.0), 0))
    at = part * PART + tl.arange(0, PART)
    rest, every = _weights(
        draft + (request * length + stop) * vocab, target + (request * (length + 1) + stop) * vocab, at, vocab, length - stop
    )
    tl.store(sums + (request * parts + part) * 2, tl.sum(rest, 0))
    tl.store(sums + (request * parts + part) * 2 + 1, tl.sum(every, 0))


@triton.jit
def emit(draft, target, tokens, accepted, uniforms, sums, length, vocab, parts, PARTS: tl.constexpr, PART: tl.constexpr):
    """One request: finds the part of the vocabulary with the emitted token, and the token in it."""
    request = tl.program_id(0).to(tl.int64)
    stop = tl.load(accepted + request)
    each = tl.arange(0, PARTS)
    rest_sums = tl.load(sums + (request * parts + each) * 2, mask=each < parts, other=0.0)
    every_sums = tl.load(sums + (request * parts + each) * 2 + 1, mask=each < parts, other=0.0)
    uses_rest = (stop < length) & (tl.max(rest_sums, 0) > 0.0)
    of_parts = tl.where(uses_rest, rest_sums, every_sums)
    ends = tl.cumsum(of_parts, 0)
    threshold = tl.load(uniforms + request) * tl.max(ends, 0)
    # If rounding leaves none, the last part with a positive weight.
    last = tl.max(tl.where(of_parts > 0.0, each, -1), 0)
    part = tl.minimum(tl.min(tl.where((ends > threshold) & (of_parts > 0.0), each, PARTS), 0), tl.maximum(last, 0))
    before = tl.max(tl.where(each < part, ends, 0.0), 0)
    at = part * PART + tl.arange(0, PART)
    rest, every = _weights(
        draft + (request * length + stop) * vocab, target + (request * (length + 1) + stop) * vocab, at, vocab, length - stop
    )
    weights = tl.where(uses_rest, rest, every)
    running = before + tl.cumsum(weights, 0)
    final = tl.max(tl.where(weights > 0.0, at, -1), 0)
    token = tl.minimum(tl.min(tl.where((running > threshold) & (weights > 0.0), at, vocab), 0), final)
    tl.store(tokens + request * (length + 1) + stop, token)
