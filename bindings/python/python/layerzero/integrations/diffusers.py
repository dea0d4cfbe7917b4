"""Diffusers: attention of a UNet or a DiT by LayerZero's operations.

Diffusers has two ways to compute attention, and a model uses one of them. Older models have attention
processors that call torch's ``scaled_dot_product_attention``: `attach(pipeline.unet)` replaces them, `detach`
restores them. Newer models look up a backend by name, and Diffusers has no function that adds one. Their default backend,
``native``, calls torch's function too: run them inside of ``lz.override_torch(["scaled_dot_product_attention"])``.

There is no backward: use it under ``torch.no_grad()``.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from diffusers.models import attention_dispatch
from diffusers.models.attention_processor import AttnProcessor2_0

import layerzero as lz

NAME = "layerzero"


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    layout: Any = "BHSD",
) -> torch.Tensor:
    """Attention with the alignment of Diffusers: the first query is at the position of the first key."""
    output: torch.Tensor = lz.attention(
        query,
        key,
        value,
        mask,
        causal=causal,
        causal_offset=0 if causal else None,
        sm_scale=scale,
        layout=layout,
    )
    return output


def _refuse(keywords: dict[str, Any]) -> None:
    """Raises for keywords with a value, because they may change the result."""
    for name, value in keywords.items():
        if value is not None and value is not False:
            raise NotImplementedError(
                f"layerzero does not support the attention keyword `{name}`, which may change the result; "
                "leave it out, or use another attention backend or processor"
            )


def _backend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **keywords: Any,
) -> torch.Tensor:
    """The function in the table of backends: sequence before heads, keys of grouped queries not repeated."""
    if dropout_p:
        raise NotImplementedError("layerzero attention has no dropout; call model.eval()")
    _refuse(keywords)
    if attn_mask is not None and is_causal:
        raise ValueError("attn_mask and is_causal cannot both be given; include causality in the mask")
    mask = attn_mask
    if mask is not None and mask.ndim == 2 and mask.shape == (query.shape[0], key.shape[1]):
        # A padding mask: the valid keys of each batch row.
        mask = mask[:, None, None]
    return attend(query, key, value, mask, causal=is_causal, scale=scale, layout="BSHD")


def register() -> None:
    """Adds the backend ``layerzero`` to private tables of Diffusers. Deprecated: use ``lz.override_torch``."""
    warnings.warn(
        "register() changes private tables of diffusers and will be removed; "
        'run the model inside of lz.override_torch(["scaled_dot_product_attention"])',
        DeprecationWarning,
        stacklevel=2,
    )
    names = attention_dispatch.AttentionBackendName
    if NAME not in {one.value for one in names}:
        # The table accepts only members of an enumeration, which has no function to add one.
        member = str.__new__(names, NAME)
        member._name_, member._value_ = NAME.upper(), NAME
        names._member_map_[member._name_] = member
        names._value2member_map_[NAME] = member
        names._member_names_.append(member._name_)
    registry = attention_dispatch._AttentionBackendRegistry
    registry.register(names(NAME))(_backend)
    # Diffusers drops the arguments that a backend does not name. The arguments of all backends are listed, so that ours can refuse them.
    registry._supported_arg_names[names(NAME)] = set().union(*registry._supported_arg_names.values())


class AttnProcessor:
    """A processor for ``diffusers.models.attention_processor.Attention``: self and cross attention, masks, norms."""

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        temb: torch.Tensor | None = None,
        **keywords: Any,
    ) -> torch.Tensor:
        _refuse(keywords)
        residual = hidden_states
        if attn.spatial_norm is not None:
            hidden_states = attn.spatial_norm(hidden_states, temb)
        # The pixels of an image become one sequence.
        image = hidden_states.shape if hidden_states.ndim == 4 else None
        if image is not None:
            hidden_states = hidden_states.flatten(2).transpose(1, 2)
        context = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        batch, length = context.shape[:2]
        mask = attention_mask
        if mask is not None:
            mask = attn.prepare_attention_mask(mask, length, batch)
            mask = mask.view(batch, attn.heads, -1, mask.shape[-1])
        if attn.group_norm is not None:
            hidden_states = attn.group_norm(hidden_states.transpose(1, 2)).transpose(1, 2)
        query = attn.to_q(hidden_states)
        if encoder_hidden_states is None:
            context = hidden_states
        elif attn.norm_cross:
            context = attn.norm_encoder_hidden_states(context)
        query, key, value = (
            one.unflatten(-1, (attn.heads, -1)) for one in (query, attn.to_k(context), attn.to_v(context))
        )
        if attn.norm_q is not None:
            query = attn.norm_q(query)
        if attn.norm_k is not None:
            key = attn.norm_k(key)
        output = attend(query, key, value, mask, layout="BSHD").flatten(2).to(query.dtype)
        # The output projection and its dropout.
        for layer in attn.to_out:
            output = layer(output)
        if image is not None:
            output = output.transpose(-1, -2).reshape(image)
        if attn.residual_connection:
            output = output + residual
        return output / attn.rescale_output_factor


def attach(model: Any) -> dict[str, Any]:
    """Replaces every plain attention processor of a model; pass the returned processors to `detach` to
    restore them.

    Other processors (added keys, image adapters) are left unchanged.
    """
    before: dict[str, Any] = dict(getattr(model, "attn_processors", {}))
    kind = type(model).__name__
    if not before:
        raise ValueError(f"{kind} has no attention processors; attach a UNet, a DiT or another model of Diffusers")
    ours = {name: AttnProcessor() if type(one) is AttnProcessor2_0 else one for name, one in before.items()}
    if not any(isinstance(one, AttnProcessor) for one in ours.values()):
        found = ", ".join(sorted({type(one).__name__ for one in before.values()}))
        raise ValueError(
            f"{kind} has no plain attention processor, only {found}; "
            'run it inside of lz.override_torch(["scaled_dot_product_attention"]) instead'
        )
    model.set_attn_processor(ours)
    return before


def detach(model: Any, before: dict[str, Any]) -> None:
    """Restores a model's own processors."""
    model.set_attn_processor(dict(before))
