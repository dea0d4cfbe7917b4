"""Memory of KV caches: pages of all layers, and which pages a sequence has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from layerzero._compile.aten import CacheLayer

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

# Capacities are multiples of this, so that few plans serve many lengths.
_STEP = 64


class CacheMemory(ABC):
    """Keys and values of all layers in pages, `[pages, page_size, kv_heads, head_dim]`. Page numbers never change."""

    def __init__(self, layers: Sequence[CacheLayer], page_size: int, device: torch.device | None = None) -> None:
        self.layers = layers
        self.page_size = page_size
        self.device = device
        self.tensors: list[torch.Tensor] = []
        self._allocate(0)

    def _allocate(self, pages: int) -> None:
        """A new set of pages; what is cached moves to its beginning."""
        old = self.tensors
        self.tensors = []
        for index in range(2 * len(self.layers)):
            layer = self.layers[index // 2]
            # Zeros: kernels may read past the end of a sequence, where a NaN would propagate.
            shape = (pages, self.page_size, layer.kv_heads, layer.head_dim)
            new = torch.zeros(shape, dtype=_DTYPES[layer.dtype], device=self.device)
            if old:
                part = old[index]
                new[: part.shape[0], : part.shape[1]] = part[:, : self.page_size]
            self.tensors.append(new)
        self.pages = pages

    @abstractmethod
    def reserve(self, sequence: int, length: int) -> None:
        """Makes space for `length` tokens of a sequence."""

    @abstractmethod
    def pages_of(self, sequence: int, length: int) -> list[int]:
        """The pages of the first `length` tokens."""

    @abstractmethod
    def release(self, sequence: int) -> None:
        """Removes a sequence."""

    def slots(self, sequence: int, start: int, end: int) -> torch.Tensor:
        """Where tokens of a sequence are written."""
        pages = torch.tensor(self.pages_of(sequence, end))
        positions = torch.arange(start, end)
        return pages[positions // self.page_size] * self.page_size + positions % self.page_size

    def table(self, lengths: dict[int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`kv_indptr`, `kv_indices` and `kv_last_page_len` of these sequences. A last one without queries takes the rest of the indices,
        whose number grows in steps, so that one plan serves many lengths."""
        starts, indices, last = [0], [], []
        for sequence, length in lengths.items():
            pages = self.pages_of(sequence, length)
            indices += pages
            starts.append(len(indices))
            last.append(length - (len(pages) - 1) * self.page_size)
        count = self.index_count(len(indices))
        indices += [0] * (count - len(indices))
        numbers = ([*starts, count], indices, [*last, 1 if count > starts[-1] else 0])
        indptr, kv_indices, last_page_len = (torch.tensor(one, dtype=torch.int32) for one in numbers)
        return indptr, kv_indices, last_page_len

    def index_count(self, used: int) -> int:
        """The number of indices in a table."""
        return used

    @property
    def nbytes(self) -> int:
        """Bytes of all caches."""
        return sum(tensor.nbytes for tensor in self.tensors)


class ContiguousMemory(CacheMemory):
    """One page per sequence, as long as the longest sequence may become; everything moves when one outgrows it."""

    def __init__(self, layers: Sequence[CacheLayer], device: torch.device | None = None) -> None:
        super().__init__(layers, _STEP, device)
        self._rows: dict[int, int] = {}
        self._free: list[int] = []

    def reserve(self, sequence: int, length: int) -> None:
        """Makes space for `length` tokens of a sequence."""
        if length > self.page_size:
            self.page_size = max(-(-length // _STEP) * _STEP, self.page_size * 2)
            self._allocate(self.pages)
        if sequence not in self._rows:
            if not self._free:
                more = max(self.pages, 1)
                self._free = list(range(self.pages + more - 1, self.pages - 1, -1))
                self._allocate(self.pages + more)
            self._rows[sequence] = self._free.pop()

    def pages_of(self, sequence: int, length: int) -> list[int]:
        """The page of a sequence."""
        return [self._rows[sequence]]

    def release(self, sequence: int) -> None:
        """Removes a sequence; its page can be used for another one."""
        if sequence in self._rows:
            self._free.append(self._rows.pop(sequence))


class PagedMemory(CacheMemory):
    """Pages of equal size from a pool, which doubles when no page is free."""

    def __init__(self, layers: Sequence[CacheLayer], page_size: int, device: torch.device | None = None) -> None:
        super().__init__(layers, page_size, device)
        self._tables: dict[int, list[int]] = {}
        self._free: list[int] = []

    def reserve(self, sequence: int, length: int) -> None:
        """Makes space for `length` tokens of a sequence."""
        table = self._tables.setdefault(sequence, [])
        while len(table) * self.page_size < length:
            if not self._free:
                more = max(self.pages, 16)
                self._free = list(range(self.pages + more - 1, self.pages - 1, -1))
                self._allocate(self.pages + more)
            table.append(self._free.pop())

    def pages_of(self, sequence: int, length: int) -> list[int]:
        """The pages of the first `length` tokens."""
        return self._tables[sequence][: -(-length // self.page_size)]

    def release(self, sequence: int) -> None:
        """Removes a sequence; its pages return to the pool."""
        self._free += self._tables.pop(sequence, [])

    def index_count(self, used: int) -> int:
        """A power of two, at least 16."""
        return max(16, 1 << (used - 1).bit_length())


def make(strategy: str, layers: Sequence[CacheLayer], page_size: int, device: torch.device | None = None) -> Any:
    """The memory of a strategy."""
    if strategy == "contiguous":
        return ContiguousMemory(layers, device)
    if strategy == "paged":
        return PagedMemory(layers, page_size, device)
    raise ValueError(f"unknown KV-cache strategy {strategy!r}; expected one of contiguous, paged")
