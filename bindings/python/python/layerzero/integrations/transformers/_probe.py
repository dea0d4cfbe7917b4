"""Compares what a model computes itself with LayerZero's operations, on random inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def close(actual: Any, expected: Any) -> bool:
    """Whether two results are equal up to rounding: their types, shapes, dtypes and values."""
    if isinstance(expected, (tuple, list)):
        return (
            isinstance(actual, (tuple, list))
            and len(actual) == len(expected)
            and all(close(one, other) for one, other in zip(actual, expected, strict=True))
        )
    if not isinstance(actual, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return False
    if actual.shape != expected.shape or actual.dtype != expected.dtype or actual.dtype not in _TOLERANCE:
        return False
    tolerance = _TOLERANCE[actual.dtype]
    return bool(torch.allclose(actual.float(), expected.float(), rtol=tolerance, atol=tolerance / 10, equal_nan=True))


def eager_function(module: torch.nn.Module) -> Callable[..., Any] | None:
    """The eager formula that an attention module passes to the table of attention functions as its default."""
    for function in _methods(type(module)):
        for name in function.__code__.co_names:
            if name.endswith("eager_attention_forward") and callable(found := function.__globals__.get(name)):
                result: Callable[..., Any] = found
                return result
    return None


def _methods(kind: type) -> Iterator[Any]:
    """The functions of a class, `forward` first, without their decorators."""
    own = [getattr(kind, "forward", None), *(one for base in kind.__mro__[:-1] for one in vars(base).values())]
    for function in own:
        function = inspect.unwrap(function) if callable(function) else None
        if inspect.isfunction(function):
            yield function
