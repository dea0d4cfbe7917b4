"""Mixtures of experts: which kernels run, with which blocks. Nothing waits for the device, so the calls can be captured."""

from __future__ import annotations

from math import inf
from typing import Any

import torch

from layerzero.backends import triton as launching
from layerzero.backends.triton import _experts_kernels as kernels
from layerzero.backends.triton._linear import _KINDS
from layerzero.backends.triton._tiles import Table, Tile, tile_for

#: Slots that a program reads at a time while sorting, and output features that one adds up.
_SORT_BLOCK, _SUM_BLOCK = 1024, 1024


#: By the average number of slots of an expert: the fastest on an H200.
_WIDE: Table = ((16, Tile(16, 32, 32, 4, 2)), (inf, Tile(32, 32, 32, 4, 2)))
_NARROW: Table = (
    (16, Tile(16, 64, 128, 4, 4)), (24, Tile(32, 64, 128, 4, 3)), (96, Tile(64, 64, 64, 4, 4)), (inf, Tile(128, 128, 64, 8, 3)),
)  # fmt: skip


def sort(indices: Any, count: int, m_block: int) -> tuple[Any, Any, int]:
    """The slots by expert in tiles of `m_block`; the number of tiles in use and the expert of each; and how many tiles there can be."""
    slots, device = indices.numel(), indices.get_device()
    tiles = min(slots, slots // m_block + count)
    on = {"device": indices.device, "dtype": torch.int32}
    counts, order, tile_experts = (torch.empty(size, **on) for size in (count, tiles * m_block, tiles + 1))
    launching._launch(
        ("moe.count", slots, device), count, 1, (indices, counts), (slots,), lambda: launching._Recipe(kernels.count, (_SORT_BLOCK,), 4)
    )
    launching._launch(
        ("moe.place", slots, count, m_block, device), count, 1, (indices, counts, order, tile_experts), (slots, count),
        lambda: launching._Recipe(kernels.place, (m_block, launching._power(count), _SORT_BLOCK), 4),
    )  # fmt: skip
    return order, tile_experts, tiles


def combine(results: Any, indices: Any, count: int, out: Any) -> None:
    """Adds the results of the slots of each row."""
    top_k, outer = indices.shape[-1], out.shape[-1]
    key = ("moe.combine", top_k, count, outer, out.dtype, out.get_device())
    rows, parts = out.numel() // outer, -(-outer // _SUM_BLOCK)
    launching._launch(
        key, rows, parts, (results, indices, out), (top_k, count, outer), lambda: launching._Recipe(kernels.combine, (_SUM_BLOCK,), 4)
    )


def experts(
    x: Any, indices: Any, weights: Any, gate_up_weight: Any, down_weight: Any, gate_up_bias: Any = None, down_bias: Any = None, *,
    activation: str, gate_up_layout: str, alpha: float, limit: float, up_offset: float,
) -> Any:  # fmt: skip
    """`moe.experts`."""
    inner, top_k = x.shape[-1], indices.shape[-1]
    count, outer, middle = down_weight.shape
    slots = indices.numel()
    m_block, n_block, k_block, warps, stages = tile_for(-(-slots // count), _WIDE if x.dtype == torch.float32 else _NARROW)
    order, tile_experts, tiles = sort(indices, count, m_block)
    hidden = torch.empty((tiles * m_block, middle), dtype=x.dtype, device=x.device)
    results = torch.empty((slots, outer), dtype=torch.float32, device=x.device)
    out = torch.empty((*x.shape[:-1], outer), dtype=x.dtype, device=x.device)
    device = x.get_device()
    kinds = (slots, top_k, count, inner, middle, outer, gate_up_bias is None, down_bias is None, m_block, x.dtype, device)

    def first() -> Any:
        even = inner % k_block == 0 and middle % n_block == 0
        flags = (_KINDS[activation], gate_up_bias is not None, gate_up_layout == "interleaved", limit > 0, even)
        return launching._Recipe(kernels.gate_up, (*flags, m_block, n_block, k_block), warps, stages)

    tensors = (x, gate_up_weight, x if gate_up_bias is None else gate_up_bias, order, tile_experts, hidden)
    numbers = (slots, top_k, inner, middle, alpha, limit, up_offset)
    key = ("moe.gate_up", activation, gate_up_layout, limit > 0, *kinds)
    launching._launch(key, tiles, -(-middle // n_block), tensors, numbers, first)
    n_block_down = 64 if x.dtype != torch.float32 and m_block <= 32 else n_block

    def second() -> Any:
        even = middle % k_block == 0 and outer % n_block_down == 0
        return launching._Recipe(kernels.down, (down_bias is not None, even, m_block, n_block_down, k_block), warps, stages)

    of_down = (hidden, down_weight, x if down_bias is None else down_bias, order, tile_experts, weights, results)
    launching._launch(("moe.down", *kinds), tiles, -(-outer // n_block_down), of_down, (slots, middle, outer), second)
    combine(results, indices, count, out)
    return out


def route(
    logits: Any, bias: Any = None, *,
    top_k: int, scoring: str, renormalize: bool, scale: float, groups: int, top_groups: int, group_score: str,
) -> Any:  # fmt: skip
    """`moe.route`."""
    experts = logits.shape[-1]
    shape = (*logits.shape[:-1], top_k)
    weights = torch.empty(shape, dtype=torch.float32, device=logits.device)
    indices = torch.empty(shape, dtype=torch.int32, device=logits.device)
    size = experts // groups
    flags = (scoring == "sigmoid", bias is not None, renormalize, group_score == "top2_sum", groups)

    def recipe() -> Any:
        tile = (launching._power(groups), size, launching._power(size))
        return launching._Recipe(kernels.route, (*flags, *tile), 4 if experts > 128 else 1)

    key = ("moe.route", experts, top_k, top_groups, *flags, logits.dtype, logits.get_device())
    tensors = (logits, logits if bias is None else bias, weights, indices)
    launching._launch(key, logits.numel() // experts, 1, tensors, (experts, top_k, top_groups, scale), recipe)
    return weights, indices
