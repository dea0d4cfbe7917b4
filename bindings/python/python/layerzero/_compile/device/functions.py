"""What the executor runs where the engine selects no kernel: primitives, and compositions of catalog operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from layerzero._compile.device import elementwise, structural

PRIMITIVES: dict[str, Callable[..., None]] = {
    f"primitive.{name}": getattr(module, name)
    for module, names in (
        (
            elementwise,
            (
                *("unary", "unary_int", "activation", "binary", "binary_scalar", "binary_int", "binary_int_scalar", "compare"),
                *("compare_scalar", "cast", "where", "test", "copy"),
            ),
        ),
        (
            structural,
            (
                *("matmul", "softmax", "reduce", "reduce_int", "arg_reduce", "cumsum", "arange", "topk", "gather", "gather_elements"),
                *("scatter", "scatter_elements", "conv2d", "pool2d"),
            ),
        ),
    )
    for name in names
}  # fmt: skip

#: Functions of `binary_int` that check values on the host, which a CUDA graph cannot contain.
_CHECKED = ("floor_divide", "trunc_divide", "mod", "fmod")


def is_graph_safe(operation: str, params: dict[str, Any]) -> bool:
    """Whether a CUDA graph can contain a primitive."""
    if operation == "primitive.binary_int":
        return params["function"] not in _CHECKED
    return operation != "primitive.binary_int_scalar" or params["function"] not in _CHECKED or (params["value"] != 0 and not params["reversed"])


def composition(operation: str) -> Callable[..., Any] | None:
    """The operation as torch functions: the reference on the device."""
    from layerzero.backends.torch_reference import KERNELS

    return KERNELS.get(f"torch.reference.{operation}")
