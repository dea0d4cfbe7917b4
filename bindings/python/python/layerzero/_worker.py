"""Kernels in a process of their own.

``python -m layerzero._worker SOURCE...`` is that process. A host starts it for backends that ``backend_isolation`` puts
there; a source is a module that registers kernels when it is imported, as in the host, or ``backend:NAME`` for a backend
that is installed. Tensors lie in memory that both processes see, so none is copied on the way to a kernel.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from layerzero import _native


_Described = tuple[memoryview, str, tuple[int, ...], tuple[int, ...], int]


def _torch_tensor(described: _Described) -> Any:
    import torch

    memory, name, shape, strides, first = described
    dtype = getattr(torch, name)
    if memory.nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides, first)


def _numpy_array(described: _Described) -> Any:
    import numpy
    from numpy.lib.stride_tricks import as_strided

    memory, name, shape, strides, first = described
    if not hasattr(numpy, name) and name != "bool":
        import ml_dtypes  # the dtypes that numpy does not have itself

        dtype = numpy.dtype(getattr(ml_dtypes, name))
    else:
        dtype = numpy.dtype(name)
    if memory.nbytes == 0:
        return numpy.empty(shape, dtype)
    flat = numpy.frombuffer(memory, dtype)
    return as_strided(flat[first:], shape, tuple(step * dtype.itemsize for step in strides))


def _invoke(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    params: dict[str, Any],
    places: Sequence[_Described | None],
    wanted: Sequence[str | None],
    takes_out: bool,
) -> list[Any]:
    """Calls a kernel with torch's tensors where torch was imported, otherwise numpy's, and copies its results, once they were
    checked, into the places. `wanted` names the outputs that the call has."""
    make = _torch_tensor if "torch" in sys.modules else _numpy_array
    arguments = [make(one) if isinstance(one, tuple) else one for one in inputs]
    targets = [None if place is None else make(place) for place in places]
    asked = [(at, name) for at, name in enumerate(wanted) if name is not None]
    if takes_out and all(targets[at] is not None for at, _ in asked):
        out = [targets[at] for at, _ in asked]
        function(*arguments, **params, out=out[0] if len(out) == 1 else tuple(out))
        return []
    result = function(*arguments, **params)
    results = list(result) if isinstance(result, tuple) else [result]
    if asked and len(results) != len(asked):
        names = ", ".join(name for _, name in asked)
        raise TypeError(f"requires {len(asked)} results of the kernel ({names}), found {len(results)}")
    made: list[Any] = [None] * len(targets)
    for (at, name), one in zip(asked, results, strict=False):
        target = targets[at]
        if target is None:
            made[at] = one
            continue
        _native.check_result(name, one, target)
        if hasattr(target, "copy_"):
            target.copy_(one)
        else:
            target[...] = one
    return made


def _load(source: str) -> None:
    """Registers the kernels of a module or of an installed backend."""
    name = source.removeprefix("backend:")
    if name == source:
        importlib.import_module(source)
        return
    from layerzero import backends

    for backend in backends.BACKENDS:
        if backend.name == name:
            importlib.import_module(backend.module)
    for state in backends.load(name):
        if state.name == name and state.state != "ok":
            raise RuntimeError(f"the backend {name} cannot be loaded: {state.reason}")


def main(sources: Sequence[str]) -> None:
    """Serves the kernels of the sources until the host is gone."""

    def load() -> None:
        for source in sources:
            _load(source)

    _native.serve_worker(load, _invoke)


if __name__ == "__main__":
    main(sys.argv[1:])
