"""Registering kernels and operations of a program."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from layerzero import _native, ops
from layerzero._numbers import whole
from layerzero._signatures import positional_count

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
    capabilities: Mapping[str, Any] | None = None,
    compile: Callable[[str, str, dict[str, str]], list[str]] | None = None,
    replace: bool | None = None,
    alongside: bool = False,
) -> Callable[[_F], _F]:
    """Registers a Python function as a kernel of an operation, or of every operation of an alias.

    The function is called with the caller's own objects: the inputs by position (`None` for absent ones) and
    every param by keyword with defaults filled in, as typed in `layerzero.protocols`. Its result goes to the
    caller. A function that takes fewer inputs than the operation has declines calls with the optional ones that it does
    not take. A function with a parameter ``out`` also gets the caller's output tensors and must fill them; the
    results of other functions are copied there.

    `limits` are expressions over the operation's axes and params that must be true, such as ``"hidden % 8 ==
    0"``; in a mapping, each maps to the reason code of calls that violate it. `dtypes` restricts the dtype
    variables of the operation, or all of them if it is a sequence. Raising `NotImplementedError` declines a
    call.

    `capabilities` states instead of these keywords what the kernel supports, with the keys of a kernel in a capability
    descriptor (``schemas/contracts/capabilities.v1.schema.json``): SM range, generations, workspace, grid, fused
    operations, layouts and all others. What it does not state is not supported. A kernel with ``"jit": True`` has a
    function `compile`: it is called on a background thread with the kernel's id, the operation and the fields of a
    call, and returns the names of what it built. The kernel runs such calls from then on.

    With `replace`, the function takes the place of the registered kernel with the same id, in one step: running calls
    finish with the old function. This is the default in an interactive session, so that a cell can run twice; elsewhere an
    id that is registered is an error. With `alongside`, it is registered as another version next to it, with the id
    ``<id>@<version>``; ``rollout.shares``, ``rollout.canaries``, rules and locks give it calls.

    A function with an attribute ``plan`` takes part in ``lz.ops.<operation>.plan(...)``: the attribute is
    called with the same arguments, and its result is called in place of the function by every `run` of that
    plan.
    """

    priority = whole("priority", priority, 0, 100)
    if replace and alongside:
        raise ValueError("a kernel either replaces another one or is registered alongside it")
    if capabilities is None:
        if compile is not None:
            raise ValueError('`compile` needs capabilities={"jit": True, ...}')
    else:
        keywords = {
            "dtypes": dtypes,
            "limits": limits,
            "layouts": layouts,
            "strides": strides != "any",
            "priority": priority != 50,
            "deterministic": deterministic,
            "cuda_graph_safe": cuda_graph_safe,
            "reduced_precision": reduced_precision,
            "writes_into_output": writes_into_output,
        }
        if given := [name for name, value in keywords.items() if value]:
            raise ValueError(f"capabilities state everything about a kernel: remove {', '.join(given)}")

    def installed_as(operation: str) -> str:
        if alongside:
            return "alongside"
        replaces = is_interactive() and _native.is_registered_kernel(operation, id) if replace is None else replace
        return "replace" if replaces else "new"

    def decorate(function: _F) -> _F:
        if capabilities is not None:
            describe(function)
            return function
        for target, fixed in _native.operation_targets(operation):
            register(function, target, [_condition(name, value) for name, value in fixed.items()])
        return function

    def describe(function: _F) -> None:
        # Takes longer to import than this package.
        import json

        targets = [target for target, _ in _native.operation_targets(operation)]
        takes_out = all([_check(target, function)[0] for target in targets])
        stated = {"kernel_id": id, "writes_into_output": takes_out, **(capabilities or {})}
        descriptor = {
            "schema_version": "1.0",
            "backend": backend or id.split(".")[0],
            "backend_version": version,
            "platform": platform,
            "ops": {operation: [stated]},
        }
        try:
            text = json.dumps(descriptor, indent=2)
        except TypeError as error:
            raise ValueError(f"capabilities of {id}: {error}") from None
        # The operations of an alias are registered together.
        _native.register_described_kernel(function, id, text, compile, installed_as(targets[0]))

    def register(function: _F, operation: str, fixed: list[str]) -> None:
        takes_out, omitted = _check(operation, function)
        variables = _native.dtype_variables(operation)
        chosen: Mapping[str, Sequence[str]]
        if dtypes is None:
            chosen = {}
        elif isinstance(dtypes, Mapping):
            chosen = dtypes
        else:
            chosen = dict.fromkeys(variables, dtypes)
        conditions = limits if isinstance(limits, Mapping) else dict.fromkeys(limits, "AXIS_LIMIT")
        unsupported = dict.fromkeys((f"not given({name})" for name in omitted), "OPTIONAL_INPUT_UNSUPPORTED")
        conditions = {**dict.fromkeys(fixed, "PARAM_UNSUPPORTED"), **unsupported, **conditions}
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
                "install": installed_as(operation),
            },
        )

    return decorate


def _condition(param: str, value: object) -> str:
    """The condition that a call has the value that an alias fixes."""
    if isinstance(value, bool):
        return param if value else f"not {param}"
    return f"{param} == {value}"


def _check(operation: str, function: Callable[..., Any]) -> tuple[bool, list[str]]:
    """Whether the function takes `out`, and the optional inputs that it does not take. Refuses a function that cannot be
    called with the operation's arguments."""
    import inspect

    inputs, params, has_out, required = _native.kernel_signature(operation)
    signature = inspect.signature(function)
    # A function that was written before the operation had its last optional inputs serves the calls without them.
    taken = positional_count(function, params)
    omitted = [] if taken is None else inputs[max(taken, required) :]
    inputs = inputs[: len(inputs) - len(omitted)]
    try:
        signature.bind(*inputs, **dict.fromkeys(params))
    except TypeError as error:
        expected = ", ".join([*inputs, *(f"{name}=" for name in params)])
        message = f"a kernel of {operation} is called with ({expected}), but {function!r} does not accept that: {error}"
        raise _native.ConfigurationError(message) from None
    if not has_out:
        return False, omitted
    try:
        signature.bind(*inputs, **dict.fromkeys(params), out=None)
    except TypeError:
        return False, omitted
    return "out" in signature.parameters, omitted


def is_interactive() -> bool:
    """Whether a person types the program: in the prompt of Python, in IPython or in a notebook."""
    if hasattr(sys, "ps1"):
        return True
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def register_operation(schema: str | os.PathLike[str], *, replace: bool | None = None) -> _native.Operation:
    """Loads an operation from a schema file and makes it callable as ``lz.ops.<name>``.

    `schema` is a path, or the YAML text itself. Errors in it are reported with their location. Loading the same text again
    changes nothing. With `replace`, another schema takes the place of a registered operation of the same name, whose kernels
    are unregistered, because they were written for the old schema; this is the default in an interactive session. Operations
    of the catalog cannot be replaced.
    """
    text = os.fspath(schema)
    path = "<text>"
    if "\n" not in text:
        path = text
        text = _native.read_text_file(path)
    operation = _native.read_operation(path, text, is_interactive() if replace is None else replace)
    setattr(ops, operation.__name__, operation)
    if operation.__name__ not in ops.__all__:
        ops.__all__.append(operation.__name__)
        ops.__all__.sort()
    return operation


def unregister_operation(name: str) -> None:
    """Unregisters an operation that was loaded with `register_operation`, and its kernels. Running calls finish.

    Operations of the catalog cannot be unregistered.
    """
    _native.unregister_operation(name)
    function = name.replace(".", "_")
    delattr(ops, function)
    ops.__all__.remove(function)


def unregister_kernel(id: str, *, operation: str | None = None) -> None:
    """Unregisters the kernels with this id, of one operation if it is given. Running calls finish."""
    _native.unregister_kernel(id, operation)


def load_backends(*names: str, probe: bool = False) -> list[str]:
    """Registers the kernels of all installed backends, or of the named ones, and returns the names of those
    that work.

    Backends that do not work are disabled with a reason, which `doctor` shows. Whether a library can be
    imported is probed once per version, in a separate process; with `probe` it is probed again.
    """
    from layerzero import backends

    return [one.name for one in backends.load(*names, probe_again=probe) if one.state == "ok"]


def unregister_backend(backend: str) -> bool:
    """Unregisters a backend and its kernels; returns whether it was registered."""
    was_registered = _native.unregister_backend(backend)
    devices = sys.modules.get("layerzero._device_isolation")
    if devices is not None:
        devices.forget(backend)
    return was_registered
