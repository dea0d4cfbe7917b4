"""Kernels and operations that a program brings itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from layerzero import _native, ops

_F = TypeVar("_F", bound=Callable[..., Any])


def register_kernel(
    *,
    operation: str,
    id: str,
    backend: str | None = None,
    version: str = "0",
    platform: Literal["cpu", "cuda", "rocm", "hpu", "xpu", "metal"] = "cpu",
    dtypes: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    limits: Mapping[str, str] | Sequence[str] = (),
    layouts: Sequence[str] = (),
    strides: Literal["any", "last_dense", "contiguous"] = "any",
    priority: int = 50,
    deterministic: bool = False,
    cuda_graph_safe: bool = False,
    reduced_precision: bool = False,
    writes_into_output: bool | None = None,
) -> Callable[[_F], _F]:
    """Makes a Python function a kernel of an operation.

    It is called with the caller's own objects: the inputs by position (`None` for what was not given) and every param by
    name with its value filled in, as `layerzero.protocols` types it. What it returns goes to the caller. A function with
    a parameter ``out`` is also given the caller's places and must fill them; for any other, results are copied there.

    `limits` are expressions over the operation's axes and params that must hold, such as ``"hidden % 8 == 0"``; as a
    mapping, each names the reason code that a call gets for which it does not hold. `dtypes` restricts the dtype variables
    of the operation, or all of them if it is a sequence. `NotImplementedError` from the function declines a call.

    A function with an attribute ``plan`` takes part in ``lz.ops.<operation>.plan(...)``: it is called with the same arguments,
    and what it returns is called in the function's place by every `run` of that plan.
    """

    def decorate(function: _F) -> _F:
        takes_out = _check(operation, function)
        variables = _native.dtype_variables(operation)
        chosen: Mapping[str, Sequence[str]]
        if dtypes is None:
            chosen = {}
        elif isinstance(dtypes, Mapping):
            chosen = dtypes
        else:
            chosen = dict.fromkeys(variables, dtypes)
        conditions = limits if isinstance(limits, Mapping) else dict.fromkeys(limits, "AXIS_LIMIT")
        _native.register_kernel(
            function,
            {
                "operation": operation,
                "id": id,
                "backend": backend or id.split(".")[0],
                "version": version,
                "platform": platform,
                "dtypes": [(variable, list(names)) for variable, names in chosen.items()],
                "limits": list(conditions.items()),
                "layouts": list(layouts),
                "strides": strides,
                "priority": priority,
                "deterministic": deterministic,
                "cuda_graph_safe": cuda_graph_safe,
                "reduced_precision": reduced_precision,
                "writes_into_output": takes_out if writes_into_output is None else writes_into_output,
            },
        )
        return function

    return decorate


def _check(operation: str, function: Callable[..., Any]) -> bool:
    """Whether the function takes `out`; one that cannot be called with the operation's arguments is refused now."""
    import inspect

    inputs, params, has_out = _native.kernel_signature(operation)
    signature = inspect.signature(function)
    try:
        signature.bind(*inputs, **dict.fromkeys(params))
    except TypeError as error:
        wanted = ", ".join([*inputs, *(f"{name}=" for name in params)])
        message = f"a kernel of {operation} is called with ({wanted}), and {function!r} cannot be: {error}"
        raise _native.ConfigurationError(message) from None
    if not has_out:
        return False
    try:
        signature.bind(*inputs, **dict.fromkeys(params), out=None)
    except TypeError:
        return False
    named = signature.parameters.get("out")
    return named is not None


def register_operation(schema: str | os.PathLike[str]) -> _native.Operation:
    """Reads an operation from a schema file and makes it callable as ``lz.ops.<name>`` at once.

    `schema` is a path, or the YAML text itself. What is wrong with it is told with its place, as for the catalogue.
    """
    text = os.fspath(schema)
    path = "<text>"
    if "\n" not in text:
        path = text
        text = _native.read_text_file(path)
    operation = _native.read_operation(path, text)
    setattr(ops, operation.__name__, operation)
    if operation.__name__ not in ops.__all__:
        ops.__all__.append(operation.__name__)
        ops.__all__.sort()
    return operation


def load_backends(*names: str, probe: bool = False) -> list[str]:
    """Registers the kernels of backends that are installed, or of those that are named, and gives the names that work.

    What does not work is disabled with its reason, which `doctor` tells. Whether a library can be imported is found out once a
    version in a process of its own; with `probe` it is found out again.
    """
    from layerzero import backends

    return [one.name for one in backends.load(*names, probe_again=probe) if one.state == "ok"]


def unregister_backend(backend: str) -> None:
    """Takes a backend and its kernels away."""
    _native.unregister_backend(backend)
