"""Triton kernel of quantized embedding tables."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from layerzero.backends.triton._fp4_kernels import _e2m1, _e4m3, _e8m0


@triton.jit
def _value(code, HALF: tl.constexpr, FLOAT: tl.constexpr):
    """Codes in the lowest bits of 16-bit integers as f32 (e2m1, e4m3), or as two's complement (`HALF` is its sign bit, 0 if unsigned)."""
    if FLOAT == "e2m1":
        return _e2m1(code, tl.float16).to(tl.float32) * 16384.0
    elif FLOAT == "e4m3":
        return _e4m3(code).to(tl.float32) * 256.0
    else:
        return (code.to(tl.int32) ^ HALF) - HALF


@triton.jit
def lookup(
    table, ids, scale, zero, out, vocab, stored, dim, block_size, groups, NIBBLES: tl.constexpr, HALF: tl.constexpr, FLOAT: tl.constexpr,
    HAS_ZERO: tl.constexpr, BYTES: tl.constexpr,
):  # fmt: skip
    """Some bytes of the row of one id. With one group, a row has one scale. Ids out of range read nothing and give NaN."""
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(ids + token).to(tl.int64)
    is_row = (row >= 0) & (row < vocab)
    byte = tl.program_id(1) * BYTES + tl.arange(0, BYTES)
    packed = tl.load(table + row * stored + byte, mask=byte < tl.where(is_row, stored, 0), other=0).to(tl.uint16)
    if NIBBLES:
        column = tl.program_id(1) * (2 * BYTES) + tl.arange(0, 2 * BYTES)
        values = tl.interleave(_value(packed & 15, HALF, FLOAT), _value(packed >> 4, HALF, FLOAT))
    else:
        column = byte
        values = _value(packed, HALF, FLOAT)
    inside = column < dim
    is_read = column < tl.where(is_row, dim, 0)
    group = row * groups + column // block_size
    if FLOAT == "e2m1":
        by = _e8m0(tl.load(scale + group, mask=is_read, other=255))
    else:
        by = tl.load(scale + group, mask=is_read, other=float("nan"))
    if HAS_ZERO:
        # The difference is exact before it is rounded to f32.
        values = values.to(tl.int64) - tl.load(zero + group, mask=is_read, other=0).to(tl.int64)
    tl.store(out + token * dim + column, (values.to(tl.float32) * by).to(out.dtype.element_ty), mask=inside)
