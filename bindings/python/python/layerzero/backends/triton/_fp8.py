"""FP8 linear layers: with which blocks the kernel runs."""

from __future__ import annotations

from math import inf
from typing import Any

import torch

from layerzero.backends import triton as launching
from layerzero.backends.triton import _fp8_kernels as kernels
from layerzero.backends.triton._linear import _KINDS
from layerzero.backends.triton._tiles import Table, Tile, tile_for

_BY = {"tensor": 0, "row": 1, "block": 2}


#: The fastest on an H200 for a layer of 4096 by 6144, with scales by tensor or row, and by block.
_PLAIN: Table = (
    (16, Tile(16, 64, 128, 4, 6)), (128, Tile(64, 64, 128, 4, 5)), (256, Tile(64, 64, 128, 4, 4)), (inf, Tile(64, 128, 128, 4, 4)),
)  # fmt: skip
#: For f32 results, whose factors are converted to bf16.
_PRECISE: Table = ((16, Tile(16, 64, 128, 4, 3)), (inf, Tile(64, 64, 128, 4, 3)))
_BLOCKED: Table = ((16, Tile(16, 64, 128, 4, 6)), (128, Tile(64, 64, 128, 4, 5)), (inf, Tile(64, 128, 128, 4, 3)))


def linear(
    x: Any, weight: Any, x_scale: Any, weight_scale: Any, bias: Any = None, *,
    x_granularity: str, weight_granularity: str, activation: str, output_dtype: str,
) -> Any:  # fmt: skip
    """`mlp.linear.fp8`."""
    outer, inner = weight.shape
    rows = x.numel() // inner
    out = torch.empty((*x.shape[:-1], outer), dtype=launching._DTYPES[output_dtype], device=x.device)
    is_precise = output_dtype == "f32"
    table = _PRECISE if is_precise else _BLOCKED if "block" in (x_granularity, weight_granularity) else _PLAIN
    m_block, n_block, k_block, warps, stages = tile_for(rows, table)
    even = inner % k_block == 0 and outer % n_block == 0
    flags = (_KINDS[activation], bias is not None, _BY[x_granularity], _BY[weight_granularity], is_precise, even)

    def recipe() -> Any:
        return launching._Recipe(kernels.product, (*flags, m_block, n_block, k_block), warps, stages)

    key = ("fp8", rows, inner, outer, *flags, output_dtype, x.get_device())
    tensors = (x, weight, x_scale, weight_scale, out if bias is None else bias, out)
    launching._launch(key, -(-rows // m_block), -(-outer // n_block), tensors, (rows, inner, outer), recipe)
    return out
