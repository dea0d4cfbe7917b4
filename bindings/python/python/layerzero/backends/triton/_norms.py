"""Norms whose result is quantized."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from layerzero.backends.triton import _FORMATS, _launch, _power, _Recipe, _warps
from layerzero.backends.triton._norm_kernels import rms_norm_quantize


def _quantized(
    x: Any, residual: Any, weight: Any, scale: Any, *,
    format: str, granularity: str, block_size: int, eps: float, weight_offset: float,
) -> Any:  # fmt: skip
    dtype, largest = _FORMATS[format]
    hidden, outer = x.shape[-1], x.shape[:-1]
    # Each is faster than `torch.empty` with keywords.
    out = torch.empty_like(x, dtype=dtype)
    size = min(block_size, hidden) if granularity == "block" else hidden
    blocks, is_given, is_one = -(-hidden // size), scale is not None, granularity == "tensor"
    if not is_given:
        scale = x.new_empty((*outer, blocks) if granularity == "block" else outer, dtype=torch.float32)
    has_weight, adds = weight is not None, residual is not None
    key = (
        "norm.quantize", hidden, size, format, is_given, is_one, adds, x.dtype, weight.dtype if has_weight else None, x.get_device(),
    )  # fmt: skip
    tensors = (x, residual if adds else x, weight if has_weight else x, scale, out)

    def recipe() -> _Recipe:
        groups, width = _power(blocks), _power(size)
        return _Recipe(rms_norm_quantize, (has_weight, adds, is_given, is_one, largest, groups, width), _warps(groups * width))

    _launch(key, x.numel() // hidden, 1, tensors, (hidden, size, blocks, eps, weight_offset), recipe)
    return out if is_given else (out, scale)


def norm_rms_quantize(x: Any, weight: Any, scale: Any, **params: Any) -> Any:
    """`norm.rms.quantize`."""
    return _quantized(x, None, weight, scale, **params)


def norm_rms_add_quantize(x: Any, residual: Any, weight: Any, scale: Any, **params: Any) -> Any:
    """`norm.rms.add.quantize`."""
    return _quantized(x, residual, weight, scale, **params)


def compile_quantized(operation: str, call: Mapping[str, str], dtypes: Mapping[str, Any]) -> None:
    """Runs one row with the call's compile-time sizes."""
    hidden, granularity, block_size = int(call["hidden"]), call["granularity"], int(call["block_size"])
    x = torch.zeros((1, hidden), dtype=dtypes[call["T"]], device="cuda")
    weight = torch.zeros(hidden, dtype=dtypes[call["W"]], device="cuda") if call.get("W", "none") != "none" else None
    shape = {"tensor": (), "row": (1,)}.get(granularity, (1, -(-hidden // min(block_size, hidden))))
    scale = torch.ones(shape, device="cuda") if call["given(scale)"] == "true" else None
    residual = torch.zeros_like(x) if operation == "norm.rms.add.quantize" else None
    _quantized(
        x, residual, weight, scale, format=call["format"], granularity=granularity, block_size=block_size, eps=1e-6,
        weight_offset=float(call["weight_offset"]),
    )  # fmt: skip
