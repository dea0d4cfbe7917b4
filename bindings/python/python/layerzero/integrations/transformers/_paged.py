"""Attention over the paged cache of continuous batching (``generate_batch``, ``transformers serve``).

Transformers runs continuous batching with three attention implementations only: ``sdpa``, ``paged|eager`` and flash attention.
So LayerZero's function is registered under the name ``paged|eager``, and calls the function that had the name for everything
that it does not know.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import layerzero as lz

from ._attention import WITHOUT_EFFECT, attend

PAGED = "paged|eager"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# What continuous batching passes to every layer; the cache reads the first six.
_OF_THE_BATCH = frozenset(
    {
        "read_index", "write_index", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k",
        "block_table", "logits_indices", "logits_processor_args", "is_causal", "dropout",
    }
)  # fmt: skip


@contextlib.contextmanager
def paged_attention() -> Iterator[None]:
    """Runs the implementation ``paged|eager`` by LayerZero's operations inside the block.

    Models must use that implementation: ``attn_implementation="eager"``, or ``model.set_attn_implementation("paged|eager")``.
    """
    own = ALL_ATTENTION_FUNCTIONS[PAGED]
    AttentionInterface.register(PAGED, _replacement(own))
    try:
        yield
    finally:
        AttentionInterface.register(PAGED, own)


def _replacement(own: Callable[..., Any]) -> Callable[..., Any]:
    warned: set[str] = set()

    @torch.compiler.disable
    def paged_attention_forward(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        **keywords: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        reason = _unknown(module, query, keywords)
        if reason is not None:
            if reason not in warned:
                warned.add(reason)
                warnings.warn(f"{type(module).__name__}: layerzero is not used for paged attention {reason}", stacklevel=2)
            result: tuple[torch.Tensor, torch.Tensor | None] = own(
                module, query, key, value, attention_mask, scaling=scaling, **keywords
            )
            return result
        cache = keywords["cache"]
        # Writes the new keys and values, and selects the lengths of this layer's kind in `keywords`.
        key, value = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=keywords)
        ragged = _ragged(query, key, value, scaling, keywords)
        if ragged is not None:
            return ragged, None
        return attend(query, key, value, attention_mask, False, scaling), None

    return paged_attention_forward


def _unknown(module: Any, query: torch.Tensor, keywords: dict[str, Any]) -> str | None:
    """What LayerZero's function does not know of a call; None if it knows everything."""
    if keywords.get("cache") is None:
        return "without a paged cache"
    if hasattr(module, "sinks"):
        return "with attention sinks"
    if query.dtype not in _DTYPES:
        return f"of {query.dtype}"
    if keywords.get("block_table") is not None:
        return "over block tables"
    if keywords.get("dropout"):
        return "with dropout"
    known = WITHOUT_EFFECT | _OF_THE_BATCH | {"cache"}
    for name, given in keywords.items():
        if name not in known and given is not None and given is not False:
            return f"with the keyword `{name}`"
    return None


def _ragged(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None, keywords: dict[str, Any]
) -> torch.Tensor | None:
    """Attention of each request over its own keys; None if a window or padding needs the mask of the batch.

    The mask has an entry for every query and every key of all requests; without it a request costs only its own length.
    """
    starts_q, starts_k = keywords["cu_seq_lens_q"], keywords["cu_seq_lens_k"]
    if keywords.get("sliding_window") or len(starts_q) != len(starts_k):
        return None
    if int(starts_q[-1]) != query.shape[2] or int(starts_k[-1]) != key.shape[2]:
        return None
    q, k, v = (one[0].transpose(0, 1) for one in (query, key, value))
    output: torch.Tensor = lz.ops.attention_gqa_prefill_ragged(
        q,
        k,
        v,
        starts_q.to(torch.int32),
        starts_k.to(torch.int32),
        causal=True,
        sm_scale=scaling,
        max_seq_q=_longest(keywords.get("max_length_q")),
        max_seq_kv=_longest(keywords.get("max_length_k")),
    )
    return output[None]


def _longest(length: Any) -> int:
    """The statistic for a length that the batch states; -1 if it states none."""
    return length if isinstance(length, int) else -1
