"""FlashInfer-Bench definitions as operations, and their Python references as kernels in a worker process."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from layerzero import _native
from layerzero._register import is_interactive, register_kernel, register_operation

_SOURCE = "definition:"


def import_definition(
    path: str | os.PathLike[str], *, trust_reference: bool = False, replace: bool | None = None
) -> _native.Operation:
    """Registers the operation of a FlashInfer-Bench definition (a JSON file), and returns it.

    The operation validates its calls at once, and any kernel can be registered for it. The definition's own reference is Python
    code of its author: it is registered, as the kernel ``definition.<operation>``, only with `trust_reference`. It then runs in a
    worker process with the limits of the settings ``worker.*``, never in this process. Importing a definition again replaces the
    operation if `replace` is set, which is the default in an interactive session.
    """
    # Most programs import no definition.
    import hashlib

    file = os.path.abspath(os.fspath(path))
    text = _native.read_text_file(file)
    name, schema, _, inputs, in_place = _native.import_definition(text, file)
    if trust_reference:
        _check_reference(file, text, inputs, in_place)
    replaces = is_interactive() if replace is None else replace
    operation = register_operation(schema, replace=replaces)
    if trust_reference:
        digest = hashlib.sha256(text.encode()).hexdigest()
        is_known = _native.is_registered_kernel(name, _kernel_id(name))
        if not is_known or replaces:
            _native.register_isolated_reference(name, _kernel_id(name), f"{_SOURCE}{digest}:{file}", is_known)
    return operation


def _kernel_id(operation: str) -> str:
    return f"definition.{operation}"


def _check_reference(
    file: str, text: str, inputs: Sequence[tuple[str, str | None]], in_place: Sequence[str]
) -> None:
    """Refuses a definition whose reference cannot be a kernel of the imported operation."""
    import json

    reference = json.loads(text).get("reference")
    if not reference:
        raise ValueError(f"{file} has no reference: register a kernel with lz.register_kernel")
    try:
        compile(reference, file, "exec")
    except SyntaxError as error:
        raise ValueError(f"the reference of {file} is not valid Python: line {error.lineno}: {error.msg}") from None
    missing = [name for name, ours in inputs if ours is None]
    if missing:
        raise ValueError(f"the reference of {file} takes {', '.join(missing)}, which the imported operation does not have")
    if in_place:
        raise ValueError(
            f"the reference of {file} returns {', '.join(in_place)}, which the imported operation changes in place"
        )


def is_definition(source: str) -> bool:
    """Whether a worker loads this source from a definition."""
    return source.startswith(_SOURCE)


def load_reference(source: str) -> None:
    """In a worker process: registers the operation of a definition and its reference as a kernel.

    The digest in the source is that of the file that the user trusted.
    """
    import hashlib
    import json

    digest, _, file = source.removeprefix(_SOURCE).partition(":")
    with open(file, "rb") as opened:
        content = opened.read()
    if hashlib.sha256(content).hexdigest() != digest:
        raise PermissionError(f"{file} changed after it was trusted: import it again")
    text = content.decode()
    definition = json.loads(text)
    name, schema, _, inputs, _ = _native.import_definition(text, file)
    register_operation(schema)
    names = {ours: theirs for theirs, ours in inputs if ours is not None}
    outputs = list(definition["outputs"])
    namespace: dict[str, Any] = {"__name__": f"layerzero_definition_{name}"}
    exec(compile(definition["reference"], file, "exec"), namespace)  # noqa: S102 -- the user trusts this file.
    run = namespace.get("run")
    if not callable(run):
        raise TypeError(f"the reference of {file} defines no function `run`")
    register_kernel(operation=name, id=_kernel_id(name))(_kernel(run, names, outputs, name))


def _kernel(
    run: Callable[..., Any], names: dict[str, str], outputs: Sequence[str], operation: str
) -> Callable[..., Any]:
    """A kernel that calls the reference by the names of the definition, and returns its results in the definition's order."""
    positional, *_ = _native.kernel_signature(operation)

    def kernel(*inputs: Any, **params: Any) -> Any:
        given = {**dict(zip(positional, inputs, strict=True)), **params}
        result = run(**{names[name]: value for name, value in given.items()})
        if isinstance(result, dict):
            result = tuple(result[name] for name in outputs)
        elif isinstance(result, list):
            result = tuple(result)
        return result[0] if isinstance(result, tuple) and len(result) == 1 else result

    return kernel
