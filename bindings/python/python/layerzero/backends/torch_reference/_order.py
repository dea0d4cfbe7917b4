"""Orders that the operations define: larger values first, lower index first among equals, NaN last."""

from __future__ import annotations

from typing import Any

import torch


def best_first(values: Any) -> Any:
    """Indices along the last dimension, best first."""
    nan = values.isnan()
    # Adding 0 makes -0 equal to 0. The second sort moves NaN behind -inf and keeps the order of the others.
    order = torch.argsort((values + 0.0).masked_fill(nan, -torch.inf), dim=-1, descending=True, stable=True)
    return order.gather(-1, torch.argsort(nan.gather(-1, order).to(torch.uint8), dim=-1, stable=True))


def in_order(values: Any, order: Any, count: int) -> tuple[Any, Any]:
    """The first `count` values in order, and their indices."""
    indices = order[..., :count]
    return values.gather(-1, indices), indices
