"""Shapes of mixtures of experts, FP8 and FP4 layers, quantized tables and fused forms, for `lz bench gpu`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F

import layerzero as lz
from layerzero import _native
from layerzero._bench.shapes import Shape, _normal


def _experts(name: str, rows: int, top_k: int, experts: int, hidden: int, inner: int) -> Shape:
    x, gate_up, down = _normal(rows, hidden), _normal(experts, 2 * inner, hidden) * hidden**-0.5, _normal(experts, hidden, inner) * inner**-0.5
    indices = torch.rand(rows, experts, device="cuda").topk(top_k, -1)[1].int()
    weights = torch.softmax(torch.randn(rows, top_k, device="cuda"), -1)

    def by_torch() -> Any:
        # One expert after the other over its own tokens, as the models' own code does it.
        output = torch.zeros_like(x)
        for expert in torch.unique(indices).tolist():
            row, slot = torch.where(indices == expert)
            gate, up = F.linear(x[row], gate_up[expert]).chunk(2, -1)
            made = F.linear(F.silu(gate) * up, down[expert])
            output.index_add_(0, row, made * weights[row, slot, None].to(x.dtype))
        return output

    def grouped() -> Any:
        # torch's grouped product, over tokens sorted by expert.
        order = torch.argsort(indices.flatten(), stable=True)
        ends = torch.histc(indices.float(), bins=experts, min=0, max=experts - 1).cumsum(0).int()
        gate, up = torch._grouped_mm(x[order // top_k], gate_up.transpose(1, 2), offs=ends).chunk(2, -1)
        made = torch._grouped_mm(F.silu(gate) * up, down.transpose(1, 2), offs=ends) * weights.flatten()[order][:, None].to(x.dtype)
        return torch.zeros_like(x).index_add_(0, order // top_k, made)

    arguments = {"x": x, "indices": indices, "weights": weights, "gate_up_weight": gate_up, "down_weight": down}
    return Shape("MoE", f"{name} {rows} rows", "moe.experts", arguments, by_torch, True, grouped)


#: The bytes of random stored weights: exponents of fp8 stay small and no code is NaN.
_STORED = {"fp8_e4m3": (torch.float8_e4m3fn, 0x40), "int8": (torch.int8, 256), "int4": (torch.uint8, 256), "mxfp4": (torch.float4_e2m1fn_x2, 256)}


def _quantized_experts(
    name: str, rows: int, top_k: int, experts: int, hidden: int, inner: int, format: str, granularity: str, group: int = 32, gpt_oss: bool = False,
) -> Shape:  # fmt: skip
    dtype, most = _STORED[format]
    scales = {"group": (1, group), "block": (128, 128), "row": (1, 1 << 30)}[granularity]

    def weight(features: int, inputs: int) -> tuple[Any, Any]:
        width = inputs // 2 if format in ("int4", "mxfp4") else inputs
        codes = torch.randint(0, most, (experts, features, width), dtype=torch.uint8, device="cuda").view(dtype)
        shape = (experts, -(-features // scales[0]), -(-inputs // scales[1]))
        if format == "mxfp4":
            return codes, torch.full(shape, 119, dtype=torch.uint8, device="cuda").view(torch.float8_e8m0fnu)
        scale = torch.full(shape, inputs**-0.5 / {"fp8_e4m3": 1, "int8": 74, "int4": 4.6}[format], device="cuda")
        return codes, scale[..., 0] if granularity == "row" else scale

    x, gate_up, down = _normal(rows, hidden), weight(2 * inner, hidden), weight(hidden, inner)
    indices = torch.rand(rows, experts, device="cuda").topk(top_k, -1)[1].int()
    weights = torch.softmax(torch.randn(rows, top_k, device="cuda"), -1)
    arguments = {
        "x": x, "indices": indices, "weights": weights, "gate_up_weight": gate_up[0], "gate_up_scale": gate_up[1].contiguous(),
        "down_weight": down[0], "down_scale": down[1].contiguous(), "format": format, "granularity": granularity, "group_size": group,
        "intermediate": inner,
    }  # fmt: skip
    if gpt_oss:
        arguments |= {"gate_up_layout": "interleaved", "alpha": 1.702, "limit": 7.0, "up_offset": 1.0}
        arguments |= {"gate_up_bias": _normal(experts, 2 * inner), "down_bias": _normal(experts, hidden)}
    # The same experts in bf16, one after the other over its own tokens. The time does not depend on the values.
    wide = _normal(experts, 2 * inner, hidden) * hidden**-0.5, _normal(experts, hidden, inner) * inner**-0.5

    def by_torch() -> Any:
        output = torch.zeros_like(x)
        for expert in torch.unique(indices).tolist():
            row, slot = torch.where(indices == expert)
            gate, up = F.linear(x[row], wide[0][expert]).chunk(2, -1)
            made = F.linear(F.silu(gate) * up, wide[1][expert])
            output.index_add_(0, row, made * weights[row, slot, None].to(x.dtype))
        return output

    by = f"{granularity} {group}" if granularity == "group" else granularity
    return Shape("quantized MoE", f"{name} {format} by {by} {rows} rows", "moe.experts.quantized", arguments, by_torch, False)


def _route(rows: int, experts: int, top_k: int, grouped: bool) -> Shape:
    logits = _normal(rows, experts)
    if not grouped:

        def by_torch() -> Any:
            weights, indices = torch.softmax(logits.float(), -1).topk(top_k, -1)
            return weights / weights.sum(-1, keepdim=True), indices.int()

        return Shape("router", f"{rows}x{experts} top {top_k}", "moe.route", {"logits": logits, "top_k": top_k}, by_torch, True)
    bias = torch.rand(experts, device="cuda")

    def limited() -> Any:
        scores = logits.float().sigmoid()
        choice = scores + bias
        groups = choice.view(rows, 8, -1).topk(2, -1)[0].sum(-1)
        kept = torch.zeros_like(groups).scatter_(1, groups.topk(4, -1)[1], 1)
        indices = choice.masked_fill(kept.repeat_interleave(experts // 8, 1) == 0, 0.0).topk(top_k, -1)[1]
        weights = scores.gather(1, indices)
        return weights / weights.sum(-1, keepdim=True) * 2.5, indices.int()

    arguments = {
        "logits": logits, "bias": bias, "top_k": top_k, "scoring": "sigmoid", "scale": 2.5, "groups": 8, "top_groups": 4, "group_score": "top2_sum",
    }  # fmt: skip
    return Shape("router", f"{rows}x{experts} top {top_k} of 4 groups", "moe.route", arguments, limited, True)


def _fp8(rows: int, inner: int, outer: int, granularity: str, by_column: bool = False) -> Shape:
    x, weight = _normal(rows, inner), _normal(outer, inner) * inner**-0.5
    codes = (x * 8).to(torch.float8_e4m3fn), (weight * 256).to(torch.float8_e4m3fn)
    blocks = -(-inner // 128)
    x_shape = {"tensor": (), "row": (rows,), "block": (rows, blocks)}[granularity]
    weight_shape = {"tensor": (), "row": (outer,), "block": (-(-outer // 128), blocks)}[granularity]
    x_scale, weight_scale = torch.full(x_shape, 1 / 8, device="cuda"), torch.full(weight_shape, 1 / 256, device="cuda")
    if by_column:
        # As torch's scaled product reads them, so that nothing is copied.
        x_scale = x_scale.t().contiguous().t()
    arguments = {
        "x": codes[0], "weight": codes[1], "x_scale": x_scale, "weight_scale": weight_scale, "x_granularity": granularity,
        "weight_granularity": granularity,
    }  # fmt: skip
    name = f"{rows}x{inner}x{outer} by {granularity}{', scales by column' if by_column else ''}"
    # Compared with the same layer in bf16.
    return Shape("FP8 linear", name, "mlp.linear.fp8", arguments, lambda: F.linear(x, weight), False)


_Fp4 = Literal["nvfp4", "mxfp4"]


def _fp4(rows: int, inner: int, outer: int, format: _Fp4) -> Shape:
    x, weight = _normal(rows, inner), _normal(outer, inner) * inner**-0.5
    (x_codes, x_scale), (codes, scale) = (lz.ops.quantize(one, format=format, granularity="block") for one in (x, weight))
    arguments = {"x": x_codes, "weight": codes, "x_scale": x_scale, "weight_scale": scale, "format": format}
    # Compared with the same layer in bf16.
    return Shape("FP4 linear", f"{rows}x{inner}x{outer} {format}", "mlp.linear.fp4", arguments, lambda: F.linear(x, weight), False)


def _lookup(tokens: int, vocab: int, dim: int, format: str) -> Shape:
    ids = torch.randint(0, vocab, (tokens,), device="cuda")
    is_packed = format == "int4"
    table = torch.randint(0, 256, (vocab, dim // 2 if is_packed else dim), dtype=torch.uint8, device="cuda")
    scale = torch.rand((vocab, dim // 32) if is_packed else (vocab,), device="cuda")
    arguments = {
        "table": table if is_packed else table.view(torch.int8), "ids": ids, "scale": scale, "format": format,
        "granularity": "block" if is_packed else "channel", "output_dtype": "bf16",
    }  # fmt: skip

    def by_torch() -> Any:
        rows = arguments["table"][ids]
        if not is_packed:
            return (rows.float() * scale[ids][:, None]).bfloat16()
        codes = torch.stack((rows & 15, rows >> 4), -1).view(tokens, -1, 32)
        return (((codes ^ 8).to(torch.int8) - 8).float() * scale[ids][..., None]).view(tokens, -1).bfloat16()

    return Shape("quantized lookup", f"{tokens} of {vocab}x{dim} {format}", "embedding.lookup.quantized", arguments, by_torch, True)


def _norm_quantize(rows: int, hidden: int, adds: bool) -> Shape:
    x, weight, residual = _normal(rows, hidden), _normal(hidden), _normal(rows, hidden)
    arguments: dict[str, Any] = {"x": x, "weight": weight, "format": "fp8_e4m3", "granularity": "row"}
    if adds:
        arguments["residual"] = residual

    def quantized(y: Any) -> Any:
        scale = y.abs().amax(-1, keepdim=True).float() / 448
        return (y.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale[:, 0]

    def by_torch() -> Any:
        if adds:
            residual.add_(x)
        return quantized(F.rms_norm(residual if adds else x, (hidden,), weight, 1e-6))

    def two_calls() -> Any:
        # The two operations of ours.
        y = lz.ops.norm_rms_add(x, residual, weight) if adds else lz.ops.norm_rms(x, weight)
        return lz.ops.quantize(y, format="fp8_e4m3", granularity="channel")

    # Otherwise the background compiles them while they are measured.
    norm: tuple[str, tuple[Any, ...], dict[str, Any]] = ("norm.rms.add", (x, residual, weight), {}) if adds else ("norm.rms", (x, weight), {})
    _native.compile_cold([norm, ("quantize", (x,), {"format": "fp8_e4m3", "granularity": "channel"})], 8)
    operation = "norm.rms.add.quantize" if adds else "norm.rms.quantize"
    return Shape("norm + quantize", f"{rows}x{hidden}{' add' if adds else ''}", operation, arguments, by_torch, True, two_calls)


def _rope_append(tokens: int, heads: int, kv_heads: int) -> Shape:
    q, k, v = _normal(tokens, heads, 128), _normal(tokens, kv_heads, 128), _normal(tokens, kv_heads, 128)
    caches = [_normal(4096, 16, kv_heads, 128) for _ in range(2)]
    slots = torch.randperm(4096 * 16, device="cuda")[:tokens]
    positions = torch.randint(0, 8192, (tokens,), device="cuda")
    angles = torch.rand(8192, 64, device="cuda")
    cos, sin = angles.cos(), angles.sin()

    def by_torch() -> Any:
        c, s = cos[positions][:, None], sin[positions][:, None]
        turned = []
        for one in (q, k):
            a, b = one.float().chunk(2, -1)
            turned.append(torch.cat((a * c - b * s, b * c + a * s), -1).to(q.dtype))
        caches[0].view(-1, kv_heads, 128)[slots] = turned[1]
        caches[1].view(-1, kv_heads, 128)[slots] = v
        return turned[0]

    arguments = {"q": q, "k": k, "v": v, "cos": cos, "sin": sin, "positions": positions, "k_cache": caches[0], "v_cache": caches[1], "slots": slots}
    return Shape("rope + append", f"{tokens} tokens H{heads}/{kv_heads}", "rope.append", arguments, by_torch, True)


def shapes() -> Iterator[Callable[[], Shape]]:
    """Factories of the shapes."""
    for rows in (1, 16, 64, 1024, 4096):
        yield partial(_experts, "Qwen3 30B A3B", rows, 8, 128, 2048, 768)
    for rows in (1, 16, 64, 2048):
        yield partial(_experts, "Mixtral 8x7B", rows, 2, 8, 4096, 14336)
    for rows in (16, 128, 1024):
        yield partial(_experts, "DeepSeek V3, 32 of 256", rows, 8, 32, 7168, 2048)
    for rows in (1, 16, 128, 1024):
        yield partial(_quantized_experts, "DeepSeek V3, 32 of 256", rows, 8, 32, 7168, 2048, "fp8_e4m3", "block")
        yield partial(_quantized_experts, "GPT-OSS 20B", rows, 4, 32, 2880, 2880, "mxfp4", "group", gpt_oss=True)
        yield partial(_quantized_experts, "Mixtral 8x7B", rows, 2, 8, 4096, 14336, "int4", "group", 128)
    for rows in (16, 1024):
        yield partial(_quantized_experts, "Qwen3 30B A3B", rows, 8, 128, 2048, 768, "int8", "row")
    for rows, experts, top_k in ((16, 128, 8), (2048, 128, 8), (64, 8, 2)):
        yield partial(_route, rows, experts, top_k, False)
    for rows in (16, 2048):
        yield partial(_route, rows, 256, 8, True)
    for rows in (16, 64, 256, 1024, 4096):
        for granularity in ("tensor", "row", "block"):
            yield partial(_fp8, rows, 4096, 6144 if rows < 4096 else 14336, granularity)
    yield partial(_fp8, 1024, 7168, 18432, "block")
    for rows, inner, outer in ((1024, 4096, 6144), (4096, 4096, 14336), (1024, 7168, 18432)):
        yield partial(_fp8, rows, inner, outer, "block", by_column=True)
    formats: tuple[_Fp4, ...] = ("nvfp4", "mxfp4")
    for rows in (1, 4, 16, 64, 128, 256, 1024, 4096):
        for format in formats:
            yield partial(_fp4, rows, 4096, 6144 if rows < 4096 else 14336, format)
    for rows in (1, 16, 1024):
        yield partial(_fp4, rows, 14336, 4096, "nvfp4")
    for tokens in (1, 64, 2048):
        yield partial(_lookup, tokens, 128256, 4096, "int4")
        yield partial(_lookup, tokens, 151936, 4096, "int8")
    for rows, hidden, adds in ((64, 4096, False), (2048, 4096, False), (64, 8192, True), (2048, 8192, True), (128, 7168, True)):
        yield partial(_norm_quantize, rows, hidden, adds)
    for tokens, heads, kv_heads in ((16, 32, 8), (64, 32, 8), (2048, 32, 8), (64, 64, 8)):
        yield partial(_rope_append, tokens, heads, kv_heads)
