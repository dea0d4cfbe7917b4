"""Primitives that multiply, reduce, search and move elements, by torch. Every function writes its result into `out`."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F


def matmul(a: Any, b: Any, bias: Any = None, *, alpha: float, out: Any) -> None:
    if a.dim() == 2 and bias is not None:
        torch.addmm(bias, a, b, alpha=alpha, out=out)
        return
    torch.matmul(a, b, out=out)
    if alpha != 1.0:
        out.mul_(alpha)
    if bias is not None:
        out.add_(bias)


def softmax(x: Any, *, log: bool, out: Any) -> None:
    (torch.log_softmax if log else torch.softmax)(x, -1, out=out)


def reduce(x: Any, *, function: str, out: Any) -> None:
    if function == "sum_squares":
        out.copy_((x if x.dtype is torch.float64 else x.float()).square().sum(-1))
    elif function in ("maximum", "minimum"):
        (torch.amax if function == "maximum" else torch.amin)(x, -1, out=out)
    elif function == "prod":
        # Of 16-bit floats, rounded once.
        out.copy_((x.float() if x.element_size() == 2 else x).prod(-1))
    else:
        (torch.sum if function == "sum" else torch.mean)(x, -1, out=out)


def reduce_int(x: Any, *, function: str, out: Any) -> None:
    if function in ("any", "all"):
        out.copy_((torch.any if function == "any" else torch.all)(x != 0, -1))
    elif function in ("maximum", "minimum"):
        out.copy_((torch.amax if function == "maximum" else torch.amin)(x.to(torch.uint8) if x.dtype is torch.bool else x, -1))
    else:
        out.copy_((torch.sum if function == "sum" else torch.prod)(x, -1, dtype=torch.int64))


def arg_reduce(x: Any, *, function: str, last: bool, out: Any) -> None:
    x = x.to(torch.uint8) if x.dtype is torch.bool else x
    search = torch.argmax if function == "argmax" else torch.argmin
    out.copy_(x.shape[-1] - 1 - search(x.flip(-1), -1) if last else search(x, -1))


def cumsum(x: Any, *, exclusive: bool, reverse: bool, out: Any) -> None:
    x = x.flip(-1) if reverse else x
    # 16-bit floats are rounded once.
    sums = torch.cumsum(x, -1, dtype=torch.float32 if x.is_floating_point() and x.element_size() == 2 else x.dtype)
    if exclusive:
        sums = F.pad(sums, (1, 0))[..., :-1]
    out.copy_(sums.flip(-1) if reverse else sums)


def arange(start: Any, *, count: int, step: float, out: Any) -> None:
    if start.is_floating_point():
        out.copy_(torch.arange(count, dtype=torch.float64, device=start.device) * step + start.double())
    else:
        out.copy_(torch.arange(count, dtype=torch.int64, device=start.device) * int(step) + start)


def topk(x: Any, *, k: int, largest: bool, sorted: bool, out: tuple[Any, Any]) -> None:
    """By a stable sort: of equal elements, those with lower indices come first."""
    values, indices = torch.sort(x.to(torch.uint8) if x.dtype is torch.bool else x, dim=-1, descending=largest, stable=True)
    values, indices = values[..., :k], indices[..., :k]
    if not sorted:
        indices, order = torch.sort(indices, dim=-1)
        values = values.gather(-1, order)
    out[0].copy_(values)
    out[1].copy_(indices)


def _positive(indices: Any, size: int) -> Any:
    """Negative indices count from the end; torch refuses those outside."""
    indices = indices.to(torch.int64)
    return torch.where(indices < 0, indices + size, indices)


def gather(x: Any, indices: Any, *, out: Any) -> None:
    torch.index_select(x, 1, _positive(indices, x.shape[1]), out=out)


def gather_elements(x: Any, indices: Any, *, out: Any) -> None:
    torch.gather(x, -1, _positive(indices, x.shape[-1]), out=out)


_REDUCTIONS = {"mul": "prod", "maximum": "amax", "minimum": "amin"}
#: For bools, a sum is "or" and a product "and".
_BOOL_REDUCTIONS = {"add": "amax", "mul": "amin", "maximum": "amax", "minimum": "amin"}


def _scattered(x: Any, indices: Any, updates: Any, reduction: str) -> Any:
    """Along the last dimension. With `none`, the last of several updates of an element is stored."""
    if reduction == "none":
        order = torch.arange(indices.shape[-1], device=x.device).expand_as(indices)
        last = torch.full(x.shape, -1, dtype=torch.int64, device=x.device).scatter_reduce_(-1, indices, order, "amax")
        return torch.where(last >= 0, updates.gather(-1, last.clamp_min(0)), x) if indices.shape[-1] else x
    if x.dtype is torch.bool:
        return x.to(torch.uint8).scatter_reduce(-1, indices, updates.to(torch.uint8), _BOOL_REDUCTIONS[reduction])
    if reduction == "add":
        return x.scatter_add(-1, indices, updates)
    return x.scatter_reduce(-1, indices, updates, _REDUCTIONS[reduction])


def scatter_elements(x: Any, indices: Any, updates: Any, *, reduction: str, out: Any) -> None:
    out.copy_(_scattered(x, _positive(indices, x.shape[-1]), updates, reduction))


def scatter(x: Any, indices: Any, updates: Any, *, reduction: str, out: Any) -> None:
    rows = _positive(indices, x.shape[1]).expand(x.shape[0], x.shape[2], -1)
    out.copy_(_scattered(x.transpose(1, 2), rows, updates.transpose(1, 2), reduction).transpose(1, 2))


def conv2d(
    x: Any, weight: Any, bias: Any = None, residual: Any = None, *, stride_h: int, stride_w: int, pad_top: int, pad_left: int,
    pad_bottom: int, pad_right: int, dilation_h: int, dilation_w: int, groups: int, activation: str, out: Any,
) -> None:  # fmt: skip
    if out.numel() == 0:
        return
    padding = (pad_top, pad_left)
    if padding != (pad_bottom, pad_right):
        x, padding = F.pad(x, (pad_left, pad_right, pad_top, pad_bottom)), (0, 0)
    result = F.conv2d(x, weight, bias, (stride_h, stride_w), padding, (dilation_h, dilation_w), groups)
    if residual is not None:
        result += residual
    out.copy_(result.relu_() if activation == "relu" else result)


def pool2d(
    x: Any, *, function: str, kernel_h: int, kernel_w: int, stride_h: int, stride_w: int, pad_top: int, pad_left: int, pad_bottom: int,
    pad_right: int, dilation_h: int, dilation_w: int, extra_h: int, extra_w: int, count_include_pad: bool, out: Any,
) -> None:  # fmt: skip
    if out.numel() == 0:
        return
    padding, step, dilation = (pad_left, pad_right, pad_top, pad_bottom), (stride_h, stride_w), (dilation_h, dilation_w)
    if function == "maximum":
        out.copy_(F.max_pool2d(F.pad(x, padding, value=-math.inf), (kernel_h, kernel_w), step, 0, dilation))
        return
    # Sums and counts as convolutions with ones, which have every padding and dilation.
    images = (x if x.dtype is torch.float64 else x.float()).flatten(0, 1).unsqueeze(1)
    ones = images.new_ones((1, 1, kernel_h, kernel_w))
    counted = images.new_ones((1, 1, *x.shape[2:]))
    if count_include_pad:
        counted = F.pad(counted, (pad_left, pad_right - extra_w, pad_top, pad_bottom - extra_h), value=1.0)
        counted = F.pad(counted, (0, extra_w, 0, extra_h))
    else:
        counted = F.pad(counted, padding)
    sums = F.conv2d(F.pad(images, padding), ones, None, step, 0, dilation)
    out.copy_((sums / F.conv2d(counted, ones, None, step, 0, dilation)).view(out.shape))
