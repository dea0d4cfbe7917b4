"""Triton kernels of mixtures of experts with quantized weights: the products of each expert's slots. `_experts_kernels` sorts and combines.

The weights are the left operand, so that a tile of few slots fills a matrix instruction of Hopper (64 features by 8 or more slots), and so
that decoded weights can stay in registers. Every code is exact in bf16, f16 and f32."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from layerzero.backends.triton._experts_kernels import _gated, _slots_of

#: Formats, as `FORMAT`. The last two pack two codes into a byte.
FORMATS = {"fp8_e4m3": 0, "int8": 1, "int4": 2, "mxfp4": 3}
#: Where scales are applied, as `SCALING`: to the sum over all inputs, to the sum over the inputs of a step, or to each weight.
SUMS, STEPS, WEIGHTS = 0, 1, 2


@triton.jit
def _values(codes, HIGH: tl.constexpr, FORMAT: tl.constexpr, DTYPE: tl.constexpr):
    """The values of codes, exactly. `HIGH` selects the high nibble of each byte."""
    if FORMAT < 2:
        # Through f16, because other conversions to bf16 take the slow unit of the GPU.
        if FORMAT == 0:
            values = codes.to(tl.float16)
        else:
            # In the lowest bits of the significand of 2^10, a code with its sign bit flipped adds 0 to 255.
            values = ((codes.to(tl.int16) & 0xFF) ^ 0x6480).to(tl.float16, bitcast=True) - tl.full((), 1152.0, tl.float16)
        if DTYPE != tl.float16:
            values = values.to(tl.float32).to(DTYPE)
    else:
        if FORMAT == 3:
            # The exponent and the significand of e2m1 in those of bf16, also of its subnormal 0.5, are the value divided by 2^126. Both
            # nibbles are placed at once, each in 16 bits.
            wide = codes.to(tl.uint32)
            both = ((wide * 0x40040) & 0x1C001C0) | ((wide * 0x1001000) & 0x80008000)
            placed = ((both >> 16) if HIGH else both).to(tl.uint16)
            if DTYPE == tl.bfloat16:
                values = placed.to(tl.bfloat16, bitcast=True) * tl.full((), 8.507059173023462e37, tl.bfloat16)
            else:
                values = ((placed.to(tl.uint32) << 16).to(tl.float32, bitcast=True) * 8.507059173023462e37).to(DTYPE)
        else:
            bits = codes.to(tl.int16)
            nibble = (bits >> 4) if HIGH else (bits & 15)
            # In the lowest bits of the significand of 2^7 (bf16) or 2^10 (f16), a code with its sign bit flipped adds 0 to 15.
            if DTYPE == tl.bfloat16:
                values = (nibble ^ 0x4308).to(tl.bfloat16, bitcast=True) - tl.full((), 136.0, tl.bfloat16)
            else:
                values = ((nibble ^ 0x6408).to(tl.float16, bitcast=True) - tl.full((), 1032.0, tl.float16)).to(DTYPE)
    return values


@triton.jit
def _factors(stored):
    """Scales as f32; bytes are the exponents of powers of two (e8m0)."""
    if stored.dtype == tl.uint8:
        exponent = stored.to(tl.int32)
        bits = tl.where(exponent == 0, 0x400000, tl.where(exponent == 255, 0x7FC00000, exponent << 23))
        factors = bits.to(tl.float32, bitcast=True)
    else:
        factors = stored
    return factors


@triton.jit
def _pointers(weight, scale, expert, row, features, width, groups, FEATURES: tl.constexpr):
    """Pointers to the codes and to the scales of rows of an expert. `FEATURES` rows share scales; 0 stands for all."""
    codes = weight + (expert * features + row) * width
    if FEATURES == 0:
        scales = scale + expert + row * 0
    else:
        scales = scale + (expert * ((features + FEATURES - 1) // FEATURES) + row // FEATURES) * groups
    return codes, scales


@triton.jit
def _weights(
    codes, scales, is_row, start, size, groups, HIGH: tl.constexpr, FORMAT: tl.constexpr, SCALING: tl.constexpr, GROUP: tl.constexpr,
    DTYPE: tl.constexpr,
):  # fmt: skip
    """Weights of a tile of codes: values, multiplied by their scales only if `SCALING` says so."""
    if SCALING != 2:
        weights = _values(codes, HIGH, FORMAT, DTYPE)
    else:
        # Products of mxfp4 are exact in bf16.
        TYPE: tl.constexpr = DTYPE if FORMAT == 3 else tl.float32
        values = _values(codes, HIGH, FORMAT, TYPE)
        ROWS: tl.constexpr = codes.shape[0]
        COLUMNS: tl.constexpr = codes.shape[1]
        PER_BYTE: tl.constexpr = 2 if FORMAT >= 2 else 1
        if GROUP > 0:
            COUNT: tl.constexpr = COLUMNS * PER_BYTE // GROUP
            group = start // GROUP + tl.arange(0, COUNT)
        else:
            group = (start + tl.arange(0, COLUMNS) * PER_BYTE + (1 if HIGH else 0)) // size
        factors = _factors(tl.load(scales[:, None] + group[None, :], mask=is_row[:, None] & (group < groups)[None, :], other=0.0))
        factors = factors.to(TYPE)
        if GROUP > 0:
            factors = tl.reshape(tl.broadcast_to(factors[:, :, None], (ROWS, COUNT, COLUMNS // COUNT)), (ROWS, COLUMNS))
        weights = (values * factors).to(DTYPE)
    return weights


@triton.jit
def _turned(inputs, FORMAT: tl.constexpr):
    """A tile of slots by inputs as inputs by slots, divided into the inputs of low and of high nibbles if codes are packed."""
    if FORMAT < 2:
        low = inputs
        high = inputs
    else:
        low, high = tl.split(tl.reshape(inputs, (inputs.shape[0], inputs.shape[1] // 2, 2)))
    return tl.trans(low), tl.trans(high)


@triton.jit
def _added(
    sums, codes, scales, factor, is_row, inputs, rest, start, size, groups, FORMAT: tl.constexpr, SCALING: tl.constexpr,
    GROUP: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The sums plus the products of a tile of codes and a tile of slots by inputs, in the dtype of the inputs. With two `PARTS`, the inputs
    are `inputs` plus `rest`."""
    DTYPE: tl.constexpr = inputs.dtype
    part = tl.zeros(sums.shape, tl.float32) if SCALING == 1 else sums
    first, second = _turned(inputs, FORMAT)
    low = _weights(codes, scales, is_row, start, size, groups, False, FORMAT, SCALING, GROUP, DTYPE)
    part = tl.dot(low, first, part, input_precision="tf32x3")
    if FORMAT >= 2:
        high = _weights(codes, scales, is_row, start, size, groups, True, FORMAT, SCALING, GROUP, DTYPE)
        part = tl.dot(high, second, part, input_precision="tf32x3")
    if PARTS == 2:
        first, second = _turned(rest, FORMAT)
        part = tl.dot(low, first, part, input_precision="tf32x3")
        if FORMAT >= 2:
            part = tl.dot(high, second, part, input_precision="tf32x3")
    if SCALING == 1:
        sums += part * factor[:, None]
    else:
        sums = part
    return sums


@triton.jit
def gate_up(
    x, weight, scale, bias, order, tiles, hidden, slots, top_k, inner, width, middle, size, groups, alpha, limit, up_offset,
    KIND: tl.constexpr, HAS_BIAS: tl.constexpr, INTERLEAVED: tl.constexpr, HAS_LIMIT: tl.constexpr, FORMAT: tl.constexpr,
    FEATURES: tl.constexpr, SCALING: tl.constexpr, GROUP: tl.constexpr, DTYPE: tl.constexpr, EVEN: tl.constexpr, M_BLOCK: tl.constexpr,
    N_BLOCK: tl.constexpr, K_BLOCK: tl.constexpr,
):  # fmt: skip
    """Some gated features of a tile of slots, in f32."""
    tile = tl.program_id(0)
    if tile >= tl.load(tiles):
        return
    expert, m, slot, is_slot = _slots_of(tile, order, tiles, slots, M_BLOCK)
    n = tl.program_id(1) * N_BLOCK + tl.arange(0, N_BLOCK)
    is_row = n < middle
    gate_row = (2 * n if INTERLEAVED else n).to(tl.int64)
    up_row = (2 * n + 1 if INTERLEAVED else middle + n).to(tl.int64)
    gates, gate_scales = _pointers(weight, scale, expert, gate_row, 2 * middle, width, groups, FEATURES)
    ups, up_scales = _pointers(weight, scale, expert, up_row, 2 * middle, width, groups, FEATURES)
    at = tl.arange(0, K_BLOCK)
    BYTES: tl.constexpr = K_BLOCK // 2 if FORMAT >= 2 else K_BLOCK
    byte = tl.arange(0, BYTES)
    lefts = x + (slot // top_k).to(tl.int64)[:, None] * inner + at[None, :]
    gate = tl.zeros((N_BLOCK, M_BLOCK), tl.float32)
    up = tl.zeros((N_BLOCK, M_BLOCK), tl.float32)
    gate_factor = _factors(tl.load(gate_scales, mask=is_row, other=0.0))
    up_factor = _factors(tl.load(up_scales, mask=is_row, other=0.0))
    for step in range(0, tl.cdiv(inner, K_BLOCK)):
        start = step * K_BLOCK
        if EVEN:
            inputs = tl.load(lefts + start, mask=is_slot[:, None], other=0.0)
            gate_codes = tl.load(gates[:, None] + (step * BYTES + byte)[None, :])
            up_codes = tl.load(ups[:, None] + (step * BYTES + byte)[None, :])
        else:
            inputs = tl.load(lefts + start, mask=is_slot[:, None] & (start + at < inner)[None, :], other=0.0)
            inside = is_row[:, None] & (step * BYTES + byte < width)[None, :]
            gate_codes = tl.load(gates[:, None] + (step * BYTES + byte)[None, :], mask=inside, other=0.0)
            up_codes = tl.load(ups[:, None] + (step * BYTES + byte)[None, :], mask=inside, other=0.0)
        inputs = inputs.to(DTYPE)
        gate = _added(gate, gate_codes, gate_scales, gate_factor, is_row, inputs, inputs, start, size, groups, FORMAT, SCALING, GROUP, 1)
        up = _added(up, up_codes, up_scales, up_factor, is_row, inputs, inputs, start, size, groups, FORMAT, SCALING, GROUP, 1)
        if SCALING == 1:
            # One step ahead, so that no product waits for them.
            following = tl.minimum((start + K_BLOCK) // size, groups - 1)
            gate_factor = _factors(tl.load(gate_scales + following, mask=is_row, other=0.0))
            up_factor = _factors(tl.load(up_scales + following, mask=is_row, other=0.0))
    if SCALING == 0:
        gate *= gate_factor[:, None]
        up *= up_factor[:, None]
    if HAS_BIAS:
        biases = bias + expert * 2 * middle
        gate += tl.load(biases + gate_row, mask=is_row, other=0.0).to(tl.float32)[:, None]
        up += tl.load(biases + up_row, mask=is_row, other=0.0).to(tl.float32)[:, None]
    result = _gated(gate, up, alpha, limit, up_offset, KIND, HAS_LIMIT)
    where = hidden + m.to(tl.int64)[None, :] * middle + n[:, None]
    tl.store(where, result, mask=is_slot[None, :] & is_row[:, None])


@triton.jit
def down(
    hidden, weight, scale, bias, order, tiles, factors, results, slots, middle, width, outer, size, groups, HAS_BIAS: tl.constexpr,
    FORMAT: tl.constexpr, FEATURES: tl.constexpr, SCALING: tl.constexpr, GROUP: tl.constexpr, DTYPE: tl.constexpr, EVEN: tl.constexpr,
    M_BLOCK: tl.constexpr, N_BLOCK: tl.constexpr, K_BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Some weighted output features of a tile of slots, in f32 at the place of each slot. `hidden` is f32; with two `PARTS` it is
    multiplied as a value and its rounding error, both in `DTYPE`."""
    tile = tl.program_id(0)
    if tile >= tl.load(tiles):
        return
    expert, m, slot, is_slot = _slots_of(tile, order, tiles, slots, M_BLOCK)
    n = tl.program_id(1) * N_BLOCK + tl.arange(0, N_BLOCK)
    is_row = n < outer
    rows, scales = _pointers(weight, scale, expert, n.to(tl.int64), outer, width, groups, FEATURES)
    at = tl.arange(0, K_BLOCK)
    BYTES: tl.constexpr = K_BLOCK // 2 if FORMAT >= 2 else K_BLOCK
    byte = tl.arange(0, BYTES)
    lefts = hidden + m.to(tl.int64)[:, None] * middle + at[None, :]
    sums = tl.zeros((N_BLOCK, M_BLOCK), tl.float32)
    factor = _factors(tl.load(scales, mask=is_row, other=0.0))
    for step in range(0, tl.cdiv(middle, K_BLOCK)):
        start = step * K_BLOCK
        if EVEN:
            inputs = tl.load(lefts + start, mask=is_slot[:, None], other=0.0)
            codes = tl.load(rows[:, None] + (step * BYTES + byte)[None, :])
        else:
            inputs = tl.load(lefts + start, mask=is_slot[:, None] & (start + at < middle)[None, :], other=0.0)
            inside = is_row[:, None] & (step * BYTES + byte < width)[None, :]
            codes = tl.load(rows[:, None] + (step * BYTES + byte)[None, :], mask=inside, other=0.0)
        rounded = inputs.to(DTYPE)
        rest = (inputs - rounded.to(tl.float32)).to(DTYPE)
        sums = _added(sums, codes, scales, factor, is_row, rounded, rest, start, size, groups, FORMAT, SCALING, GROUP, PARTS)
        if SCALING == 1:
            # One step ahead, so that no product waits for them.
            factor = _factors(tl.load(scales + tl.minimum((start + K_BLOCK) // size, groups - 1), mask=is_row, other=0.0))
    if SCALING == 0:
        sums *= factor[:, None]
    if HAS_BIAS:
        sums += tl.load(bias + expert * outer + n, mask=is_row, other=0.0).to(tl.float32)[:, None]
    sums *= tl.load(factors + slot, mask=is_slot, other=0.0)[None, :]
    tl.store(results + slot.to(tl.int64)[None, :] * outer + n[:, None], sums, mask=is_slot[None, :] & is_row[:, None])
