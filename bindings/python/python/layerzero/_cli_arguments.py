"""Arguments of calls as the command line writes them: ``x=f32[4,64]`` is a tensor, ``eps=1e-5`` a param."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Sequence
from typing import Any

from layerzero import _native

_TENSOR = re.compile(r"^([a-z][a-z0-9_]*)\[([0-9, ]*)\]$")
_TENSOR_LIKE = re.compile(r"^[a-z][a-z0-9_]*\[.*\]?$")
#: Values as Python writes them, besides JSON.
_WORDS = {"True": True, "False": False, "None": None, "nan": math.nan, "inf": math.inf, "-inf": -math.inf}
#: LayerZero's dtype names, and those of numpy, ml_dtypes and torch.
_DTYPES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8_e4m3": "float8_e4m3fn",
    "f8_e5m2": "float8_e5m2",
    "f8_e8m0": "float8_e8m0fnu",
    "f4_e2m1x2": "float4_e2m1fn_x2",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u64": "uint64",
    "u32": "uint32",
    "u16": "uint16",
    "u8": "uint8",
    "bool": "bool",
}


def call(operation: str, texts: Sequence[str], device: str | None = None) -> dict[str, Any]:
    """The arguments of a call of `operation`. Indices, pointers and lengths have values that the operation allows and that
    have the statistics of the call; other tensors are zeros."""
    values = parse(texts, device)
    for name, data in _native.valid_integers(operation, **values).items():
        values[name] = _with_bytes(values[name], data)
    return values


def _with_bytes(tensor: Any, data: bytes) -> Any:
    """A tensor like this one with the values of `data`."""
    import numpy

    if isinstance(tensor, numpy.ndarray):
        return numpy.frombuffer(data, tensor.dtype).reshape(tensor.shape).copy()
    import torch

    host = torch.frombuffer(bytearray(data), dtype=tensor.dtype) if data else tensor.cpu()
    return host.reshape(tensor.shape).to(tensor.device)


def parse(texts: Sequence[str], device: str | None = None) -> dict[str, Any]:
    """The arguments of a call. Tensors are zeros: of torch if a device is given, otherwise of numpy."""
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"expected NAME=VALUE, got {text!r}; for example x=f32[4,64] or eps=1e-5")
        if name in values:
            raise ValueError(f"the argument {name!r} is given twice; the second time as {text!r}")
        match = _TENSOR.match(value)
        if match:
            shape = tuple(int(size) for size in match[2].split(",") if size.strip())
            values[name] = _zeros(_dtype(match[1], text), shape, device)
            continue
        if _TENSOR_LIKE.match(value):
            raise ValueError(f"{text!r} is not a tensor; expected its dtype and sizes, as in x=f32[4,64]")
        values[name] = _WORDS[value] if value in _WORDS else _json(value)
    return values


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _dtype(name: str, text: str) -> str:
    if name in _DTYPES.values():
        return name
    if name not in _DTYPES:
        raise ValueError(f"unknown dtype {name!r} in {text!r}; expected one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


def _zeros(dtype: str, shape: tuple[int, ...], device: str | None) -> Any:
    if device:
        try:
            import torch
        except ImportError:
            raise ValueError("--device needs torch, which is not installed; to install it: pip install torch") from None
        try:
            return torch.zeros(shape, dtype=getattr(torch, dtype), device=device)
        except (AssertionError, RuntimeError) as error:
            # torch without CUDA raises an AssertionError.
            raise ValueError(f"torch cannot allocate a tensor on {device}: {error}") from error
    import numpy

    # A pair of 4-bit values is a byte, which numpy has no dtype for.
    if dtype == "float4_e2m1fn_x2":
        dtype = "uint8"
    try:
        return numpy.zeros(shape, dtype)
    except TypeError:
        pass
    try:
        import ml_dtypes
    except ImportError:
        raise ValueError(
            f"numpy has no {dtype}: the package ml_dtypes provides it; to install it: pip install ml_dtypes"
        ) from None
    return numpy.zeros(shape, getattr(ml_dtypes, dtype))


def positive_int(text: str) -> int:
    """For argparse: a number of at least 1."""
    return int(_positive(text, int))


def positive_float(text: str) -> float:
    """For argparse: a number above 0."""
    return float(_positive(text, float))


def _positive(text: str, kind: type[int] | type[float]) -> int | float:
    try:
        value = kind(text)
    except ValueError:
        value = kind(0)
    if not 0 < value < 1e18:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return value
