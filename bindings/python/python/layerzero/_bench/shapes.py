"""The shapes of `lz bench gpu`: shapes of real models by family, each with the same computation in torch alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F


class Shape(NamedTuple):
    """One call, and the same computation in torch alone."""

    family: str
    name: str
    operation: str
    arguments: dict[str, Any]
    by_torch: Callable[[], Any]
    # Whether torch needs a composition of several functions for it.
    composed: bool
    # The same in torch with views in its layout made beforehand.
    prepared: Callable[[], Any] | None = None
    # Bytes that the composition moves, relative to one kernel: the upper limit of the speedup if memory-bound.
    ceiling: float | None = None


def _normal(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return torch.randn(shape, device="cuda", dtype=dtype)


def _prefill(batch: int, heads: int, kv_heads: int, seq: int, head_dim: int, causal: bool, value_dim: int | None = None) -> Shape:
    q, k = _normal(batch, seq, heads, head_dim), _normal(batch, seq, kv_heads, head_dim)
    v = _normal(batch, seq, kv_heads, value_dim or head_dim)
    rows, keys, values = (tensor.transpose(1, 2) for tensor in (q, k, v))

    def prepared() -> Any:
        return F.scaled_dot_product_attention(rows, keys, values, is_causal=causal, enable_gqa=heads != kv_heads).transpose(1, 2)

    def by_torch() -> Any:
        rows, keys, values = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return F.scaled_dot_product_attention(rows, keys, values, is_causal=causal, enable_gqa=heads != kv_heads).transpose(1, 2)

    kind = "standard" if heads == kv_heads else "gqa"
    dims = str(head_dim) if value_dim is None else f"{head_dim}/{value_dim}"
    name = f"B{batch} H{heads}/{kv_heads} S{seq} D{dims}{' causal' if causal else ''}"
    return Shape("prefill", name, f"attention.{kind}.prefill", {"q": q, "k": k, "v": v, "causal": causal}, by_torch, False, prepared)


def _decode(batch: int, heads: int, kv_heads: int, seq: int, head_dim: int) -> Shape:
    q, k, v = _normal(batch, heads, head_dim), _normal(batch, seq, kv_heads, head_dim), _normal(batch, seq, kv_heads, head_dim)
    row, keys, values = q[:, :, None], k.transpose(1, 2), v.transpose(1, 2)

    def prepared() -> Any:
        return F.scaled_dot_product_attention(row, keys, values, enable_gqa=heads != kv_heads)[:, :, 0]

    def by_torch() -> Any:
        row, keys, values = q.unsqueeze(2), k.transpose(1, 2), v.transpose(1, 2)
        return F.scaled_dot_product_attention(row, keys, values, enable_gqa=heads != kv_heads).squeeze(2)

    kind = "standard" if heads == kv_heads else "gqa"
    name = f"B{batch} H{heads}/{kv_heads} ctx{seq} D{head_dim}"
    return Shape("decode", name, f"attention.{kind}.decode", {"q": q, "k": k, "v": v}, by_torch, False, prepared)


def _table(batch: int, length: int, page_size: int) -> dict[str, Any]:
    pages = -(-length // page_size)
    whole = {"dtype": torch.int32, "device": "cuda"}
    return {
        "kv_indptr": torch.arange(0, batch * pages + 1, pages, **whole),
        "kv_indices": torch.randperm(batch * pages, device="cuda").int(),
        "kv_last_page_len": torch.full((batch,), length - (pages - 1) * page_size, **whole),
    }


def _paged(batch: int, heads: int, kv_heads: int, length: int, head_dim: int, page_size: int) -> Shape:
    table = _table(batch, length, page_size)
    pages = table["kv_indices"].shape[0]
    q = _normal(batch, heads, head_dim)
    k, v = (_normal(pages, page_size, kv_heads, head_dim) for _ in range(2))
    block_tables = table["kv_indices"].view(batch, -1).long()

    def by_torch() -> Any:
        # Gathering pages, then torch's attention: what a program without a paged kernel does.
        keys, values = (cache[block_tables].flatten(1, 2)[:, :length].transpose(1, 2) for cache in (k, v))
        return F.scaled_dot_product_attention(q[:, :, None], keys, values, enable_gqa=heads != kv_heads)[:, :, 0]

    kind = "standard" if heads == kv_heads else "gqa"
    name = f"B{batch} H{heads}/{kv_heads} ctx{length} D{head_dim} page{page_size}"
    arguments = {"q": q, "k_cache": k, "v_cache": v, **table}
    return Shape("paged", name, f"attention.{kind}.decode.paged", arguments, by_torch, True)


def _paged_prefill(batch: int, heads: int, kv_heads: int, queries: int, length: int, page_size: int) -> Shape:
    head_dim = 128
    table = _table(batch, length, page_size)
    pages = table["kv_indices"].shape[0]
    q = _normal(batch * queries, heads, head_dim)
    k, v = (_normal(pages, page_size, kv_heads, head_dim) for _ in range(2))
    qo_indptr = torch.arange(0, batch * queries + 1, queries, dtype=torch.int32, device="cuda")
    block_tables = table["kv_indices"].view(batch, -1).long()
    visible = torch.ones(queries, length, dtype=torch.bool, device="cuda").tril(length - queries)

    def by_torch() -> Any:
        keys, values = (cache[block_tables].flatten(1, 2)[:, :length].transpose(1, 2) for cache in (k, v))
        rows = q.unflatten(0, (batch, queries)).transpose(1, 2)
        if queries == length:
            out = F.scaled_dot_product_attention(rows, keys, values, is_causal=True, enable_gqa=True)
        else:
            out = F.scaled_dot_product_attention(rows, keys, values, visible, enable_gqa=True)
        return out.transpose(1, 2).flatten(0, 1)

    name = f"B{batch} H{heads}/{kv_heads} q{queries} ctx{length} page{page_size} causal"
    arguments = {"q": q, "k_cache": k, "v_cache": v, "qo_indptr": qo_indptr, **table, "causal": True}
    return Shape("paged prefill", name, "attention.gqa.prefill.paged", arguments, by_torch, True)


def _latent(batch: int, heads: int, length: int, page_size: int) -> Shape:
    table = _table(batch, length, page_size)
    pages = table["kv_indices"].shape[0]
    q_nope, q_pe = _normal(batch, heads, 512), _normal(batch, heads, 64)
    ckv, kpe = _normal(pages, page_size, 512), _normal(pages, page_size, 64)
    block_tables = table["kv_indices"].view(batch, -1).long()

    def by_torch() -> Any:
        latents = ckv[block_tables].flatten(1, 2)[:, :length]
        rotary = kpe[block_tables].flatten(1, 2)[:, :length]
        scores = (q_nope @ latents.transpose(1, 2) + q_pe @ rotary.transpose(1, 2)) * 0.1352338
        return torch.softmax(scores.float(), -1).to(q_nope.dtype) @ latents

    arguments = {"q_nope": q_nope, "q_pe": q_pe, "ckv_cache": ckv, "kpe_cache": kpe, **table, "sm_scale": 0.1352338}
    name = f"B{batch} H{heads} ctx{length} page{page_size}"
    return Shape("MLA", name, "attention.mla.decode.paged", arguments, by_torch, True)


def _norm(rows: int, hidden: int, adds: bool) -> Shape:
    x, weight = _normal(rows, hidden), _normal(hidden)
    if not adds:
        return Shape("norm", f"{rows}x{hidden}", "norm.rms", {"x": x, "weight": weight}, lambda: F.rms_norm(x, (hidden,), weight, 1e-6), False)
    residual = _normal(rows, hidden)

    def by_torch() -> Any:
        residual.add_(x)
        return F.rms_norm(residual, (hidden,), weight, 1e-6)

    return Shape("norm + add", f"{rows}x{hidden}", "norm.rms.add", {"x": x, "residual": residual, "weight": weight}, by_torch, True, None, 5 / 4)


def _sampling(rows: int, vocab: int, nucleus: bool) -> Shape:
    logits = _normal(rows, vocab, dtype=torch.float32) * 2

    def by_torch() -> Any:
        ordered, order = torch.sort(logits, descending=True)
        probabilities = torch.softmax(ordered, -1)
        if nucleus:
            probabilities[probabilities.cumsum(-1) - probabilities >= 0.9] = 0
        else:
            probabilities[:, 50:] = 0
        return order.gather(1, torch.multinomial(probabilities, 1))[:, 0]

    if nucleus:
        return Shape("sampling", f"top-p {rows}x{vocab}", "sampling.topp", {"logits": logits, "p": 0.9, "seed": 7}, by_torch, True)
    return Shape("sampling", f"top-k {rows}x{vocab}", "sampling.topk", {"logits": logits, "k": 50, "seed": 7}, by_torch, True)


def _rope(batch: int, seq: int, heads: int) -> Shape:
    x = _normal(batch, seq, heads, 128)
    angles = torch.rand(8192, 64, device="cuda")
    cos, sin = angles.cos(), angles.sin()

    def by_torch() -> Any:
        c, s = cos[None, :seq, None].float(), sin[None, :seq, None].float()
        first, second = x.float().chunk(2, -1)
        return torch.cat((first * c - second * s, second * c + first * s), -1).to(x.dtype)

    return Shape("rope", f"B{batch} S{seq} H{heads}", "posenc.rope", {"x": x, "cos": cos, "sin": sin}, by_torch, True)


def _gate(rows: int, columns: int) -> Shape:
    gate, up = _normal(rows, columns), _normal(rows, columns)
    return Shape("gate", f"silu_mul {rows}x{columns}", "activation.silu_mul", {"gate": gate, "up": up}, lambda: F.silu(gate) * up, True, None, 5 / 3)


def _append(tokens: int) -> Shape:
    k, v = _normal(tokens, 8, 128), _normal(tokens, 8, 128)
    caches = [_normal(4096, 16, 8, 128) for _ in range(2)]
    slots = torch.randperm(4096 * 16, device="cuda")[:tokens]

    def by_torch() -> Any:
        caches[0].view(-1, 8, 128)[slots] = k
        caches[1].view(-1, 8, 128)[slots] = v

    return Shape("append", f"{tokens} tokens", "kv.append", {"k": k, "v": v, "k_cache": caches[0], "v_cache": caches[1], "slots": slots}, by_torch, True)


def _merge(rows: int, states: int) -> Shape:
    v, s = _normal(rows, states, 32, 128), torch.randn(rows, states, 32, device="cuda")

    def by_torch() -> Any:
        weights = torch.softmax(s, 1)
        return (weights[..., None] * v.float()).sum(1).to(v.dtype), torch.logsumexp(s, 1)

    return Shape("merge", f"{rows} rows {states} states", "attention.state.merge", {"v": v, "s": s}, by_torch, True)


#: 8-bit formats: torch's dtype and the largest value.
_FORMATS = {"int8": (torch.int8, 127.0), "fp8_e4m3": (torch.float8_e4m3fn, 448.0), "fp8_e5m2": (torch.float8_e5m2, 57344.0)}


def _quantize(shape: tuple[int, ...], format: str, granularity: str, block_size: int = 32) -> Shape:
    x = _normal(*shape)
    stored, most = _FORMATS[format]
    arguments = {"x": x, "format": format, "granularity": granularity, "block_size": block_size}
    # The dimensions that share a scale, in the reshaped x.
    looked_at = x.unflatten(-1, (-1, block_size)) if granularity == "block" else x
    shared = {"tensor": tuple(range(len(shape))), "block": (-1,)}.get(granularity, (*range(len(shape) - 2), len(shape) - 1))

    def by_torch() -> Any:
        scale = looked_at.abs().amax(shared, keepdim=True).float() / most
        ratio = looked_at.float() / scale
        if format == "int8":
            return ratio.round().clamp(-128, 127).to(stored).view(shape), scale
        return ratio.clamp(-most, most).to(stored).view(shape), scale

    name = f"{format} {'x'.join(map(str, shape))} by {granularity}{block_size if granularity == 'block' else ''}"
    # Bytes per element: magnitudes 2 + 2, the maximum 2, f32 2 + 4, the quotient 4 + 4, rounding 4 + 4,
    # clamping 4 + 4, the result 4 + 1. One kernel reads once for the scale and once for the values, unless a
    # group fits in a program, and writes once.
    moved = 33 + (8 if format == "int8" else 0)
    least = 3 if granularity in ("channel", "block") else 5
    return Shape("quantize", name, "quantize", arguments, by_torch, True, None, moved / least)


def _dequantize(shape: tuple[int, ...], format: str, granularity: str) -> Shape:
    stored, most = _FORMATS[format]
    values = (torch.randn(shape, device="cuda") * 30).clamp(-most, most).to(stored)
    scale = torch.rand(() if granularity == "tensor" else shape[-2:-1], device="cuda") + 0.1
    arguments = {"quantized": values, "scale": scale, "format": format, "granularity": granularity, "output_dtype": "bf16"}
    over = scale if granularity == "tensor" else scale[:, None]
    name = f"{format} {'x'.join(map(str, shape))} by {granularity}"
    return Shape("dequantize", name, "dequantize", arguments, lambda: (values.float() * over).to(torch.bfloat16), True, None, 19 / 3)


_PREFILL = (
    (1, 32, 8, 128, 128, True), (1, 32, 8, 512, 128, True), (1, 32, 8, 1024, 128, True), (1, 32, 8, 2048, 128, True),
    (1, 32, 8, 4096, 128, True), (1, 32, 8, 8192, 128, True), (1, 32, 8, 32768, 128, True), (8, 32, 8, 2048, 128, True),
    (4, 32, 8, 512, 128, True), (1, 16, 16, 1024, 128, True), (1, 16, 16, 4096, 128, False), (2, 16, 16, 2048, 64, True),
    (1, 32, 32, 4096, 64, True), (4, 12, 12, 512, 64, False), (1, 16, 8, 2048, 256, True), (1, 16, 16, 4096, 256, False),
    (1, 16, 16, 2048, 192, True), (1, 40, 8, 1536, 128, True), (2, 32, 8, 4096, 128, True), (1, 64, 8, 2048, 128, True),
    (1, 28, 4, 1024, 128, True), (16, 32, 8, 256, 128, True),
)  # fmt: skip
_DECODE = (
    (1, 32, 8, 2048, 128), (1, 32, 8, 32768, 128), (16, 32, 8, 2048, 128), (64, 32, 8, 1024, 128), (256, 32, 8, 512, 128),
    (8, 32, 32, 2048, 128), (32, 16, 16, 1024, 64), (64, 8, 1, 4096, 128), (16, 16, 8, 2048, 256),
    (4, 64, 8, 8192, 128), (32, 28, 4, 2048, 128), (128, 32, 8, 256, 128),
)  # fmt: skip
_PAGED = (
    (1, 32, 8, 4096, 128, 16), (16, 32, 8, 2048, 128, 16), (64, 32, 8, 2048, 128, 16), (256, 32, 8, 1024, 128, 16),
    (64, 8, 1, 2048, 128, 64), (32, 32, 32, 1024, 128, 16), (64, 16, 8, 1024, 256, 16), (32, 16, 16, 1024, 64, 16),
    (8, 64, 8, 8192, 128, 16), (128, 28, 4, 512, 128, 16),
)  # fmt: skip


def shapes() -> Iterator[Callable[[], Shape]]:
    """Factories of the shapes, so that no two shapes hold memory at once."""
    for prefill in _PREFILL:
        yield partial(_prefill, *prefill)
    for decode in _DECODE:
        yield partial(_decode, *decode)
    for paged in _PAGED:
        yield partial(_paged, *paged)
    for chunk in ((1, 32, 8, 2048, 2048, 16), (8, 32, 8, 256, 2048, 16)):
        yield partial(_paged_prefill, *chunk)
    for latent in ((1, 128, 4096, 64), (32, 128, 1024, 64), (64, 16, 4096, 64), (128, 128, 2048, 64)):
        yield partial(_latent, *latent)
    for rows, hidden in ((1, 4096), (64, 4096), (2048, 4096), (4096, 8192), (128, 7168), (512, 2048), (8192, 5120)):
        yield partial(_norm, rows, hidden, False)
    for rows, hidden in ((64, 4096), (2048, 4096), (64, 8192), (256, 7168)):
        yield partial(_norm, rows, hidden, True)
    for sampled in ((1, 128256, True), (64, 128256, True), (64, 128256, False), (16, 256000, True), (256, 32000, False)):
        yield partial(_sampling, *sampled)
    for rope in ((1, 2048, 32), (64, 1, 32), (4, 1024, 8)):
        yield partial(_rope, *rope)
    for gate in ((64, 14336), (2048, 14336), (1700, 13824)):
        yield partial(_gate, *gate)
    yield partial(_append, 64)
    yield partial(_append, 2048)
    yield partial(_merge, 256, 2)
    yield partial(_quantize, (2048, 4096), "fp8_e4m3", "tensor")
    yield partial(_quantize, (4096, 4096), "int8", "channel")
    yield partial(_quantize, (512, 8, 128), "fp8_e5m2", "head")
    yield partial(_quantize, (128, 7168), "fp8_e4m3", "block", 128)
    yield partial(_dequantize, (2048, 4096), "fp8_e4m3", "tensor")
    yield partial(_dequantize, (4096, 4096), "int8", "channel")
