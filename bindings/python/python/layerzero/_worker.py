"""The worker process that runs isolated kernels.

A host starts ``python -m layerzero._worker SOURCE...`` for backends that ``backend_isolation`` isolates. A
source is a module that registers kernels when it is imported, as in the host, ``backend:NAME`` for an
installed backend, or ``definition:SHA256:FILE`` for an imported definition. Tensors are in memory shared by both processes, so none is copied on the way to a kernel.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from layerzero import _definitions, _native


_Description = tuple[memoryview, str, tuple[int, ...], tuple[int, ...], int]


def _torch_tensor(description: _Description) -> Any:
    import torch

    memory, name, shape, strides, first = description
    dtype = getattr(torch, name)
    if memory.nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides, first)


def _numpy_array(description: _Description) -> Any:
    import numpy
    from numpy.lib.stride_tricks import as_strided

    memory, name, shape, strides, first = description
    if not hasattr(numpy, name) and name != "bool":
        import ml_dtypes  # dtypes that numpy lacks

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
    out: Sequence[_Description | None],
    output_names: Sequence[str | None],
    takes_out: bool,
) -> list[Any]:
    """Calls a kernel with torch tensors if torch is imported, otherwise with numpy arrays, and copies its
    checked results into `out`. `output_names` names the outputs that the call produces."""
    make = _torch_tensor if "torch" in sys.modules else _numpy_array
    arguments = [make(one) if isinstance(one, tuple) else one for one in inputs]
    targets = [None if one is None else make(one) for one in out]
    produced = [(at, name) for at, name in enumerate(output_names) if name is not None]
    if takes_out and all(targets[at] is not None for at, _ in produced):
        outputs = [targets[at] for at, _ in produced]
        function(*arguments, **params, out=outputs[0] if len(outputs) == 1 else tuple(outputs))
        return []
    result = function(*arguments, **params)
    results = list(result) if isinstance(result, tuple) else [result]
    if produced and len(results) != len(produced):
        names = ", ".join(name for _, name in produced)
        raise TypeError(f"requires {len(produced)} results of the kernel ({names}), found {len(results)}")
    returned: list[Any] = [None] * len(targets)
    for (at, name), one in zip(produced, results, strict=False):
        target = targets[at]
        if target is None:
            returned[at] = one
            continue
        _native.check_result(name, one, target)
        if hasattr(target, "copy_"):
            target.copy_(one)
        else:
            target[...] = one
    return returned


def _load(source: str) -> None:
    """Registers the kernels of a module or of an installed backend."""
    if _definitions.is_definition(source):
        _definitions.load_reference(source)
        return
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
    """Serves the kernels of the sources until the host process ends."""

    def load() -> None:
        for source in sources:
            _load(source)

    _native.serve_worker(load, _invoke)


if __name__ == "__main__":
    main(sys.argv[1:])
