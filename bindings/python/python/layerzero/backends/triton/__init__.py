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


#: Kernels by id.
KERNELS: dict[str, Callable[..., Any]] = {
    "triton.norm.rms": _norm_rms,
    "triton.norm.rms.add": _norm_rms_add,
    "triton.activation.silu_mul": _silu_mul,
    "triton.activation.gelu_mul": _gelu_mul,
    "triton.posenc.rope": _rope,
    "triton.attention.state.merge": _merge,
    "triton.kv.append": _append,
}

_DTYPES = {
    "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i32": torch.int32, "i64": torch.int64,
    "f8_e4m3": torch.float8_e4m3fn, "f8_e5m2": torch.float8_e5m2,
}  # fmt: skip


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
        else:
            pages = (1, size("page_size"), size("kv_heads"), size("head_dim"))
            if call["layout"] == "HND":
                pages = (1, size("kv_heads"), size("page_size"), size("head_dim"))
            cache = zeros(*pages, dtype="C")
            token = zeros(1, size("kv_heads"), size("head_dim"))
            _append(token, token, cache, torch.zeros_like(cache), torch.zeros(1, dtype=torch.int64, device="cuda"), layout=call["layout"])
        torch.cuda.current_stream().synchronize()
    return [f"{kernel} {' '.join(call.get(name, '') for name in ('T', 'hidden', 'head_dim'))}".strip()]
