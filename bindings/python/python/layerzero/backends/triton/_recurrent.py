"""Linear attention, state space models and short convolutions: which kernels run, with which blocks."""

from __future__ import annotations

from typing import Any

import torch

from layerzero.backends import triton as launching
from layerzero.backends.triton import _recurrent_kernels as kernels

#: Positions that are computed at once, and from which on chunks are faster than single positions.
CHUNK = 64


#: Sums of states cancel, so that one TF32 product would lose digits even of half-precision results.
_PRECISION = "tf32x3"


def _block(size: int, most: int) -> int:
    """Matrix instructions need at least 16."""
    return min(max(launching._power(size), 16), most)


def _steps(q: Any, k: Any, v: Any, g: Any, beta: Any, first: Any, last: Any, length: int, scale: float, gate: str, norm: bool) -> Any:
    """Position after position. `first` and `last` are states or None, and may be the same."""
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    (key_heads, key_dim), (heads, value_dim) = q.shape[-2:], v.shape[-2:]
    k_block = _block(key_dim, 1 << 20)
    v_block = min(_block(value_dim, 32), max(16, 8192 // k_block))
    flags = (gate == "channel", norm, first is not None, last is not None)
    numbers = (length, key_heads, heads, key_dim, value_dim)
    key = ("delta.step", *numbers, *flags, v.dtype, beta.dtype, v.get_device())
    tensors = (q, k, v, g, beta, g if first is None else first, out, g if last is None else last)
    launching._launch(
        key, -(-value_dim // v_block), v.shape[0] * heads, tensors, (*numbers, scale),
        lambda: launching._Recipe(kernels.delta_step, (*flags, k_block, v_block), 4),
    )  # fmt: skip
    return out


def linear_decode(q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, *, scale: float, gate: str, qk_l2norm: bool) -> Any:
    """`attention.linear.decode`."""
    return _steps(q, k, v, g, beta, state, state, 1, scale, gate, qk_l2norm)


def linear_prefill(
    q: Any, k: Any, v: Any, g: Any, beta: Any, initial_state: Any = None, *,
    scale: float, gate: str, qk_l2norm: bool, return_state: bool,
) -> Any:  # fmt: skip
    """`attention.linear.prefill`: in chunks, or position after position with one decay per feature."""
    (batch, length, heads, value_dim), (key_heads, key_dim) = v.shape, q.shape[-2:]
    last = torch.empty((batch, heads, key_dim, value_dim), dtype=torch.float32, device=v.device) if return_state else None
    if gate == "channel" or length < CHUNK // 4:
        out = _steps(q, k, v, g, beta, initial_state, last, length, scale, gate, qk_l2norm)
        return (out, last) if return_state else out
    rows, device = (batch, length, heads), v.get_device()
    solved_keys = torch.empty((*rows, key_dim), dtype=torch.float32, device=v.device)
    solved_values = torch.empty((*rows, value_dim), dtype=torch.float32, device=v.device)
    numbers = (length, key_heads, heads, key_dim, value_dim)
    k_block = _block(key_dim, 1 << 20)
    kinds = (*numbers, qk_l2norm, v.dtype, device)
    launching._launch(
        ("delta.solve", beta.dtype, *kinds), -(-length // CHUNK), batch * heads, (k, v, g, beta, solved_keys, solved_values), numbers,
        lambda: launching._Recipe(kernels.delta_solve, (qk_l2norm, _PRECISION, CHUNK, k_block, _block(value_dim, 64)), 4, 2),
    )  # fmt: skip
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    v_block = _block(value_dim, 32)
    flags = (qk_l2norm, initial_state is not None, return_state)
    tensors = (q, k, g, solved_keys, solved_values, g if initial_state is None else initial_state, out, g if last is None else last)
    launching._launch(
        ("delta.chunks", *flags, *kinds), -(-value_dim // v_block), batch * heads, tensors, (*numbers, scale),
        lambda: launching._Recipe(kernels.delta_chunks, (*flags, _PRECISION, CHUNK, k_block, v_block), 4, 2),
    )  # fmt: skip
    return (out, last) if return_state else out


def ssm_step(
    x: Any, dt: Any, a: Any, b: Any, c: Any, state: Any, d: Any = None, dt_bias: Any = None, *,
    dt_softplus: bool, dt_min: float, dt_max: float,
) -> Any:  # fmt: skip
    """`ssm.step`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    batch, heads, head_dim = x.shape
    groups, state_dim = b.shape[-2:]
    n_block = launching._power(state_dim)
    p_block = min(launching._power(head_dim), max(1, 4096 // n_block))
    flags = (d is not None, dt_bias is not None, dt_softplus)
    numbers = (heads, head_dim, groups, state_dim)
    tensors = (x, dt, a, b, c, state, a if d is None else d, a if dt_bias is None else dt_bias, out)
    launching._launch(
        ("ssm.step", *numbers, *flags, x.dtype, x.get_device()), -(-head_dim // p_block), batch * heads, tensors, (*numbers, dt_min, dt_max),
        lambda: launching._Recipe(kernels.ssm_step, (*flags, p_block, n_block), 4),
    )  # fmt: skip
    return out


def ssm_scan(
    x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any = None, dt_bias: Any = None, initial_state: Any = None, *,
    dt_softplus: bool, dt_min: float, dt_max: float, return_state: bool,
) -> Any:  # fmt: skip
    """`ssm.scan`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    batch, length, heads, head_dim = x.shape
    groups, state_dim = b.shape[-2:]
    last = torch.empty((batch, heads, head_dim, state_dim), dtype=torch.float32, device=x.device) if return_state else None
    n_block, p_block = _block(state_dim, 1 << 20), _block(head_dim, 32)
    flags = (d is not None, dt_bias is not None, dt_softplus, initial_state is not None, return_state)
    numbers = (length, heads, head_dim, groups, state_dim)
    optional = (a if one is None else one for one in (d, dt_bias, initial_state))
    tensors = (x, dt, a, b, c, *optional, out, a if last is None else last)
    launching._launch(
        ("ssm.scan", *numbers, *flags, x.dtype, x.get_device()), -(-head_dim // p_block), batch * heads, tensors, (*numbers, dt_min, dt_max),
        lambda: launching._Recipe(kernels.ssm_chunks, (*flags, _PRECISION, CHUNK, p_block, n_block), 4, 2),
    )  # fmt: skip
    return (out, last) if return_state else out


def _convolution(x: Any, weight: Any, bias: Any, first: Any, last: Any, length: int, activation: str) -> Any:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    channels, width = weight.shape
    t_block, c_block = (1, 256) if length == 1 else (16, 128)
    flags = (bias is not None, activation == "silu", first is not None, last is not None)
    key = ("conv", length, channels, width, *flags, x.dtype, weight.dtype, x.get_device())
    tensors = (x, weight, weight if bias is None else bias, x if first is None else first, out, x if last is None else last)
    launching._launch(
        key, x.shape[0] * -(-length // t_block), -(-channels // c_block), tensors, (length, channels),
        lambda: launching._Recipe(kernels.causal_conv, (*flags, width, launching._power(max(width - 1, 1)), t_block, c_block), 4),
    )  # fmt: skip
    return out


def causal1d(x: Any, weight: Any, bias: Any = None, initial_state: Any = None, *, activation: str, return_state: bool) -> Any:
    """`conv.causal1d`."""
    batch, length, channels = x.shape
    last = torch.empty((batch, channels, weight.shape[1] - 1), dtype=x.dtype, device=x.device) if return_state else None
    out = _convolution(x, weight, bias, initial_state, last, length, activation)
    return (out, last) if return_state else out


def causal1d_step(x: Any, state: Any, weight: Any, bias: Any = None, *, activation: str) -> Any:
    """`conv.causal1d.step`."""
    return _convolution(x, weight, bias, state, state, 1, activation)
