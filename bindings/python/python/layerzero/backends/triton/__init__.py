"""Kernels of our own in Triton, for what the libraries leave to compositions of several kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from layerzero.backends.triton import _kernels


def _power(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


def _warps(block: int) -> int:
    return 4 if block <= 2048 else 8 if block <= 8192 else 16


_raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)
#: What was compiled, by all that it was compiled for: dtypes, sizes, device. Tensors are aligned, which descriptors see to.
_READY: dict[tuple[Any, ...], tuple[Any, ...]] = {}


def _launch(
    key: tuple[Any, ...], kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any], warps: int
) -> None:
    """Runs a kernel. Triton looks at every argument on each launch, which takes longer than most kernels: what it found for a key is
    launched directly from then on."""
    device = arguments[0].get_device()
    key = (*key, device)
    ready = _READY.get(key)
    if ready is None:
        made = kernel[grid](*arguments, **constants, num_warps=warps)
        # Without a device kernels are interpreted, and nothing is compiled.
        if getattr(made, "packed_metadata", None) is not None:
            values = tuple(constants[name] for name in kernel.arg_names[len(arguments) :])
            _READY[key] = (made.run, made.function, made.packed_metadata, values)
        return
    run, function, metadata, values = ready
    columns = grid[1] if len(grid) > 1 else 1
    run(grid[0], columns, 1, _raw_stream(device), function, metadata, None, None, None, *arguments, *values)


def _norm(x: Any, residual: Any, weight: Any, eps: float, weight_offset: float, out: Any) -> Any:
    if out is None:
        out = torch.empty_like(x)
    hidden = x.shape[-1]
    block = _power(hidden)
    _launch(
        ("norm", x.dtype, None if weight is None else weight.dtype, residual is None, hidden), _kernels.rms_norm,
        (x.numel() // hidden,),
        (x, x if residual is None else residual, x if weight is None else weight, out, hidden, eps, weight_offset),
        {"HAS_WEIGHT": weight is not None, "ADDS": residual is not None, "BLOCK": block}, _warps(block),
    )  # fmt: skip
    return out


def _norm_rms(x: Any, weight: Any, *, eps: float, weight_offset: float, out: Any = None) -> Any:
    return _norm(x, None, weight, eps, weight_offset, out)


def _norm_rms_add(x: Any, residual: Any, weight: Any, *, eps: float, weight_offset: float, out: Any = None) -> Any:
    return _norm(x, residual, weight, eps, weight_offset, out)


_STRETCH = 1024


def _silu_mul(gate: Any, up: Any, *, out: Any = None) -> Any:
    if out is None:
        out = torch.empty_like(gate)
    count = gate.numel()
    grid = (-(-count // _STRETCH),)
    _launch(("silu", gate.dtype, count), _kernels.silu_mul, grid, (gate, up, out, count), {"BLOCK": _STRETCH}, 4)
    return out


def _gelu_mul(gate: Any, up: Any, *, approximate: str, out: Any = None) -> Any:
    if out is None:
        out = torch.empty_like(gate)
    count, tanh = gate.numel(), approximate == "tanh"
    grid = (-(-count // _STRETCH),)
    constants = {"TANH": tanh, "BLOCK": _STRETCH}
    _launch(("gelu", gate.dtype, count, tanh), _kernels.gelu_mul, grid, (gate, up, out, count), constants, 4)
    return out


def _rope(x: Any, cos: Any, sin: Any, positions: Any, *, interleaved: bool, layout: str, out: Any = None) -> Any:
    if out is None:
        out = torch.empty_like(x)
    half, head_dim = cos.shape[-1], x.shape[-1]
    batch, seq, heads = (x.shape[0], x.shape[2], x.shape[1]) if layout == "BHSD" else x.shape[:3]
    place, head = (2, 1) if layout == "BHSD" else (1, 2)
    rest = head_dim - 2 * half
    strides, turned = x.stride(), out.stride()
    numbers = (
        heads, seq, head_dim, half, strides[0], strides[place], strides[head], turned[0], turned[place], turned[head],
    )  # fmt: skip
    _launch(
        ("rope", x.dtype, cos.dtype, None if positions is None else positions.dtype, interleaved, *numbers), _kernels.rope,
        (batch * seq, heads), (x, cos, sin, x if positions is None else positions, out, *numbers),
        {
            "HAS_POSITIONS": positions is not None, "INTERLEAVED": interleaved, "HALF": _power(half),
            "REST": _power(rest) if rest else 0,
        },
        1 if half <= 64 else 2,
    )  # fmt: skip
    return out


def _merge(v: Any, s: Any) -> Any:
    states, heads, head_dim = v.shape[-3:]
    out = v.new_empty((*v.shape[:-3], heads, head_dim))
    lse = s.new_empty((*s.shape[:-2], heads))
    numbers = (states, heads, head_dim)
    grid = (lse.numel() // heads, heads)
    _launch(("merge", v.dtype, *numbers), _kernels.merge, grid, (v, s, out, lse, *numbers), {"BLOCK": _power(head_dim)}, 1)
    return out, lse


_LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def _append(k: Any, v: Any, k_cache: Any, v_cache: Any, slots: Any, *, layout: str) -> None:
    tokens, heads, head_dim = k.shape
    place, head = (1, 2) if layout == "NHD" else (2, 1)
    largest = _LARGEST.get(k_cache.dtype)
    strides = k_cache.stride()
    numbers = (tokens, heads, head_dim, k_cache.shape[place], strides[0], strides[place], strides[head])
    constants = {"SATURATES": largest is not None, "LARGEST": largest or 0.0, "BLOCK": min(_power(heads * head_dim), 1024)}
    key = ("append", k.dtype, k_cache.dtype, *numbers)
    _launch(key, _kernels.append, (tokens,), (k, v, k_cache, v_cache, slots, *numbers), constants, 4)


#: The formats of eight bits: how they are stored, and their largest value.
_FORMATS = {"int8": (torch.int8, 127.0), "fp8_e4m3": (torch.float8_e4m3fn, 448.0), "fp8_e5m2": (torch.float8_e5m2, 57344.0)}
#: Groups up to this size are read once.
_IN_ONE = 16384
#: How many programs look for the largest value of one group at most, and how much each reads at once.
_PARTS, _READ = 512, 8192


def _quantize(x: Any, scale: Any, zero_point: Any, global_scale: Any, *, format: str, granularity: str, block_size: int) -> Any:
    dtype, most = _FORMATS[format]
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    channels, inner, count = x.shape[-2], x.shape[-1], x.numel()
    rows = count // inner
    is_given = scale is not None
    constants = {"HAS_SCALE": is_given, "HAS_ZERO": zero_point is not None, "LARGEST": most}
    kinds = (x.dtype, format, is_given, zero_point is not None)
    zero = x if zero_point is None else zero_point
    if granularity == "block" or (granularity != "tensor" and rows == channels and inner <= _IN_ONE):
        size = min(block_size, inner) if granularity == "block" else inner
        blocks = -(-inner // size)
        if not is_given:
            shape = (*x.shape[:-1], blocks) if granularity == "block" else (channels,)
            scale = torch.empty(shape, dtype=torch.float32, device=x.device)
        width = _power(size)
        constants.update({"GROUPS": max(1, 4096 // width), "SIZE": width})
        numbers = (rows * blocks, blocks, inner, size)
        grid = (-(-numbers[0] // constants["GROUPS"]),)
        _launch(("blocks", *kinds, *numbers), _kernels.quantize_blocks, grid, (x, scale, zero, out, *numbers), constants, 4 if width <= 4096 else 8)
        return out if is_given else (out, scale)
    parts = x
    if granularity == "tensor":
        channels, inner, rows = 1, count, 1
    if is_given:
        constants["PARTS"] = 1
    else:
        scale = torch.empty(() if granularity == "tensor" else (channels,), dtype=torch.float32, device=x.device)
        outer, length = (-(-count // _READ), _READ) if granularity == "tensor" else (rows // channels, inner)
        each = constants["PARTS"] = min(_PARTS, _power(outer))
        parts = torch.empty(channels * each, dtype=torch.int32, device=x.device)
        numbers = (count, outer, channels, length)
        reading = {"PARTS": each, "BLOCK": min(_power(length), _READ)}
        _launch(("largest", x.dtype, *numbers), _kernels.largest, (channels * each,), (x, parts, *numbers), reading, 8)
    constants["BLOCK"] = block = min(_power(inner), 4096)
    chunks = -(-inner // block)
    numbers = (channels, inner, chunks)
    key = ("quantize", *kinds, *numbers, constants["PARTS"])
    _launch(key, _kernels.quantize, (rows * chunks,), (x, parts, scale, zero, out, *numbers), constants, 8 if block > 1024 else 4)
    return out if is_given else (out, scale)


def _dequantize(
    quantized: Any, scale: Any, zero_point: Any, global_scale: Any, *,
    format: str, granularity: str, block_size: int, inner: int, output_dtype: str, out: Any = None,
) -> Any:  # fmt: skip
    if out is None:
        out = torch.empty(quantized.shape, dtype=_DTYPES[output_dtype], device=quantized.device)
    channels, count = quantized.shape[-2], quantized.numel()
    rows, blocks, size = count // inner, 1, inner
    if granularity == "tensor":
        channels, inner, rows = 1, count, 1
    elif granularity == "block":
        size = min(block_size, inner)
        blocks = -(-inner // size)
    block = min(_power(inner), 4096)
    numbers = (channels, inner, -(-inner // block), size, blocks)
    constants = {"PER_BLOCK": granularity == "block", "HAS_ZERO": zero_point is not None, "BLOCK": block}
    zero = scale if zero_point is None else zero_point
    key = ("dequantize", format, output_dtype, granularity == "block", zero_point is not None, *numbers)
    _launch(key, _kernels.dequantize, (rows * numbers[2],), (quantized, scale, zero, out, *numbers), constants, 8 if block > 1024 else 4)
    return out


#: Kernels by id.
KERNELS: dict[str, Callable[..., Any]] = {
    "triton.norm.rms": _norm_rms,
    "triton.norm.rms.add": _norm_rms_add,
    "triton.activation.silu_mul": _silu_mul,
    "triton.activation.gelu_mul": _gelu_mul,
    "triton.posenc.rope": _rope,
    "triton.attention.state.merge": _merge,
    "triton.kv.append": _append,
    "triton.quantize": _quantize,
    "triton.dequantize": _dequantize,
}

_DTYPES = {
    "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i32": torch.int32, "i64": torch.int64,
    "f8_e4m3": torch.float8_e4m3fn, "f8_e5m2": torch.float8_e5m2, "i8": torch.int8,
}  # fmt: skip


def _compile_format(operation: str, call: Mapping[str, str]) -> None:
    """One run with the call's own sizes: which of the kernels run, and how they are compiled, follows from them."""
    outer, channels, stored = (int(call[name]) for name in ("outer", "channels", "inner" if operation == "quantize" else "stored"))
    params: dict[str, Any] = {name: call[name] for name in ("format", "granularity")}
    params["block_size"] = size = int(call["block_size"])
    scales = {"tensor": (), "block": (outer, channels, -(-stored // size))}.get(params["granularity"], (channels,))
    scale = torch.ones(scales, device="cuda")
    zero_point = torch.zeros(scales, dtype=torch.int32, device="cuda") if call["given(zero_point)"] == "true" else None
    if operation == "quantize":
        x = torch.empty((outer, channels, stored), dtype=_DTYPES[call["T"]], device="cuda")
        _quantize(x, scale if call["given(scale)"] == "true" else None, zero_point, None, **params)
    else:
        quantized = torch.empty((outer, channels, stored), dtype=_FORMATS[params["format"]][0], device="cuda")
        _dequantize(quantized, scale, zero_point, None, **params, inner=stored, output_dtype=call["output_dtype"])


def compile(kernel: str, operation: str, call: Mapping[str, str]) -> list[str]:
    """Runs a kernel once beside the caller's streams, small but with the sizes that code is made for."""

    def size(name: str) -> int:
        return int(call[name])

    def zeros(*shape: int, dtype: str = "T") -> Any:
        return torch.zeros(shape, dtype=_DTYPES[call[dtype]], device="cuda")

    with torch.cuda.stream(torch.cuda.Stream()):
        if operation in ("norm.rms", "norm.rms.add"):
            x = zeros(1, size("hidden"))
            weight = zeros(size("hidden"), dtype="W") if call.get("W", "none") != "none" else None
            more = (torch.zeros_like(x),) if operation == "norm.rms.add" else ()
            KERNELS[kernel](x, *more, weight, eps=1e-6, weight_offset=float(call.get("weight_offset", 0.0)))
        elif operation == "activation.silu_mul":
            _silu_mul(zeros(16), zeros(16))
        elif operation == "activation.gelu_mul":
            _gelu_mul(zeros(16), zeros(16), approximate=call["approximate"])
        elif operation == "posenc.rope":
            positions = zeros(1, 1, dtype="P") if call.get("P", "none") != "none" else None
            table = torch.zeros((16, size("half_rotary")), dtype=_DTYPES[call["C"]], device="cuda")
            x = zeros(1, 1, size("heads"), size("head_dim"))
            if call["layout"] == "BHSD":
                x = x.transpose(1, 2).contiguous()
            _rope(x, table, table, positions, interleaved=call["interleaved"] == "true", layout=call["layout"])
        elif operation == "attention.state.merge":
            _merge(zeros(1, 2, size("heads"), size("head_dim")), torch.zeros((1, 2, size("heads")), device="cuda"))
        elif operation in ("quantize", "dequantize"):
            _compile_format(operation, call)
        else:
            pages = (1, size("page_size"), size("kv_heads"), size("head_dim"))
            if call["layout"] == "HND":
                pages = (1, size("kv_heads"), size("page_size"), size("head_dim"))
            cache = zeros(*pages, dtype="C")
            token = zeros(1, size("kv_heads"), size("head_dim"))
            _append(token, token, cache, torch.zeros_like(cache), torch.zeros(1, dtype=torch.int64, device="cuda"), layout=call["layout"])
        torch.cuda.current_stream().synchronize()
    return [f"{kernel} {' '.join(call.get(name, '') for name in ('T', 'hidden', 'head_dim'))}".strip()]
