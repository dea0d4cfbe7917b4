"""Short convolutions, linear attention and state space models, written with torch functions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

#: Positions that linear attention computes at once.
_CHUNK = 64


def causal1d(x: Any, weight: Any, bias: Any = None, initial_state: Any = None, *, activation: str, return_state: bool) -> Any:
    """One product per tap, in f32."""
    width, length = weight.shape[1], x.shape[1]
    past = x.new_zeros((x.shape[0], width - 1, x.shape[2])) if initial_state is None else initial_state.transpose(1, 2)
    inputs = torch.cat((past, x), 1)
    output = _activated(sum(inputs[:, tap : tap + length].float() * weight[:, tap].float() for tap in range(width)), bias, activation)
    output = output.to(x.dtype)
    return (output, inputs[:, length:].transpose(1, 2).contiguous()) if return_state else output


def causal1d_step(x: Any, state: Any, weight: Any, bias: Any = None, *, activation: str) -> Any:
    """One step; shifts the state."""
    inputs = torch.cat((state, x[..., None]), -1)
    state.copy_(inputs[..., 1:])
    return _activated((inputs.float() * weight.float()).sum(-1), bias, activation).to(x.dtype)


def _activated(sums: Any, bias: Any, activation: str) -> Any:
    if bias is not None:
        sums = sums + bias.float()
    return F.silu(sums.clamp_min(torch.finfo(sums.dtype).min)) if activation == "silu" else sums


def _normalized(x: Any, norm: bool, repeats: int) -> Any:
    """Queries or keys in f32, one per head."""
    x = x.float()
    if norm:
        x = x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
    return x.repeat_interleave(repeats, -2)


def _step(state: Any, q: Any, k: Any, v: Any, decay: Any, beta: Any) -> tuple[Any, Any]:
    """The next state and the output of one position; the last dimension of decay is a key feature."""
    state = state * decay[..., None]
    change = beta[..., None] * (v - torch.einsum("bhi,bhij->bhj", k, state))
    state = state + k[..., None] * change[..., None, :]
    return state, torch.einsum("bhi,bhij->bhj", q, state)


def linear_decode(
    q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, *, scale: float, gate: str, qk_l2norm: bool,
) -> Any:  # fmt: skip
    """One position; replaces the state."""
    repeats = v.shape[1] // q.shape[1]
    q, k = (_normalized(x, qk_l2norm, repeats) for x in (q, k))
    decay = g.exp() if gate == "channel" else g.exp()[..., None]
    after, output = _step(state, q, k, v.float(), decay, beta.float())
    state.copy_(after)
    return (output * scale).to(v.dtype)


def linear_prefill(
    q: Any, k: Any, v: Any, g: Any, beta: Any, initial_state: Any = None, *,
    scale: float, gate: str, qk_l2norm: bool, return_state: bool,
) -> Any:  # fmt: skip
    """In chunks with one decay per head; position after position with one per feature."""
    dtype, (batch, length, heads, features) = v.dtype, v.shape
    q, k = (_normalized(x, qk_l2norm, heads // q.shape[2]) for x in (q, k))
    v, beta = v.float(), beta.float()
    state = v.new_zeros((batch, heads, q.shape[-1], features)) if initial_state is None else initial_state
    outputs = [v.new_empty((batch, 0, heads, features))]
    if gate == "channel":
        for t in range(length):
            state, output = _step(state, q[:, t], k[:, t], v[:, t], g[:, t].exp(), beta[:, t])
            outputs.append(output[:, None])
    else:
        for first in range(0, length, _CHUNK):
            part = slice(first, first + _CHUNK)
            state, output = _chunk(state, *(tensor[:, part].transpose(1, 2) for tensor in (q, k, v, g, beta)))
            outputs.append(output.transpose(1, 2))
    output = (torch.cat(outputs, 1) * scale).to(dtype)
    return (output, state.contiguous().clone() if state is initial_state else state.contiguous()) if return_state else output


def _time_steps(dt: Any, dt_bias: Any, softplus: bool, low: float, high: float) -> Any:
    dt = dt.float() if dt_bias is None else dt.float() + dt_bias
    dt = F.softplus(dt, threshold=30.0) if softplus else dt
    return dt.clamp(low, high if high > 0 else None)


def ssm_step(
    x: Any, dt: Any, a: Any, b: Any, c: Any, state: Any, d: Any = None, dt_bias: Any = None, *,
    dt_softplus: bool, dt_min: float, dt_max: float,
) -> Any:  # fmt: skip
    """One position; replaces the state."""
    steps = _time_steps(dt, dt_bias, dt_softplus, dt_min, dt_max)
    b, c = (tensor.float().repeat_interleave(x.shape[1] // tensor.shape[1], 1) for tensor in (b, c))
    change = (steps[..., None] * x.float())[..., None] * b[..., None, :]
    state.copy_((steps * a).exp()[..., None, None] * state + change)
    output = (state * c[..., None, :]).sum(-1)
    return (output if d is None else output + d[:, None] * x.float()).to(x.dtype)


def ssm_scan(
    x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any = None, dt_bias: Any = None, initial_state: Any = None, *,
    dt_softplus: bool, dt_min: float, dt_max: float, return_state: bool,
) -> Any:  # fmt: skip
    """In chunks: linear attention without the delta rule."""
    batch, length, heads, features = x.shape
    steps = _time_steps(dt, dt_bias, dt_softplus, dt_min, dt_max)
    b, c = (tensor.float().repeat_interleave(heads // tensor.shape[2], 2) for tensor in (b, c))
    values = steps[..., None] * x.float()
    state = values.new_zeros((batch, heads, b.shape[-1], features)) if initial_state is None else initial_state.transpose(2, 3)
    outputs = [values.new_empty((batch, 0, heads, features))]
    for first in range(0, length, _CHUNK):
        part = slice(first, first + _CHUNK)
        state, output = _chunk(state, *(tensor[:, part].transpose(1, 2) for tensor in (c, b, values, steps * a)))
        outputs.append(output.transpose(1, 2))
    output = torch.cat(outputs, 1)
    output = (output if d is None else output + d[:, None] * x.float()).to(x.dtype)
    return (output, state.transpose(2, 3).clone(memory_format=torch.contiguous_format)) if return_state else output


def _chunk(state: Any, q: Any, k: Any, v: Any, g: Any, beta: Any = None) -> tuple[Any, Any]:
    """Several positions ``[B, H, T, …]`` at once; with beta by the delta rule.

    The change r of position t depends on those before it: ``r = beta (v - k (decayed state) - Σ_s<t decay k·k_s r_s)``, a
    triangular system.
    """
    length = q.shape[2]
    lower = torch.ones((length, length), dtype=torch.float64, device=q.device).tril()
    # Sums of logarithms in f64, because only their differences matter. A product, because torch's cumsum is not deterministic.
    total = g.double().clamp_min(-1e4) @ lower.T
    between = (total[..., :, None] - total[..., None, :]).masked_fill(lower == 0, -torch.inf).exp().float()
    since, until = total.exp().float()[..., None], (total[..., -1:] - total).exp().float()[..., None]
    change = v
    if beta is not None:
        system = beta[..., None] * (k @ k.transpose(-1, -2)) * between
        change = torch.linalg.solve_triangular(system, beta[..., None] * (v - since * (k @ state)), upper=False, unitriangular=True)
    output = since * (q @ state) + ((q @ k.transpose(-1, -2)) * between) @ change
    state = since[..., -1:, :] * state + (k * until).transpose(-1, -2) @ change
    return state, output
