"""Attention of requests of different lengths: ragged (without padding), or paged.

Lengths are on the device. They are read once per call, except during CUDA graph capture: then all queries are
computed against all keys, and a mask hides those of other requests. Paged decoding always reads the longest
length, so it cannot be captured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from layerzero.backends.torch_reference._attention import attend, attend_in_sequence, decode_rows, is_capturing
from layerzero.backends.torch_reference._score_mod import ScoreMod


def _each(
    q: Any, requests: Any, qo_indptr: Any, slopes: Any, sinks: Any, score_mod: Any, score_params: Any, features: int, *,
    causal: bool, window_left: int, window_right: int, soft_cap: float, sm_scale: float, return_lse: bool,
) -> Any:  # fmt: skip
    """One request after the other; `requests` yields keys and values ``[L, G, D]`` of each."""
    output = q.new_empty((*q.shape[:2], features))
    lse = q.new_empty(q.shape[:2], dtype=torch.float32)
    bounds = qo_indptr.tolist()
    for request, (k, v) in enumerate(requests):
        first, end = bounds[request : request + 2]
        if first == end:
            continue
        slope = None if slopes is None else slopes.expand(len(bounds) - 1, q.shape[1])[request]
        offset = k.shape[0] - (end - first)
        params = None if score_params is None else score_params[request : request + 1]
        own_q, k, v = (tensor.transpose(0, 1)[None] for tensor in (q[first:end], k, v))
        found, sums = attend_in_sequence(
            own_q, k, v, None, slope, offset, causal, window_left, window_right, sm_scale, soft_cap, sinks, score_mod, params, request
        )  # fmt: skip
        output[first:end], lse[first:end] = found[0].transpose(0, 1), sums[0].T
    return (output, lse) if return_lse else output


def _all(
    q: Any, k: Any, v: Any, starts: Any, lengths: Any, qo_indptr: Any, slopes: Any, sinks: Any, score_mod: Any, score_params: Any, *,
    causal: bool, window_left: int, window_right: int, soft_cap: float, sm_scale: float, return_lse: bool,
) -> Any:  # fmt: skip
    """All requests at once: each sees only its own keys, `lengths` of them from `starts`."""
    total, heads = q.shape[:2]
    rows = torch.arange(total, device=q.device)
    request = torch.searchsorted(qo_indptr[1:].contiguous(), rows.to(qo_indptr.dtype), right=True)
    index = rows - qo_indptr[request]
    position = index + lengths[request] - qo_indptr.diff()[request]
    columns = torch.arange(k.shape[0], device=q.device) - starts[request][:, None]
    distance = columns - position[:, None]
    visible = (columns >= 0) & (columns < lengths[request][:, None])
    if causal:
        visible &= distance <= 0
    if window_left >= 0:
        visible &= distance >= -window_left
    if window_right >= 0:
        visible &= distance <= window_right
    bias = None
    if slopes is not None:
        bias = (slopes.expand(lengths.shape[0], heads)[request].T[:, :, None] * distance).unflatten(0, (k.shape[1], -1))
    modify = None
    if score_mod is not None:
        # Each query has indices, a batch row and parameters of its own.
        params = None if score_params is None else score_params[request].transpose(0, 1)[None]
        modify = ScoreMod(
            score_mod, params, position[:, None], k.shape[1], batch=request[:, None], queries=index[:, None], keys=columns
        )
    q4, k4, v4 = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
    output, lse = attend(q4, k4, v4, visible, bias, sm_scale, soft_cap, sinks, modify)
    output = output[0].transpose(0, 1).to(q.dtype)
    return (output, lse[0].T) if return_lse else output


def ragged_prefill(
    q: Any, k: Any, v: Any, qo_indptr: Any, kv_indptr: Any, alibi_slopes: Any = None, sinks: Any = None, score_mod: Any = None,
    score_params: Any = None, **params: Any,
) -> Any:  # fmt: skip
    """Requests concatenated without padding."""
    if is_capturing(q):
        return _all(q, k, v, kv_indptr[:-1], kv_indptr.diff(), qo_indptr, alibi_slopes, sinks, score_mod, score_params, **params)
    bounds = kv_indptr.tolist()
    requests = ((k[first:end], v[first:end]) for first, end in zip(bounds[:-1], bounds[1:], strict=True))
    return _each(q, requests, qo_indptr, alibi_slopes, sinks, score_mod, score_params, v.shape[-1], **params)


def paged_prefill(
    q: Any, k_cache: Any, v_cache: Any, qo_indptr: Any, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any,
    alibi_slopes: Any = None, sinks: Any = None, score_mod: Any = None, score_params: Any = None, *, layout: str, **params: Any,
) -> Any:  # fmt: skip
    """Requests over pages."""
    optional = (alibi_slopes, sinks, score_mod, score_params)
    return _paged_prefill(
        q, (k_cache, v_cache), qo_indptr, kv_indptr, kv_indices, kv_last_page_len, optional, layout, (_as_is, _as_is), params
    )


def paged_prefill_fp8(
    q: Any, k_cache: Any, v_cache: Any, qo_indptr: Any, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any,
    alibi_slopes: Any = None, sinks: Any = None, k_scale: Any = None, v_scale: Any = None, score_mod: Any = None, score_params: Any = None, *,
    layout: str, **params: Any,
) -> Any:  # fmt: skip
    """Requests over pages of FP8 codes."""
    decoders = (_decoder(k_cache, k_scale, score_mod), _decoder(v_cache, v_scale, score_mod))
    caches = (k_cache.view(torch.uint8), v_cache.view(torch.uint8))
    optional = (alibi_slopes, sinks, score_mod, score_params)
    return _paged_prefill(q, caches, qo_indptr, kv_indptr, kv_indices, kv_last_page_len, optional, layout, decoders, params)


def _as_is(part: Any) -> Any:
    return part


def _decoder(cache: Any, scale: Any, score_mod: Any) -> Callable[[Any], Any]:
    """Decodes gathered bytes ``[…, heads, features]`` of an FP8 cache, in f64 for a score expression. Indexing bytes works on every device."""

    def decode(part: Any) -> Any:
        values = part.contiguous().view(cache.dtype).float()
        if score_mod is not None:
            values = values.double()
        return values if scale is None else values * scale.reshape(-1, 1)

    return decode


def _paged_prefill(
    q: Any, caches: Any, qo_indptr: Any, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any, optional: tuple[Any, Any, Any, Any],
    layout: str, decoders: Any, params: dict[str, Any],
) -> Any:  # fmt: skip
    if layout == "HND":
        caches = tuple(cache.transpose(1, 2) for cache in caches)
    page_size = caches[0].shape[1]
    indices = kv_indices.long()
    if is_capturing(q):
        counts = kv_indptr.diff()
        lengths = torch.where(counts > 0, (counts - 1) * page_size + kv_last_page_len, 0)
        k, v = (decode(cache[indices].flatten(0, 1)) for cache, decode in zip(caches, decoders, strict=True))
        return _all(q, k, v, kv_indptr[:-1] * page_size, lengths, qo_indptr, *optional, **params)
    bounds, last = kv_indptr.tolist(), kv_last_page_len.tolist()

    def of(request: int) -> Any:
        first, end = bounds[request : request + 2]
        length = (end - first - 1) * page_size + last[request] if end > first else 0
        return tuple(
            decode(cache[indices[first:end]].flatten(0, 1)[:length]) for cache, decode in zip(caches, decoders, strict=True)
        )

    return _each(q, map(of, range(len(last))), qo_indptr, *optional, q.shape[-1], **params)


def _table(indptr: Any, indices: Any, last: Any, page_size: int) -> Any:
    """Page tables ``[batch, max_pages]`` and lengths ``[batch, 1]`` of the requests."""
    counts = indptr.diff()
    max_pages = int(counts.max()) if counts.shape[0] else 0
    columns = torch.arange(max_pages, device=indices.device)
    inside = columns < counts[:, None]
    if max_pages == 0:
        table = indices.new_zeros((last.shape[0], 0), dtype=torch.int64)
    else:
        table = indices[torch.where(inside, indptr[:-1, None] + columns, 0)].long()
    return table, torch.where(counts > 0, (counts - 1) * page_size + last, 0)[:, None]


def _gather(cache: Any, table: Any, lengths: Any) -> Any:
    """Gathers a cache ``[pages, page_size, …]`` by request; elements past the length are set to 0."""
    found = cache[table].flatten(1, 2)
    inside = torch.arange(found.shape[1], device=found.device) < lengths
    return found.masked_fill_(~inside[(...,) + (None,) * (found.dim() - 2)], 0)


def paged_decode(
    q: Any, k_cache: Any, v_cache: Any, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any, alibi_slopes: Any = None,
    sinks: Any = None, score_mod: Any = None, score_params: Any = None, *, window_left: int, soft_cap: float, sm_scale: float,
    return_lse: bool, layout: str,
) -> Any:  # fmt: skip
    """One query per request."""
    if layout == "HND":
        k_cache, v_cache = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
    table, lengths = _table(kv_indptr, kv_indices, kv_last_page_len, k_cache.shape[1])
    k, v = (_gather(cache, table, lengths).transpose(1, 2) for cache in (k_cache, v_cache))
    return decode_rows(q, k, v, lengths, alibi_slopes, window_left, soft_cap, sm_scale, return_lse, sinks, score_mod, score_params)


def paged_decode_fp8(
    q: Any, k_cache: Any, v_cache: Any, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any, alibi_slopes: Any = None,
    sinks: Any = None, k_scale: Any = None, v_scale: Any = None, score_mod: Any = None, score_params: Any = None, *,
    window_left: int, soft_cap: float, sm_scale: float, return_lse: bool, layout: str,
) -> Any:  # fmt: skip
    """One query per request, over pages of FP8 codes."""
    caches = (k_cache.view(torch.uint8), v_cache.view(torch.uint8))
    if layout == "HND":
        caches = (caches[0].transpose(1, 2), caches[1].transpose(1, 2))
    table, lengths = _table(kv_indptr, kv_indices, kv_last_page_len, caches[0].shape[1])
    decoders = (_decoder(k_cache, k_scale, score_mod), _decoder(v_cache, v_scale, score_mod))
    k, v = (decode(_gather(cache, table, lengths)).transpose(1, 2) for cache, decode in zip(caches, decoders, strict=True))
    return decode_rows(q, k, v, lengths, alibi_slopes, window_left, soft_cap, sm_scale, return_lse, sinks, score_mod, score_params)


def latent(
    q_nope: Any, q_pe: Any, ckv: Any, kpe: Any, *,
    sm_scale: float, return_lse: bool, causal: bool = False, causal_offset: int = 0,
) -> Any:  # fmt: skip
    """Queries over contiguous latents, which all heads share (MLA)."""
    q = torch.cat((q_nope, q_pe), -1).transpose(0, 1)[None]
    k, v = torch.cat((ckv, kpe), -1).transpose(0, 1)[None], ckv.transpose(0, 1)[None]
    output, lse = attend_in_sequence(q, k, v, None, None, causal_offset, causal, -1, -1, sm_scale, 0.0)
    output = output[0].transpose(0, 1).to(q_nope.dtype)
    return (output, lse[0].T) if return_lse else output


def paged_latent(
    q_nope: Any, q_pe: Any, ckv_cache: Any, kpe_cache: Any, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any, *,
    sm_scale: float, return_lse: bool,
) -> Any:  # fmt: skip
    """One query per request over pages of latents (MLA)."""
    table, lengths = _table(kv_indptr, kv_indices, kv_last_page_len, ckv_cache.shape[1])
    ckv, kpe = (_gather(cache, table, lengths) for cache in (ckv_cache, kpe_cache))
    q, k = torch.cat((q_nope, q_pe), -1), torch.cat((ckv, kpe), -1)
    return decode_rows(q, k[:, None], ckv[:, None], lengths, None, -1, 0.0, sm_scale, return_lse)
