"""Triton kernels of FP4 linear layers, whose codes are converted in registers or to a copy in 16 bits, and the decoding of small floats."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from layerzero.backends.triton._linear_kernels import _activate


@triton.jit
def _e2m1(nibble, kind: tl.constexpr):
    """Values of e2m1 codes, which are the four lowest bits of 16-bit integers, times 2^-14 in f16 and 2^-126 in bf16 and f32: the bits of a code
    are the lowest bits of the exponent and the highest of the mantissa, and its subnormal values are subnormal there too."""
    if kind == tl.float16:
        return ((nibble & 7) << 9 | (nibble & 8) << 12).to(kind, bitcast=True)
    else:
        bits = (nibble & 7) << 6 | (nibble & 8) << 12
        if kind == tl.bfloat16:
            return bits.to(kind, bitcast=True)
        else:
            return (bits.to(tl.uint32) << 16).to(kind, bitcast=True)


@triton.jit
def _e4m3(stored):
    """Values of e4m3 bytes in f16, times 2^-8. 0x7F and 0xFF are NaN. By bits, because GPUs before SM 8.9 have no conversion."""
    bits = stored.to(tl.uint16)
    magnitude = bits & 0x7F
    return tl.where(magnitude == 0x7F, 0x7E00, magnitude << 7 | (bits & 0x80) << 8).to(tl.uint16).to(tl.float16, bitcast=True)


@triton.jit
def _e8m0(stored):
    """Powers of two in f32. The smallest one is subnormal, and 255 is NaN."""
    bits = stored.to(tl.uint32)
    return tl.where(bits == 0, 0x00400000, tl.where(bits == 255, 0x7FC00000, bits << 23)).to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def _scale(stored, BY_POWER: tl.constexpr):
    """Stored scales in f32: powers of two, or e4m3."""
    if BY_POWER:
        return _e8m0(stored)
    else:
        return _e4m3(stored).to(tl.float32) * 256.0


@triton.jit
def _unpacked(
    codes, scale, row, is_row, start, stored, blocks, BY_POWER: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, BYTES: tl.constexpr,
    kind: tl.constexpr,
):  # fmt: skip
    """The even and the odd inputs of some bytes of rows, times their scales. Both are exact. With e4m3 scales they are f16 and 2^-7 of the
    value, so that a single product scales a code: it has at most 6 significant bits and is a multiple of 2^-17."""
    unit: tl.constexpr = 16 if BY_POWER else 8
    at, block = tl.arange(0, BYTES), tl.arange(0, BYTES // unit)
    where = codes + row.to(tl.int64)[:, None] * stored + start + at[None, :]
    scales = scale + row.to(tl.int64)[:, None] * blocks + start // unit + block[None, :]
    if EVEN:
        packed, by = tl.load(where), tl.load(scales)
    else:
        packed = tl.load(where, mask=is_row[:, None] & (start + at < stored)[None, :], other=0)
        by = tl.load(scales, mask=is_row[:, None] & (start // unit + block < blocks)[None, :], other=0)
    packed = packed.to(tl.uint16)
    low, high = _e2m1(packed, kind), _e2m1(packed >> 4, kind)
    if BY_POWER:
        # The scale cannot take the factor, which may overflow with it.
        low, high, factor = low * tl.full((), 2.0**126, kind), high * tl.full((), 2.0**126, kind), _e8m0(by).to(kind)
    else:
        factor = _e4m3(by) * tl.full((), 32768.0, tl.float16)
    factor = tl.reshape(tl.broadcast_to(factor[:, :, None], (ROWS, BYTES // unit, unit)), (ROWS, BYTES))
    return low * factor, high * factor


@triton.jit
def unpack(
    codes, scale, out, rows, stored, blocks, BY_POWER: tl.constexpr, OPERAND: tl.constexpr, ROWS: tl.constexpr, BYTES: tl.constexpr,
):  # fmt: skip
    """The scaled inputs of some bytes of some rows, in 16 bits: the even ones of a row first, then the odd ones."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    start = tl.program_id(1) * BYTES
    is_row = row < rows
    low, high = _unpacked(codes, scale, row, is_row, start, stored, blocks, BY_POWER, False, ROWS, BYTES, OPERAND)
    column = start + tl.arange(0, BYTES)
    where = out + row.to(tl.int64)[:, None] * (2 * stored) + column[None, :]
    inside = is_row[:, None] & (column < stored)[None, :]
    tl.store(where, low, mask=inside)
    tl.store(where + stored, high, mask=inside)


@triton.jit
def _copied(values, row, is_row, start, stored, EVEN: tl.constexpr, BYTES: tl.constexpr):
    """What `_unpacked` returns, from what `unpack` stored."""
    column = start + tl.arange(0, BYTES)
    where = values + row.to(tl.int64)[:, None] * (2 * stored) + column[None, :]
    if EVEN:
        return tl.load(where), tl.load(where + stored)
    else:
        inside = is_row[:, None] & (column < stored)[None, :]
        return tl.load(where, mask=inside, other=0.0), tl.load(where + stored, mask=inside, other=0.0)


@triton.jit
def _result(
    sums, x_global, weight_global, bias, n, is_column, KIND: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_X_GLOBAL: tl.constexpr,
    HAS_W_GLOBAL: tl.constexpr,
):  # fmt: skip
    """Outputs from sums of products. `n` and `is_column` broadcast to the sums."""
    if HAS_X_GLOBAL:
        sums = sums / tl.load(x_global)
    if HAS_W_GLOBAL:
        sums = sums / tl.load(weight_global)
    if HAS_BIAS:
        sums += tl.load(bias + n, mask=is_column, other=0.0).to(tl.float32)
    return _activate(sums, KIND)


@triton.jit
def product(
    x, weight, x_scale, weight_scale, x_global, weight_global, bias, partial, out, rows, stored, blocks, outer, steps, KIND: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_X_GLOBAL: tl.constexpr, HAS_W_GLOBAL: tl.constexpr, BY_POWER: tl.constexpr, OPERAND: tl.constexpr,
    X_COPIED: tl.constexpr, W_COPIED: tl.constexpr, EVEN: tl.constexpr, SPLITS: tl.constexpr, M_BLOCK: tl.constexpr, N_BLOCK: tl.constexpr,
    BYTES: tl.constexpr,
):  # fmt: skip
    """A block of output features and rows, by matrix instructions, over `steps` blocks of bytes. The even and the odd inputs are multiplied
    separately, so that the two codes of a byte need not be interleaved. The weights are the left operand, which can be in registers. With
    `SPLITS`, each program computes the sum over one part of the inputs."""
    m = tl.program_id(0) * M_BLOCK + tl.arange(0, M_BLOCK)
    n = tl.program_id(1) // SPLITS * N_BLOCK + tl.arange(0, N_BLOCK)
    split = tl.program_id(1) % SPLITS
    is_row, is_column = m < rows, n < outer
    # Rows past the end are copies of the last one, which are not stored.
    m_read = tl.minimum(m, rows - 1)
    first = split * steps * BYTES
    sums = tl.zeros((N_BLOCK, M_BLOCK), tl.float32)
    for start in range(first, tl.minimum(first + steps * BYTES, stored), BYTES):
        if W_COPIED:
            weights = _copied(weight, n, is_column, start, stored, EVEN, BYTES)
        else:
            weights = _unpacked(weight, weight_scale, n, is_column, start, stored, blocks, BY_POWER, EVEN, N_BLOCK, BYTES, OPERAND)
        if X_COPIED:
            values = _copied(x, m_read, is_row, start, stored, EVEN, BYTES)
        else:
            values = _unpacked(x, x_scale, m_read, is_row, start, stored, blocks, BY_POWER, EVEN, M_BLOCK, BYTES, OPERAND)
        sums = tl.dot(weights[0], tl.trans(values[0]), sums, input_precision="ieee")
        sums = tl.dot(weights[1], tl.trans(values[1]), sums, input_precision="ieee")
    if not BY_POWER:
        sums *= 16384.0
    inside = is_column[:, None] & is_row[None, :]
    at = m.to(tl.int64)[None, :] * outer + n[:, None]
    if SPLITS > 1:
        tl.store(partial + split.to(tl.int64) * rows * outer + at, sums, mask=inside)
    else:
        result = _result(sums, x_global, weight_global, bias, n[:, None], is_column[:, None], KIND, HAS_BIAS, HAS_X_GLOBAL, HAS_W_GLOBAL)
        tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def combine(
    partial, x_global, weight_global, bias, out, count, outer, KIND: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_X_GLOBAL: tl.constexpr,
    HAS_W_GLOBAL: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Outputs from the sums over parts of the inputs, always added in the same order."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    sums = tl.load(partial + at, mask=inside, other=0.0)
    for split in tl.static_range(1, SPLITS):
        sums += tl.load(partial + tl.cast(count, tl.int64) * split + at, mask=inside, other=0.0)
    result = _result(sums, x_global, weight_global, bias, at % outer, inside, KIND, HAS_BIAS, HAS_X_GLOBAL, HAS_W_GLOBAL)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _two_of_eight(words, FIRST: tl.constexpr):
    """Codes `FIRST` and `FIRST + 4` of words of eight, as `_e2m1` gives them in f16. Both are extracted at once."""
    if FIRST == 3:
        bits = (words & 0x70007000) >> 3 | words & 0x80008000
    else:
        bits = (words & (0x00070007 << 4 * FIRST)) << (9 - 4 * FIRST) | (words & (0x00080008 << 4 * FIRST)) << (12 - 4 * FIRST)
    return (bits & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True), (bits >> 16).to(tl.uint16).to(tl.float16, bitcast=True)


@triton.jit
def gemv(
    x, weight, x_scale, weight_scale, x_global, weight_global, bias, out, words, blocks, outer, KIND: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_X_GLOBAL: tl.constexpr, HAS_W_GLOBAL: tl.constexpr, BY_POWER: tl.constexpr, EVEN: tl.constexpr, N_BLOCK: tl.constexpr,
    WORDS: tl.constexpr,
):  # fmt: skip
    """Some output features of one row, stored in words of eight codes. Products of codes are added in f16 over a word: the sums are multiples of
    1/4 up to 288, times 2^-14, which f16 represents. So no code is scaled or converted to f32."""
    unit: tl.constexpr = 4 if BY_POWER else 2
    n = tl.program_id(0) * N_BLOCK + tl.arange(0, N_BLOCK)
    is_column = n < outer
    at, block = tl.arange(0, WORDS), tl.arange(0, WORDS // unit)
    values = x.to(tl.pointer_type(tl.uint32), bitcast=True) + at
    weights = weight.to(tl.pointer_type(tl.uint32), bitcast=True) + n.to(tl.int64)[:, None] * words + at[None, :]
    weight_scales = weight_scale + n.to(tl.int64)[:, None] * blocks + block[None, :]
    sums = tl.zeros((N_BLOCK, WORDS // unit), tl.float32)
    for start in range(0, words, WORDS):
        done = start // unit
        if EVEN:
            codes = tl.load(weights + start, eviction_policy="evict_first")
            by = tl.load(weight_scales + done)
            x_codes, x_by = tl.load(values + start), tl.load(x_scale + done + block)
        else:
            inside, is_block = start + at < words, done + block < blocks
            codes = tl.load(weights + start, mask=is_column[:, None] & inside[None, :], other=0)
            by = tl.load(weight_scales + done, mask=is_column[:, None] & is_block[None, :], other=0)
            x_codes, x_by = tl.load(values + start, mask=inside, other=0), tl.load(x_scale + done + block, mask=is_block, other=0)
        # Broadcast before they are decoded, so that the words change their layout and not each of their codes.
        x_codes = tl.broadcast_to(x_codes[None, :], (N_BLOCK, WORDS))
        part = tl.zeros((N_BLOCK, WORDS), tl.float16)
        other_part = tl.zeros((N_BLOCK, WORDS), tl.float16)
        for first in tl.static_range(4):
            one, other = _two_of_eight(codes, first)
            x_one, x_other = _two_of_eight(x_codes, first)
            part += one * (x_one * tl.full((), 16384.0, tl.float16))
            other_part += other * (x_other * tl.full((), 16384.0, tl.float16))
        group = tl.sum(tl.reshape((part + other_part).to(tl.float32), (N_BLOCK, WORDS // unit, unit)), 2)
        sums += group * _scale(tl.broadcast_to(x_by[None, :], by.shape), BY_POWER) * _scale(by, BY_POWER)
    total = tl.sum(sums, 1) * 16384.0
    result = _result(total, x_global, weight_global, bias, n, is_column, KIND, HAS_BIAS, HAS_X_GLOBAL, HAS_W_GLOBAL)
    tl.store(out + n, result.to(out.dtype.element_ty), mask=is_column)
