"""Score expressions (`score_mod`), evaluated by torch for many scores at once.

`_native.score_mod_steps` checks a text and gives the steps of a stack machine. Numbers are f64 as in the host reference: an
expression can amplify rounding errors without bound.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from layerzero import _native

_UNARY: dict[str, Any] = {
    "negate": torch.neg,
    "not": lambda value: 1 - value,
    "abs": torch.abs,
    "sqrt": torch.sqrt,
    "exp": torch.exp,
    "log": torch.log,
    "tanh": torch.tanh,
}


def _comparison(function: Any) -> Any:
    return lambda left, right: function(left, right).double()


_BINARY: dict[str, Any] = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "divide": torch.div,
    "floor_divide": lambda left, right: torch.div(left, right, rounding_mode="floor"),
    "modulo": torch.remainder,
    "ceil_divide": lambda left, right: -torch.div(-left, right, rounding_mode="floor"),
    "equal": _comparison(torch.eq),
    "not_equal": _comparison(torch.ne),
    "less": _comparison(torch.lt),
    "less_or_equal": _comparison(torch.le),
    "greater": _comparison(torch.gt),
    "greater_or_equal": _comparison(torch.ge),
    "and": torch.mul,
    "or": torch.maximum,
    "min": torch.minimum,
    "max": torch.maximum,
    "drop_second": lambda _left, right: right,
}


@lru_cache(maxsize=256)
def _steps(text: bytes, parameters: int) -> list[tuple[str, float]]:
    return _native.score_mod_steps(text, parameters)


def evaluate(steps: list[tuple[str, float]], slots: list[Any]) -> Any:
    """The result of the steps; `slots` are f64 tensors that broadcast."""
    stack: list[Any] = []
    for name, value in steps:
        if name == "constant":
            # Filled on the device, because copying from the host synchronizes.
            stack.append(torch.full((), value, dtype=torch.float64, device=slots[0].device))
        elif name == "slot":
            stack.append(slots[int(value)])
        elif name == "copy_second":
            stack.append(stack[-2])
        elif name == "select":
            condition, then, otherwise = stack[-3:]
            stack[-3:] = [torch.where(condition != 0, then, otherwise)]
        elif name in _UNARY:
            stack[-1] = _UNARY[name](stack[-1])
        else:
            stack[-2:] = [_BINARY[name](stack[-2], stack[-1])]
    (result,) = stack
    return result


class ScoreMod:
    """The expression of a call whose scores are ``[B, G, H / G, M, L]``."""

    def __init__(
        self, text: Any, params: Any, positions: Any, groups: int, mask: Any = None, *, batch: Any = None, queries: Any = None, keys: Any = None
    ) -> None:
        """`text` is a `str`, or a tensor of bytes on the host; `params` ``[B, H, P]``, ``[B, H, M, P]`` or None; `positions` those of the
        queries among the keys, which broadcast to ``[B, G, H / G, M, 1]``; `mask` a bias that is added to the result, or None.

        `batch`, `queries` and `keys` are the indices of batch rows, queries and keys, which broadcast to ``[B, G, H / G, M, L]``; by default
        those of the scores.
        """
        encoded = text.encode() if isinstance(text, str) else bytes(text.tolist())
        self._steps = _steps(encoded, 0 if params is None else params.shape[-1])
        self._params = [] if params is None else [_heads(one, groups) for one in params.double().unbind(-1)]
        self._positions, self._mask = positions.double(), mask
        self._batch, self._queries, self._keys = (None if index is None else index.double() for index in (batch, queries, keys))

    def __call__(self, scores: Any, first: int) -> Any:
        """The modified scores of the queries from `first` on."""
        batch, groups, group, queries, keys = scores.shape
        device, some = scores.device, slice(first, first + queries)

        def indices(count: int, start: int = 0) -> Any:
            return torch.arange(start, start + count, dtype=torch.float64, device=device)

        slots = [
            scores,
            indices(keys) if self._keys is None else rows(self._keys, some),
            indices(queries, first)[:, None] if self._queries is None else rows(self._queries, some),
            rows(self._positions, some),
            indices(groups * group).view(groups, group, 1, 1),
            indices(batch).view(batch, 1, 1, 1, 1) if self._batch is None else rows(self._batch, some),
            torch.full((), torch.inf, dtype=torch.float64, device=device),
            *(rows(one, some) for one in self._params),
        ]
        modified = evaluate(self._steps, slots).expand(scores.shape)
        return modified.clone() if self._mask is None else modified + rows(self._mask, some)


def _heads(params: Any, groups: int) -> Any:
    """``[B, H]`` or ``[B, H, M]`` as ``[B, G, H / G, M, 1]``."""
    params = params.unflatten(1, (groups, params.shape[1] // groups))
    return params[..., None, None] if params.dim() == 3 else params[..., None]


def rows(tensor: Any, some: slice) -> Any:
    """The part of a tensor ``[..., M, L]`` for some of its queries; one without queries or with a single row is for all of them."""
    return tensor if tensor is None or tensor.dim() < 2 or tensor.shape[-2] == 1 else tensor[..., some, :]
