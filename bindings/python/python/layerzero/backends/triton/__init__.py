"""Triton kernels for operations that the libraries compute with several kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton

from layerzero import _native
from layerzero.backends.triton import _kernels

#: Releases of Triton whose launcher is called directly: its arguments are private to Triton, and other
#: releases have another order. With other releases compiled kernels run through Triton's public interface.
_LAUNCHERS = ("3.6.",)
_IS_DIRECT = _native.private_interfaces() and triton.__version__.startswith(_LAUNCHERS)


def _power(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


def _warps(block: int) -> int:
    return 4 if block <= 2048 else 8 if block <= 8192 else 16


_raw_stream = _native.current_stream
_empty_like = torch.empty_like
#: Compiled kernels by their compile-time key (sizes, dtypes, device): the launcher, and its arguments before
#: the pointers and after the numbers. Tensors are aligned, as the descriptors require.
_READY: dict[tuple[Any, ...], tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = {}


class _Recipe(NamedTuple):
    """A kernel, its constants in order, the number of warps, and of stages of its pipeline if that is not Triton's default, and the positions of
    the tensors that it reads as bytes: Triton has no packed floats and no powers of two, and before SM 8.9 no fp8."""

    kernel: Any
    constants: tuple[Any, ...]
    warps: int
    stages: int | None = None
    reads_bytes: tuple[int, ...] = ()


def _launch(
    key: tuple[Any, ...], rows: int, columns: int, tensors: tuple[Any, ...], numbers: tuple[Any, ...], recipe: Callable[[], _Recipe]
) -> None:
    """Runs a kernel on a grid. Triton inspects every argument on each launch, which takes longer than most
    kernels; so a compiled kernel is launched directly from the second call with a key on. The key ends with
    the device. `recipe` is called on the first call only."""
    ready = _READY.get(key)
    if ready is None:
        _launch_first(key, (rows, columns), tensors, numbers, recipe())
        return
    launch, before, after = ready
    launch(rows, columns, 1, _raw_stream(key[-1]), *before, *[tensor.data_ptr() for tensor in tensors], *numbers, *after)


def _launch_first(key: tuple[Any, ...], grid: tuple[int, int], tensors: tuple[Any, ...], numbers: tuple[Any, ...], recipe: _Recipe) -> None:
    kernel, constants, warps, stages, reads_bytes = recipe
    tensors = tuple(tensor.view(torch.uint8) if place in reads_bytes else tensor for place, tensor in enumerate(tensors))
    names = kernel.arg_names[len(tensors) + len(numbers) :]
    options = {"num_warps": warps} if stages is None else {"num_warps": warps, "num_stages": stages}
    compiled = kernel[grid](*tensors, *numbers, **dict(zip(names, constants, strict=True)), **options)
    # Without a device kernels are interpreted, and nothing is compiled.
    if getattr(compiled, "packed_metadata", None) is None:
        return
    if not _IS_DIRECT:
        _READY[key] = (_runner(compiled), (), constants)
        return
    run, after = compiled.run, (compiled.packed_metadata, None, None, None)
    before: tuple[Any, ...] = (compiled.function, *after)
    parts = ("launch", "global_scratch_size", "profile_scratch_size", "launch_cooperative_grid", "launch_pdl")
    if all(hasattr(run, part) for part in parts) and not run.global_scratch_size and not run.profile_scratch_size:
        # The C launcher, without the wrapper that allocates scratch memory, which these kernels do not need.
        before = (compiled.function, run.launch_cooperative_grid, run.launch_pdl, None, None, *after)
        run = run.launch
    _READY[key] = (run, before, constants)


def _runner(compiled: Any) -> Callable[..., None]:
    """Runs a compiled kernel on a grid and a stream through the public interface."""

    def run(rows: int, columns: int, layers: int, stream: int, *arguments: Any) -> None:
        compiled[(rows, columns, layers)](*arguments, stream=stream)

    return run


def _norm(x: Any, residual: Any, weight: Any, eps: float, weight_offset: float, out: Any) -> Any:
    if out is None:
        out = _empty_like(x)
    hidden = x.shape[-1]
    key = ("norm", hidden, x.dtype, None if weight is None else weight.dtype, residual is None, x.get_device())
    tensors = (x, x if residual is None else residual, x if weight is None else weight, out)

    def recipe() -> _Recipe:
        block = _power(hidden)
        return _Recipe(_kernels.rms_norm, (weight is not None, residual is not None, block), _warps(block))

    _launch(key, x.numel() // hidden, 1, tensors, (hidden, eps, weight_offset), recipe)
    return out


def _norm_rms(x: Any, weight: Any, *, eps: float, weight_offset: float, out: Any = None) -> Any:
    return _norm(x, None, weight, eps, weight_offset, out)


def _norm_rms_add(x: Any, residual: Any, weight: Any, *, eps: float, weight_offset: float, out: Any = None) -> Any:
    return _norm(x, residual, weight, eps, weight_offset, out)


_BLOCK = 1024


def _silu_recipe() -> _Recipe:
    return _Recipe(_kernels.silu_mul, (_BLOCK,), 4)


def _silu_mul(gate: Any, up: Any, *, out: Any = None) -> Any:
    if out is None:
        out = _empty_like(gate)
    count = gate.numel()
    _launch(("silu", count, gate.dtype, gate.get_device()), -(-count // _BLOCK), 1, (gate, up, out), (count,), _silu_recipe)
    return out


def _gelu_mul(gate: Any, up: Any, *, approximate: str, out: Any = None) -> Any:
    if out is None:
        out = _empty_like(gate)
    count, tanh = gate.numel(), approximate == "tanh"
    key = ("gelu", count, tanh, gate.dtype, gate.get_device())
    _launch(key, -(-count // _BLOCK), 1, (gate, up, out), (count,), lambda: _Recipe(_kernels.gelu_mul, (tanh, _BLOCK), 4))
    return out


def _rope(x: Any, cos: Any, sin: Any, positions: Any, *, interleaved: bool, layout: str, out: Any = None) -> Any:
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    half = cos.shape[-1]
    if layout == "BHSD":
        (batch, heads, seq, head_dim), seq_dim, head = x.shape, 2, 1
    else:
        (batch, seq, heads, head_dim), seq_dim, head = x.shape, 1, 2
    if x.stride(-1) != 1:
        x = x.contiguous()
    # A slice of joined queries, keys and values has a larger stride between tokens; the tables are read row by row.
    cos, sin = cos.contiguous(), sin.contiguous()
    positions = None if positions is None else positions.contiguous()
    strides, out_strides = x.stride(), out.stride()
    numbers = (
        heads, seq, head_dim, half, strides[0], strides[seq_dim], strides[head], out_strides[0], out_strides[seq_dim], out_strides[head],
    )  # fmt: skip
    key = ("rope", *numbers, interleaved, x.dtype, cos.dtype, None if positions is None else positions.dtype, x.get_device())

    def recipe() -> _Recipe:
        rest = head_dim - 2 * half
        constants = (positions is not None, interleaved, _power(half), _power(rest) if rest else 0)
        return _Recipe(_kernels.rope, constants, 1 if half <= 64 else 2)

    _launch(key, batch * seq, heads, (x, cos, sin, x if positions is None else positions, out), numbers, recipe)
    return out


def _merge(v: Any, s: Any) -> Any:
    states, heads, head_dim = v.shape[-3:]
    out = v.new_empty((*v.shape[:-3], heads, head_dim))
    lse = s.new_empty((*s.shape[:-2], heads))
    numbers = (states, heads, head_dim)
    key = ("merge", *numbers, v.dtype, v.get_device())
    _launch(key, lse.numel() // heads, heads, (v, s, out, lse), numbers, lambda: _Recipe(_kernels.merge, (_power(head_dim),), 1))
    return out, lse


_LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def _append(k: Any, v: Any, k_cache: Any, v_cache: Any, slots: Any, *, layout: str) -> None:
    if k_cache.stride() != v_cache.stride() or k_cache.stride(-1) != 1:
        raise NotImplementedError("caches with different strides")
    tokens, heads, head_dim = k.shape
    # Heads of a token must follow each other; tokens of a slice may be further apart.
    k, v = (one if one.stride()[1:] == (head_dim, 1) else one.contiguous() for one in (k, v))
    slots = slots.contiguous()
    slot_dim, head = (1, 2) if layout == "NHD" else (2, 1)
    strides = k_cache.stride()
    sizes = (tokens, heads, head_dim, k_cache.shape[slot_dim])
    numbers = (*sizes, strides[0], strides[slot_dim], strides[head], k.stride(0), v.stride(0))

    def recipe() -> _Recipe:
        largest = _LARGEST.get(k_cache.dtype)
        return _Recipe(_kernels.append, (largest is not None, largest or 0.0, min(_power(heads * head_dim), 1024)), 4)

    _launch(("append", *numbers, k.dtype, k_cache.dtype, k.get_device()), tokens, 1, (k, v, k_cache, v_cache, slots), numbers, recipe)


#: The 8-bit formats: their dtype and largest value.
_FORMATS = {"int8": (torch.int8, 127.0), "fp8_e4m3": (torch.float8_e4m3fn, 448.0), "fp8_e5m2": (torch.float8_e5m2, 57344.0)}
#: Groups up to this size are read once.
_IN_ONE = 16384
#: Maximum number of programs that reduce one group, and elements per read of each.
_PARTS, _READ = 512, 8192


def _quantize(x: Any, scale: Any, zero_point: Any, global_scale: Any, *, format: str, granularity: str, block_size: int) -> Any:
    dtype, most = _FORMATS[format]
    device = x.device
    out = torch.empty(x.shape, dtype=dtype, device=device)
    channels, inner = x.shape[-2:]
    count, is_given, has_zero = x.numel(), scale is not None, zero_point is not None
    rows = count // inner
    kinds = (format, is_given, has_zero, x.dtype, x.get_device())
    zero = zero_point if has_zero else x
    if granularity == "block" or (granularity != "tensor" and rows == channels and inner <= _IN_ONE):
        size = min(block_size, inner) if granularity == "block" else inner
        blocks = -(-inner // size)
        if not is_given:
            scale = torch.empty((*x.shape[:-1], blocks) if granularity == "block" else channels, dtype=torch.float32, device=device)
        width = _power(size)
        together = max(1, 4096 // width)
        numbers = (rows * blocks, blocks, inner, size)

        def in_one() -> _Recipe:
            return _Recipe(_kernels.quantize_blocks, (is_given, has_zero, most, together, width), 4 if width <= 4096 else 8)

        _launch(("blocks", *numbers, *kinds), -(-numbers[0] // together), 1, (x, scale, zero, out), numbers, in_one)
        return out if is_given else (out, scale)
    parts, each = x, 1
    if granularity == "tensor":
        channels, inner, rows = 1, count, 1
    if not is_given:
        scale = torch.empty(() if granularity == "tensor" else channels, dtype=torch.float32, device=device)
        outer, length = (-(-count // _READ), _READ) if granularity == "tensor" else (rows // channels, inner)
        each = min(_PARTS, _power(outer))
        parts = torch.empty(channels * each, dtype=torch.int32, device=device)
        numbers = (count, outer, channels, length)

        def reading() -> _Recipe:
            return _Recipe(_kernels.largest, (each, min(_power(length), _READ)), 8)

        _launch(("largest", *numbers, x.dtype, x.get_device()), channels * each, 1, (x, parts), numbers, reading)
    block = min(_power(inner), 4096)
    chunks = -(-inner // block)

    def writing() -> _Recipe:
        return _Recipe(_kernels.quantize, (is_given, has_zero, most, each, block), 4)

    _launch(("quantize", channels, inner, chunks, each, *kinds), rows * chunks, 1, (x, parts, scale, zero, out), (channels, inner, chunks), writing)
    return out if is_given else (out, scale)


def _dequantize(
    quantized: Any, scale: Any, zero_point: Any, global_scale: Any, *,
    format: str, granularity: str, block_size: int, inner: int, output_dtype: str, out: Any = None,
) -> Any:  # fmt: skip
    if out is None:
        out = torch.empty(quantized.shape, dtype=_DTYPES[output_dtype], device=quantized.device)
    channels, count, has_zero, by_block = quantized.shape[-2], quantized.numel(), zero_point is not None, granularity == "block"
    rows, blocks, size = count // inner, 1, inner
    if granularity == "tensor":
        channels, inner, rows = 1, count, 1
    elif by_block:
        size = min(block_size, inner)
        blocks = -(-inner // size)
    block = min(_power(inner), 4096)
    numbers = (channels, inner, -(-inner // block), size, blocks)
    key = ("dequantize", *numbers, by_block, has_zero, format, output_dtype, quantized.get_device())

    def recipe() -> _Recipe:
        return _Recipe(_kernels.dequantize, (by_block, has_zero, block), 8 if block > 1024 else 4)

    _launch(key, rows * numbers[2], 1, (quantized, scale, zero_point if has_zero else scale, out), numbers, recipe)
    return out


_DTYPES = {
    "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i32": torch.int32, "i64": torch.int64,
    "f8_e4m3": torch.float8_e4m3fn, "f8_e5m2": torch.float8_e5m2, "i8": torch.int8, "u8": torch.uint8,
}  # fmt: skip

# They call the launcher above.
from layerzero.backends.triton import (  # noqa: E402
    _embedding, _experts, _experts_quantized, _fp4, _fp8, _linear, _norms, _paged, _recurrent, _rope_append, _sampling, _score_mod, _sparse,
)  # fmt: skip

#: Kernels by id.
KERNELS: dict[str, Callable[..., Any]] = {
    "triton.norm.rms": _norm_rms,
    "triton.norm.rms.add": _norm_rms_add,
    "triton.norm.rms.quantize": _norms.norm_rms_quantize,
    "triton.norm.rms.add.quantize": _norms.norm_rms_add_quantize,
    "triton.activation.silu_mul": _silu_mul,
    "triton.activation.gelu_mul": _gelu_mul,
    "triton.posenc.rope": _rope,
    "triton.attention.state.merge": _merge,
    "triton.kv.append": _append,
    "triton.rope.append": _rope_append.rope_append,
    "triton.quantize": _quantize,
    "triton.dequantize": _dequantize,
    "triton.mlp.linear": _linear.linear,
    "triton.mlp.linear.invariant": _linear.invariant,
    "triton.embedding.lookup.quantized": _embedding.lookup,
    "triton.mlp.linear.fp4": _fp4.linear,
    "triton.mlp.linear.fp4.skinny": _fp4.skinny,
    "triton.mlp.linear.fp8": _fp8.linear,
    "triton.mlp.linear.fp8.skinny": _fp8.linear,
    "triton.mlp.fused": _linear.fused,
    "triton.moe.route": _experts.route,
    "triton.moe.experts": _experts.experts,
    "triton.moe.experts.quantized": _experts_quantized.experts,
    "triton.attention.linear.prefill": _recurrent.linear_prefill,
    "triton.attention.linear.decode": _recurrent.linear_decode,
    "triton.ssm.scan": _recurrent.ssm_scan,
    "triton.ssm.step": _recurrent.ssm_step,
    "triton.conv.causal1d": _recurrent.causal1d,
    "triton.conv.causal1d.step": _recurrent.causal1d_step,
    "triton.attention.gqa.prefill.paged": _paged.prefill_paged,
    "triton.attention.gqa.prefill.score_mod": _score_mod.prefill,
    "triton.attention.gqa.decode.score_mod": _score_mod.decode,
    "triton.attention.standard.prefill.score_mod": _score_mod.prefill,
    "triton.attention.standard.decode.score_mod": _score_mod.decode,
    "triton.attention.gqa.prefill.ragged.score_mod": _score_mod.prefill_ragged,
    "triton.attention.gqa.prefill.paged.score_mod": _score_mod.prefill_paged,
    "triton.attention.gqa.decode.paged.score_mod": _score_mod.decode_paged,
    "triton.attention.gqa.prefill.paged.fp8.score_mod": _score_mod.prefill_paged_fp8,
    "triton.attention.gqa.decode.paged.fp8.score_mod": _score_mod.decode_paged_fp8,
    "triton.attention.standard.prefill.ragged.score_mod": _score_mod.prefill_ragged,
    "triton.attention.standard.prefill.paged.score_mod": _score_mod.prefill_paged,
    "triton.attention.standard.decode.paged.score_mod": _score_mod.decode_paged,
    "triton.attention.sparse.block": _sparse.block,
    "triton.attention.sparse.variable_block": _sparse.variable_block,
    "triton.sampling.speculative": _sampling.speculative,
}

# It runs the kernels above.
from layerzero.backends.triton._compile import compile  # noqa: E402

__all__ = ["KERNELS", "compile"]
