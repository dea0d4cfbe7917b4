"""Device code of norms whose result is quantized: one program per row, which stays in registers. Values are rounded to the dtype of the row
before they are quantized, so that codes and scales are those of a norm followed by `quantize`."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from layerzero.backends.triton._kernels import _codes_of, _scale_of


@triton.jit
def rms_norm_quantize(
    x, residual, weight, scale, out, hidden, size, blocks, eps, offset, HAS_WEIGHT: tl.constexpr, ADDS: tl.constexpr, HAS_SCALE: tl.constexpr,
    ONE_SCALE: tl.constexpr, WHOLE: tl.constexpr, LARGEST: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """One row as groups of `size` elements that share a scale: adds the residual, normalizes, and quantizes. `WHOLE` rows fill the tile."""
    row = tl.program_id(0).to(tl.int64)
    group, at = tl.arange(0, GROUPS), tl.arange(0, SIZE)
    column = group[:, None] * size + at[None, :]
    # Rows without padding need no masks.
    inside = tl.full((GROUPS, SIZE), True, tl.int1) if WHOLE else (at < size)[None, :] & (column < hidden)
    start = row * hidden
    values = tl.load(x + start + column, mask=inside, other=0.0)
    if ADDS:
        summed = values.to(tl.float32) + tl.load(residual + start + column, mask=inside, other=0.0).to(tl.float32)
        values = summed.to(values.dtype)
        tl.store(residual + start + column, values, mask=inside)
    if HAS_WEIGHT:
        factors = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32) + offset
    wide = values.to(tl.float32)
    wide = wide * (1.0 / tl.sqrt(tl.sum(tl.sum(wide * wide, 1), 0) / hidden + eps))
    if HAS_WEIGHT:
        wide = wide * factors
    wide = wide.to(values.dtype).to(tl.float32)
    if ONE_SCALE:
        by = tl.zeros((GROUPS,), tl.float32) + tl.load(scale)
    elif HAS_SCALE:
        by = tl.load(scale + row * blocks + group, mask=group < blocks, other=1.0)
    else:
        largest = tl.where(inside, wide, 0.0).to(tl.int32, bitcast=True) & 0x7FFFFFFF
        by = _scale_of(tl.max(largest, 1), LARGEST)
        tl.store(scale + row * blocks + group, by, mask=group < blocks)
    narrow: tl.constexpr = values.dtype != tl.float32
    codes = _codes_of(wide, by[:, None], 0, HAS_SCALE or ONE_SCALE, narrow, False, LARGEST, out.dtype.element_ty)
    tl.store(out + start + column, codes, mask=inside)
