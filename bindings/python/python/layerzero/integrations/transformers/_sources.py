"""Determines which models use Transformers' table of attention functions, and which masks they expect.

Both are read from the source files of the models, as Transformers itself does (``_can_set_attn_implementation``).
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel


@functools.cache
def _source(module: str) -> ast.Module | None:
    try:
        return ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError, SyntaxError):
        return None


def _is_implementation(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in ("_attn_implementation", "attn_implementation")


@functools.cache
def _uses_table(module: str) -> bool:
    source = _source(module)
    return source is not None and any(
        isinstance(node, ast.Attribute) and node.attr == "get_interface" for node in ast.walk(source)
    )


@functools.cache
def _has_attention(module: str) -> bool:
    source = _source(module)
    return source is None or any(isinstance(node, ast.ClassDef) and "Attention" in node.name for node in source.body)


@functools.cache
def _branches(module: str, supports_sdpa: bool) -> bool:
    """Whether a source file selects code by the name of the attention implementation.

    If the code compares only with ``eager``, other names take the same branch as ``sdpa``.
    """
    expected = "sdpa" if supports_sdpa else "eager"
    source = _source(module)
    for node in ast.walk(source) if source else ():
        if isinstance(node, ast.Compare) and any(_is_implementation(one) for one in ast.walk(node)):
            if any(isinstance(one, ast.Constant) and one.value == expected for one in ast.walk(node)):
                return True
        if isinstance(node, ast.Subscript) and _is_implementation(node.slice):
            if not (isinstance(node.value, ast.Name) and node.value.id.startswith("ALL_")):
                return True
    return False


def own_attention(kind: type[PreTrainedModel]) -> str | None:
    """Why models of a class must compute attention themselves; ``None`` if they can use LayerZero."""
    module = kind.__module__
    if not _uses_table(module):
        return "computes attention without the table of attention functions" if _has_attention(module) else None
    if _branches(module, bool(kind._supports_sdpa)):
        return "selects its code by the names of the attention implementations that it supports"
    return None


# A dictionary instead of a cached function, which torch.compile would trace again.
_takes_sdpa_masks: dict[type[PreTrainedConfig], bool] = {}


def takes_sdpa_masks(config: type[PreTrainedConfig]) -> bool:
    """Whether the models of a configuration take the masks of ``sdpa``: boolean, or none if the attention is only causal."""
    known = _takes_sdpa_masks.get(config)
    if known is None:
        known = _takes_sdpa_masks[config] = _all_take_sdpa_masks(config)
    return known


def _all_take_sdpa_masks(config: type[PreTrainedConfig]) -> bool:
    package = config.__module__.rpartition(".")[0]
    kinds: set[Any] = {
        one
        for name, module in list(sys.modules.items())
        if name == config.__module__ or (package and name.startswith(f"{package}.modeling_"))
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, PreTrainedModel) and one.__module__ == name
    }
    exact = {one for one in kinds if one.config_class is config}
    return bool(kinds) and all(
        one._supports_sdpa and _uses_table(one.__module__) and own_attention(one) is None for one in exact or kinds
    )
