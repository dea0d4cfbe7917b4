"""FP8 linear layers: with which blocks the kernel runs."""

from __future__ import annotations

from typing import Any

import torch

from layerzero.backends import triton as launching
from layerzero.backends.triton import _fp8_kernels as kernels
from layerzero.backends.triton._linear import _KINDS

_BY = {"tensor": 0, "row": 1, "block": 2}


def blocks(rows: int) -> tuple[int, int, int, int, int]:
    """Rows, output features and inputs of a block, warps, and stages of the pipeline."""
    if rows <= 16:
        return 16, 64, 128, 4, 4
    if rows <= 64:
        return 64, 64, 128, 4, 4
    return 64, 128, 128, 4, 4


def linear(
    x: Any, weight: Any, x_scale: Any, weight_scale: Any, bias: Any = None, *,
    x_granularity: str, weight_granularity: str, activation: str, output_dtype: str,
) -> Any:  # fmt: skip
    """`mlp.linear.fp8`."""
    outer, inner = weight.shape
    rows = x.numel() // inner
    out = torch.empty((*x.shape[:-1], outer), dtype=launching._DTYPES[output_dtype], device=x.device)
    m_block, n_block, k_block, warps, stages = blocks(rows)
    even = inner % k_block == 0 and outer % n_block == 0
    flags = (_KINDS[activation], bias is not None, _BY[x_granularity], _BY[weight_granularity], even)

    def recipe() -> Any:
        return launching._Recipe(kernels.product, (*flags, m_block, n_block, k_block), warps, stages)

    key = ("fp8", rows, inner, outer, *flags, output_dtype, x.get_device())
    tensors = (x, weight, x_scale, weight_scale, out if bias is None else bias, out)
    launching._launch(key, -(-rows // m_block), -(-outer // n_block), tensors, (rows, inner, outer), recipe)
    return out
