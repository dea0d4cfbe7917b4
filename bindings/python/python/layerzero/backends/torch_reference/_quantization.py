"""Quantization bit for bit as the operations define it: each step is rounded to f32."""

from __future__ import annotations

from typing import Any

import torch

_LARGEST = {"int16": 32767.0, "int8": 127.0, "int4": 7.0, "int2": 1.0, "fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}
_BOUNDS = {
    "int16": (-32768, 32767), "int8": (-128, 127), "int4": (-8, 7), "int2": (-2, 1),
    "uint16": (0, 65535), "uint8": (0, 255), "uint4": (0, 15), "uint2": (0, 3),
}  # fmt: skip
_FLOATS = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
#: Bits of codes of which several are in a byte.
_BITS = {"int4": 4, "uint4": 4, "mxfp4": 4, "nvfp4": 4, "int2": 2, "uint2": 2}
#: Bounds between the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4 and 6 of e2m1. Ties round to the even mantissa, so
#: every second bound is the next smaller float.
_E2M1 = (0.25, 0.75 - 2**-24, 1.25, 1.75 - 2**-23, 2.5, 3.5 - 2**-22, 5.0)
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def _scale_shape(shape: Any, granularity: str, block: int) -> Any:
    if granularity == "block":
        return (*shape[:-1], -(-shape[-1] // block))
    return () if granularity == "tensor" else shape[-2:-1]


def _in_groups(x: Any, granularity: str, block: int) -> Any:
    """Splits the elements into blocks if scales are per block."""
    if granularity != "block":
        return x
    return torch.nn.functional.pad(x, (0, -x.shape[-1] % block)).unflatten(-1, (-1, block))


def _over(scale: Any, granularity: str) -> Any:
    """A scale that broadcasts to its elements. At least one dimension, so that its dtype takes part in type promotion."""
    return scale.reshape(1) if granularity == "tensor" else scale[..., None]


def _of_exponent(exponent: Any) -> Any:
    """Two to the power of the exponent, exactly."""
    return ((exponent.long() + 1023) << 52).view(torch.float64).float()


def as_float(scale: Any, format: str) -> Any:
    """Stored scales as f32."""
    if format != "mxfp4":
        return scale.float()
    stored = scale.view(torch.uint8)
    return _of_exponent(stored.int() - 127).masked_fill(stored == 255, torch.nan)


def _computed_scale(top: Any, format: str, global_scale: Any) -> Any:
    """The stored scale of groups, from their largest absolute values."""
    if format == "mxfp4":
        # Every f32 is a normal f64, whose exponent field is the floor of the base-2 logarithm.
        floor = ((top.double().view(torch.int64) >> 52) & 0x7FF) - 1023
        stored = (floor - 2).clamp(-127, 127) + 127
        stored = torch.where(top == 0, 127, torch.where(top.isnan(), 255, stored))
        return stored.to(torch.uint8).view(torch.float8_e8m0fnu)
    if format == "nvfp4":
        scale = top / torch.full((), 6.0, device=top.device)
        if global_scale is not None:
            scale = scale * global_scale
        stored = scale.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).view(torch.uint8)
        # The codes of 2⁻⁹, the smallest positive value, and of 1.
        stored = torch.where((stored & 0x7F) == 0, 1, stored)
        return torch.where(top == 0, 0x38, stored).to(torch.uint8).view(torch.float8_e4m3fn)
    # A division by a Python number would become a multiplication with its reciprocal, which rounds
    # differently.
    scale = top / torch.full((), _LARGEST[format], device=top.device)
    return torch.where(top == 0, 1.0, torch.where(scale == 0, 2.0**-149, scale))


def _packed(codes: Any, bits: int) -> Any:
    """Packs codes into bytes, the first one in the lowest bits."""
    count = 8 // bits
    parts = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % count)).unflatten(-1, (-1, count))
    packed = parts[..., 0]
    for index in range(1, count):
        packed = packed | (parts[..., index] << (bits * index))
    return packed


def _unpacked(stored: Any, inner: int, bits: int) -> Any:
    stored = stored.view(torch.uint8)
    codes = [(stored >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
    return torch.stack(codes, -1).flatten(-2)[..., :inner]


def _integers(clamped: Any, format: str) -> Any:
    """Whole numbers within the bounds of a format as its codes; those of uint16 as int16, because torch computes little with uint16."""
    if format in ("int16", "uint16"):
        return clamped.to(torch.int32).to(torch.int16)
    if format in ("int8", "uint8"):
        return clamped.to(getattr(torch, format))
    return clamped.to(torch.int32).to(torch.uint8) & (2 ** _BITS[format] - 1)


def _integer_values(stored: Any, format: str, inner: int) -> Any:
    """The whole numbers that codes represent."""
    if format == "uint16":
        return stored.view(torch.int16).int() & 0xFFFF
    if format not in _BITS:
        return stored
    codes = _unpacked(stored, inner, _BITS[format])
    half = -_BOUNDS[format][0]
    return (codes ^ half).to(torch.int8) - half


def _e2m1_code(ratio: Any) -> Any:
    size = ratio.abs()
    code = sum((size > bound).to(torch.uint8) for bound in _E2M1)
    return torch.where(ratio.isnan(), 0, code | (torch.signbit(ratio).to(torch.uint8) << 3)).to(torch.uint8)


def _e2m1_value(code: Any) -> Any:
    code = code.int()
    size = code & 7
    large = ((2 + (size & 1)) << ((size >> 1) - 1).clamp_min(0)).float() * 0.5
    value = torch.where(size < 2, size * 0.5, large)
    return torch.where(code > 7, -value, value)


def quantize(
    x: Any, scale: Any = None, zero_point: Any = None, global_scale: Any = None, *,
    format: str, granularity: str, block_size: int,
) -> Any:  # fmt: skip
    """Rounds to nearest even and saturates."""
    inner = x.shape[-1]
    block = min(block_size, max(inner, 1))
    values = _in_groups(x, granularity, block)
    computed = None
    if scale is None:
        dims = {"tensor": tuple(range(values.dim())), "block": (-1,)}.get(granularity, (*range(values.dim() - 2), values.dim() - 1))
        shape = _scale_shape(x.shape, granularity, block)
        top = values.abs().amax(dims).float() if values.numel() else x.new_zeros(shape, dtype=torch.float32)
        computed = scale = _computed_scale(top, format, global_scale)
    divisor = as_float(scale, format)
    if global_scale is not None:
        divisor = divisor / global_scale
    # In float32, in one kernel.
    ratio = values / _over(divisor, granularity)
    if format in _BOUNDS:
        rounded = ratio.round_().nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf)
        if zero_point is not None:
            rounded = rounded.double() + _over(zero_point, granularity)
        quantized = _integers(rounded.clamp(*_BOUNDS[format]), format)
    elif format in _FLOATS:
        largest = _LARGEST[format]
        quantized = ratio.clamp_(-largest, largest).to(_FLOATS[format])
    else:
        quantized = _e2m1_code(ratio)
    if granularity == "block":
        # torch slices no fp8.
        plain = quantized.view(torch.uint8) if format in _FLOATS else quantized
        quantized = plain.flatten(-2)[..., :inner].contiguous().view(quantized.dtype)
    if format in _BITS:
        quantized = _packed(quantized, _BITS[format])
    if format in ("mxfp4", "nvfp4"):
        quantized = quantized.view(torch.float4_e2m1fn_x2)
    if format == "uint16":
        quantized = quantized.view(torch.uint16)
    return quantized if computed is None else (quantized, computed)


def code_values(stored: Any, format: str, inner: int) -> Any:
    """The values that the codes of `inner` elements represent: integers or f32."""
    if format in _BOUNDS:
        return _integer_values(stored, format, inner)
    if format in _FLOATS:
        return stored.float()
    return _e2m1_value(_unpacked(stored, inner, _BITS[format]))


def lookup(
    table: Any, ids: Any, scale: Any, zero_point: Any = None, *,
    format: str, granularity: str, block_size: int, dim: int, output_dtype: str,
) -> Any:  # fmt: skip
    """Dequantizes the rows of a table."""

    def rows(tensor: Any) -> Any:
        # torch indexes no packed floats and no powers of two.
        plain = tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
        return plain[ids.long()].view(tensor.dtype)

    scale, zero_point = rows(scale), None if zero_point is None else rows(zero_point)
    if granularity == "channel":
        scale, zero_point, block_size = scale[..., None], None if zero_point is None else zero_point[..., None], max(dim, 1)
    return dequantize(
        rows(table), scale, zero_point, format=format, granularity="block", block_size=block_size, inner=dim, output_dtype=output_dtype
    )


def dequantize(
    quantized: Any, scale: Any, zero_point: Any = None, global_scale: Any = None, *,
    format: str, granularity: str, block_size: int, inner: int, output_dtype: str,
) -> Any:  # fmt: skip
    """Multiplies every stored value by its scale."""
    values = code_values(quantized, format, inner)
    values = _in_groups(values, granularity, min(block_size, max(inner, 1)))
    if zero_point is not None:
        # The difference is computed exactly, before the conversion to float.
        values = values.long() - _over(zero_point.long(), granularity)
    factor = as_float(scale, format)
    if global_scale is not None:
        factor = factor / global_scale
    values = values.float() * _over(factor, granularity)
    if granularity == "block":
        values = values.flatten(-2)[..., :inner]
    return values.to(DTYPES[output_dtype])
