"""FlashInfer's attention: one request, batches without padding, paged caches, latents, block-sparse patterns.

Its lse has base 2, which is converted; its causality is aligned at the last key, as ours is. Rows that see no key come out as 0
with an lse of about -50000, which becomes -∞. FlashAttention 3's kernels are wrong for queries that stand before the first
key, and are not used for them.
"""

from __future__ import annotations

from math import log
from typing import Any

import flashinfer
import torch
from flashinfer.mla import BatchMLAPagedAttentionWrapper
from flashinfer.prefill import get_single_prefill_module

from layerzero.backends.flashinfer._plans import Planned, planned, scratch

_LN2 = log(2.0)
#: Compiled modules' functions, by what they were compiled for.
_SINGLE: dict[tuple[Any, ...], Any] = {}


def _finish(result: Any, return_lse: bool, empty: Any = None) -> Any:
    if not return_lse:
        return result
    output, lse = result
    lse.mul_(_LN2)
    if empty is not None:
        lse.masked_fill_(empty[:, None], float("-inf"))
    return output, lse


def single_prefill(
    backend: str, q: Any, k: Any, v: Any, mask: Any, alibi_slopes: Any = None, *,
    causal: bool = False, causal_offset: int = 0, window_left: int = -1, window_right: int = -1, soft_cap: float = 0.0,
    sm_scale: float, return_lse: bool = False, layout: str,
) -> Any:  # fmt: skip
    """One request over contiguous keys; it needs no plan. Heads that lie before places are looked at in the other order: told of
    that layout, FlashAttention 3's kernel ended the process by SIGFPE on a card."""
    q, k, v = q[0], k[0], v[0]
    if layout == "BHSD":
        q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
    tokens, heads, head_dim = q.shape
    value_dim = v.shape[2]
    key = (backend, q.dtype, head_dim, value_dim, window_left >= 0, soft_cap > 0)
    run = _SINGLE.get(key)
    if run is None:
        run = get_single_prefill_module(
            backend, q.dtype, k.dtype, q.dtype, head_dim, value_dim, 0, window_left >= 0, soft_cap > 0, False
        ).run
        _SINGLE[key] = run
    output = torch.empty((tokens, heads, value_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((tokens, heads), dtype=torch.float32, device=q.device) if return_lse else None
    # Its own scratch memory would be shared by all streams. 0 and 1 are the library's numbers for no mask and for causality.
    run(
        q, k, v, scratch(q.device), output, lse, 1 if causal else 0, 0, window_left, None, None, soft_cap, sm_scale,
        None, None, None, 1.0, 1e4,
    )  # fmt: skip
    if layout == "BHSD":
        output = output.transpose(0, 1)
    if lse is None:
        return output[None]
    lse.mul_(_LN2)
    return output[None], (lse.transpose(0, 1) if layout == "BHSD" else lse)[None]


def _steps(count: int, size: int) -> Any:
    return torch.arange(0, count * size + 1, size, dtype=torch.int32)


def dense_prefill(
    backend: str, q: Any, k: Any, v: Any, mask: Any, alibi_slopes: Any = None, *,
    causal: bool = False, causal_offset: int = 0, window_left: int = -1, window_right: int = -1, soft_cap: float = 0.0,
    sm_scale: float, return_lse: bool = False, layout: str,
) -> Any:  # fmt: skip
    """A batch of equally long requests; its plan depends on nothing but shapes."""
    batch, seq_q, heads, head_dim = q.shape
    seq_k, kv_heads, head_dim_v = k.shape[1], k.shape[2], v.shape[3]
    key = ("dense", backend, batch, seq_q, seq_k, heads, kv_heads, head_dim, head_dim_v, q.dtype, causal, window_left, soft_cap, sm_scale)

    def plan(wrapper: Any) -> None:
        wrapper.plan(
            _steps(batch, seq_q), _steps(batch, seq_k), heads, kv_heads, head_dim, head_dim_v, causal=causal,
            window_left=window_left, logits_soft_cap=soft_cap, sm_scale=sm_scale, q_data_type=q.dtype, kv_data_type=k.dtype,
        )  # fmt: skip

    made = planned(key, q.device, (), lambda memory: flashinfer.BatchPrefillWithRaggedKVCacheWrapper(memory, "NHD", backend=backend), plan)
    result = made.wrapper.run(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), return_lse=return_lse)
    result = _finish(result, return_lse)
    if return_lse:
        return result[0].unflatten(0, (batch, seq_q)), result[1].unflatten(0, (batch, seq_q))
    return result.unflatten(0, (batch, seq_q))


def _late(queries: Any, lengths: Any, causal: bool, backend: str) -> None:
    """Declines queries that stand before the first key where the kernels are wrong for them."""
    if causal and backend == "fa3" and bool((queries > lengths).any()):
        raise NotImplementedError("a request has more queries than keys, which FlashAttention 3's kernels get wrong with causality")


def _rows_without_keys(queries: Any, lengths: Any, causal: bool, device: Any) -> Any:
    """Which queries see nothing: those of requests without keys, and with causality those that stand before the first key."""
    blind = torch.where(lengths == 0, queries, (queries - lengths).clamp(min=0) if causal else torch.zeros_like(queries))
    if not bool(blind.any()):
        return None
    starts = torch.repeat_interleave(queries.cumsum(0) - queries, queries)
    place = torch.arange(int(queries.sum())) - starts
    return (place < torch.repeat_interleave(blind, queries)).to(device)


def ragged_prefill(
    backend: str, q: Any, k: Any, v: Any, qo_indptr: Any, kv_indptr: Any, alibi_slopes: Any = None, *,
    causal: bool, window_left: int, window_right: int, soft_cap: float, sm_scale: float, return_lse: bool,
) -> Any:  # fmt: skip
    """Requests of different lengths, one after the other."""
    heads, head_dim, kv_heads, head_dim_v = q.shape[1], q.shape[2], k.shape[1], v.shape[2]
    key = ("ragged", backend, heads, kv_heads, head_dim, head_dim_v, q.dtype, causal, window_left, soft_cap, sm_scale)

    def plan(wrapper: Any) -> Any:
        queries, keys = qo_indptr.cpu(), kv_indptr.cpu()
        _late(queries.diff(), keys.diff(), causal, backend)
        wrapper.plan(
            queries, keys, heads, kv_heads, head_dim, head_dim_v, causal=causal, window_left=window_left,
            logits_soft_cap=soft_cap, sm_scale=sm_scale, q_data_type=q.dtype, kv_data_type=k.dtype,
        )  # fmt: skip
        return _rows_without_keys(queries.diff(), keys.diff(), causal, q.device)

    made = planned(
        key, q.device, (qo_indptr, kv_indptr),
        lambda memory: flashinfer.BatchPrefillWithRaggedKVCacheWrapper(memory, "NHD", backend=backend), plan,
    )  # fmt: skip
    return _finish(made.wrapper.run(q, k, v, return_lse=return_lse), return_lse, made.empty)


def _lengths(indptr: Any, last: Any, page_size: int) -> Any:
    pages = indptr.diff()
    return torch.where(pages > 0, (pages - 1) * page_size + last, torch.zeros_like(pages))


def paged_prefill(
    backend: str, q: Any, k_cache: Any, v_cache: Any, qo_indptr: Any, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any,
    alibi_slopes: Any = None, *, causal: bool, window_left: int, window_right: int, soft_cap: float, sm_scale: float,
    return_lse: bool, layout: str,
) -> Any:  # fmt: skip
    """Requests of different lengths over pages."""
    heads, head_dim = q.shape[1], q.shape[2]
    page_size, kv_heads = (k_cache.shape[1], k_cache.shape[2]) if layout == "NHD" else (k_cache.shape[2], k_cache.shape[1])
    key = ("paged", backend, heads, kv_heads, head_dim, page_size, q.dtype, causal, window_left, soft_cap, sm_scale, layout)

    def plan(wrapper: Any) -> Any:
        queries, pages, last = qo_indptr.cpu(), kv_indptr.cpu(), kv_last_page_len.cpu()
        lengths = _lengths(pages, last, page_size)
        _late(queries.diff(), lengths, causal, backend)
        wrapper.plan(
            queries, pages, kv_indices, last, heads, kv_heads, head_dim, page_size, causal=causal, window_left=window_left,
            logits_soft_cap=soft_cap, sm_scale=sm_scale, q_data_type=q.dtype, kv_data_type=k_cache.dtype,
        )  # fmt: skip
        return _rows_without_keys(queries.diff(), lengths, causal, q.device)

    made = planned(
        key, q.device, (qo_indptr, kv_indptr, kv_indices, kv_last_page_len),
        lambda memory: flashinfer.BatchPrefillWithPagedKVCacheWrapper(memory, layout, backend=backend), plan,
    )  # fmt: skip
    return _finish(made.wrapper.run(q, (k_cache, v_cache), return_lse=return_lse), return_lse, made.empty)


def plan_paged_decode(
    tensor_cores: bool, q: Any, k_cache: Any, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any, *,
    window_left: int, soft_cap: float, sm_scale: float, layout: str,
) -> Planned:  # fmt: skip
    """The plan of a decode step for these pages."""
    heads, head_dim = q.shape[1], q.shape[2]
    page_size, kv_heads = (k_cache.shape[1], k_cache.shape[2]) if layout == "NHD" else (k_cache.shape[2], k_cache.shape[1])
    key = ("decode", tensor_cores, heads, kv_heads, head_dim, page_size, q.dtype, window_left, soft_cap, sm_scale, layout)

    def plan(wrapper: Any) -> Any:
        pages, last = kv_indptr.cpu(), kv_last_page_len.cpu()
        wrapper.plan(
            pages, kv_indices, last, heads, kv_heads, head_dim, page_size, window_left=window_left, logits_soft_cap=soft_cap,
            sm_scale=sm_scale, q_data_type=q.dtype, kv_data_type=k_cache.dtype,
        )  # fmt: skip
        empty = _lengths(pages, last, page_size) == 0
        return empty.to(q.device) if bool(empty.any()) else None

    return planned(
        key, q.device, (kv_indptr, kv_indices, kv_last_page_len),
        lambda memory: flashinfer.BatchDecodeWithPagedKVCacheWrapper(memory, layout, use_tensor_cores=tensor_cores), plan,
    )  # fmt: skip


def paged_decode(
    tensor_cores: bool, q: Any, k_cache: Any, v_cache: Any, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any,
    alibi_slopes: Any = None, *, window_left: int, soft_cap: float, sm_scale: float, return_lse: bool, layout: str,
) -> Any:  # fmt: skip
    """One query a request over pages."""
    made = plan_paged_decode(
        tensor_cores, q, k_cache, kv_indptr, kv_indices, kv_last_page_len,
        window_left=window_left, soft_cap=soft_cap, sm_scale=sm_scale, layout=layout,
    )  # fmt: skip
    return _finish(made.wrapper.run(q, (k_cache, v_cache), return_lse=return_lse), return_lse, made.empty)


def dense_decode(
    tensor_cores: bool, q: Any, k: Any, v: Any, kv_lens: Any, alibi_slopes: Any = None, *,
    window_left: int = -1, soft_cap: float = 0.0, sm_scale: float, return_lse: bool = False, layout: str,
) -> Any:  # fmt: skip
    """One query a row over contiguous keys, which are looked at as pages: their table is our own, made from shapes and lengths."""
    batch, seq_k, kv_heads, head_dim = k.shape
    heads = q.shape[1]
    page_size = next(size for size in (16, 8, 4, 2, 1) if seq_k % size == 0)
    key = ("rows", tensor_cores, batch, seq_k, heads, kv_heads, head_dim, q.dtype, window_left, soft_cap, sm_scale, kv_lens is None)

    def plan(wrapper: Any) -> Any:
        lengths = torch.full((batch,), seq_k, dtype=torch.int32) if kv_lens is None else kv_lens.cpu()
        pages = (lengths + page_size - 1) // page_size
        indptr = torch.cat((torch.zeros(1, dtype=torch.int32), pages.cumsum(0, dtype=torch.int32)))
        first = torch.arange(batch, dtype=torch.int32) * (seq_k // page_size)
        shift = torch.repeat_interleave(first - indptr[:-1], pages.long())
        indices = torch.arange(int(indptr[-1]), dtype=torch.int32) + shift
        last = torch.where(pages > 0, lengths - (pages - 1) * page_size, torch.zeros_like(lengths))
        wrapper.plan(
            indptr, indices.to(q.device), last, heads, kv_heads, head_dim, page_size, window_left=window_left,
            logits_soft_cap=soft_cap, sm_scale=sm_scale, q_data_type=q.dtype, kv_data_type=k.dtype,
        )  # fmt: skip
        return (lengths == 0).to(q.device) if bool((lengths == 0).any()) else None

    made = planned(
        key, q.device, () if kv_lens is None else (kv_lens,),
        lambda memory: flashinfer.BatchDecodeWithPagedKVCacheWrapper(memory, "NHD", use_tensor_cores=tensor_cores), plan,
    )  # fmt: skip
    paged = (-1, page_size, kv_heads, head_dim)
    return _finish(made.wrapper.run(q, (k.view(paged), v.view(paged)), return_lse=return_lse), return_lse, made.empty)


def paged_latent(
    backend: str, q_nope: Any, q_pe: Any, ckv_cache: Any, kpe_cache: Any, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any,
    *, sm_scale: float, return_lse: bool,
) -> Any:  # fmt: skip
    """One query a request over pages of latents."""
    heads, page_size = q_nope.shape[1], ckv_cache.shape[1]
    key = ("latent", backend, heads, page_size, q_nope.dtype, sm_scale)

    def plan(wrapper: Any) -> Any:
        pages = kv_indptr.cpu()
        lengths = _lengths(pages, kv_last_page_len.cpu(), page_size)
        wrapper.plan(
            torch.arange(len(pages), dtype=torch.int32), pages, kv_indices, lengths, heads, q_nope.shape[2], q_pe.shape[2],
            page_size, False, sm_scale, q_nope.dtype, ckv_cache.dtype,
        )  # fmt: skip
        return (lengths == 0).to(q_nope.device) if bool((lengths == 0).any()) else None

    made = planned(
        key, q_nope.device, (kv_indptr, kv_indices, kv_last_page_len),
        lambda memory: BatchMLAPagedAttentionWrapper(memory, backend=backend), plan,
    )  # fmt: skip
    result = made.wrapper.run(q_nope, q_pe, ckv_cache, kpe_cache, return_lse=return_lse)
    if made.empty is not None:
        (result[0] if return_lse else result).masked_fill_(made.empty[:, None, None], 0)
    return _finish(result, return_lse, made.empty)


def latent(
    backend: str, q_nope: Any, q_pe: Any, ckv: Any, kpe: Any, *,
    sm_scale: float, return_lse: bool, causal: bool = False, causal_offset: int = 0,
) -> Any:  # fmt: skip
    """Queries of one request over contiguous latents: pages of one token each, whose table is our own."""
    tokens, heads, kv_len = q_nope.shape[0], q_nope.shape[1], ckv.shape[0]
    key = ("latents", backend, tokens, heads, kv_len, q_nope.dtype, sm_scale, causal)

    def plan(wrapper: Any) -> None:
        wrapper.plan(
            torch.tensor([0, tokens], dtype=torch.int32), torch.tensor([0, kv_len], dtype=torch.int32),
            torch.arange(kv_len, dtype=torch.int32, device=q_nope.device), torch.tensor([kv_len], dtype=torch.int32),
            heads, q_nope.shape[2], q_pe.shape[2], 1, causal, sm_scale, q_nope.dtype, ckv.dtype,
        )  # fmt: skip

    made = planned(key, q_nope.device, (), lambda memory: BatchMLAPagedAttentionWrapper(memory, backend=backend), plan)
    return _finish(made.wrapper.run(q_nope, q_pe, ckv, kpe, return_lse=return_lse), return_lse)


def block_sparse(
    backend: str, q: Any, k: Any, v: Any, indptr: Any, indices: Any, *,
    block_rows: int, block_cols: int, soft_cap: float, sm_scale: float, return_lse: bool,
) -> Any:  # fmt: skip
    """Blocks of keys for blocks of queries."""
    m, heads, head_dim = q.shape
    n, kv_heads = k.shape[:2]
    key = ("sparse", backend, m, n, heads, kv_heads, head_dim, block_rows, block_cols, q.dtype, soft_cap, sm_scale)

    def plan(wrapper: Any) -> Any:
        wrapper.plan(
            indptr, indices, m, n, block_rows, block_cols, heads, kv_heads, head_dim, logits_soft_cap=soft_cap, sm_scale=sm_scale,
            q_data_type=q.dtype, kv_data_type=k.dtype, o_data_type=q.dtype,
        )  # fmt: skip
        blind = indptr.diff() == 0
        return blind.repeat_interleave(block_rows)[:m] if bool(blind.any()) else None

    made = planned(
        key, q.device, (indptr, indices), lambda memory: flashinfer.BlockSparseAttentionWrapper(memory, backend=backend), plan
    )
    return _finish(made.wrapper.run(q, k, v, return_lse=return_lse), return_lse, made.empty)


def variable_block_sparse(
    backend: str, q: Any, k: Any, v: Any, block_mask: Any, block_row_sizes: Any, block_col_sizes: Any, *,
    soft_cap: float, sm_scale: float, return_lse: bool,
) -> Any:  # fmt: skip
    """Blocks of different sizes, other ones for each head of the keys."""
    heads, m, head_dim = q.shape
    kv_heads = k.shape[0]
    key = ("variable", backend, m, k.shape[1], heads, kv_heads, head_dim, q.dtype, soft_cap, sm_scale, tuple(block_mask.shape))

    def plan(wrapper: Any) -> Any:
        lengths = (block_mask * block_col_sizes[:, None, :]).sum(-1)
        if not bool(lengths.any()):
            raise NotImplementedError("FlashInfer cannot plan a pattern in which no query sees a key")
        wrapper.plan(
            block_mask, block_row_sizes, block_col_sizes, heads, kv_heads, head_dim, logits_soft_cap=soft_cap, sm_scale=sm_scale,
            q_data_type=q.dtype, kv_data_type=k.dtype,
        )  # fmt: skip
        blind = torch.repeat_interleave((lengths == 0).flatten(), block_row_sizes.flatten()).view(kv_heads, m)
        return blind.repeat_interleave(heads // kv_heads, 0) if bool(blind.any()) else None

    made = planned(
        key, q.device, (block_mask, block_row_sizes, block_col_sizes),
        lambda memory: flashinfer.VariableBlockSparseAttentionWrapper(memory, backend=backend), plan,
    )  # fmt: skip
    result = made.wrapper.run(q, k, v, return_lse=return_lse)
    if not return_lse:
        return result
    output, lse = result
    lse.mul_(_LN2)
    if made.empty is not None:
        lse.masked_fill_(made.empty, float("-inf"))
    return output, lse
