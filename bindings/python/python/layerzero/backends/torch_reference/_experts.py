"""Mixture of experts: the router and the experts, written with torch functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from layerzero.backends.torch_reference._attention import is_capturing
from layerzero.backends.torch_reference._layers import ACTIVATIONS
from layerzero.backends.torch_reference._order import best_first, in_order
from layerzero.backends.torch_reference._quantization import as_float, code_values


def route(
    logits: Any, bias: Any = None, *,
    top_k: int, scoring: str, renormalize: bool, scale: float, groups: int, top_groups: int, group_score: str,
) -> Any:  # fmt: skip
    """In f64, so that the choice does not depend on rounding."""
    wide = logits.double()
    if scoring == "softmax":
        largest = wide.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).amax(-1, keepdim=True)
        numerators = torch.exp(wide - largest)
        total = numerators.sum(-1, keepdim=True)
    else:
        numerators = torch.sigmoid(wide)
        total = torch.ones_like(numerators[..., :1])
    choice = wide if bias is None else numerators / total + bias
    order = best_first(choice)
    if groups > 1:
        order = _of_best_groups(choice, order, groups, top_groups, group_score)
    chosen, indices = in_order(numerators, order, top_k)
    if renormalize:
        total = chosen.sum(-1, keepdim=True)
    weights = (chosen / total).masked_fill(total == 0, 0) * scale
    return weights.float(), indices.to(torch.int32)


def _of_best_groups(choice: Any, order: Any, groups: int, top_groups: int, group_score: str) -> Any:
    """Moves the experts of all but the best groups to the end of the order."""
    grouped = choice.unflatten(-1, (groups, -1))
    count = 2 if group_score == "top2_sum" and grouped.shape[-1] > 1 else 1
    scores = in_order(grouped, best_first(grouped), count)[0].sum(-1)
    rank = torch.argsort(best_first(scores), dim=-1)
    excluded = (rank >= top_groups).repeat_interleave(grouped.shape[-1], -1)
    return order.gather(-1, torch.argsort(excluded.gather(-1, order).to(torch.uint8), dim=-1, stable=True))


def experts(
    x: Any, indices: Any, weights: Any, gate_up_weight: Any, down_weight: Any, gate_up_bias: Any = None, down_bias: Any = None,
    **params: Any,
) -> Any:  # fmt: skip
    """Weights in the dtype of the tokens."""
    counts = gate_up_weight.shape[0], down_weight.shape[1]
    projections = gate_up_weight.__getitem__, down_weight.__getitem__
    return _run_experts(x, indices, weights, counts, projections, (gate_up_bias, down_bias), **params)


def experts_quantized(
    x: Any, indices: Any, weights: Any, gate_up_weight: Any, gate_up_scale: Any, down_weight: Any, down_scale: Any,
    gate_up_bias: Any = None, down_bias: Any = None, *,
    format: str, granularity: str, group_size: int, intermediate: int, **params: Any,
) -> Any:  # fmt: skip
    """Dequantizes the weights of one expert at a time, and computes in f32."""

    def projection(codes: Any, scale: Any, inputs: int) -> Callable[[int], Any]:
        scales = as_float(scale, format)

        def dequantized(expert: int) -> Any:
            values, scale = code_values(codes[expert], format, inputs), scales[expert]
            column = torch.arange(inputs, device=x.device)
            if granularity == "row":
                scale = scale[:, None]
            elif granularity == "group":
                scale = scale[:, column // group_size]
            elif granularity == "block":
                scale = scale[torch.arange(values.shape[0], device=x.device)[:, None] // _BLOCK, column // _BLOCK]
            return values.float() * scale

        return dequantized

    if format == "mxfp4":
        # torch indexes no packed floats.
        gate_up_weight, down_weight = gate_up_weight.view(torch.uint8), down_weight.view(torch.uint8)
    counts = gate_up_weight.shape[0], down_weight.shape[1]
    projections = projection(gate_up_weight, gate_up_scale, x.shape[-1]), projection(down_weight, down_scale, intermediate)
    biases = [None if bias is None else bias.float() for bias in (gate_up_bias, down_bias)]
    return _run_experts(x.float(), indices, weights, counts, projections, biases, **params).to(x.dtype)


#: Features and inputs per side of a block that shares a scale.
_BLOCK = 128


def _run_experts(
    x: Any, indices: Any, weights: Any, counts: tuple[int, int], projections: Any, biases: Any, *,
    activation: str, gate_up_layout: str, alpha: float, limit: float, up_offset: float,
) -> Any:  # fmt: skip
    """One expert after the other over its own tokens; all tokens of all experts while a graph is captured."""
    (experts, outputs), (gate_up_weight, down_weight), (gate_up_bias, down_bias) = counts, projections, biases

    def run(expert: int, rows: Any) -> Any:
        gate_up = F.linear(rows, gate_up_weight(expert), None if gate_up_bias is None else gate_up_bias[expert])
        gate, up = (gate_up[..., ::2], gate_up[..., 1::2]) if gate_up_layout == "interleaved" else gate_up.chunk(2, -1)
        if limit > 0:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        gate = gate * torch.sigmoid(alpha * gate) if activation == "silu" and alpha != 1 else ACTIVATIONS[activation](gate)
        hidden = gate * (up + up_offset) if up_offset else gate * up
        return F.linear(hidden, down_weight(expert), None if down_bias is None else down_bias[expert]).float()

    rows, chosen = x.reshape(-1, x.shape[-1]), indices.reshape(-1, indices.shape[-1])
    weights = weights.reshape(chosen.shape).masked_fill(chosen < 0, 0)
    count, slots = chosen.shape
    results = torch.zeros((count * slots, outputs), dtype=torch.float32, device=x.device)
    if is_capturing(x):
        for expert in range(experts):
            own = (chosen == expert).reshape(-1, 1)
            results = torch.where(own, run(expert, rows).repeat_interleave(slots, 0), results)
    else:
        order = torch.argsort(chosen.reshape(-1), stable=True)
        counts = torch.bincount(chosen.reshape(-1) + 1, minlength=experts + 1).tolist()
        first = counts[0]
        for expert, number in enumerate(counts[1:]):
            if number:
                own = order[first : first + number]
                results[own] = run(expert, rows[own // slots])
            first += number
    output = (results.view(count, slots, outputs) * weights[..., None]).sum(1)
    return output.to(x.dtype).view(*x.shape[:-1], outputs)
