"""Attention as one operator while a model is traced: torch would trace one of its backends, which on a GPU restricts the sizes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

_LIBRARY = torch.library.Library("layerzero", "FRAGMENT")
_LIBRARY.define(
    "traced_attention(Tensor q, Tensor k, Tensor v, Tensor? mask, float dropout, bool is_causal, *, float? scale, bool enable_gqa) -> Tensor"
)


@torch.library.register_fake("layerzero::traced_attention", lib=_LIBRARY)
def _fake(q: Any, k: Any, v: Any, mask: Any, dropout: float, is_causal: bool, *, scale: float | None, enable_gqa: bool) -> Any:
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


class AttentionAsOneNode(TorchFunctionMode):
    """Replaces calls of `scaled_dot_product_attention`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    operator = torch.ops.layerzero.traced_attention.default
    return operator(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
