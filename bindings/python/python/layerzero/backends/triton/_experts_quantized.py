"""Mixtures of experts with quantized weights: which kernels run, with which blocks, and where scales are applied."""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

import torch
import triton.language as tl

from layerzero.backends import triton as launching
from layerzero.backends.triton import _experts_quantized_kernels as kernels
from layerzero.backends.triton._experts import combine, sort
from layerzero.backends.triton._linear import _KINDS
from layerzero.backends.triton._tiles import Table, Tile, tile_for

#: Tiles by the average number of slots of an expert: slots, features, inputs, warps, stages.
_WIDE: Table = ((16, Tile(16, 64, 32, 4, 2)), (inf, Tile(32, 64, 32, 4, 2)))
_NARROW: Table = (
    (16, Tile(16, 64, 128, 4, 4)), (32, Tile(32, 64, 128, 4, 4)), (96, Tile(64, 64, 128, 4, 3)), (inf, Tile(64, 128, 128, 8, 3)),
)  # fmt: skip
#: The fastest on an H200 for layers of DeepSeek V3, Mixtral 8x7B and GPT-OSS 20B. Others, and int8, have `_NARROW`.
_BY_FORMAT: dict[str, Table] = {
    "fp8_e4m3": ((15, Tile(16, 64, 128, 4, 4)), (64, Tile(32, 64, 64, 4, 4)), (inf, Tile(64, 128, 128, 8, 3))),
    "int4": ((15, Tile(16, 64, 128, 4, 4)), (inf, Tile(64, 64, 128, 4, 3))),
    "mxfp4": ((15, Tile(16, 64, 128, 4, 4)), (32, Tile(32, 64, 64, 4, 4)), (inf, Tile(64, 128, 64, 4, 3))),
}
#: Features and inputs per side of a block that shares a scale.
_BLOCK = 128
#: The fewest inputs of a matrix instruction, and those on the two halves of packed codes.
_SHORTEST, _SHORTEST_PACKED = 16, 32
#: Parts in bf16 of the values between the two products. Two have 16 bits of precision and the range of f32; one has 8 bits.
_PARTS = 2


class _Scaling(NamedTuple):
    """How the scales of one of the two weights are applied."""

    # Rows that share scales (0: all), inputs per group, and groups per row.
    features: int
    size: int
    groups: int
    # SUMS, STEPS or WEIGHTS.
    where: int
    # Inputs per group if a tile of scales is expanded, or 0 if each weight reads its own.
    expanded: int
    # The largest step over the inputs.
    k_block: int
    # The dtype of the products.
    dtype: Any


def _scaling(format: str, granularity: str, group_size: int, inputs: int, dtype: Any, k_block: int) -> _Scaling:
    """Nothing is rounded: codes are exact in any dtype, and e2m1 times a power of two is in bf16. Other scaled weights are f32."""
    if granularity in ("tensor", "row") or (granularity == "group" and group_size >= inputs):
        return _Scaling(0 if granularity == "tensor" else 1, 1, 1, kernels.SUMS, 0, k_block, dtype)
    if granularity == "block":
        return _Scaling(_BLOCK, _BLOCK, -(-inputs // _BLOCK), kernels.STEPS, 0, min(k_block, _BLOCK), dtype)
    groups = -(-inputs // group_size)
    if format == "mxfp4" and dtype == tl.bfloat16:
        return _Scaling(1, group_size, groups, kernels.WEIGHTS, group_size, k_block, dtype)
    # The largest power of two that divides the group.
    step = min(k_block, group_size & -group_size)
    if step >= (_SHORTEST_PACKED if format in ("int4", "mxfp4") else _SHORTEST):
        return _Scaling(1, group_size, groups, kernels.STEPS, 0, step, dtype)
    return _Scaling(1, group_size, groups, kernels.WEIGHTS, 0, min(k_block, _WIDE[0][1].depth), tl.float32)


def experts(
    x: Any, indices: Any, weights: Any, gate_up_weight: Any, gate_up_scale: Any, down_weight: Any, down_scale: Any,
    gate_up_bias: Any = None, down_bias: Any = None, *,
    format: str, granularity: str, group_size: int, intermediate: int, activation: str, gate_up_layout: str, alpha: float, limit: float,
    up_offset: float,
) -> Any:  # fmt: skip
    """`moe.experts.quantized`."""
    if format == "mxfp4":
        # Triton has no pointers to packed floats and to powers of two.
        gate_up_weight, gate_up_scale, down_weight, down_scale = (
            one.view(torch.uint8) for one in (gate_up_weight, gate_up_scale, down_weight, down_scale)
        )
    inner, middle, top_k, slots = x.shape[-1], intermediate, indices.shape[-1], indices.numel()
    count, outer = down_weight.shape[:2]
    per_expert, device, is_wide = -(-slots // count), x.get_device(), x.dtype == torch.float32
    dtypes = (tl.float32, tl.float32) if is_wide else (tl.bfloat16 if x.dtype == torch.bfloat16 else tl.float16, tl.bfloat16)
    tile = tile_for(per_expert, _WIDE if is_wide else _BY_FORMAT.get(format, _NARROW))
    of_first, of_second = (
        _scaling(format, granularity, group_size, inputs, dtype, tile.depth) for inputs, dtype in zip((inner, middle), dtypes, strict=True)
    )
    if tl.float32 in (of_first.dtype, of_second.dtype):
        tile = tile_for(per_expert, _WIDE)
    m_block, n_block, _, warps, stages = tile
    order, tile_experts, tiles = sort(indices, count, m_block)
    hidden = torch.empty((tiles * m_block, middle), dtype=torch.float32, device=x.device)
    results = torch.empty((slots, outer), dtype=torch.float32, device=x.device)
    out = torch.empty((*x.shape[:-1], outer), dtype=x.dtype, device=x.device)
    biases = gate_up_bias is not None, down_bias is not None
    kinds = (format, granularity, group_size, slots, top_k, count, inner, middle, outer, *biases, m_block, x.dtype, device)

    def constants(scaling: _Scaling, inputs: int, features: int) -> tuple[Any, ...]:
        even = inputs % scaling.k_block == 0 and features % n_block == 0
        of_scales = (scaling.features, scaling.where, scaling.expanded)
        return (kernels.FORMATS[format], *of_scales, scaling.dtype, even, m_block, n_block, scaling.k_block)

    def first() -> Any:
        flags = (_KINDS[activation], biases[0], gate_up_layout == "interleaved", limit > 0)
        return launching._Recipe(kernels.gate_up, (*flags, *constants(of_first, inner, middle)), warps, stages)

    def second() -> Any:
        parts = 1 if of_second.dtype == tl.float32 else _PARTS
        return launching._Recipe(kernels.down, (biases[1], *constants(of_second, middle, outer), parts), warps, stages)

    tensors = (x, gate_up_weight, gate_up_scale, gate_up_bias if biases[0] else x, order, tile_experts, hidden)
    numbers = (slots, top_k, inner, gate_up_weight.shape[-1], middle, of_first.size, of_first.groups, alpha, limit, up_offset)
    key = ("moe.quantized.gate_up", activation, gate_up_layout, limit > 0, *kinds)
    launching._launch(key, tiles, -(-middle // n_block), tensors, numbers, first)
    of_down = (hidden, down_weight, down_scale, down_bias if biases[1] else x, order, tile_experts, weights, results)
    numbers_of_down = (slots, middle, down_weight.shape[-1], outer, of_second.size, of_second.groups)
    launching._launch(("moe.quantized.down", *kinds), tiles, -(-outer // n_block), of_down, numbers_of_down, second)
    combine(results, indices, count, out)
    return out
