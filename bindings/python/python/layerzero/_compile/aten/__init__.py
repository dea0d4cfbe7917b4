"""One handler per ATen operator."""

from layerzero._compile.aten import (  # noqa: F401  (they register handlers)
    attention,
    data,
    decomposed,
    elementwise,
    layers,
    operations,
    reduce,
    views,
)
from layerzero._compile.aten.base import Call, Handler, Sizes, Tensor, Unsupported, dtype_name, supported
from layerzero._compile.aten.base import find as _find

__all__ = ["Call", "Sizes", "Tensor", "Unsupported", "dtype_name", "find", "supported"]


def find(target: object) -> Handler | None:
    """The handler of an operator."""
    return _find(target) or operations.find(target)
