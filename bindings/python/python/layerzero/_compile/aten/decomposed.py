"""Operators with several results, as torch decomposes layers for backends of `torch.compile`. Only the first result is computed."""

from __future__ import annotations

import copy
from typing import Any

from layerzero._compile.aten.attention import attention
from layerzero._compile.aten.base import Call, Tensor, handles
from layerzero._compile.aten.layers import adaptive_avg_pool, batch_norm, group_norm, layer_norm, max_pool2d, rms_norm


def _first(call: Call) -> Call:
    """The call with what torch inferred about the first result."""
    first = copy.copy(call)
    first.meta = call.meta[0]
    return first


@handles("aten.native_layer_norm.default")
def native_layer_norm(call: Call, x: Tensor, normalized: list[Any], weight: Tensor | None, bias: Tensor | None,
                      eps: float) -> list[Any]:
    return [layer_norm(_first(call), x, normalized, weight, bias, eps), None, None]


@handles("aten._fused_rms_norm.default")
def fused_rms_norm(call: Call, x: Tensor, normalized: list[Any], weight: Tensor | None, eps: float | None) -> list[Any]:
    return [rms_norm(_first(call), x, normalized, weight, eps), None]


@handles("aten.native_group_norm.default")
def native_group_norm(call: Call, x: Tensor, weight: Tensor | None, bias: Tensor | None, _batch: Any, _channels: Any,
                      _elements: Any, groups: int, eps: float) -> list[Any]:
    return [group_norm(_first(call), x, groups, weight, bias, eps), None, None]


@handles("aten._native_batch_norm_legit_no_training.default")
def native_batch_norm(call: Call, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor,
                      *rest: Any) -> list[Any]:
    return [batch_norm(_first(call), x, weight, bias, mean, variance, *rest), None, None]


@handles("aten.max_pool2d_with_indices.default")
def max_pool2d_with_indices(call: Call, x: Tensor, *rest: Any) -> list[Any]:
    return [max_pool2d(_first(call), x, *rest), None]


@handles("aten._adaptive_avg_pool2d.default")
def adaptive_avg_pool2d(call: Call, x: Tensor, output: list[int]) -> Tensor:
    return adaptive_avg_pool(call, x, output)


@handles("aten._scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention(call: Call, q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, is_causal: bool = False, *,
                    attn_mask: Tensor | None = None, scale: float | None = None) -> list[Any]:
    return [attention(_first(call), q, k, v, attn_mask, dropout, is_causal, scale=scale), None]
