"""Compiles kernels before they are needed, by running each once with the sizes that are compile-time constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from layerzero.backends import triton as launching
from layerzero.backends.triton import _embedding, _experts, _experts_quantized, _fp4, _fp8, _linear, _norms, _paged, _recurrent, _rope_append, _sampling, _sparse


def _compile_format(operation: str, call: Mapping[str, str]) -> None:
    """Runs the call once with its own sizes: they determine which kernels run and how they are compiled."""
    outer, channels, stored = (int(call[name]) for name in ("outer", "channels", "inner" if operation == "quantize" else "stored"))
    params: dict[str, Any] = {name: call[name] for name in ("format", "granularity")}
    params["block_size"] = size = int(call["block_size"])
    scales = {"tensor": (), "block": (outer, channels, -(-stored // size))}.get(params["granularity"], (channels,))
    scale = torch.ones(scales, device="cuda")
    zero_point = torch.zeros(scales, dtype=torch.int32, device="cuda") if call["given(zero_point)"] == "true" else None
    if operation == "quantize":
        x = torch.empty((outer, channels, stored), dtype=launching._DTYPES[call["T"]], device="cuda")
        launching._quantize(x, scale if call["given(scale)"] == "true" else None, zero_point, None, **params)
    else:
        quantized = torch.empty((outer, channels, stored), dtype=launching._FORMATS[params["format"]][0], device="cuda")
        launching._dequantize(quantized, scale, zero_point, None, **params, inner=stored, output_dtype=call["output_dtype"])


def _compile_product(kernel: str, operation: str, call: Mapping[str, str]) -> None:
    """For as many rows as the call has: the block of rows is a compile-time constant."""

    def zeros(*shape: int) -> Any:
        return torch.zeros(shape, dtype=launching._DTYPES[call["T"]], device="cuda")

    inner, outer = int(call["in_features"]), int(call["out_features"])
    x, params = zeros(int(call.get("rows", "1")), inner), {"activation": call["activation"]}
    if operation == "mlp.linear":
        bias = zeros(outer) if call["given(bias)"] == "true" else None
        launching.KERNELS[kernel](x, zeros(outer, inner), bias, **params)
    else:
        middle = int(call["intermediate"])
        _linear.fused(x, zeros(middle, inner), zeros(middle, inner), zeros(outer, middle), **params)


def _compile_paged(call: Mapping[str, str]) -> None:
    """For as many tokens and requests as the call has, over empty caches."""
    heads, kv_heads, head_dim, size = (int(call[name]) for name in ("heads", "kv_heads", "head_dim", "page_size"))
    requests, dtype = max(int(call["batch"]), 1), launching._DTYPES[call["T"]]
    shape = (1, size, kv_heads, head_dim) if call["layout"] == "NHD" else (1, kv_heads, size, head_dim)
    cache = torch.zeros(shape, dtype=dtype, device="cuda")
    tokens = max(int(call["total_q"]), 1)
    starts, pages = (torch.zeros(count, dtype=torch.int32, device="cuda") for count in (requests + 1, max(int(call["num_indices"]), 1)))
    # All tokens are the first request's, which has no pages.
    ends = torch.full_like(starts, tokens).index_fill_(0, torch.zeros(1, dtype=torch.int64, device="cuda"), 0)
    _paged.prefill_paged(
        torch.zeros((tokens, heads, head_dim), dtype=dtype, device="cuda"), cache, cache, ends, starts, pages, starts[1:].contiguous(),
        causal=call["causal"] == "true", window_left=int(call["window_left"]), window_right=int(call["window_right"]),
        soft_cap=float(call["soft_cap"]), sm_scale=float(call["sm_scale"]), return_lse=call["return_lse"] == "true", layout=call["layout"],
    )  # fmt: skip


class _Call:
    """The sizes, dtypes and parameters of a call, and zeros of its tensors."""

    def __init__(self, call: Mapping[str, str]) -> None:
        self.call = call

    def size(self, name: str) -> int:
        return int(self.call[name])

    def zeros(self, *shape: str | int, dtype: str = "T") -> Any:
        """Zeros of axes by name, and of a dtype by the name of its variable or its own."""
        sizes = [max(int(self.call[one]), 1) if isinstance(one, str) else one for one in shape]
        return torch.zeros(sizes, dtype=launching._DTYPES[self.call.get(dtype, dtype)], device="cuda")

    def given(self, name: str, *shape: str | int, dtype: str = "T") -> Any:
        return self.zeros(*shape, dtype=dtype) if self.call[f"given({name})"] == "true" else None

    def number(self, name: str) -> float:
        return float(self.call[name])

    def flag(self, name: str) -> bool:
        return self.call[name] == "true"


def _compile_experts(operation: str, call: _Call) -> None:
    if operation == "moe.route":
        _experts.route(
            call.zeros("rows", "experts"), call.given("bias", "experts", dtype="f32"), top_k=call.size("top_k"), scoring=call.call["scoring"],
            renormalize=call.flag("renormalize"), scale=call.number("scale"), groups=call.size("groups"), top_groups=call.size("top_groups"),
            group_score=call.call["group_score"],
        )  # fmt: skip
        return
    both = 2 * call.size("intermediate")
    _experts.experts(
        call.zeros("rows", "in_features"), call.zeros("rows", "top_k", dtype="i32"), call.zeros("rows", "top_k", dtype="f32"),
        call.zeros("experts", both, "in_features"), call.zeros("experts", "out_features", "intermediate"),
        call.given("gate_up_bias", "experts", both), call.given("down_bias", "experts", "out_features"),
        activation=call.call["activation"], gate_up_layout=call.call["gate_up_layout"],
        alpha=call.number("alpha"), limit=call.number("limit"), up_offset=call.number("up_offset"),
    )  # fmt: skip


def _compile_quantized_experts(call: _Call) -> None:
    format, granularity = call.call["format"], call.call["granularity"]
    middle, group = call.size("intermediate"), call.size("group_size")
    # Packed floats and powers of two as bytes, as the kernels read them.
    codes, scales = {"fp8_e4m3": ("f8_e4m3", "f32"), "int8": ("i8", "f32"), "int4": ("u8", "f32"), "mxfp4": ("u8", "u8")}[format]

    def weight(features: int, inputs: int) -> tuple[Any, Any]:
        shape: dict[str, tuple[int, ...]] = {"tensor": (), "row": (features,), "group": (features, -(-inputs // group))}
        blocks = (-(-features // 128), -(-inputs // 128))
        width = -(-inputs // 2) if codes == "u8" else inputs
        scale = call.zeros("experts", *shape.get(granularity, blocks), dtype=scales)
        return call.zeros("experts", features, width, dtype=codes), scale

    _experts_quantized.experts(
        call.zeros("rows", "in_features"), call.zeros("rows", "top_k", dtype="i32"), call.zeros("rows", "top_k", dtype="f32"),
        *weight(2 * middle, call.size("in_features")), *weight(call.size("out_features"), middle),
        call.given("gate_up_bias", "experts", 2 * middle), call.given("down_bias", "experts", "out_features"),
        format=format, granularity=granularity, group_size=group, intermediate=middle, activation=call.call["activation"],
        gate_up_layout=call.call["gate_up_layout"], alpha=call.number("alpha"), limit=call.number("limit"), up_offset=call.number("up_offset"),
    )  # fmt: skip


def _compile_linear_attention(operation: str, call: _Call) -> None:
    length = ("seq",) if operation.endswith("prefill") else ()
    gates = ("key_dim",) if call.call["gate"] == "channel" else ()
    tensors = (
        call.zeros("batch", *length, "key_heads", "key_dim"), call.zeros("batch", *length, "key_heads", "key_dim"),
        call.zeros("batch", *length, "heads", "value_dim"), call.zeros("batch", *length, "heads", *gates, dtype="f32"),
        call.zeros("batch", *length, "heads", dtype="B"),
    )  # fmt: skip
    state = ("batch", "heads", "key_dim", "value_dim")
    params: dict[str, Any] = {"scale": call.number("scale"), "gate": call.call["gate"], "qk_l2norm": call.flag("qk_l2norm")}
    if length:
        first = call.given("initial_state", *state, dtype="f32")
        _recurrent.linear_prefill(*tensors, first, **params, return_state=call.flag("return_state"))
    else:
        _recurrent.linear_decode(*tensors, call.zeros(*state, dtype="f32"), **params)


def _compile_state_space(operation: str, call: _Call) -> None:
    length = ("seq",) if operation == "ssm.scan" else ()
    group = ("batch", *length, "groups", "state_dim")
    tensors = (
        call.zeros("batch", *length, "heads", "head_dim"), call.zeros("batch", *length, "heads"), call.zeros("heads", dtype="f32"),
        call.zeros(*group), call.zeros(*group),
    )  # fmt: skip
    d, dt_bias = (call.given(name, "heads", dtype="f32") for name in ("d", "dt_bias"))
    state = ("batch", "heads", "head_dim", "state_dim")
    params: dict[str, Any] = {"dt_softplus": call.flag("dt_softplus"), "dt_min": call.number("dt_min"), "dt_max": call.number("dt_max")}
    if length:
        first = call.given("initial_state", *state, dtype="f32")
        _recurrent.ssm_scan(*tensors, d, dt_bias, first, **params, return_state=call.flag("return_state"))
    else:
        _recurrent.ssm_step(*tensors, call.zeros(*state, dtype="f32"), d, dt_bias, **params)


def _compile_rope_append(call: _Call) -> None:
    layout = call.call["layout"]
    pages = (1, "page_size", "kv_heads", "head_dim") if layout == "NHD" else (1, "kv_heads", "page_size", "head_dim")
    rows = ("tokens", "kv_heads", "head_dim")
    table = call.zeros(1, "half_rotary", dtype="A")
    # No token is stored: the slots are -1.
    slots = torch.full((max(call.size("tokens"), 1),), -1, dtype=torch.int64, device="cuda")
    _rope_append.rope_append(
        call.zeros("tokens", "heads", "head_dim"), call.zeros(*rows), call.zeros(*rows), table, table, call.zeros("tokens", dtype="P"),
        call.zeros(*pages, dtype="C"), call.zeros(*pages, dtype="C"), slots, interleaved=call.flag("interleaved"), layout=layout,
    )  # fmt: skip


def _compile_convolution(operation: str, call: _Call) -> None:
    state = ("batch", "channels", call.size("width") - 1)
    weight, bias = call.zeros("channels", "width", dtype="W"), call.given("bias", "channels", dtype="W")
    activation = call.call["activation"]
    if operation == "conv.causal1d":
        first = call.given("initial_state", *state)
        _recurrent.causal1d(call.zeros("batch", "seq", "channels"), weight, bias, first, activation=activation, return_state=call.flag("return_state"))
    else:
        _recurrent.causal1d_step(call.zeros("batch", "channels"), call.zeros(*state), weight, bias, activation=activation)


def _compile_fp8(call: _Call) -> None:
    inner, outer, rows = call.size("in_features"), call.size("out_features"), max(call.size("rows"), 1)
    blocks = -(-inner // 128)
    x_scales = {"tensor": (), "row": (rows,), "block": (rows, blocks)}[call.call["x_granularity"]]
    weight_scales = {"tensor": (), "row": (outer,), "block": (-(-outer // 128), blocks)}[call.call["weight_granularity"]]
    _fp8.linear(
        call.zeros("rows", "in_features", dtype="f8_e4m3"), call.zeros("out_features", "in_features", dtype="f8_e4m3"),
        call.zeros(*x_scales, dtype="f32"), call.zeros(*weight_scales, dtype="f32"),
        call.given("bias", "out_features", dtype=call.call["output_dtype"]),
        **{name: call.call[name] for name in ("x_granularity", "weight_granularity", "activation", "output_dtype")},
    )  # fmt: skip


def _compile_fp4(kernel: str, call: _Call) -> None:
    stored, outer, rows = call.size("stored"), call.size("out_features"), max(call.size("rows"), 1)
    blocks = -(-2 * stored // _fp4._BLOCKS[call.call["format"]])
    launching.KERNELS[kernel](
        call.zeros(rows, stored, dtype="u8"), call.zeros(outer, stored, dtype="u8"), call.zeros(rows, blocks, dtype="u8"),
        call.zeros(outer, blocks, dtype="u8"), *(call.given(name, dtype="f32") for name in ("x_global_scale", "weight_global_scale")),
        call.given("bias", outer, dtype=call.call["output_dtype"]),
        **{name: call.call[name] for name in ("format", "activation", "output_dtype")},
    )  # fmt: skip


def _compile_lookup(call: _Call) -> None:
    """For the first row of a table with the sizes of the call."""
    dim, size = call.size("dim"), call.size("block_size")
    groups = ("vocab", -(-dim // size)) if call.call["granularity"] == "block" else ("vocab",)
    _embedding.lookup(
        call.zeros("vocab", "stored", dtype="u8"), call.zeros(1, dtype="I"),
        call.zeros(*groups, dtype="u8" if call.call["format"] == "mxfp4" else "f32"), call.given("zero_point", *groups, dtype="i32"),
        block_size=size, dim=dim, **{name: call.call[name] for name in ("format", "granularity", "output_dtype")},
    )  # fmt: skip


def _compile_sparse(operation: str, call: _Call) -> None:
    params: dict[str, Any] = {"soft_cap": call.number("soft_cap"), "sm_scale": call.number("sm_scale"), "return_lse": call.flag("return_lse")}
    if operation == "attention.sparse.block":
        block_rows, block_cols = call.size("block_rows"), call.size("block_cols")
        # No block of queries has a list.
        indptr = call.zeros(-(-max(call.size("m"), 1) // block_rows) + 1, dtype="i32")
        q, k = call.zeros("m", "heads", "head_dim"), call.zeros("n", "kv_heads", "head_dim")
        _sparse.block(q, k, k, indptr, call.zeros("nnz", dtype="i32"), block_rows=block_rows, block_cols=block_cols, **params)
        return
    q, k = call.zeros("heads", "m", "head_dim"), call.zeros("kv_heads", "n", "head_dim")
    rows, columns = call.zeros("kv_heads", "row_blocks", dtype="i32"), call.zeros("kv_heads", "col_blocks", dtype="i32")
    mask = call.zeros("kv_heads", "row_blocks", "col_blocks", dtype="i8").bool()
    _sparse.variable_block(q, k, k, mask, rows, columns, **params)


def _compile_speculative(call: _Call) -> None:
    batch, length, vocab = max(call.size("batch"), 1), call.size("draft_len"), call.size("vocab")
    _sampling.speculative(
        call.zeros(batch, length, vocab, dtype="f32"), call.zeros(batch, length, dtype="i32"), call.zeros(batch, length + 1, vocab, dtype="f32"),
        *(call.zeros(dtype="i64") if call.flag(f"given({name})") else None for name in ("seed_tensor", "offset_tensor")), seed=0, offset=0,
    )  # fmt: skip


def compile(kernel: str, operation: str, call: Mapping[str, str]) -> list[str]:
    """Compiles a kernel by running it once on a separate stream, small but with the sizes that are compile-time constants."""

    def size(name: str) -> int:
        return int(call[name])

    def zeros(*shape: int, dtype: str = "T") -> Any:
        return torch.zeros(shape, dtype=launching._DTYPES[call[dtype]], device="cuda")

    if kernel.endswith(".score_mod"):
        # Each expression is a kernel of its own, which the first call with it compiles (`_score_mod`).
        return []
    with torch.cuda.stream(torch.cuda.Stream()):
        if operation in ("norm.rms", "norm.rms.add"):
            x = zeros(1, size("hidden"))
            weight = zeros(size("hidden"), dtype="W") if call.get("W", "none") != "none" else None
            more = (torch.zeros_like(x),) if operation == "norm.rms.add" else ()
            launching.KERNELS[kernel](x, *more, weight, eps=1e-6, weight_offset=float(call.get("weight_offset", 0.0)))
        elif operation == "activation.silu_mul":
            launching._silu_mul(zeros(16), zeros(16))
        elif operation == "activation.gelu_mul":
            launching._gelu_mul(zeros(16), zeros(16), approximate=call["approximate"])
        elif operation == "posenc.rope":
            positions = zeros(1, 1, dtype="P") if call.get("P", "none") != "none" else None
            table = torch.zeros((16, size("half_rotary")), dtype=launching._DTYPES[call["C"]], device="cuda")
            x = zeros(1, 1, size("heads"), size("head_dim"))
            if call["layout"] == "BHSD":
                x = x.transpose(1, 2).contiguous()
            launching._rope(x, table, table, positions, interleaved=call["interleaved"] == "true", layout=call["layout"])
        elif operation == "attention.state.merge":
            launching._merge(zeros(1, 2, size("heads"), size("head_dim")), torch.zeros((1, 2, size("heads")), device="cuda"))
        elif operation in ("quantize", "dequantize"):
            _compile_format(operation, call)
        elif operation in ("norm.rms.quantize", "norm.rms.add.quantize"):
            _norms.compile_quantized(operation, call, launching._DTYPES)
        elif operation in ("mlp.linear", "mlp.fused"):
            _compile_product(kernel, operation, call)
        elif operation == "attention.gqa.prefill.paged":
            _compile_paged(call)
        elif operation == "rope.append":
            _compile_rope_append(_Call(call))
        elif operation == "moe.experts.quantized":
            _compile_quantized_experts(_Call(call))
        elif operation.startswith("moe."):
            _compile_experts(operation, _Call(call))
        elif operation.startswith("attention.linear."):
            _compile_linear_attention(operation, _Call(call))
        elif operation.startswith("ssm."):
            _compile_state_space(operation, _Call(call))
        elif operation.startswith("conv."):
            _compile_convolution(operation, _Call(call))
        elif operation == "mlp.linear.fp8":
            _compile_fp8(_Call(call))
        elif operation == "mlp.linear.fp4":
            _compile_fp4(kernel, _Call(call))
        elif operation == "embedding.lookup.quantized":
            _compile_lookup(_Call(call))
        elif operation.startswith("attention.sparse."):
            _compile_sparse(operation, _Call(call))
        elif operation == "sampling.speculative":
            _compile_speculative(_Call(call))
        else:
            pages = (1, size("page_size"), size("kv_heads"), size("head_dim"))
            if call["layout"] == "HND":
                pages = (1, size("kv_heads"), size("page_size"), size("head_dim"))
            cache = zeros(*pages, dtype="C")
            token = zeros(1, size("kv_heads"), size("head_dim"))
            launching._append(token, token, cache, torch.zeros_like(cache), torch.zeros(1, dtype=torch.int64, device="cuda"), layout=call["layout"])
        torch.cuda.current_stream().synchronize()
    return [f"{kernel} {' '.join(call.get(name, '') for name in ('T', 'hidden', 'head_dim'))}".strip()]
