"""One handler per ATen operator."""

from layerzero._compile.aten import attention, data, elementwise, layers, reduce, views  # noqa: F401  (they register handlers)
from layerzero._compile.aten.base import Call, Sizes, Tensor, Unsupported, dtype_name, find, supported

__all__ = ["Call", "Sizes", "Tensor", "Unsupported", "dtype_name", "find", "supported"]
