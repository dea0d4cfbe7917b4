"""Primitives that work element by element, by torch. Every function writes its result into `out`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

_aten = torch.ops.aten

_UNARY: dict[str, Callable[..., Any]] = {
    "neg": torch.neg, "absolute": torch.abs, "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "log": torch.log,
    "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p, "square_root": torch.sqrt, "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal, "square": torch.square, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "asin": torch.asin,
    "acos": torch.acos, "atan": torch.atan, "sinh": torch.sinh, "cosh": torch.cosh, "tanh": torch.tanh, "asinh": torch.asinh,
    "acosh": torch.acosh, "atanh": torch.atanh, "erf": torch.erf, "floor": torch.floor, "ceil": torch.ceil, "round": torch.round,
    "trunc": torch.trunc,
}  # fmt: skip


def unary(x: Any, *, function: str, out: Any) -> None:
    if function == "sign":
        # The sign of NaN is 0.
        out.copy_(torch.sign(x).masked_fill_(x.isnan(), 0))
    else:
        _UNARY[function](x, out=out)


def unary_int(x: Any, *, function: str, out: Any) -> None:
    if function == "logical_not" or (function == "bitwise_not" and x.dtype is torch.bool):
        out.copy_(torch.eq(x, 0))
    elif x.dtype is torch.bool:
        out.copy_({"neg": torch.neg, "absolute": torch.abs, "sign": torch.sign}[function](x.to(torch.int8)) != 0)
    else:
        {"neg": torch.neg, "absolute": torch.abs, "sign": torch.sign, "bitwise_not": torch.bitwise_not}[function](x, out=out)


def _above_minus_infinity(x: Any) -> Any:
    """torch's activations give NaN at -inf, where the primitives give the limit."""
    return x.clamp_min(torch.finfo(x.dtype).min)


def activation(x: Any, *, function: str, alpha: float, beta: float, out: Any) -> None:
    if function == "relu":
        torch.clamp(x, min=0, out=out)
    elif function == "sigmoid":
        torch.sigmoid(x, out=out)
    elif function == "silu":
        _aten.silu.out(_above_minus_infinity(x), out=out)
    elif function in ("gelu", "gelu_tanh"):
        result = torch.nn.functional.gelu(_above_minus_infinity(x), approximate="tanh" if function == "gelu_tanh" else "none")
        # Some of torch's kernels give NaN at infinity.
        torch.where(x == math.inf, x, result, out=out)
    elif function == "softplus":
        _aten.softplus.out(x, alpha, beta, out=out)
    elif function == "mish":
        _aten.mish.out(_above_minus_infinity(x), out=out)
    elif function == "elu":
        _aten.elu.out(x, alpha, beta, 1, out=out)
    elif function == "leaky_relu":
        _aten.leaky_relu.out(x, alpha, out=out)
    elif function == "clamp":
        if math.isnan(alpha) or math.isnan(beta):
            out.fill_(math.nan)
        else:
            torch.clamp(x, alpha, beta, out=out)
    elif function in ("hardsigmoid", "hardswish"):
        gate = (_above_minus_infinity(x) * alpha + beta).clamp(0, 1)
        # An infinity times 0 would be NaN.
        out.copy_(gate if function == "hardsigmoid" else torch.where(gate == 0, torch.where(x.isnan(), x, 0), x * gate))
    elif function == "celu":
        out.copy_(torch.celu(x, alpha))
    elif function == "selu":
        out.copy_(torch.selu(x))
    elif function == "log_sigmoid":
        out.copy_(torch.nn.functional.logsigmoid(x))
    else:
        magnitude = x.abs()
        out.copy_(torch.where(magnitude == math.inf, torch.sign(x), x / (1 + magnitude)))


_BINARY: dict[str, Callable[..., Any]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow, "minimum": torch.minimum,
    "maximum": torch.maximum, "mod": torch.remainder, "fmod": torch.fmod, "atan2": torch.atan2,
}  # fmt: skip
_ROUNDING = {"floor_divide": "floor", "trunc_divide": "trunc"}


def binary(a: Any, b: Any, *, function: str, out: Any) -> None:
    if function in _ROUNDING:
        torch.div(a, b, rounding_mode=_ROUNDING[function], out=out)
    else:
        _BINARY[function](a, b, out=out)


def binary_scalar(x: Any, *, function: str, value: float, reversed: bool, out: Any) -> None:
    if not reversed and function in ("add", "sub", "mul", "div", "pow"):
        _BINARY[function](x, value, out=out)
        return
    # A number of the host without dimensions is an argument of the kernel, and does not promote the dtype.
    number = torch.tensor(value, dtype=torch.float64 if x.dtype is torch.float64 else torch.float32)
    first, second = (number, x) if reversed else (x, number)
    if function in ("minimum", "maximum"):
        if math.isnan(value):
            out.fill_(math.nan)
        else:
            torch.clamp(x, **{"max" if function == "minimum" else "min": value}, out=out)
    else:
        binary(first, second, function=function, out=out)


def _shifted(a: Any, b: Any, left: bool) -> Any:
    """Shifts by less than 0, or by the width or more, give 0 or the sign: torch leaves them undefined."""
    width = a.element_size() * 8
    inside = (b >= 0) & (b < width)
    by = torch.where(inside, b, 0)
    if left:
        return torch.where(inside, torch.bitwise_left_shift(a, by), 0)
    return torch.where(inside, torch.bitwise_right_shift(a, by), torch.where(a < 0, -1, 0).to(a.dtype))


def _integers(a: Any, b: Any, function: str) -> Any:
    if function in _ROUNDING:
        return torch.div(a, b, rounding_mode=_ROUNDING[function])
    if function in ("shift_left", "shift_right"):
        return _shifted(a, b, function == "shift_left")
    return getattr(torch, function)(a, b) if function.startswith("bitwise") else _BINARY[function](a, b)


def binary_int(a: Any, b: Any, *, function: str, out: Any) -> None:
    if function in ("floor_divide", "trunc_divide", "mod", "fmod") and bool((b == 0).any()):
        raise ZeroDivisionError(f"{function} of integers by 0")
    if out.dtype is torch.bool:
        # 0 and 1 in a wider integer: the result is whether it differs from 0.
        out.copy_(_integers(a.to(torch.int32), b.to(torch.int32), function) != 0)
    else:
        out.copy_(_integers(a, b, function))


def binary_int_scalar(x: Any, *, function: str, value: int, reversed: bool, out: Any) -> None:
    if x.dtype is torch.bool:
        value = int(value != 0)
    else:
        bits = x.element_size() * 8
        low = 0 if x.dtype is torch.uint8 else -(1 << (bits - 1))
        value = (value - low) % (1 << bits) + low
    if not reversed and x.dtype is not torch.bool and function in ("add", "sub", "mul"):
        _BINARY[function](x, value, out=out)
        return
    number = torch.full((), value, dtype=x.dtype, device=x.device)
    first, second = (number.expand_as(x), x) if reversed else (x, number.expand_as(x))
    if function in ("floor_divide", "trunc_divide", "mod", "fmod") and not reversed and value != 0:
        out.copy_(_integers(x.int() if x.dtype is torch.bool else x, value, function).to(out.dtype))
    else:
        binary_int(first, second, function=function, out=out)


_COMPARE: dict[str, Callable[..., Any]] = {
    "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
}  # fmt: skip


def compare(a: Any, b: Any, *, function: str, out: Any) -> None:
    _COMPARE[function](a, b, out=out)


def compare_scalar(x: Any, *, function: str, value: float, out: Any) -> None:
    if x.is_floating_point():
        # torch would round the number to 16 bits before it compares.
        _COMPARE[function](x.float() if x.element_size() == 2 else x, value, out=out)
    elif math.isnan(value) or math.isinf(value):
        out.fill_(bool(_COMPARE[function](torch.zeros(()), torch.tensor(value))))
    elif value == int(value) and abs(value) < 2**63:
        _COMPARE[function](x.to(torch.int64), int(value), out=out)
    elif function in ("eq", "ne") or abs(value) >= 2**63:
        out.fill_(bool(_COMPARE[function](torch.zeros((), dtype=torch.float64), torch.tensor(value, dtype=torch.float64))))
    else:
        # An integer is below 2.5 exactly if it is at most 2.
        below = function in ("lt", "le")
        (torch.le if below else torch.gt)(x.to(torch.int64), math.floor(value), out=out)


def cast(x: Any, *, to: str, out: Any) -> None:
    if x.is_floating_point() and not out.is_floating_point() and out.dtype is not torch.bool:
        wide = torch.int64 if out.dtype is torch.int64 else torch.int32
        limit = 2.0**63 if wide is torch.int64 else 2.0**31
        # Conversions of NaN and of numbers out of range differ between devices.
        inside = (x >= -limit) & (x < limit)
        out.copy_(torch.where(inside, x, 0).to(wide).masked_fill_(~inside, torch.iinfo(wide).min))
    else:
        out.copy_(x)


def where(condition: Any, a: Any, b: Any, *, out: Any) -> None:
    torch.where(condition, a, b, out=out)


def test(x: Any, *, function: str, out: Any) -> None:
    out.copy_({"is_nan": torch.isnan, "is_inf": torch.isinf, "is_finite": torch.isfinite}[function](x))


def copy(x: Any, *, out: Any) -> None:
    out.copy_(x)
