"""The experts function that mixture-of-experts models of Transformers call."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import layerzero as lz

from ._probe import close

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu, "none": lambda x: x,
}  # fmt: skip


def experts_forward(
    module: torch.nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """The weighted sum of the chosen experts by `moe.experts`; by the module itself if the operation cannot express it."""
    params = _params(module)
    if params is None or hidden_states.dtype not in _DTYPES:
        own: torch.Tensor = type(module).forward.__wrapped__(module, hidden_states, top_k_index, top_k_weights)
        return own
    gate_up: Any = module.gate_up_proj
    # Experts of other devices have the index after the last one.
    indices = top_k_index.masked_fill(top_k_index >= gate_up.shape[0], -1).to(torch.int32)
    biases = {}
    if module.has_bias:
        biases = {"gate_up_bias": module.gate_up_proj_bias, "down_bias": module.down_proj_bias}
    output: torch.Tensor = lz.ops.moe_experts(
        hidden_states, indices, top_k_weights.float(), gate_up, module.down_proj, **biases, **params
    )  # fmt: skip
    return output


def _params(module: torch.nn.Module) -> dict[str, Any] | None:
    """The params of `moe.experts` for a module, found once; None if there are none."""
    # An attribute, because torch.compile reads it as a constant.
    known = module.__dict__.get("_layerzero_experts", False)
    if known is False:
        known, reason = _find(module)
        module.__dict__["_layerzero_experts"] = known
        if reason:
            warnings.warn(f"layerzero does not run the experts of {type(module).__name__}, which {reason}", stacklevel=3)
    params: dict[str, Any] | None = known
    return params


@torch.compiler.disable(reason="layerzero compares its gate with the model's once; run the model before compiling it")
@torch.no_grad()
def _find(module: Any) -> tuple[dict[str, Any] | None, str]:
    """The params with which `moe.experts` computes the gate of the module, or the reason why there are none."""
    if not getattr(module, "has_gate", False) or getattr(module, "has_post_expert_norm", False):
        return None, "have no gate, or a norm of their own"
    if module.is_transposed:
        return None, "store their weights with inputs first"
    layout = "halves" if module.is_concatenated else "interleaved"
    probe = torch.randn(64, 16, generator=torch.Generator().manual_seed(1)) * 10
    expected = module._apply_gate(probe.to(module.gate_up_proj.device)).cpu()
    gate, up = probe.chunk(2, -1) if module.is_concatenated else (probe[..., ::2], probe[..., 1::2])
    limits = [0.0, *(float(value) for name in ("limit", "swiglu_limit") if (value := getattr(module, name, None)))]
    alphas = [1.0, *(float(value) for name in ("alpha", "swiglu_alpha") if (value := getattr(module, name, None)))]
    for activation, limit, alpha, offset in itertools.product(_ACTIVATIONS, limits, alphas, (0.0, 1.0)):
        bounded = gate.clamp(max=limit) if limit else gate
        activated = bounded * torch.sigmoid(alpha * bounded) if activation == "silu" else _ACTIVATIONS[activation](bounded)
        if close(activated * ((up.clamp(-limit, limit) if limit else up) + offset), expected):
            return {"activation": activation, "gate_up_layout": layout, "limit": limit, "alpha": alpha, "up_offset": offset}, ""
    return None, "have a gate that `moe.experts` cannot express"
