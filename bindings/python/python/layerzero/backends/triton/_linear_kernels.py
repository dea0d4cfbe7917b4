"""Triton kernels of linear layers with few rows, which are bound by reading their weights once."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _activate(z, KIND: tl.constexpr):
    """None, relu, silu, gelu with the error function, gelu with tanh."""
    if KIND == 1:
        z = tl.where(z < 0.0, 0.0, z)
    elif KIND == 2:
        z = z / (1.0 + tl.exp(-z))
    elif KIND == 3:
        z = 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476))
    elif KIND == 4:
        # tanh as a sigmoid, which neither overflows nor cancels.
        z = z / (1.0 + tl.exp(-1.5957691216057308 * (z + 0.044715 * z * z * z)))
    return z


@triton.jit
def gemv(
    x, weight, up, bias, out, columns, inner, by_row, by_weight, by_up, KIND: tl.constexpr, HAS_BIAS: tl.constexpr, GATED: tl.constexpr,
    EVEN: tl.constexpr, N_BLOCK: tl.constexpr, K_BLOCK: tl.constexpr,
):  # fmt: skip
    """Some output features of one row. With `GATED`, the activated product times the product with `up`."""
    row = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * N_BLOCK + tl.arange(0, N_BLOCK)
    is_column = n < columns
    at = tl.arange(0, K_BLOCK)
    weights = weight + n.to(tl.int64)[:, None] * by_weight + at[None, :]
    ups = up + n.to(tl.int64)[:, None] * by_up + at[None, :]
    sums = tl.zeros((N_BLOCK, K_BLOCK), tl.float32)
    up_sums = tl.zeros((N_BLOCK, K_BLOCK), tl.float32)
    for start in range(0, inner, K_BLOCK):
        if EVEN:
            values = tl.load(x + row * by_row + start + at).to(tl.float32)
            sums += tl.load(weights + start, eviction_policy="evict_first").to(tl.float32) * values[None, :]
            if GATED:
                up_sums += tl.load(ups + start, eviction_policy="evict_first").to(tl.float32) * values[None, :]
        else:
            inside = start + at < inner
            both = is_column[:, None] & inside[None, :]
            values = tl.load(x + row * by_row + start + at, mask=inside, other=0.0).to(tl.float32)
            sums += tl.load(weights + start, mask=both, other=0.0).to(tl.float32) * values[None, :]
            if GATED:
                up_sums += tl.load(ups + start, mask=both, other=0.0).to(tl.float32) * values[None, :]
    result = tl.sum(sums, 1)
    if HAS_BIAS:
        result += tl.load(bias + n, mask=is_column, other=0.0).to(tl.float32)
    result = _activate(result, KIND)
    if GATED:
        result *= tl.sum(up_sums, 1)
    tl.store(out + row * columns + n, result.to(out.dtype.element_ty), mask=is_column)


@triton.jit
def skinny(
    x, weight, up, bias, out, rows, columns, inner, by_row, by_weight, by_up, KIND: tl.constexpr, HAS_BIAS: tl.constexpr,
    GATED: tl.constexpr, EVEN: tl.constexpr, M_BLOCK: tl.constexpr, N_BLOCK: tl.constexpr, K_BLOCK: tl.constexpr,
):  # fmt: skip
    """Some output features of all rows, by matrix instructions."""
    n = tl.program_id(0) * N_BLOCK + tl.arange(0, N_BLOCK)
    m = tl.arange(0, M_BLOCK)
    is_column, is_row = n < columns, m < rows
    at = tl.arange(0, K_BLOCK)
    lefts = x + m.to(tl.int64)[:, None] * by_row + at[None, :]
    weights = weight + n.to(tl.int64)[None, :] * by_weight + at[:, None]
    ups = up + n.to(tl.int64)[None, :] * by_up + at[:, None]
    sums = tl.zeros((M_BLOCK, N_BLOCK), tl.float32)
    up_sums = tl.zeros((M_BLOCK, N_BLOCK), tl.float32)
    for start in range(0, inner, K_BLOCK):
        if EVEN:
            left = tl.load(lefts + start, mask=is_row[:, None], other=0.0)
            sums = tl.dot(left, tl.load(weights + start), sums, input_precision="ieee")
            if GATED:
                up_sums = tl.dot(left, tl.load(ups + start), up_sums, input_precision="ieee")
        else:
            inside = start + at < inner
            both = is_column[None, :] & inside[:, None]
            left = tl.load(lefts + start, mask=is_row[:, None] & inside[None, :], other=0.0)
            sums = tl.dot(left, tl.load(weights + start, mask=both, other=0.0), sums, input_precision="ieee")
            if GATED:
                up_sums = tl.dot(left, tl.load(ups + start, mask=both, other=0.0), up_sums, input_precision="ieee")
    if HAS_BIAS:
        sums += tl.load(bias + n, mask=is_column, other=0.0).to(tl.float32)[None, :]
    result = _activate(sums, KIND)
    if GATED:
        result *= up_sums
    where = out + m.to(tl.int64)[:, None] * columns + n[None, :]
    tl.store(where, result.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


@triton.jit
def fixed(
    x, weight, bias, out, rows, columns, inner, by_row, by_weight, KIND: tl.constexpr, HAS_BIAS: tl.constexpr, EVEN: tl.constexpr,
    M_BLOCK: tl.constexpr, N_BLOCK: tl.constexpr, K_BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of rows and output features. With the same blocks for any number of rows, the result of a row does not depend on the others."""
    m = tl.program_id(0) * M_BLOCK + tl.arange(0, M_BLOCK)
    n = tl.program_id(1) * N_BLOCK + tl.arange(0, N_BLOCK)
    is_row, is_column = m < rows, n < columns
    at = tl.arange(0, K_BLOCK)
    lefts = x + m.to(tl.int64)[:, None] * by_row + at[None, :]
    weights = weight + n.to(tl.int64)[None, :] * by_weight + at[:, None]
    sums = tl.zeros((M_BLOCK, N_BLOCK), tl.float32)
    for start in range(0, inner, K_BLOCK):
        if EVEN:
            left = tl.load(lefts + start, mask=is_row[:, None], other=0.0)
            sums = tl.dot(left, tl.load(weights + start), sums, input_precision="tf32x3")
        else:
            inside = start + at < inner
            left = tl.load(lefts + start, mask=is_row[:, None] & inside[None, :], other=0.0)
            right = tl.load(weights + start, mask=is_column[None, :] & inside[:, None], other=0.0)
            sums = tl.dot(left, right, sums, input_precision="tf32x3")
    if HAS_BIAS:
        sums += tl.load(bias + n, mask=is_column, other=0.0).to(tl.float32)[None, :]
    where = out + m.to(tl.int64)[:, None] * columns + n[None, :]
    tl.store(where, _activate(sums, KIND).to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])
