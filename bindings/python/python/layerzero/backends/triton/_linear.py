"""Linear layers and gated MLPs of few rows: which kernel runs, with which blocks."""

from __future__ import annotations

from typing import Any

import torch

from layerzero.backends import triton as launching
from layerzero.backends.triton import _linear_kernels as kernels

_KINDS = {"none": 0, "relu": 1, "silu": 2, "gelu": 3, "gelu_tanh": 4}


def _product(x: Any, weight: Any, up: Any, bias: Any, activation: str, out: Any) -> None:
    """`act(x · weight + bias)`, times `x · up` if it is given, for rows `[rows, inner]`."""
    rows, inner = x.shape
    columns = weight.shape[0]
    if rows == 0 or columns == 0:
        return
    gated, kind = up is not None, _KINDS[activation]
    second = weight if up is None else up
    tensors = (x, weight, second, weight if bias is None else bias, out)
    strides = (x.stride(0), weight.stride(0), second.stride(0))
    common = (kind, bias is not None, gated)
    kinds = (*common, *strides, columns, inner, x.dtype, x.get_device())
    if rows == 1:
        n_block, k_block, warps = gemv_blocks(inner)
        even = columns % n_block == 0 and inner % k_block == 0

        def one_row() -> Any:
            return launching._Recipe(kernels.gemv, (*common, even, n_block, k_block), warps)

        launching._launch(("gemv", *kinds), -(-columns // n_block), 1, tensors, (columns, inner, *strides), one_row)
        return
    m_block, n_block, k_block, warps, stages = skinny_blocks(rows, inner)
    even = columns % n_block == 0 and inner % k_block == 0

    def few_rows() -> Any:
        return launching._Recipe(kernels.skinny, (*common, even, m_block, n_block, k_block), warps, stages)

    launching._launch(("skinny", m_block, rows, *kinds), -(-columns // n_block), 1, tensors, (rows, columns, inner, *strides), few_rows)


def gemv_blocks(inner: int) -> tuple[int, int, int]:
    """Output features per program, inputs per read, warps: the fastest on an H200 for the layers of an 8B model."""
    return 2, min(1024, max(launching._power(inner), 16)), 4


def skinny_blocks(rows: int, inner: int) -> tuple[int, int, int, int, int]:
    """Rows, output features and inputs of a block, warps, and stages of the pipeline."""
    return max(16, launching._power(rows)), 64, min(128, max(launching._power(inner), 16)), 4, 4


def _rows_of(x: Any) -> Any:
    rows = x.reshape(-1, x.shape[-1])
    # Elements of a row must follow each other.
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _dense_rows(weight: Any) -> Any:
    return weight if weight.stride(-1) == 1 else weight.contiguous()


def linear(x: Any, weight: Any, bias: Any = None, *, activation: str, out: Any = None) -> Any:
    """A linear layer."""
    if out is None:
        out = torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype, device=x.device)
    _product(_rows_of(x), _dense_rows(weight), None, bias, activation, out.view(-1, weight.shape[0]))
    return out


def fused(x: Any, gate_weight: Any, up_weight: Any, down_weight: Any, *, activation: str, out: Any = None) -> Any:
    """A gated MLP in two kernels. cuBLAS computes the second product of several rows faster."""
    rows = _rows_of(x)
    if out is None:
        out = torch.empty((*x.shape[:-1], down_weight.shape[0]), dtype=x.dtype, device=x.device)
    hidden = torch.empty((rows.shape[0], gate_weight.shape[0]), dtype=x.dtype, device=x.device)
    _product(rows, _dense_rows(gate_weight), _dense_rows(up_weight), None, activation, hidden)
    target = out.view(-1, down_weight.shape[0])
    if rows.shape[0] > 1:
        torch.mm(hidden, down_weight.t(), out=target)
    else:
        _product(hidden, _dense_rows(down_weight), None, None, "none", target)
    return out


def invariant(x: Any, weight: Any, bias: Any = None, *, activation: str, out: Any = None) -> Any:
    """A linear layer whose rows do not depend on the batch."""
    columns, inner = weight.shape
    if out is None:
        out = torch.empty((*x.shape[:-1], columns), dtype=x.dtype, device=x.device)
    rows, weight = _rows_of(x), _dense_rows(weight)
    m_block, n_block, k_block, warps, stages = (32, 32, 32, 4, 2) if x.dtype == torch.float32 else (64, 128, 64, 4, 4)
    even = columns % n_block == 0 and inner % k_block == 0
    flags = (_KINDS[activation], bias is not None, even)
    numbers = (rows.shape[0], columns, inner, rows.stride(0), weight.stride(0))

    def recipe() -> Any:
        return launching._Recipe(kernels.fixed, (*flags, m_block, n_block, k_block), warps, stages)

    grid = (-(-rows.shape[0] // m_block), -(-columns // n_block))
    tensors = (rows, weight, weight if bias is None else bias, out)
    launching._launch(("fixed", *numbers, *flags, x.dtype, x.get_device()), *grid, tensors, numbers, recipe)
    return out
