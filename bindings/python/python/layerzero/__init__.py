"""LayerZero: which kernel runs this operation, on this hardware, for these tensors, right now, and why."""

from layerzero import ops
from layerzero._native import (
    ConfigurationError,
    CudaGraphUnsafeError,
    Explanation,
    KernelExecutionError,
    LayerZeroError,
    NoKernelFoundError,
    Reason,
    Tokenizer,
    ValidationError,
    __version__,
    explain,
    list_operations,
    which,
)

__all__ = [
    "ConfigurationError",
    "CudaGraphUnsafeError",
    "Explanation",
    "KernelExecutionError",
    "LayerZeroError",
    "NoKernelFoundError",
    "Reason",
    "Tokenizer",
    "ValidationError",
    "__version__",
    "explain",
    "list_operations",
    "ops",
    "which",
]
