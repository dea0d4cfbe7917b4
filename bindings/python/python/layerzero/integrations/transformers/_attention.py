"""The attention function that models of Transformers call."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import layerzero as lz

from ._probe import close, eager_function
from ._sources import takes_sdpa_masks

# Keywords without an effect on this function: the mask already contains windows, and lengths of packed
# sequences are for flash attention. Any other keyword may change the result and is refused.
WITHOUT_EFFECT = frozenset(
    {
        "sliding_window", "position_ids", "cache_position", "use_cache", "output_attentions", "output_hidden_states",
        "return_dict", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx", "deterministic",
        "num_items_in_batch", "logits_to_keep", "labels", "return_loss", "output_router_logits", "token_type_ids",
        "mm_token_type_ids", "image_sizes", "interpolate_pos_encoding",
    }
)  # fmt: skip
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


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
    s_aux: torch.Tensor | None = None,
    **keywords: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention as models of Transformers call it: heads before sequence, keys not repeated for grouped
    queries.

    `s_aux` are attention sinks: one logit per head that takes part in the softmax and has no value.
    """
    if dropout:
        raise NotImplementedError("layerzero attention has no dropout; call model.eval()")
    for name, given in keywords.items():
        if name not in WITHOUT_EFFECT and given is not None and given is not False:
            raise _refusal(module, f"does not support the attention keyword `{name}`, which may change the result")
    special = {"softcap": softcap, "position_bias": position_bias, "s_aux": s_aux}
    special = {name: given for name, given in special.items() if given is not None}
    config = getattr(module, "config", None)
    if config is not None and takes_sdpa_masks(type(config)):
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
        if query.dtype not in _DTYPES:
            if softcap is not None or s_aux is not None:
                raise _refusal(module, f"has no attention for {query.dtype}")
            _warn(module, f"has no attention for {query.dtype}; sdpa computes it")
            computed: tuple[torch.Tensor, None] = sdpa_attention_forward(
                module, query, key, value, attention_mask, scaling=scaling, is_causal=causal, position_bias=position_bias
            )
            return computed
        if keywords.get("output_attentions"):
            _warn(module, 'returns no attention weights; attn_implementation="eager" does')
        return attend(query, key, value, attention_mask, causal, scaling, **special), None
    # Other models have their own formula, which is compared with ours once, and always pass a mask.
    if keywords.get("output_attentions") or not _agrees(module, query, key, value, scaling, special):
        eager = eager_function(module)
        if eager is None:
            raise _refusal(module, "cannot determine what the attention of this model computes")
        own: tuple[torch.Tensor, torch.Tensor | None] = eager(
            module, query, key, value, attention_mask, scaling=scaling, dropout=0.0, **special, **keywords
        )
        return own
    return attend(query, key, value, attention_mask, False, scaling, **special), None


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scaling: float | None,
    softcap: float | None = None,
    position_bias: torch.Tensor | None = None,
    s_aux: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention by LayerZero's operations. Windows, padding and caches are in the mask; `causal` applies only without a mask."""
    queries = query.shape[2]
    # Without a mask a decode step sees all keys, a causal prefill those before it.
    causal = causal and mask is None and queries > 1
    if position_bias is not None:
        if mask is None:
            mask = position_bias
        elif mask.dtype == torch.bool:
            mask = torch.where(mask, position_bias, float("-inf"))
        else:
            mask = mask + position_bias
    options: dict[str, Any] = {"soft_cap": softcap, "sm_scale": scaling, "layout": "BHSD"}
    # Few kernels of GPUs take sinks; any that returns the lse can be corrected.
    corrects = s_aux is not None and query.device.type != "cpu"
    if corrects:
        options["return_lse"] = True
    elif s_aux is not None:
        options["sinks"] = s_aux.float()
    decodes = queries == 1 and mask is None
    if decodes:
        output = lz.attention(query[:, :, 0], key, value, **options)
    else:
        # torch's alignment: the first query is at the position of the first key.
        options.update(causal=causal, causal_offset=0 if causal else None)
        output = lz.attention(query, key, value, mask, **options)
    if corrects and s_aux is not None:
        output, lse = output
        # The sink takes part in each row's sum: exp(lse) / (exp(lse) + exp(sink)).
        sink = s_aux.float() if decodes else s_aux.float()[:, None]
        output = (output * torch.sigmoid(lse - sink)[..., None]).to(query.dtype)
    return output[:, None] if decodes else output.transpose(1, 2).contiguous()


def _agrees(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    special: dict[str, Any],
) -> bool:
    """Whether LayerZero's attention equals the model's own formula, checked once per module, dtype and keywords."""
    # An attribute, because torch.compile reads it as a constant.
    name = f"_layerzero_agrees_{query.dtype}_{'_'.join(special)}"
    known: bool | None = module.__dict__.get(name)
    if known is None:
        known = module.__dict__[name] = _compare(module, query, key, value, scaling, special)
    return known


@torch.compiler.disable(reason="layerzero compares its attention with the model's once; run the model before compiling it")
@torch.no_grad()
def _compare(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    special: dict[str, Any],
) -> bool:
    eager = eager_function(module)
    agrees = False
    if eager is not None and query.dtype in _DTYPES:
        generator = torch.Generator().manual_seed(1)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).to(device=query.device, dtype=query.dtype)

        q = random(1, query.shape[1], 5, query.shape[3])
        k, v = (random(1, one.shape[1], 7, one.shape[3]) for one in (key, value))
        mask = torch.full((1, 1, 5, 7), torch.finfo(q.dtype).min, dtype=q.dtype, device=q.device).triu(3)
        if "position_bias" in special:
            special = {**special, "position_bias": random(1, query.shape[1], 5, 7)}
        expected = eager(module, q, k, v, mask, scaling=scaling, dropout=0.0, **special)[0]
        agrees = close(attend(q, k, v, mask, False, scaling, **special), expected)
    if not agrees:
        _warn(module, "computes attention differently from this model's own formula, which is used instead")
    return agrees


def _refusal(module: torch.nn.Module, reason: str) -> NotImplementedError:
    return NotImplementedError(
        f'layerzero {reason} ({type(module).__name__}); use attn_implementation="sdpa" or "eager" for this model'
    )


def _warn(module: torch.nn.Module, reason: str) -> None:
    warnings.warn(f"layerzero {reason} ({type(module).__name__})", stacklevel=4)
