"""SGLang's attention backend ``layerzero``: attention over the cache of tokens by LayerZero's operations.

The plugin (`layerzero.integrations.sglang`) registers it. Features that change a result and that are not here are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc, MHATokenToKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode

import layerzero as lz

from .sglang import NAME

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_MODES = (ForwardMode.DECODE, ForwardMode.EXTEND, ForwardMode.MIXED)


def _refusal(what: str) -> NotImplementedError:
    return NotImplementedError(f"the attention backend {NAME} does not support {what}; select another one with --attention-backend")


@dataclass
class _Requests:
    """The requests of a batch: the start of their queries and of their tokens, and the slots of all tokens in the cache."""

    query_starts: torch.Tensor
    starts: torch.Tensor
    slots: torch.Tensor
    last: torch.Tensor
    max_queries: int


class LayerZeroAttnBackend(AttentionBackend):
    """Attention of all layers of a model."""

    def __init__(self, model_runner: Any) -> None:
        super().__init__()
        pool = model_runner.token_to_kv_pool
        # Other pools store quantized or latent keys, or translate the slots.
        if type(pool) is not MHATokenToKVPool:
            raise _refusal(f"caches of the type {type(pool).__name__}")
        if pool.kv_cache_layout != "nhd" or pool.store_dtype not in _DTYPES:
            raise _refusal(f"a cache of {pool.store_dtype} with the layout {pool.kv_cache_layout}")
        self.token_to_kv_pool = pool
        self.req_to_token_pool = model_runner.req_to_token_pool
        self._requests: _Requests | None = None

    def init_forward_metadata(self, forward_batch: Any) -> None:
        mode = forward_batch.forward_mode
        self._requests = None
        if mode.is_idle():
            return
        if mode not in _MODES:
            raise _refusal(f"batches of the mode {mode.name}")
        for name in ("encoder_lens", "spec_info"):
            if getattr(forward_batch, name) is not None:
                raise _refusal(f"batches with `{name}`")
        lengths = forward_batch.seq_lens
        queries = torch.ones_like(lengths) if mode.is_decode() else forward_batch.extend_seq_lens
        table = self.req_to_token_pool.req_to_token[forward_batch.req_pool_indices]
        used = torch.arange(table.shape[1], device=lengths.device) < lengths[:, None]
        self._requests = _Requests(
            query_starts=_starts(queries),
            starts=_starts(lengths),
            slots=table[used].to(torch.int32),
            # A page is one token.
            last=lengths.clamp(max=1).to(torch.int32),
            # The lengths on the host; the device is not read for a statistic.
            max_queries=1 if mode.is_decode() else max(forward_batch.extend_seq_lens_cpu or [-1]),
        )

    def forward_decode(self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **keywords: Any) -> Any:
        return self._attend(q, k, v, layer, forward_batch, save_kv_cache, keywords)

    def forward_extend(self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **keywords: Any) -> Any:
        return self._attend(q, k, v, layer, forward_batch, save_kv_cache, keywords)

    def support_triton(self) -> bool:
        return False

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool,
        keywords: dict[str, Any],
    ) -> torch.Tensor:
        sinks = keywords.pop("sinks", None)
        _check(layer, keywords)
        requests = self._requests
        if requests is None:
            raise RuntimeError("init_forward_metadata was not called for this batch")
        pool = self.token_to_kv_pool
        if save_kv_cache and k is not None and v is not None:
            pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, None), k, v)
        keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
        if q.dtype != keys.dtype:
            raise _refusal(f"queries of {q.dtype} and a cache of {keys.dtype}")
        output: torch.Tensor = lz.ops.attention_gqa_prefill_paged(
            q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim),
            keys[:, None],
            values[:, None],
            requests.query_starts,
            requests.starts,
            requests.slots,
            requests.last,
            sinks=None if sinks is None else sinks.float(),
            causal=layer.attn_type == AttentionType.DECODER,
            window_left=layer.sliding_window_size,
            soft_cap=layer.logit_cap,
            sm_scale=layer.scaling,
            max_seq_q=requests.max_queries,
        )
        return output.flatten(1)


def _starts(lengths: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)


def _check(layer: Any, keywords: dict[str, Any]) -> None:
    """Refuses what would change the result of a layer."""
    for name, given in keywords.items():
        if given is not None and given is not False:
            raise _refusal(f"`{name}`")
    if layer.is_cross_attention:
        raise _refusal("cross attention")
    if layer.attn_type not in (AttentionType.DECODER, AttentionType.ENCODER_ONLY):
        raise _refusal(f"attention of the type `{layer.attn_type.value}`")
    if layer.attn_type == AttentionType.ENCODER_ONLY and layer.sliding_window_size >= 0:
        raise _refusal("windows of encoders")
    if layer.qk_head_dim != layer.v_head_dim:
        raise _refusal("values with another size than keys")
    if layer.pos_encoding_mode != "NONE":
        raise _refusal(f"positions of the mode {layer.pos_encoding_mode}")
    if layer.logit_cap > 0 and layer.logit_capping_method != "tanh":
        raise _refusal(f"capped scores by {layer.logit_capping_method}")
    if layer.xai_temperature_len > 0:
        raise _refusal("scores that depend on the length (`xai_temperature_len`)")
    if layer.k_scale is not None or layer.v_scale is not None:
        raise _refusal("caches with scales")
