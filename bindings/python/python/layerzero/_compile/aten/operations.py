"""Calls of LayerZero's own operations: `torch.ops.layerzero.*` arrives as one node, with the schema's params."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from layerzero import _native
from layerzero._compile.aten.base import Call, Handler, Tensor, Unsupported


@cache
def _operations() -> dict[str, str]:
    """The operation of every function's name."""
    return {name.replace(".", "_"): name for name in _native.list_operations()}


def find(target: Any) -> Handler | None:
    """The handler of an operator of the namespace `layerzero`."""
    if getattr(target, "namespace", None) != "layerzero":
        return None
    schema = target._schema
    operation = _operations().get(schema.name.removeprefix("layerzero::"))
    if operation is None:
        return None

    def handler(call: Call, *args: Any, **kwargs: Any) -> Any:
        if target._overloadname != "default" or any(argument.is_write for argument in schema.arguments):
            raise Unsupported("a call that changes its arguments in place")
        given = dict(zip((argument.name for argument in schema.arguments), args)) | kwargs
        inputs: list[int | None] = []
        params: dict[str, Any] = {}
        for argument in schema.arguments:
            value = given.get(argument.name)
            if "Tensor" in str(argument.type):
                if isinstance(value, (list, tuple)):
                    raise Unsupported(f"a list of tensors as {argument.name}")
                inputs.append(None if value is None else value.node)
            elif value is not None:
                params[argument.name] = call.size(value) if isinstance(value, torch.SymInt) else value
        node = call.build.call(operation, inputs, **params)
        if len(schema.returns) <= 1:
            return Tensor(node)
        return [Tensor(node if index == 0 else call.build.projection(node, index)) for index in range(len(schema.returns))]

    return handler
