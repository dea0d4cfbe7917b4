"""ONNX Runtime: every operation as a custom operation of the domain ``layerzero``.

``session(model)`` checks a model and opens it; ``register(options)`` adds the operations to the options of a session. They run on
the engine of this process, with its policy, locks and measurements.

The op type of an operation is its name in Python: ``norm_rms``. Inputs and outputs have the order of the operation's page, and its
params are attributes. If dtypes depend on a param, its value is part of the op type: ``mlp_linear_int8_bf16``.
"""

from __future__ import annotations

import difflib
import json
import os
from typing import Any

from .. import _native

DOMAIN = "layerzero"
# The types of attributes in ONNX, by the type of a param.
_TYPES = {"int": ("INT",), "bool": ("INT",), "float": ("FLOAT", "INT"), "string": ("STRING",)}


def library() -> str:
    """The shared library with the operations, for ``register_custom_ops_library``."""
    path: str = _native.__file__
    return path


def register(options: Any) -> None:
    """Adds the operations to ``onnxruntime.SessionOptions``."""
    options.register_custom_ops_library(library())


_catalog_of_process: dict[str, Any] | None = None


def _catalog() -> dict[str, Any]:
    global _catalog_of_process
    if _catalog_of_process is None:
        _catalog_of_process = json.loads(_native.onnxruntime_operations())
    return _catalog_of_process


def op_types() -> dict[str, dict[str, Any]]:
    """The op types, each with its operation, inputs, outputs and attributes."""
    found: dict[str, dict[str, Any]] = _catalog()["op_types"]
    return found


def refused() -> dict[str, str]:
    """The operations that ONNX Runtime cannot run, with the reasons."""
    found: dict[str, str] = _catalog()["refused"]
    return found


def session(model: Any, options: Any = None, **keywords: Any) -> Any:
    """An ``onnxruntime.InferenceSession`` of a model that uses the operations.

    `model` is an ``onnx.ModelProto``, its bytes or a path. `check` runs first: ONNX Runtime itself ignores attributes that an
    operation does not have.
    """
    import onnx
    import onnxruntime

    loaded = model if isinstance(model, onnx.ModelProto) else _load(model)
    check(loaded)
    options = onnxruntime.SessionOptions() if options is None else options
    register(options)
    # A path is passed on, because weights may lie next to the file.
    source = loaded.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    return onnxruntime.InferenceSession(source, options, **keywords)


def _load(model: Any) -> Any:
    import onnx

    if isinstance(model, bytes):
        return onnx.load_from_string(model)
    return onnx.load(os.fspath(model), load_external_data=False)


def check(model: Any) -> None:
    """Raises ValueError with every node of the domain ``layerzero`` that is not a call of an operation."""
    problems = [f"{_name(node)}: {problem}" for node in _nodes(model) for problem in _problems(node)]
    if problems:
        raise ValueError("\n".join(problems))


def _nodes(model: Any) -> list[Any]:
    """The nodes of the domain in the graph, in the graphs of attributes (branches, loop bodies) and in functions."""
    found = []
    pending = [model.graph, *model.functions]
    while pending:
        for node in pending.pop().node:
            if node.domain == DOMAIN:
                found.append(node)
            for attribute in node.attribute:
                pending.extend([attribute.g] if attribute.HasField("g") else [])
                pending.extend(attribute.graphs)
    return found


def _name(node: Any) -> str:
    return f"node `{node.name}` ({node.op_type})" if node.name else f"node {node.op_type}"


def _problems(node: Any) -> list[str]:
    known = op_types().get(node.op_type)
    if known is None:
        reason = next((reason for name, reason in refused().items() if name.replace(".", "_") == node.op_type), None)
        return [f"refused: {reason}"] if reason else [f"there is no such op type{_suggestion(node.op_type, op_types())}"]
    problems = []
    for kind, values, declared in (("inputs", node.input, known["inputs"]), ("outputs", node.output, known["outputs"])):
        if len(values) > len(declared):
            problems.append(f"{len(values)} {kind}, and at most {len(declared)} are expected")
        for place, one in enumerate(declared):
            if not one["optional"] and (place >= len(values) or not values[place]):
                problems.append(f"`{one['name']}` is missing in the {kind}")
    attributes = {one.name: one for one in node.attribute}
    for name, one in attributes.items():
        declared = known["attributes"].get(name)
        if declared is None:
            problems.append(f"there is no attribute `{name}`{_suggestion(name, known['attributes'])}")
        elif (kind := type(one).AttributeType.Name(one.type)) not in _TYPES[declared["type"]]:
            problems.append(f"attribute `{name}` has type {kind}, and {' or '.join(_TYPES[declared['type']])} is expected")
        elif declared["cases"] and one.s.decode(errors="replace") not in declared["cases"]:
            problems.append(f"attribute `{name}` must be one of {', '.join(declared['cases'])}")
    for name, declared in known["attributes"].items():
        if declared["required"] and name not in attributes:
            problems.append(f"attribute `{name}` is missing")
    return problems


def _suggestion(name: str, names: Any) -> str:
    near = difflib.get_close_matches(name, list(names), 1)
    return f"; did you mean `{near[0]}`?" if near else ""
