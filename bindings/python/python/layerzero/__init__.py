"""LayerZero: which kernel runs this operation, on this hardware, for these tensors, right now, and why."""

from layerzero import ops
from layerzero._native import (
    ConfigurationError,
    CudaGraphUnsafeError,
    KernelExecutionError,
    LayerZeroError,
    NoKernelFoundError,
    Reason,
    Tokenizer,
    ValidationError,
    __version__,
    list_operations,
)

__all__ = [
    "ConfigurationError",
    "CudaGraphUnsafeError",
    "KernelExecutionError",
    "LayerZeroError",
    "NoKernelFoundError",
    "Reason",
    "Tokenizer",
    "ValidationError",
    "__version__",
    "list_operations",
    "ops",
]
