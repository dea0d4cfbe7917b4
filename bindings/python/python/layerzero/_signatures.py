"""Signatures of kernels that are Python functions."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any


def positional_count(function: Callable[..., Any], params: Collection[str]) -> int | None:
    """How many inputs a function takes by position; `None` if any number, or if it has no signature.

    `params` and `out` are passed by keyword, so parameters with these names take no input.
    """
    import inspect

    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return None
    positional = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return sum(name != "out" and name not in params for name in positional)
