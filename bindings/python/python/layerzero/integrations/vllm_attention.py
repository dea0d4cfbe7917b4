"""vLLM's attention backend ``LAYERZERO``: attention over the paged cache by LayerZero's operations.

The plugin (`layerzero.integrations.vllm`) registers it by name, and vLLM imports this module when it is selected:
``vllm serve ... --attention-backend LAYERZERO``. Features that change a result and that are not here are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionMetadataBuilder, AttentionType

import layerzero as lz

NAME = "LAYERZERO"
_CACHE_DTYPES = ("auto", "float16", "bfloat16")
# What vLLM may pass with a batch, and what would change the result.
_OF_OTHER_BATCHES = ("mm_req_doc_ranges", "rswa_prefix_lens", "encoder_seq_lens", "dcp_local_seq_lens")


def _refusal(what: str) -> NotImplementedError:
    return NotImplementedError(f"the attention backend {NAME} does not support {what}; select another one with --attention-backend")


class LayerZeroBackend(AttentionBackend):
    """What the backend supports."""

    forward_includes_kv_cache_update = False
    supported_dtypes = [torch.float32, torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes = list(_CACHE_DTYPES)

    @staticmethod
    def get_name() -> str:
        return NAME

    @staticmethod
    def get_impl_cls() -> type[LayerZeroImpl]:
        return LayerZeroImpl

    @staticmethod
    def get_builder_cls() -> type[LayerZeroMetadataBuilder]:
        return LayerZeroMetadataBuilder

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True


@dataclass
class LayerZeroMetadata:
    """The requests of a batch. Their pages depend on the size of a page, which the cache of a layer has."""

    tokens: int
    query_starts: torch.Tensor
    lengths: torch.Tensor
    block_table: torch.Tensor
    causal: bool
    max_query_length: int
    max_length: int
    _pages: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def pages(self, page_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The start of the pages of each request, all pages, and the filled slots of each last page; once per batch."""
        known = self._pages.get(page_size)
        if known is None:
            counts = (self.lengths + page_size - 1) // page_size
            starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
            used = torch.arange(self.block_table.shape[1], device=counts.device) < counts[:, None]
            last = self.lengths - (counts - 1).clamp(min=0) * page_size
            known = self._pages[page_size] = starts, self.block_table[used].to(torch.int32), last.to(torch.int32)
        return known


class LayerZeroMetadataBuilder(AttentionMetadataBuilder[LayerZeroMetadata]):
    """Builds the metadata of a batch."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> LayerZeroMetadata:
        batch = common_attn_metadata
        if not isinstance(batch.causal, bool):
            raise _refusal("batches in which some requests are causal and others are not")
        for name in _OF_OTHER_BATCHES:
            if getattr(batch, name, None) is not None:
                raise _refusal(f"batches with `{name}`")
        requests = batch.num_reqs
        return LayerZeroMetadata(
            tokens=batch.num_actual_tokens,
            query_starts=batch.query_start_loc[: requests + 1].to(torch.int32),
            lengths=batch.seq_lens[:requests],
            block_table=batch.block_table_tensor[:requests],
            causal=batch.causal,
            max_query_length=batch.max_query_len,
            max_length=batch.max_seq_len,
        )


class LayerZeroImpl(AttentionImpl[LayerZeroMetadata]):
    """Attention of one layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        **keywords: Any,
    ) -> None:
        for name, given in keywords.items():
            if given is not None and given is not False:
                raise _refusal(f"`{name}`")
        if attn_type != AttentionType.DECODER:
            raise _refusal(f"attention of type `{attn_type}`")
        if kv_cache_dtype not in _CACHE_DTYPES:
            raise _refusal(f"a cache of {kv_cache_dtype}")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.alibi_slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        # vLLM counts the query's own position, LayerZero the keys before it.
        self.window_left = -1 if sliding_window is None else sliding_window - 1
        self.kv_cache_dtype = kv_cache_dtype
        self.soft_cap = logits_soft_cap or 0.0
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name

    def do_kv_cache_update(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        """Writes new keys and values; a token without a slot (-1) is padding.

        By torch: `kv.append` needs keys and values in separate memory, and vLLM stores both of a token side by side.
        """
        page_size = self._caches(kv_cache)[0].shape[2]
        tokens = slot_mapping.shape[0]
        used = slot_mapping >= 0
        slots = slot_mapping[used]
        both = torch.cat((key[:tokens][used], value[:tokens][used]), -1).to(kv_cache.dtype)
        kv_cache.transpose(1, 2)[slots // page_size, slots % page_size] = both

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: LayerZeroMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if output_scale is not None or output_block_scale is not None:
            raise _refusal("quantized outputs")
        if attn_metadata is None:
            # A run that measures memory.
            return output.fill_(0)
        keys, values = self._caches(kv_cache)
        starts, pages, last = attn_metadata.pages(keys.shape[2])
        tokens = attn_metadata.tokens
        slopes = None if self.alibi_slopes is None else self.alibi_slopes.to(query.device)
        lz.ops.attention_gqa_prefill_paged(
            query[:tokens],
            keys,
            values,
            attn_metadata.query_starts,
            starts,
            pages,
            last,
            slopes,
            causal=attn_metadata.causal,
            window_left=self.window_left,
            soft_cap=self.soft_cap,
            sm_scale=self.scale,
            layout="HND",
            max_seq_q=attn_metadata.max_query_length,
            max_pages=-(-attn_metadata.max_length // keys.shape[2]),
            out=output[:tokens],
        )
        return output

    def _caches(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, which vLLM stores side by side: pages, heads, slots, features of both."""
        if kv_cache.ndim != 4 or kv_cache.shape[1] != self.num_kv_heads or kv_cache.shape[3] != 2 * self.head_size:
            raise _refusal(f"a cache of the shape {tuple(kv_cache.shape)}")
        keys, values = kv_cache.split(self.head_size, dim=-1)
        return keys, values
