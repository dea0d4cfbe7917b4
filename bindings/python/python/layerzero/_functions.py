"""Functions with common names. Each selects an operation of `layerzero.ops` and calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from layerzero import _native, ops
from layerzero._typing import Tensor

_T = TypeVar("_T", bound=Tensor)


def _heads(operation: str, q: Any, k: Any, axis_q: int, axis_k: int) -> Callable[..., Any]:
    """The `standard` operation if keys have as many heads as queries, else the grouped-query one."""
    same = q.shape[axis_q] == k.shape[axis_k]
    function: Callable[..., Any] = getattr(ops, f"attention_{'standard' if same else 'gqa'}_{operation}")
    return function


def _layout(q: Any, k: Any) -> Literal["BSHD", "BHSD"]:
    """The only layout in which the number of query heads is a multiple of that of key heads."""
    is_decode = len(q.shape) == 3

    def fits(axis: int) -> bool:
        heads, kv_heads = int(q.shape[1 if is_decode else axis]), int(k.shape[axis])
        return kv_heads > 0 and heads % kv_heads == 0

    rows, heads = fits(2), fits(1)
    if rows != heads:
        return "BSHD" if rows else "BHSD"
    shapes = f"q {list(q.shape)} and k {list(k.shape)}"
    message = f"{shapes} match {'both BSHD and BHSD' if rows else 'neither BSHD nor BHSD'}: pass layout"
    error = _native.ValidationError(message)
    error.reasons = [_native.reason("LAYOUT_AMBIGUOUS" if rows else "SHAPE_MISMATCH", message)]
    raise error


def attention(
    q: _T,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    kv_lens: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    score_mod: str | Tensor | None = None,
    score_params: Tensor | None = None,
    causal: bool = False,
    causal_offset: int | None = None,
    window_left: int | None = None,
    window_right: int | None = None,
    soft_cap: float | None = None,
    sm_scale: float | None = None,
    return_lse: bool = False,
    layout: Literal["BSHD", "BHSD"] | None = "BSHD",
    out: Tensor | Sequence[Tensor] | None = None,
) -> Any:
    """Attention over contiguous keys and values.

    Queries of rank 4 are a prefill, queries of rank 3 (``[batch, heads, head_dim]``) one decode step. Fewer
    key heads than query heads mean grouped-query attention. ``layout=None`` takes the layout that the numbers of heads
    allow, and is an error if they allow both: ``[B, 8, 32, D]`` is valid in either. ``sinks`` ``[heads]`` are logits that take
    part in the softmax and have no value (GPT-OSS). ``score_mod`` is an expression that replaces each score, such as
    ``"score + p0 * (kv_idx - q_pos)"`` with ``score_params`` ``[batch, heads, 1]`` (`lz docs score-mod`).
    """
    rank = len(q.shape)
    if rank not in (3, 4) or len(k.shape) != 4:
        raise ValueError(
            f"attention takes q of rank 4 (prefill) or 3 (one decode step) and k of rank 4; found q of rank {rank} and k of rank "
            f"{len(k.shape)}"
        )
    if layout is None:
        layout = _layout(q, k)
    axis = 2 if layout == "BSHD" else 1
    if rank == 4:
        if kv_lens is not None:
            raise ValueError("kv_lens is for decode steps (q of rank 3); in a prefill pass mask to hide keys")
        return _heads("prefill", q, k, axis, axis)(
            q,
            k,
            v,
            mask,
            alibi_slopes,
            sinks,
            score_mod,
            score_params,
            causal=causal,
            causal_offset=causal_offset,
            window_left=window_left,
            window_right=window_right,
            soft_cap=soft_cap,
            sm_scale=sm_scale,
            return_lse=return_lse,
            layout=layout,
            out=out,
        )
    # The query of a decode step is at the position of the last key, so causal masking hides nothing.
    for name, value in (("mask", mask), ("causal_offset", causal_offset), ("window_right", window_right)):
        if value is not None:
            raise ValueError(f"{name} cannot be used in a decode step (q of rank 3): its query is at the position of the last key")
    return _heads("decode", q, k, 1, axis)(
        q,
        k,
        v,
        kv_lens,
        alibi_slopes,
        sinks,
        score_mod,
        score_params,
        window_left=window_left,
        soft_cap=soft_cap,
        sm_scale=sm_scale,
        return_lse=return_lse,
        layout=layout,
        out=out,
    )


def paged_attention(
    q: _T,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    block_tables: Tensor | None = None,
    context_lens: Tensor | None = None,
    kv_indptr: Tensor | None = None,
    kv_indices: Tensor | None = None,
    kv_last_page_len: Tensor | None = None,
    qo_indptr: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    score_mod: str | Tensor | None = None,
    score_params: Tensor | None = None,
    causal: bool | None = None,
    window_left: int | None = None,
    window_right: int | None = None,
    soft_cap: float | None = None,
    sm_scale: float | None = None,
    return_lse: bool = False,
    layout: Literal["NHD", "HND"] = "NHD",
    out: Tensor | Sequence[Tensor] | None = None,
) -> Any:
    """Attention over a paged KV cache.

    Pages are passed as block tables (``block_tables`` with ``context_lens``) or in CSR form (``kv_indptr``,
    ``kv_indices``, ``kv_last_page_len``). With ``qo_indptr`` it is a prefill with several queries per
    request, without it one decode step. ``k_scale`` and ``v_scale`` are the factors of an FP8 cache, one for all heads or one
    per head. ``score_mod`` is an expression that replaces each score, as in :func:`attention`; its indices are those of the request.
    """
    csr: tuple[Any, Any, Any] = (kv_indptr, kv_indices, kv_last_page_len)
    if block_tables is not None and context_lens is not None:
        if any(part is not None for part in csr):
            raise ValueError("pass pages either as block_tables and context_lens, or in CSR form, not both")
        page_size = k_cache.shape[1 if layout == "NHD" else 2]
        csr = _block_tables_to_csr(block_tables, context_lens, int(page_size))
    elif any(part is None for part in csr):
        raise ValueError(
            "pages are missing: pass block_tables and context_lens, or kv_indptr, kv_indices and kv_last_page_len"
        )
    shared: dict[str, Any] = {
        "window_left": window_left,
        "soft_cap": soft_cap,
        "sm_scale": sm_scale,
        "return_lse": return_lse,
        "layout": layout,
        "out": out,
    }
    axis = 2 if layout == "NHD" else 1
    optional: tuple[Any, ...] = (alibi_slopes, sinks)
    is_fp8 = "float8" in str(k_cache.dtype)
    if is_fp8:
        optional = (*optional, k_scale, v_scale)
    elif k_scale is not None or v_scale is not None:
        raise ValueError(f"k_scale and v_scale are for FP8 caches; found a cache of {k_cache.dtype}")
    optional = (*optional, score_mod, score_params)
    if qo_indptr is None:
        if window_right is not None or causal is False:
            raise ValueError("a decode step is causal; window_right and causal=False require qo_indptr")
        decode = ops.attention_gqa_decode_paged_fp8 if is_fp8 else _heads("decode_paged", q, k_cache, 1, axis)
        return decode(q, k_cache, v_cache, *csr, *optional, **shared)
    prefill = ops.attention_gqa_prefill_paged_fp8 if is_fp8 else _heads("prefill_paged", q, k_cache, 1, axis)
    return prefill(q, k_cache, v_cache, qo_indptr, *csr, *optional, causal=causal, window_right=window_right, **shared)


def _block_tables_to_csr(tables: Any, lengths: Any, page_size: int) -> tuple[Any, Any, Any]:
    """Converts block tables to CSR form, on the tensors' device and without synchronizing it."""
    pages: Any
    if type(tables).__module__.split(".")[0] == "torch":
        import torch

        pages = (lengths + page_size - 1) // page_size
        indptr = torch.zeros(len(pages) + 1, dtype=torch.int32, device=pages.device)
        indptr[1:] = pages.cumsum(0)
        last = (lengths - (pages - 1).clamp(min=0) * page_size).to(torch.int32)
        used = torch.arange(tables.shape[1], device=tables.device) < pages[:, None]
        if tables.device.type == "cpu":
            return indptr, tables[used].to(torch.int32), last
        # Boolean indexing would synchronize to find the result's size. Instead every entry is scattered to
        # its index, unused ones past the end.
        index = indptr[:-1, None].long() + torch.arange(tables.shape[1], device=tables.device)
        index = torch.where(used, index, tables.numel())
        indices = torch.zeros(tables.numel() + 1, dtype=torch.int32, device=tables.device)
        indices.scatter_(0, index.flatten(), tables.flatten().to(torch.int32))
        return indptr, indices[:-1], last
    import numpy

    tables, lengths = numpy.asarray(tables), numpy.asarray(lengths)
    pages = (lengths + page_size - 1) // page_size
    bounds = numpy.concatenate([[0], numpy.cumsum(pages)]).astype(numpy.int32)
    last_page = (lengths - numpy.maximum(pages - 1, 0) * page_size).astype(numpy.int32)
    used = numpy.arange(tables.shape[1]) < pages[:, None]
    return bounds, tables[used].astype(numpy.int32), last_page


def rms_norm(
    x: _T,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    weight_offset: float | None = None,
    out: Tensor | None = None,
) -> _T:
    """Root-mean-square normalization over the last dimension."""
    return ops.norm_rms(x, weight, eps=eps, weight_offset=weight_offset, out=out)


def layer_norm(
    x: _T,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    out: Tensor | None = None,
) -> _T:
    """Layer normalization over the last dimension."""
    result: Any = ops.norm_layer(x, weight, bias, eps=eps, out=out)
    y: _T = result
    return y


def rope(
    x: _T,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    *,
    interleaved: bool = False,
    layout: Literal["BSHD", "BHSD"] = "BSHD",
    out: Tensor | None = None,
) -> _T:
    """Rotary position embedding of queries or keys."""
    return ops.posenc_rope(x, cos, sin, positions, interleaved=interleaved, layout=layout, out=out)


def sample_topk(
    logits: _T,
    k: int,
    *,
    temperature: float = 1.0,
    seed: int = 0,
    offset: int = 0,
    out: Tensor | None = None,
) -> _T:
    """Samples one token per row from the `k` most likely. The same seed and offset give the same tokens."""
    return ops.sampling_topk(logits, k=k, temperature=temperature, seed=seed, offset=offset, out=out)


def sample_topp(
    logits: _T,
    p: float,
    *,
    top_k: int = 0,
    temperature: float = 1.0,
    seed: int = 0,
    offset: int = 0,
    out: Tensor | None = None,
) -> _T:
    """Samples one token per row from the smallest set of tokens whose probabilities sum to at least `p`."""
    return ops.sampling_topp(
        logits, p=p, top_k=top_k, temperature=temperature, seed=seed, offset=offset, out=out
    )


_Format = Literal["int8", "int4", "fp8_e4m3", "fp8_e5m2", "mxfp4", "nvfp4", "uint8", "uint4", "int16", "uint16", "int2", "uint2"]
_Granularity = Literal["tensor", "channel", "head", "block"]


def quantize(
    x: _T,
    format: _Format = "int8",
    *,
    granularity: _Granularity | None = None,
    block_size: int | None = None,
    scale: Tensor | None = None,
    zero_point: Tensor | None = None,
    global_scale: Tensor | None = None,
    out: Tensor | Sequence[Tensor] | None = None,
) -> Any:
    """Quantizes a tensor; without `scale`, the scales are computed and returned as a second result.

    The unsigned formats require `scale`, usually with `zero_point`, because computed scales are symmetric.
    The 4-bit floating-point formats are always per block; the others are per tensor unless `granularity` is given.
    """
    by_block = format in ("mxfp4", "nvfp4")
    return ops.quantize(
        x,
        scale,
        zero_point,
        global_scale,
        format=format,
        granularity=granularity or ("block" if by_block else "tensor"),
        block_size=block_size,
        out=out,
    )


def dequantize(
    quantized: _T,
    scale: Tensor,
    format: _Format = "int8",
    *,
    granularity: _Granularity | None = None,
    block_size: int | None = None,
    inner: int | None = None,
    zero_point: Tensor | None = None,
    global_scale: Tensor | None = None,
    output_dtype: Literal["f32", "f16", "bf16"] | None = None,
    out: Tensor | None = None,
) -> _T:
    """The inverse of `quantize`, up to the quantization error."""
    by_block = format in ("mxfp4", "nvfp4")
    return ops.dequantize(
        quantized,
        scale,
        zero_point,
        global_scale,
        format=format,
        granularity=granularity or ("block" if by_block else "tensor"),
        block_size=block_size,
        inner=inner,
        output_dtype=output_dtype,
        out=out,
    )
