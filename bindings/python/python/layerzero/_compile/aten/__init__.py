"""One handler per ATen operator."""

from layerzero._compile.aten import attention, cache, data, einsum, elementwise, layers, reduce, scatter, views  # noqa: F401  (they register handlers)
from layerzero._compile.aten.base import Call, Sizes, Tensor, Unsupported, dtype_name, find, supported
from layerzero._compile.aten.cache import CacheInputs, CacheLayer

__all__ = ["CacheInputs", "CacheLayer", "Call", "Sizes", "Tensor", "Unsupported", "dtype_name", "find", "supported"]
