"""Transformers: ``attn_implementation="layerzero"``, and RMSNorm and RoPE by our operations.

`register()` once; then ``AutoModel.from_pretrained(..., attn_implementation="layerzero")``, or
``model.set_attn_implementation("layerzero")``. There is no backward: use it under ``torch.no_grad()``.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

import layerzero as lz

NAME = "layerzero"


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    position_bias: torch.Tensor | None = None,
    **keywords: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as models of Transformers call it: heads before lengths, keys not repeated for grouped queries."""
    if dropout:
        raise NotImplementedError("layerzero attention has no dropout; call model.eval()")
    queries, keys = query.shape[2], key.shape[2]
    # Windows, padding and caches are in the mask; without one a decode step sees everything, a prefill what is before it.
    causal = attention_mask is None and queries > 1
    causal = causal and bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    mask = None if attention_mask is None else attention_mask[..., :keys]
    if position_bias is not None:
        if mask is None:
            mask = position_bias
        elif mask.dtype == torch.bool:
            mask = torch.where(mask, position_bias, float("-inf"))
        else:
            mask = mask + position_bias
    if queries == 1 and mask is None:
        output = lz.attention(
            query[:, :, 0], key, value, soft_cap=softcap, sm_scale=scaling, layout="BHSD"
        )
        return output[:, None], None
    output = lz.attention(
        query,
        key,
        value,
        mask,
        causal=causal,
        # As torch counts: the first query stands at the first key.
        causal_offset=0 if causal else None,
        soft_cap=softcap,
        sm_scale=scaling,
        layout="BHSD",
    )
    return output.transpose(1, 2).contiguous(), None


def register() -> None:
    """Makes ``attn_implementation="layerzero"`` known, with the function that makes its masks."""
    AttentionInterface.register(NAME, attention_forward)
    # Without a function for masks Transformers would pass none, and padding would be attended to.
    AttentionMaskInterface.register(NAME, sdpa_mask)


def swap_norms(model: torch.nn.Module) -> int:
    """Has every RMSNorm of a model computed by `norm.rms`; says how many there are.

    Known by their class: a weight, an epsilon, and a name that ends in ``RMSNorm``. Models of the Gemma family store the
    weight minus one.
    """
    count = 0
    for module in model.modules():
        name = type(module).__name__
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        weight = getattr(module, "weight", None)
        if not name.endswith("RMSNorm") or eps is None or weight is None:
            continue
        offset = 1.0 if name.startswith("Gemma") else 0.0

        def forward(
            hidden_states: torch.Tensor, weight: torch.Tensor = weight, eps: float = eps, offset: float = offset
        ) -> torch.Tensor:
            return lz.ops.norm_rms(hidden_states, weight, eps=eps, weight_offset=offset)

        module.forward = forward  # type: ignore[method-assign]
        count += 1
    return count


def apply_rotary(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """What models call `apply_rotary_pos_emb`: one angle a token, given twice, once for each half of a head."""
    batch, length, features = cos.shape
    cos, sin = (table.reshape(batch * length, features)[:, : features // 2] for table in (cos, sin))
    positions = torch.arange(batch * length, device=q.device).view(batch, length)
    layout: Any = "BHSD" if unsqueeze_dim == 1 else "BSHD"
    if batch != q.shape[0]:
        positions = positions.expand(q.shape[0], length)
    return (
        lz.ops.posenc_rope(q, cos, sin, positions, layout=layout),
        lz.ops.posenc_rope(k, cos, sin, positions, layout=layout),
    )


def swap_rope(model: torch.nn.Module) -> int:
    """Has the modules that a model is made of turn by `posenc.rope`; says how many source files were changed.

    Transformers keeps the function in the source file of each model, so it changes for all models of that file.
    """
    count = 0
    for name in {type(module).__module__ for module in model.modules()}:
        source = sys.modules.get(name)
        if name.startswith("transformers.models.") and hasattr(source, "apply_rotary_pos_emb"):
            setattr(source, "apply_rotary_pos_emb", apply_rotary)
            count += 1
    return count
