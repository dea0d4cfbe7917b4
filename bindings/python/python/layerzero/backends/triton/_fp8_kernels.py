"""Triton kernel of FP8 linear layers with any scales."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from layerzero.backends.triton._linear_kernels import _activate


@triton.jit
def product(
    x, weight, x_scale, weight_scale, bias, out, rows, inner, outer, KIND: tl.constexpr, HAS_BIAS: tl.constexpr, X_BY: tl.constexpr,
    W_BY: tl.constexpr, PRECISE: tl.constexpr, EVEN: tl.constexpr, M_BLOCK: tl.constexpr, N_BLOCK: tl.constexpr, K_BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of rows and output features. Scales by tensor (0), by row (1) or by block of 128 (2); with blocks, `K_BLOCK` is 128 and
    `N_BLOCK` divides 128, so that a block of weights has one scale. With `PRECISE`, sums are exact up to the
    rounding of f32: matrix instructions on fp8 keep fewer bits, those on bf16, which represents every fp8 value, do not."""
    m = tl.program_id(0) * M_BLOCK + tl.arange(0, M_BLOCK)
    n = tl.program_id(1) * N_BLOCK + tl.arange(0, N_BLOCK)
    is_row, is_column = m < rows, n < outer
    at = tl.arange(0, K_BLOCK)
    lefts = x + m.to(tl.int64)[:, None] * inner + at[None, :]
    weights = weight + n.to(tl.int64)[None, :] * inner + at[:, None]
    scale_blocks = (inner + 127) // 128
    x_scales = x_scale + m.to(tl.int64) * scale_blocks
    weight_scales = weight_scale + (tl.program_id(1) * N_BLOCK // 128) * scale_blocks
    if X_BY == 2:
        x_factor = tl.load(x_scales, mask=is_row, other=0.0)
    if W_BY == 2:
        weight_factor = tl.load(weight_scales)
    sums = tl.zeros((M_BLOCK, N_BLOCK), tl.float32)
    for start in range(0, inner, K_BLOCK):
        if EVEN:
            left = tl.load(lefts + start, mask=is_row[:, None], other=0.0)
            right = tl.load(weights + start)
        else:
            inside = start + at < inner
            left = tl.load(lefts + start, mask=is_row[:, None] & inside[None, :], other=0.0)
            right = tl.load(weights + start, mask=is_column[None, :] & inside[:, None], other=0.0)
        if PRECISE:
            left, right = left.to(tl.bfloat16), right.to(tl.bfloat16)
        if X_BY == 2 or W_BY == 2:
            part = tl.dot(left, right)
            if X_BY == 2 and W_BY == 2:
                sums += part * (x_factor * weight_factor)[:, None]
            elif X_BY == 2:
                sums += part * x_factor[:, None]
            else:
                sums += part * weight_factor
            # One block ahead, so that no product waits for them.
            following = tl.minimum(start // 128 + 1, scale_blocks - 1)
            if X_BY == 2:
                x_factor = tl.load(x_scales + following, mask=is_row, other=0.0)
            if W_BY == 2:
                weight_factor = tl.load(weight_scales + following)
        elif PRECISE:
            sums = tl.dot(left, right, sums)
        else:
            sums = tl.dot(left, right, sums, max_num_imprecise_acc=K_BLOCK)
    if X_BY == 0:
        sums *= tl.load(x_scale)
    elif X_BY == 1:
        sums *= tl.load(x_scale + m, mask=is_row, other=0.0)[:, None]
    if W_BY == 0:
        sums *= tl.load(weight_scale)
    elif W_BY == 1:
        sums *= tl.load(weight_scale + n, mask=is_column, other=0.0)[None, :]
    if HAS_BIAS:
        sums += tl.load(bias + n, mask=is_column, other=0.0).to(tl.float32)[None, :]
    result = _activate(sums, KIND)
    where = out + m.to(tl.int64)[:, None] * outer + n[None, :]
    tl.store(where, result.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])
