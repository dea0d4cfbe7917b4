"""FlashInfer's kernels that need no plan: norms, rotary embeddings, state merging, sampling. They call the
library's compiled modules where its Python function would only repeat checks.
"""

from __future__ import annotations

from math import log
from typing import Any

import flashinfer
import torch
from flashinfer.norm import get_norm_module
from flashinfer.rope import get_rope_module

_LN2 = log(2.0)


def norm_rms(x: Any, weight: Any, *, eps: float, weight_offset: float, out: Any = None) -> Any:
    """RMS norm over the last dimension; Gemma's variant adds 1 to the weight."""
    if out is None:
        out = torch.empty_like(x)
    module = get_norm_module()
    run = module.gemma_rmsnorm if weight_offset else module.rmsnorm
    if x.dim() == 2:
        run(out, x, weight, eps, True)
    else:
        hidden = x.shape[-1]
        run(out.view(-1, hidden), x.view(-1, hidden), weight, eps, True)
    return out


def norm_rms_add(x: Any, residual: Any, weight: Any, *, eps: float, weight_offset: float, out: Any = None) -> Any:
    """The library overwrites both tensors, but the operation keeps `x`: a copy of it becomes the output."""
    hidden = x.shape[-1]
    if out is None:
        out = x.clone()
    else:
        out.copy_(x)
    module = get_norm_module()
    run = module.gemma_fused_add_rmsnorm if weight_offset else module.fused_add_rmsnorm
    run(out.view(-1, hidden), residual.view(-1, hidden), weight, eps, True)
    return out


def norm_layer(x: Any, weight: Any, bias: Any, *, eps: float, return_stats: bool) -> Any:
    """Layer norm with weight and bias in float32."""
    hidden = x.shape[-1]
    out = torch.empty_like(x)
    get_norm_module().layernorm(out.view(-1, hidden), x.view(-1, hidden), weight, bias, eps)
    return out


def rope(x: Any, cos: Any, sin: Any, positions: Any, *, interleaved: bool, layout: str, out: Any = None) -> Any:
    """Rotary embedding from tables; the library takes cos and sin as one table, and keys next to queries, which are empty here."""
    batch, seq, heads, head_dim = x.shape
    if out is None:
        out = torch.empty_like(x)
    table = torch.cat((cos, sin), -1)
    if positions is None:
        positions = torch.arange(seq, device=x.device).repeat(batch)
    tokens, rotated = x.view(-1, heads, head_dim), out.view(-1, heads, head_dim)
    get_rope_module().apply_rope_pos_ids_cos_sin_cache(
        tokens, tokens[:, :0], rotated, rotated[:, :0], table, positions.reshape(-1), interleaved
    )
    return out


def merge(v: Any, s: Any) -> Any:
    """Merges attention states. The library's lse has base 2, and it has no rule for states without keys (-∞)."""
    heads, head_dim = v.shape[-2:]
    empty = s.isneginf()
    values = v.masked_fill(empty[..., None], 0).view(-1, v.shape[-3], heads, head_dim)
    scores = (s * (1 / _LN2)).masked_fill_(empty, -1e30).view(-1, v.shape[-3], heads)
    output, lse = flashinfer.merge_states(values, scores)
    lse = lse.mul_(_LN2).view(*s.shape[:-2], heads).masked_fill_(empty.all(-2), float("-inf"))
    return output.view(*v.shape[:-3], heads, head_dim), lse


def _probabilities(logits: Any, temperature: float) -> Any:
    """Probabilities of each row, and which rows have none. NaN is never sampled, and +∞ takes all probability."""
    rows = logits.reshape(-1, logits.shape[-1])
    largest = torch.finfo(torch.float32).max
    clean = torch.nan_to_num(rows, nan=float("-inf"), posinf=largest, neginf=float("-inf"))
    probabilities = flashinfer.sampling.softmax(clean, temperature)
    # A row without a token of positive weight is NaN as a whole. Such rows are replaced: they caused an
    # illegal memory access in the library on a GPU.
    is_empty = probabilities[:, 0].isnan()
    return probabilities.nan_to_num_(nan=1.0 / rows.shape[1]), is_empty


#: The library uses the same random stream for every operation, so each operation has its own key, numbered as
#: in the schemas.
_TOPK, _TOPP, _SPECULATIVE = 1 << 56, 2 << 56, 3 << 56


def _random_state(stream: int, seed: int, offset: int, seed_tensor: Any, offset_tensor: Any, device: Any) -> dict[str, Any]:
    if seed_tensor is None and offset_tensor is None:
        return {"seed": (seed ^ stream) & (2**63 - 1), "offset": offset & (2**63 - 1)}
    options = {"dtype": torch.int64, "device": device}
    seeds = torch.full((1,), seed ^ stream, **options) if seed_tensor is None else seed_tensor.view(1) ^ stream
    offsets = torch.full((1,), offset, **options) if offset_tensor is None else offset_tensor.view(1)
    return {"seed": seeds, "offset": offsets}


def _tokens(tokens: Any, is_empty: Any, shape: Any) -> Any:
    return tokens.masked_fill_(is_empty, -1).view(shape)


def sample_topk(
    logits: Any, k_tensor: Any, seed_tensor: Any, offset_tensor: Any, *, k: int, temperature: float, seed: int, offset: int
) -> Any:
    """Top-k sampling. Tokens that are as likely as the last of the k are all kept."""
    probabilities, is_empty = _probabilities(logits, temperature)
    vocab = logits.shape[-1]
    keep = min(k, vocab) if k_tensor is None else k_tensor.reshape(-1).clamp(max=vocab)
    state = _random_state(_TOPK, seed, offset, seed_tensor, offset_tensor, logits.device)
    return _tokens(flashinfer.sampling.top_k_sampling_from_probs(probabilities, keep, **state), is_empty, logits.shape[:-1])


def sample_topp(
    logits: Any, p_tensor: Any, seed_tensor: Any, offset_tensor: Any, *,
    p: float, top_k: int, temperature: float, seed: int, offset: int,
) -> Any:  # fmt: skip
    """Top-p sampling among the top_k most likely tokens."""
    probabilities, is_empty = _probabilities(logits, temperature)
    if 0 < top_k < logits.shape[-1]:
        probabilities = flashinfer.sampling.top_k_renorm_probs(probabilities, top_k)
    keep = p if p_tensor is None else p_tensor.reshape(-1)
    state = _random_state(_TOPP, seed, offset, seed_tensor, offset_tensor, logits.device)
    return _tokens(flashinfer.sampling.top_p_sampling_from_probs(probabilities, keep, **state), is_empty, logits.shape[:-1])


def sample_speculative(
    draft_probs: Any, draft_tokens: Any, target_probs: Any, seed_tensor: Any, offset_tensor: Any, *, seed: int, offset: int
) -> Any:
    """Chain speculative sampling."""
    state = _random_state(_SPECULATIVE, seed, offset, seed_tensor, offset_tensor, draft_probs.device)
    tokens, _, accepted = flashinfer.chain_speculative_sampling(draft_probs, draft_tokens, target_probs, **state)
    return tokens, accepted
