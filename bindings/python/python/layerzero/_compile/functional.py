"""Programs that change tensors in place, as programs that do not."""

from __future__ import annotations

from typing import Any

import torch


def functional(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program itself if nothing can observe its changes in place, otherwise torch's functional form of it, with the same operators."""
    positions = {node: index for index, node in enumerate(program.graph.nodes)}
    if all(_is_private(node, positions) for node in program.graph.nodes if _changes(node)):
        return program
    return program.run_decompositions({})


def _changes(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and bool(schema.is_mutable)


def _aliases(node: torch.fx.Node) -> bool:
    """Whether the result shares memory with an argument."""
    schema: Any = getattr(node.target, "_schema", None)
    return schema is None or any(result.alias_info is not None for result in schema.returns)


def _is_private(node: torch.fx.Node, positions: dict[torch.fx.Node, int]) -> bool:
    """Whether the first argument alone is changed, is a new tensor, and nothing uses its memory afterwards but the result."""
    changed = [argument for argument in node.target._schema.arguments if argument.alias_info is not None and argument.alias_info.is_write]
    target = node.args[0] if node.args else None
    if len(changed) != 1 or changed[0].name != node.target._schema.arguments[0].name or not isinstance(target, torch.fx.Node):
        return False
    # The result of another change in place is as new as what was changed.
    is_new = target.op == "call_function" and (not _aliases(target) or (_changes(target) and _is_private(target, positions)))
    others = [user for user in target.users if user is not node]
    return is_new and all(positions[user] < positions[node] and not _aliases(user) for user in others)
