"""FlashInfer's attention: single requests, ragged batches, paged caches, MLA, block-sparse patterns.

Its lse has base 2 and is converted; causal masks are aligned at the last key, as in the operations. Rows
without a visible key give 0 with an lse of about -50000, which is converted to -∞. The FlashAttention 3
kernels are wrong for queries before the first key and are not used for them.
"""

from __future__ import annotations

from math import log
from typing import Any

import flashinfer
import torch
from flashinfer.mla import BatchMLAPagedAttentionWrapper
from flashinfer.prefill import get_single_prefill_module

from layerzero import _native
from layerzero.backends.flashinfer import _direct
from layerzero.backends.flashinfer._plans import Planned, Recipe, planned, scratch

_LN2 = log(2.0)
#: Functions of compiled modules, by their compile-time parameters.
_SINGLE: dict[tuple[Any, ...], Any] = {}


_reshape_leading = _native.reshape_leading
_empty_like = torch.empty_like
_CONTIGUOUS = torch.contiguous_format


def _run(entry: Planned, q: Any, value_dim: int, return_lse: bool, run: Any, *tensors: Any) -> Any:
    """Output and natural lse of a planned wrapper. `run` calls it with output tensors; `tensors` are its other arguments."""
    output = _empty_like(q, memory_format=_CONTIGUOUS) if value_dim == q.shape[-1] else q.new_empty((*q.shape[:-1], value_dim))
    if not return_lse:
        lse, direct, tensors = None, entry.direct, (*tensors, output)
    else:
        lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
        direct, tensors = entry.direct_with_lse, (*tensors, output, lse)
    if direct is not None:
        _direct.run(direct, tensors)
    else:
        direct = _direct.record(entry.wrapper, lambda: run(output, lse), tensors)
        if return_lse:
            entry.direct_with_lse = direct
        else:
            entry.direct = direct
    if lse is None:
        return output
    return output, _convert_lse(lse, entry.empty)


def _convert_lse(lse: Any, empty: Any) -> Any:
    lse.mul_(_LN2)
    if empty is not None:
        lse.masked_fill_(empty[:, None], float("-inf"))
    return lse


def single_prefill(
    backend: str, q: Any, k: Any, v: Any, mask: Any, alibi_slopes: Any = None, *,
    causal: bool = False, causal_offset: int = 0, window_left: int = -1, window_right: int = -1, soft_cap: float = 0.0,
    sm_scale: float, return_lse: bool = False, layout: str,
) -> Any:  # fmt: skip
    """One request over contiguous keys; it needs no plan. BHSD tensors are passed as transposed views: with
    that layout passed as such, the FlashAttention 3 kernel ended the process with SIGFPE on a GPU."""
    whole = q
    if layout == "BHSD":
        q, k, v = q[0].transpose(0, 1), k[0].transpose(0, 1), v[0].transpose(0, 1)
    else:
        q, k, v = _reshape_leading(q, q.shape[1]), _reshape_leading(k, k.shape[1]), _reshape_leading(v, v.shape[1])
    tokens, heads, head_dim = q.shape
    value_dim = v.shape[2]
    key = (backend, q.dtype, head_dim, value_dim, window_left >= 0, soft_cap > 0)
    run = _SINGLE.get(key)
    if run is None:
        run = get_single_prefill_module(
            backend, q.dtype, k.dtype, q.dtype, head_dim, value_dim, 0, window_left >= 0, soft_cap > 0, False
        ).run
        _SINGLE[key] = run
    # The library assumes contiguous output rows, whatever the strides of the queries.
    if value_dim == head_dim and layout == "BSHD" and whole.is_contiguous():
        output = _empty_like(whole)
        rows = _reshape_leading(output, tokens)
    else:
        rows = q.new_empty((tokens, heads, value_dim))
        output = (rows.transpose(0, 1) if layout == "BHSD" else rows)[None]
    lse = torch.empty((tokens, heads), dtype=torch.float32, device=q.device) if return_lse else None
    # The library's own workspace would be shared by all streams. 0 and 1 are the library's codes for no mask
    # and causal.
    run(
        q, k, v, scratch(q), rows, lse, 1 if causal else 0, 0, window_left, None, None, soft_cap, sm_scale,
        None, None, None, 1.0, 1e4,
    )  # fmt: skip
    if lse is None:
        return output
    lse.mul_(_LN2)
    return output, (lse.transpose(0, 1) if layout == "BHSD" else lse)[None]


def _steps(count: int, size: int) -> Any:
    return torch.arange(0, count * size + 1, size, dtype=torch.int32)


def dense_prefill(
    backend: str, q: Any, k: Any, v: Any, mask: Any, alibi_slopes: Any = None, *,
    causal: bool = False, causal_offset: int = 0, window_left: int = -1, window_right: int = -1, soft_cap: float = 0.0,
    sm_scale: float, return_lse: bool = False, layout: str,
) -> Any:  # fmt: skip
    """A batch of requests of equal length; its plan depends on shapes only."""
    call_key = ("dense", backend, q.shape, k.shape, v.shape, q.dtype, causal, window_left, soft_cap, sm_scale)
    entry = planned(call_key, q, (), _dense_recipe, k)
    batch, seq_q, heads, _ = q.shape
    rows = batch * k.shape[1]
    q, k, v = _reshape_leading(q, batch * seq_q), _reshape_leading(k, rows), _reshape_leading(v, rows)

    def run(output: Any, lse: Any) -> None:
        entry.wrapper.run(q, k, v, out=output, lse=lse, return_lse=return_lse)

    result = _run(entry, q, v.shape[2], return_lse, run, q, k, v)
    if return_lse:
        return result[0].view(batch, seq_q, heads, -1), result[1].view(batch, seq_q, heads)
    return result.view(batch, seq_q, heads, -1)


def _dense_recipe(call_key: tuple[Any, ...], k: Any) -> Recipe:
    _, backend, queries, keys, values, dtype, causal, window_left, soft_cap, sm_scale = call_key
    batch, seq_q, heads, head_dim = queries

    def plan(wrapper: Any) -> None:
        wrapper.plan(
            _steps(batch, seq_q), _steps(batch, keys[1]), heads, keys[2], head_dim, values[3], causal=causal,
            window_left=window_left, logits_soft_cap=soft_cap, sm_scale=sm_scale, q_data_type=dtype, kv_data_type=k.dtype,
        )  # fmt: skip

    return Recipe(call_key, lambda memory: flashinfer.BatchPrefillWithRaggedKVCacheWrapper(memory, "NHD", backend=backend), plan)


def _decline_early_queries(queries: Any, lengths: Any, causal: bool, backend: str) -> None:
    """Declines queries before the first key if the kernels are wrong for them."""
    if causal and backend == "fa3" and bool((queries > lengths).any()):
        raise NotImplementedError("a causal request has more queries than keys, which the FlashAttention 3 kernels compute incorrectly")


def _rows_without_keys(queries: Any, lengths: Any, causal: bool, device: Any) -> Any:
    """Queries without a visible key: those of requests without keys, and causal ones before the first key."""
    hidden = torch.where(lengths == 0, queries, (queries - lengths).clamp(min=0) if causal else torch.zeros_like(queries))
    if not bool(hidden.any()):
        return None
    starts = torch.repeat_interleave(queries.cumsum(0) - queries, queries)
    position = torch.arange(int(queries.sum())) - starts
    return (position < torch.repeat_interleave(hidden, queries)).to(device)


def ragged_prefill(
    backend: str, q: Any, k: Any, v: Any, qo_indptr: Any, kv_indptr: Any, alibi_slopes: Any = None, *,
    causal: bool, window_left: int, window_right: int, soft_cap: float, sm_scale: float, return_lse: bool,
) -> Any:  # fmt: skip
    """Requests of different lengths, concatenated without padding."""
    call_key = ("ragged", backend, q.shape, k.shape, v.shape, q.dtype, causal, window_left, soft_cap, sm_scale)
    entry = planned(call_key, q, (qo_indptr, kv_indptr), _ragged_recipe, k, qo_indptr, kv_indptr)

    def run(output: Any, lse: Any) -> None:
        entry.wrapper.run(q, k, v, out=output, lse=lse, return_lse=return_lse)

    return _run(entry, q, v.shape[2], return_lse, run, q, k, v)


def _ragged_recipe(call_key: tuple[Any, ...], k: Any, qo_indptr: Any, kv_indptr: Any) -> Recipe:
    kind, backend, (_, heads, head_dim), keys, values, dtype, causal, window_left, soft_cap, sm_scale = call_key
    key = (kind, backend, heads, keys[1], head_dim, values[2], dtype, causal, window_left, soft_cap, sm_scale)

    def plan(wrapper: Any) -> Any:
        queries, lengths = qo_indptr.cpu(), kv_indptr.cpu()
        _decline_early_queries(queries.diff(), lengths.diff(), causal, backend)
        wrapper.plan(
            queries, lengths, heads, keys[1], head_dim, values[2], causal=causal, window_left=window_left,
            logits_soft_cap=soft_cap, sm_scale=sm_scale, q_data_type=dtype, kv_data_type=k.dtype,
        )  # fmt: skip
        return _rows_without_keys(queries.diff(), lengths.diff(), causal, k.device)

    return Recipe(key, lambda memory: flashinfer.BatchPrefillWithRaggedKVCacheWrapper(memory, "NHD", backend=backend), plan)


def _lengths(indptr: Any, last: Any, page_size: int) -> Any:
    pages = indptr.diff()
    return torch.where(pages > 0, (pages - 1) * page_size + last, torch.zeros_like(pages))


def paged_prefill(
    backend: str, q: Any, k_cache: Any, v_cache: Any, qo_indptr: Any, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any,
    alibi_slopes: Any = None, *, causal: bool, window_left: int, window_right: int, soft_cap: float, sm_scale: float,
    return_lse: bool, layout: str,
) -> Any:  # fmt: skip
    """Requests of different lengths over pages."""
    call_key = ("paged", backend, q.shape, k_cache.shape, q.dtype, causal, window_left, soft_cap, sm_scale, layout)
    tables = (qo_indptr, kv_indptr, kv_indices, kv_last_page_len)
    entry = planned(call_key, q, tables, _paged_recipe, k_cache, tables)

    def run(output: Any, lse: Any) -> None:
        entry.wrapper.run(q, (k_cache, v_cache), out=output, lse=lse, return_lse=return_lse)

    return _run(entry, q, v_cache.shape[3], return_lse, run, q, k_cache, v_cache)


def _page(cache: Any, layout: str) -> tuple[int, int]:
    """Page size and number of heads."""
    return (cache[1], cache[2]) if layout == "NHD" else (cache[2], cache[1])


def _paged_recipe(call_key: tuple[Any, ...], k: Any, tables: tuple[Any, ...]) -> Recipe:
    kind, backend, (_, heads, head_dim), cache, dtype, causal, window_left, soft_cap, sm_scale, layout = call_key
    page_size, kv_heads = _page(cache, layout)
    key = (kind, backend, heads, kv_heads, head_dim, page_size, dtype, causal, window_left, soft_cap, sm_scale, layout)
    qo_indptr, kv_indptr, kv_indices, kv_last_page_len = tables

    def plan(wrapper: Any) -> Any:
        queries, pages, last = qo_indptr.cpu(), kv_indptr.cpu(), kv_last_page_len.cpu()
        lengths = _lengths(pages, last, page_size)
        _decline_early_queries(queries.diff(), lengths, causal, backend)
        wrapper.plan(
            queries, pages, kv_indices, last, heads, kv_heads, head_dim, page_size, causal=causal, window_left=window_left,
            logits_soft_cap=soft_cap, sm_scale=sm_scale, q_data_type=dtype, kv_data_type=k.dtype,
        )  # fmt: skip
        return _rows_without_keys(queries.diff(), lengths, causal, k.device)

    return Recipe(key, lambda memory: flashinfer.BatchPrefillWithPagedKVCacheWrapper(memory, layout, backend=backend), plan)


def paged_decode(
    tensor_cores: bool, q: Any, k_cache: Any, v_cache: Any, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any,
    alibi_slopes: Any = None, *, window_left: int, soft_cap: float, sm_scale: float, return_lse: bool, layout: str,
) -> Any:  # fmt: skip
    """One query per request over pages."""
    call_key = ("decode", tensor_cores, q.shape, k_cache.shape, q.dtype, window_left, soft_cap, sm_scale, layout)
    tables = (kv_indptr, kv_indices, kv_last_page_len)
    entry = planned(call_key, q, tables, _decode_recipe, k_cache, tables)

    def run(output: Any, lse: Any) -> None:
        entry.wrapper.run(q, (k_cache, v_cache), out=output, lse=lse, return_lse=return_lse)

    return _run(entry, q, v_cache.shape[3], return_lse, run, q, k_cache, v_cache)


def _decode_recipe(call_key: tuple[Any, ...], k: Any, tables: tuple[Any, ...]) -> Recipe:
    kind, tensor_cores, (_, heads, head_dim), cache, dtype, window_left, soft_cap, sm_scale, layout = call_key
    page_size, kv_heads = _page(cache, layout)
    key = (kind, tensor_cores, heads, kv_heads, head_dim, page_size, dtype, window_left, soft_cap, sm_scale, layout)
    kv_indptr, kv_indices, kv_last_page_len = tables

    def plan(wrapper: Any) -> Any:
        pages, last = kv_indptr.cpu(), kv_last_page_len.cpu()
        wrapper.plan(
            pages, kv_indices, last, heads, kv_heads, head_dim, page_size, window_left=window_left, logits_soft_cap=soft_cap,
            sm_scale=sm_scale, q_data_type=dtype, kv_data_type=k.dtype,
        )  # fmt: skip
        empty = _lengths(pages, last, page_size) == 0
        return empty.to(k.device) if bool(empty.any()) else None

    return Recipe(key, lambda memory: flashinfer.BatchDecodeWithPagedKVCacheWrapper(memory, layout, use_tensor_cores=tensor_cores), plan)


def dense_decode(
    tensor_cores: bool, q: Any, k: Any, v: Any, kv_lens: Any, alibi_slopes: Any = None, *,
    window_left: int = -1, soft_cap: float = 0.0, sm_scale: float, return_lse: bool = False, layout: str,
) -> Any:  # fmt: skip
    """One query per row over contiguous keys, viewed as pages: the page table is built here from shapes and lengths."""
    call_key = ("rows", tensor_cores, q.shape, k.shape, q.dtype, window_left, soft_cap, sm_scale, kv_lens is None)
    entry = planned(call_key, q, () if kv_lens is None else (kv_lens,), _rows_recipe, k, kv_lens)
    batch, seq_k = k.shape[:2]
    page_size = _largest_page(seq_k)
    pages = batch * seq_k // page_size
    k, v = _reshape_leading(k, pages, page_size), _reshape_leading(v, pages, page_size)

    def run(output: Any, lse: Any) -> None:
        entry.wrapper.run(q, (k, v), out=output, lse=lse, return_lse=return_lse)

    return _run(entry, q, v.shape[3], return_lse, run, q, k, v)


def _largest_page(length: int) -> int:
    """The largest power of two, at most 16, that divides a length."""
    return min(length & -length, 16) or 16


def _rows_recipe(call_key: tuple[Any, ...], k: Any, kv_lens: Any) -> Recipe:
    _, tensor_cores, (batch, heads, _), (_, seq_k, kv_heads, head_dim), dtype, window_left, soft_cap, sm_scale, _ = call_key
    page_size = _largest_page(seq_k)

    def plan(wrapper: Any) -> Any:
        lengths = torch.full((batch,), seq_k, dtype=torch.int32) if kv_lens is None else kv_lens.cpu()
        pages = (lengths + page_size - 1) // page_size
        indptr = torch.cat((torch.zeros(1, dtype=torch.int32), pages.cumsum(0, dtype=torch.int32)))
        first = torch.arange(batch, dtype=torch.int32) * (seq_k // page_size)
        shift = torch.repeat_interleave(first - indptr[:-1], pages.long())
        indices = torch.arange(int(indptr[-1]), dtype=torch.int32) + shift
        last = torch.where(pages > 0, lengths - (pages - 1) * page_size, torch.zeros_like(lengths))
        wrapper.plan(
            indptr, indices.to(k.device), last, heads, kv_heads, head_dim, page_size, window_left=window_left,
            logits_soft_cap=soft_cap, sm_scale=sm_scale, q_data_type=dtype, kv_data_type=k.dtype,
        )  # fmt: skip
        return (lengths == 0).to(k.device) if bool((lengths == 0).any()) else None

    return Recipe(call_key, lambda memory: flashinfer.BatchDecodeWithPagedKVCacheWrapper(memory, "NHD", use_tensor_cores=tensor_cores), plan)


def paged_latent(
    backend: str, q_nope: Any, q_pe: Any, ckv_cache: Any, kpe_cache: Any, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any,
    *, sm_scale: float, return_lse: bool,
) -> Any:  # fmt: skip
    """One query per request over pages of latents (MLA)."""
    call_key = ("latent", backend, q_nope.shape, q_pe.shape, ckv_cache.shape, q_nope.dtype, sm_scale)
    tables = (kv_indptr, kv_indices, kv_last_page_len)
    entry = planned(call_key, q_nope, tables, _latent_pages_recipe, ckv_cache, tables)

    def run(output: Any, lse: Any) -> None:
        entry.wrapper.run(q_nope, q_pe, ckv_cache, kpe_cache, out=output, lse=lse, return_lse=return_lse)

    result = _run(entry, q_nope, q_nope.shape[2], return_lse, run, q_nope, q_pe, ckv_cache, kpe_cache)
    if entry.empty is not None:
        (result[0] if return_lse else result).masked_fill_(entry.empty[:, None, None], 0)
    return result


def _latent_pages_recipe(call_key: tuple[Any, ...], ckv: Any, tables: tuple[Any, ...]) -> Recipe:
    kind, backend, (_, heads, dim_ckv), (_, _, dim_kpe), (_, page_size, _), dtype, sm_scale = call_key
    kv_indptr, kv_indices, kv_last_page_len = tables

    def plan(wrapper: Any) -> Any:
        pages = kv_indptr.cpu()
        lengths = _lengths(pages, kv_last_page_len.cpu(), page_size)
        wrapper.plan(
            torch.arange(len(pages), dtype=torch.int32), pages, kv_indices, lengths, heads, dim_ckv, dim_kpe,
            page_size, False, sm_scale, dtype, ckv.dtype,
        )  # fmt: skip
        return (lengths == 0).to(ckv.device) if bool((lengths == 0).any()) else None

    key = (kind, backend, heads, page_size, dtype, sm_scale)
    return Recipe(key, lambda memory: BatchMLAPagedAttentionWrapper(memory, backend=backend), plan)


def latent(
    backend: str, q_nope: Any, q_pe: Any, ckv: Any, kpe: Any, *,
    sm_scale: float, return_lse: bool, causal: bool = False, causal_offset: int = 0,
) -> Any:  # fmt: skip
    """Queries of one request over contiguous latents (MLA): pages of one token each, with a page table built here."""
    call_key = ("latents", backend, q_nope.shape, q_pe.shape, ckv.shape, q_nope.dtype, sm_scale, causal)
    entry = planned(call_key, q_nope, (), _latents_recipe, ckv)

    def run(output: Any, lse: Any) -> None:
        entry.wrapper.run(q_nope, q_pe, ckv, kpe, out=output, lse=lse, return_lse=return_lse)

    return _run(entry, q_nope, q_nope.shape[2], return_lse, run, q_nope, q_pe, ckv, kpe)


def _latents_recipe(call_key: tuple[Any, ...], ckv: Any) -> Recipe:
    _, backend, (tokens, heads, dim_ckv), (_, _, dim_kpe), (kv_len, _, _), dtype, sm_scale, causal = call_key

    def plan(wrapper: Any) -> None:
        wrapper.plan(
            torch.tensor([0, tokens], dtype=torch.int32), torch.tensor([0, kv_len], dtype=torch.int32),
            torch.arange(kv_len, dtype=torch.int32, device=ckv.device), torch.tensor([kv_len], dtype=torch.int32),
            heads, dim_ckv, dim_kpe, 1, causal, sm_scale, dtype, ckv.dtype,
        )  # fmt: skip

    return Recipe(call_key, lambda memory: BatchMLAPagedAttentionWrapper(memory, backend=backend), plan)


def block_sparse(
    backend: str, q: Any, k: Any, v: Any, indptr: Any, indices: Any, *,
    block_rows: int, block_cols: int, soft_cap: float, sm_scale: float, return_lse: bool,
) -> Any:  # fmt: skip
    """Block-sparse attention: blocks of keys for blocks of queries."""
    call_key = ("sparse", backend, q.shape, k.shape, block_rows, block_cols, q.dtype, soft_cap, sm_scale)
    entry = planned(call_key, q, (indptr, indices), _sparse_recipe, k, indptr, indices)
    result = entry.wrapper.run(q, k, v, return_lse=return_lse)
    return (result[0], _convert_lse(result[1], entry.empty)) if return_lse else result


def _sparse_recipe(call_key: tuple[Any, ...], k: Any, indptr: Any, indices: Any) -> Recipe:
    _, backend, (m, heads, head_dim), (n, kv_heads, _), block_rows, block_cols, dtype, soft_cap, sm_scale = call_key

    def plan(wrapper: Any) -> Any:
        wrapper.plan(
            indptr, indices, m, n, block_rows, block_cols, heads, kv_heads, head_dim, logits_soft_cap=soft_cap, sm_scale=sm_scale,
            q_data_type=dtype, kv_data_type=k.dtype, o_data_type=dtype,
        )  # fmt: skip
        hidden = indptr.diff() == 0
        return hidden.repeat_interleave(block_rows)[:m] if bool(hidden.any()) else None

    return Recipe(call_key, lambda memory: flashinfer.BlockSparseAttentionWrapper(memory, backend=backend), plan)


def variable_block_sparse(
    backend: str, q: Any, k: Any, v: Any, block_mask: Any, block_row_sizes: Any, block_col_sizes: Any, *,
    soft_cap: float, sm_scale: float, return_lse: bool,
) -> Any:  # fmt: skip
    """Blocks of different sizes, separate for each key head."""
    call_key = ("variable", backend, q.shape, k.shape, q.dtype, soft_cap, sm_scale, block_mask.shape)
    watched = (block_mask, block_row_sizes, block_col_sizes)
    entry = planned(call_key, q, watched, _variable_recipe, k, watched)
    result = entry.wrapper.run(q, k, v, return_lse=return_lse)
    if not return_lse:
        return result
    output, lse = result
    lse.mul_(_LN2)
    if entry.empty is not None:
        lse.masked_fill_(entry.empty, float("-inf"))
    return output, lse


def _variable_recipe(call_key: tuple[Any, ...], k: Any, watched: tuple[Any, ...]) -> Recipe:
    _, backend, (heads, m, head_dim), (kv_heads, _, _), dtype, soft_cap, sm_scale, _ = call_key
    block_mask, block_row_sizes, block_col_sizes = watched

    def plan(wrapper: Any) -> Any:
        lengths = (block_mask * block_col_sizes[:, None, :]).sum(-1)
        if not bool(lengths.any()):
            raise NotImplementedError("FlashInfer cannot plan a block mask in which no query sees a key")
        wrapper.plan(
            block_mask, block_row_sizes, block_col_sizes, heads, kv_heads, head_dim, logits_soft_cap=soft_cap, sm_scale=sm_scale,
            q_data_type=dtype, kv_data_type=k.dtype,
        )  # fmt: skip
        hidden = torch.repeat_interleave((lengths == 0).flatten(), block_row_sizes.flatten()).view(kv_heads, m)
        return hidden.repeat_interleave(heads // kv_heads, 0) if bool(hidden.any()) else None

    return Recipe(call_key, lambda memory: flashinfer.VariableBlockSparseAttentionWrapper(memory, backend=backend), plan)
