"""Norms whose result is quantized."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from layerzero.backends.triton import _FORMATS, _launch, _power, _Recipe
from layerzero.backends.triton._norm_kernels import rms_norm_quantize


_F32 = torch.float32


def _quantized(
    x: Any, residual: Any, weight: Any, scale: Any, format: str, granularity: str, block_size: int, eps: float, weight_offset: float
) -> Any:
    # The host's part of small calls takes longer than the kernel, so it avoids what is slow there: `torch.empty` with keywords, shapes
    # where an integer suffices, and passing keywords on.
    shape = x.shape
    hidden = shape[-1]
    dtype, largest = _FORMATS[format]
    out = torch.empty_like(x, dtype=dtype)
    size = min(block_size, hidden) if granularity == "block" else hidden
    rows, blocks, is_given, adds = x.numel() // hidden, -(-hidden // size), scale is not None, residual is not None
    if not is_given:
        if granularity == "block":
            scale = x.new_empty((*shape[:-1], blocks), dtype=_F32)
        else:
            scale = x.new_empty(rows if len(shape) == 2 else shape[:-1], dtype=_F32)
    weight_dtype = None if weight is None else weight.dtype
    key = ("norm.quantize", hidden, size, format, granularity == "tensor", is_given, adds, x.dtype, weight_dtype, x.get_device())
    tensors = (x, residual if adds else x, x if weight is None else weight, scale, out)

    def recipe() -> _Recipe:
        groups, width = _power(blocks), _power(size)
        flags = (weight is not None, adds, is_given, granularity == "tensor", groups * width == hidden)
        return _Recipe(rms_norm_quantize, (*flags, largest, groups, width), quantized_warps(groups * width))

    _launch(key, rows, 1, tensors, (hidden, size, blocks, eps, weight_offset), recipe)
    return out if is_given else (out, scale)


def quantized_warps(block: int) -> int:
    """Warps of a row of at most `block` elements."""
    return 4 if block <= 4096 else 8 if block <= 8192 else 16


def norm_rms_quantize(
    x: Any, weight: Any, scale: Any, *, format: str, granularity: str, block_size: int, eps: float, weight_offset: float
) -> Any:
    """`norm.rms.quantize`."""
    return _quantized(x, None, weight, scale, format, granularity, block_size, eps, weight_offset)


def norm_rms_add_quantize(
    x: Any, residual: Any, weight: Any, scale: Any, *, format: str, granularity: str, block_size: int, eps: float, weight_offset: float
) -> Any:
    """`norm.rms.add.quantize`."""
    return _quantized(x, residual, weight, scale, format, granularity, block_size, eps, weight_offset)


def compile_quantized(operation: str, call: Mapping[str, str], dtypes: Mapping[str, Any]) -> None:
    """Runs one row with the call's compile-time sizes."""
    hidden, granularity, block_size = int(call["hidden"]), call["granularity"], int(call["block_size"])
    x = torch.zeros((1, hidden), dtype=dtypes[call["T"]], device="cuda")
    weight = torch.zeros(hidden, dtype=dtypes[call["W"]], device="cuda") if call.get("W", "none") != "none" else None
    shape = {"tensor": (), "row": (1,)}.get(granularity, (1, -(-hidden // min(block_size, hidden))))
    scale = torch.ones(shape, device="cuda") if call["given(scale)"] == "true" else None
    residual = torch.zeros_like(x) if operation == "norm.rms.add.quantize" else None
    _quantized(x, residual, weight, scale, call["format"], granularity, block_size, 1e-6, float(call["weight_offset"]))
