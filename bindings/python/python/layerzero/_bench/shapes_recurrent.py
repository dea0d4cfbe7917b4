"""Shapes of linear attention, state space models and short convolutions, for `lz bench gpu`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from layerzero._bench.shapes import Shape, _normal
from layerzero.backends.torch_reference import _recurrent as by_functions


def _linear(batch: int, seq: int, key_heads: int, heads: int, gate: str) -> Shape:
    q, k = _normal(batch, seq, key_heads, 128), _normal(batch, seq, key_heads, 128)
    v, beta = _normal(batch, seq, heads, 128), torch.rand(batch, seq, heads, device="cuda").bfloat16()
    g = -torch.rand(batch, seq, heads, *((128,) if gate == "channel" else ()), device="cuda") * 0.1
    params: dict[str, Any] = {"gate": gate, "qk_l2norm": True, "return_state": True}

    def by_torch() -> Any:
        return by_functions.linear_prefill(q, k, v, g, beta, scale=128**-0.5, **params)

    arguments = {"q": q, "k": k, "v": v, "g": g, "beta": beta, **params}
    name = f"B{batch} S{seq} H{key_heads}/{heads} {gate}"
    return Shape("linear attention", name, "attention.linear.prefill", arguments, by_torch, True)


def _linear_decode(batch: int, key_heads: int, heads: int, gate: str) -> Shape:
    q, k, v = _normal(batch, key_heads, 128), _normal(batch, key_heads, 128), _normal(batch, heads, 128)
    g = -torch.rand(batch, heads, *((128,) if gate == "channel" else ()), device="cuda") * 0.1
    beta, state = torch.rand(batch, heads, device="cuda").bfloat16(), torch.randn(batch, heads, 128, 128, device="cuda")
    params: dict[str, Any] = {"gate": gate, "qk_l2norm": True}

    def by_torch() -> Any:
        return by_functions.linear_decode(q, k, v, g, beta, state, scale=128**-0.5, **params)

    arguments = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "state": state, **params}
    return Shape("linear attention", f"decode B{batch} H{key_heads}/{heads} {gate}", "attention.linear.decode", arguments, by_torch, True)


def _state_space(batch: int, seq: int, heads: int, groups: int) -> Shape:
    """With `seq` 0 one step."""
    length = (seq,) if seq else ()
    x, dt = _normal(batch, *length, heads, 64), _normal(batch, *length, heads)
    b, c = _normal(batch, *length, groups, 128), _normal(batch, *length, groups, 128)
    a, d, dt_bias = -torch.rand(heads, device="cuda"), torch.randn(heads, device="cuda"), torch.randn(heads, device="cuda")
    arguments = {"x": x, "dt": dt, "a": a, "b": b, "c": c, "d": d, "dt_bias": dt_bias}
    steps: dict[str, Any] = {"dt_softplus": True, "dt_min": 0.0, "dt_max": 0.0}
    name = f"{f'S{seq}' if seq else 'step'} B{batch} H{heads} G{groups}"
    if seq:

        def scan() -> Any:
            return by_functions.ssm_scan(x, dt, a, b, c, d, dt_bias, return_state=True, **steps)

        return Shape("state space", name, "ssm.scan", {**arguments, "return_state": True}, scan, True)
    state = torch.randn(batch, heads, 64, 128, device="cuda")

    def step() -> Any:
        return by_functions.ssm_step(x, dt, a, b, c, state, d, dt_bias, **steps)

    return Shape("state space", name, "ssm.step", {**arguments, "state": state}, step, True)


def _convolution(batch: int, seq: int, channels: int) -> Shape:
    x, weight, bias = _normal(batch, seq, channels), _normal(channels, 4), _normal(channels)

    def by_torch() -> Any:
        padded = F.pad(x.transpose(1, 2), (3, 0))
        return F.silu(F.conv1d(padded, weight[:, None], bias, groups=channels)).transpose(1, 2)

    arguments = {"x": x, "weight": weight, "bias": bias, "activation": "silu"}
    return Shape("convolution", f"B{batch} S{seq} C{channels}", "conv.causal1d", arguments, by_torch, True)


def shapes() -> Iterator[Callable[[], Shape]]:
    """Factories of the shapes."""
    for batch, seq in ((1, 256), (1, 2048), (4, 1024), (1, 8192)):
        yield partial(_linear, batch, seq, 16, 32, "head")
    yield partial(_linear, 1, 1024, 32, 32, "channel")
    for batch, gate in ((1, "head"), (16, "head"), (64, "head"), (16, "channel")):
        yield partial(_linear_decode, batch, 16 if gate == "head" else 32, 32, gate)
    for space in ((1, 2048, 64, 1), (1, 1024, 128, 8), (4, 2048, 64, 1), (16, 0, 64, 1), (64, 0, 128, 8)):
        yield partial(_state_space, *space)
    for convolution in ((1, 2048, 8192), (1, 1024, 10240), (4, 2048, 4352)):
        yield partial(_convolution, *convolution)
