"""Quantized embedding tables: with which blocks the kernel runs."""

from __future__ import annotations

from typing import Any

import torch

from layerzero.backends import triton as launching
from layerzero.backends.triton import _embedding_kernels as kernels

#: By format: whether a byte has two codes, the sign bit of an integer, and the kind of a float.
_CODES = {
    "int8": (False, 128, ""), "uint8": (False, 0, ""), "int4": (True, 8, ""), "uint4": (True, 0, ""), "fp8_e4m3": (False, 0, "e4m3"),
    "mxfp4": (True, 0, "e2m1"),
}  # fmt: skip
#: Maximum number of bytes of a row that one program reads.
_BYTES = 1024


def lookup(
    table: Any, ids: Any, scale: Any, zero_point: Any = None, *,
    format: str, granularity: str, block_size: int, dim: int, output_dtype: str, out: Any = None,
) -> Any:  # fmt: skip
    """`embedding.lookup.quantized`."""
    if out is None:
        out = torch.empty((*ids.shape, dim), dtype=launching._DTYPES[output_dtype], device=table.device)
    vocab, stored = table.shape
    size = min(block_size, dim) if granularity == "block" else dim
    block = min(launching._power(stored), _BYTES)
    numbers = (vocab, stored, dim, size, -(-dim // size))
    has_zero = zero_point is not None
    tensors = (table, ids, scale, zero_point if has_zero else scale, out)

    def recipe() -> Any:
        # Scales are bytes too if they are powers of two.
        places = (0, 2, 3) if format == "mxfp4" else (0,)
        return launching._Recipe(kernels.lookup, (*_CODES[format], has_zero, block), 4 if block >= 512 else 1, reads_bytes=places)

    key = ("embedding", *numbers, format, has_zero, ids.dtype, output_dtype, table.get_device())
    launching._launch(key, ids.numel(), -(-stored // block), tensors, numbers, recipe)
    return out
