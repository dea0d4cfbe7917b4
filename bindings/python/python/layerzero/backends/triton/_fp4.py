"""FP4 linear layers: which kernels run, with which blocks."""

from __future__ import annotations

from functools import cache
from math import inf
from typing import Any, NamedTuple

import torch
import triton.language as tl

from layerzero.backends import triton as launching
from layerzero.backends.triton import _fp4_kernels as kernels
from layerzero.backends.triton._linear import _KINDS
from layerzero.backends.triton._tiles import Table, Tile, tile_for

#: The dtype of scaled codes by format: those of nvfp4 are exact in f16, those of mxfp4 need the exponents of bf16.
_OPERANDS = {"mxfp4": tl.bfloat16, "nvfp4": tl.float16}
#: Inputs that share a scale.
_BLOCKS = {"mxfp4": 32, "nvfp4": 16}
#: Tiles of `skinny`, and of `linear`: the fastest on an H200 for a layer of 4096 by 6144 that fit into the 99 KiB of shared memory of SM 8.6 and 8.9.
_SKINNY: Table = ((16, Tile(16, 64, 256, 4, 4)), (32, Tile(32, 64, 128, 4, 4)), (64, Tile(64, 64, 64, 4, 5)), (inf, Tile(128, 64, 64, 4, 4)))
_COPIED: Table = ((128, Tile(64, 128, 64, 4, 4)), (inf, Tile(128, 128, 64, 8, 3)))
#: A faster tile of `linear` for more than 128 rows, and the shared memory that it takes.
_DEEP, _DEEP_BYTES = Tile(128, 128, 128, 8, 3), 192 << 10
#: `skinny` copies x for more rows than this: otherwise every program converts the codes of x again.
_MOST_ROWS_IN_REGISTERS = 16
#: Parts of the inputs are computed separately if there are fewer programs than this, in at most so many parts.
_PROGRAMS, _MOST_SPLITS = 264, 8
#: Output features of a program for one row, words of eight codes that it reads at a time, and its warps.
_GEMV = (8, 256, 4)


class _Operand(NamedTuple):
    """Rows of codes, or the scaled inputs that they represent."""

    values: Any
    scale: Any
    is_copied: bool


class _Layer:
    """The arguments of a call that all kernels use."""

    def __init__(
        self, x: Any, weight: Any, x_global: Any, weight_global: Any, bias: Any, format: str, activation: str, output_dtype: str, out: Any
    ) -> None:
        self.outer, self.stored = weight.shape
        self.rows = x.numel() // self.stored
        self.blocks, self.format, self.device = -(-2 * self.stored // _BLOCKS[format]), format, x.get_device()
        self.out = torch.empty((*x.shape[:-1], self.outer), dtype=launching._DTYPES[output_dtype], device=x.device) if out is None else out
        self.ends = tuple(self.out if one is None else one for one in (x_global, weight_global, bias))
        self.flags = (_KINDS[activation], bias is not None, x_global is not None, weight_global is not None)
        self.dtypes = (output_dtype, self.device)

    def copied(self, codes: Any, scale: Any, rows: int) -> _Operand:
        """The scaled inputs of rows in 16 bits, even ones first."""
        operand, is_power, block = _OPERANDS[self.format], self.format == "mxfp4", 512
        dtype = {tl.bfloat16: torch.bfloat16, tl.float16: torch.float16}.get(operand, torch.float32)
        values = torch.empty((rows, 2 * self.stored), dtype=dtype, device=codes.device)
        numbers, height = (rows, self.stored, self.blocks), 4

        def recipe() -> Any:
            return launching._Recipe(kernels.unpack, (is_power, operand, height, block), 4, reads_bytes=(0, 1))

        grid = (-(-rows // height), -(-self.stored // block))
        launching._launch(("fp4 unpack", *numbers, is_power, self.device), *grid, (codes, scale, values), numbers, recipe)
        return _Operand(values, scale, True)

    def product(self, x: _Operand, weight: _Operand, tile: Tile) -> Any:
        """The outputs by matrix instructions."""
        m_block, n_block, depth, warps, stages = tile
        size = depth // 2
        columns, rows, steps = -(-self.outer // n_block), -(-self.rows // m_block), -(-self.stored // size)
        splits = _splits(rows * columns, steps)
        each = -(-steps // splits)
        is_even = self.stored % size == 0 and self.outer % n_block == 0
        constants = (self.format == "mxfp4", _OPERANDS[self.format], x.is_copied, weight.is_copied, is_even, splits)
        partial = self.out if splits == 1 else torch.empty((splits, self.rows, self.outer), dtype=torch.float32, device=self.out.device)
        numbers = (self.rows, self.stored, self.blocks, self.outer, each)
        tensors = (x.values, weight.values, x.scale, weight.scale, *self.ends, partial, self.out)
        # Copies have a dtype of Triton.
        reads_bytes = (*(place for place, one in enumerate((x, weight)) if not one.is_copied), 2, 3)

        def recipe() -> Any:
            return launching._Recipe(kernels.product, (*self.flags, *constants, m_block, n_block, size), warps, stages, reads_bytes)

        key = ("fp4", self.format, x.is_copied, weight.is_copied, *numbers, *self.flags, *self.dtypes)
        launching._launch(key, rows, columns * splits, tensors, numbers, recipe)
        if splits > 1:
            self._combine(partial, splits)
        return self.out

    def _combine(self, partial: Any, splits: int) -> None:
        count, block = self.rows * self.outer, 1024

        def recipe() -> Any:
            return launching._Recipe(kernels.combine, (*self.flags, splits, block), 4)

        key = ("fp4 combine", splits, count, self.outer, *self.flags, *self.dtypes)
        launching._launch(key, -(-count // block), 1, (partial, *self.ends, self.out), (count, self.outer), recipe)

    def one_row(self, x: _Operand, weight: _Operand) -> Any:
        """The outputs of a single row, stored in whole words."""
        words = self.stored // 4
        n_block, most, warps = _GEMV
        size = min(most, max(launching._power(words), 16))
        is_power, is_even = self.format == "mxfp4", words % size == 0 and self.outer % n_block == 0
        numbers = (words, self.blocks, self.outer)

        def recipe() -> Any:
            return launching._Recipe(kernels.gemv, (*self.flags, is_power, is_even, n_block, size), warps, reads_bytes=(0, 1, 2, 3))

        tensors = (x.values, weight.values, x.scale, weight.scale, *self.ends, self.out)
        launching._launch(("fp4 gemv", self.format, *numbers, *self.flags, *self.dtypes), -(-self.outer // n_block), 1, tensors, numbers, recipe)
        return self.out


@cache
def _shared_memory(device: int) -> int:
    """The bytes of shared memory that a program may use; 0 if kernels are interpreted."""
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin if device >= 0 else 0


def _splits(programs: int, steps: int) -> int:
    """Into how many parts the inputs are split: a power of two, with at least four steps for each."""
    splits = 1
    while splits < _MOST_SPLITS and programs * splits < _PROGRAMS and steps >= 8 * splits:
        splits *= 2
    return splits


def skinny(
    x: Any, weight: Any, x_scale: Any, weight_scale: Any, x_global_scale: Any = None, weight_global_scale: Any = None, bias: Any = None, *,
    format: str, activation: str, output_dtype: str, out: Any = None,
) -> Any:  # fmt: skip
    """`mlp.linear.fp4` of few rows: bound by reading the codes of the weight once."""
    layer = _Layer(x, weight, x_global_scale, weight_global_scale, bias, format, activation, output_dtype, out)
    left, right = _Operand(x, x_scale, False), _Operand(weight, weight_scale, False)
    if layer.rows == 1 and layer.stored % 4 == 0:
        return layer.one_row(left, right)
    if layer.rows > _MOST_ROWS_IN_REGISTERS:
        left = layer.copied(x, x_scale, layer.rows)
    return layer.product(left, right, tile_for(layer.rows, _SKINNY))


def linear(
    x: Any, weight: Any, x_scale: Any, weight_scale: Any, x_global_scale: Any = None, weight_global_scale: Any = None, bias: Any = None, *,
    format: str, activation: str, output_dtype: str, out: Any = None,
) -> Any:  # fmt: skip
    """`mlp.linear.fp4` of many rows: codes are converted once, not by every program that reads them."""
    layer = _Layer(x, weight, x_global_scale, weight_global_scale, bias, format, activation, output_dtype, out)
    left, right = layer.copied(x, x_scale, layer.rows), layer.copied(weight, weight_scale, layer.outer)
    is_deep = layer.rows > 128 and _shared_memory(layer.device) >= _DEEP_BYTES
    return layer.product(left, right, _DEEP if is_deep else tile_for(layer.rows, _COPIED))
