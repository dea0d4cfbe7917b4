"""Checks of numbers that callers give."""

from __future__ import annotations

import operator
from typing import SupportsIndex


def whole(name: str, value: object, least: int, most: int | None = None) -> int:
    """The value of an argument as an integer. Refuses other types, and numbers out of range."""
    limits = f"an integer of at least {least}" if most is None else f"an integer from {least} to {most}"
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"`{name}` must be {limits}, not {value!r}")
    number = operator.index(value)
    if number < least or (most is not None and number > most):
        raise ValueError(f"`{name}` must be {limits}, not {number}")
    return number
