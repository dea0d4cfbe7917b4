"""One handler per ATen operator."""

from layerzero._compile.aten import (  # noqa: F401  (they register handlers)
    attention,
    cache,
    data,
    decomposed,
    einsum,
    elementwise,
    layers,
    reduce,
    scatter,
    views,
)
from layerzero._compile.aten.base import Call, Sizes, Tensor, Unsupported, dtype_name, find, supported
from layerzero._compile.aten.cache import CacheInputs, CacheLayer

__all__ = ["CacheInputs", "CacheLayer", "Call", "Sizes", "Tensor", "Unsupported", "dtype_name", "find", "supported"]
