"""KV cache of a batch of sequences, with one of four strategies behind one interface. Users append and
attend; the strategy determines the cost of growing.

| strategy | a sequence | growing |
|---|---|---|
| `contiguous` | one row of one tensor | copies everything when the capacity doubles |
| `paged` | pages of a pool, through a page table | allocates a page |
| `virtual` | one row of reserved addresses | maps physical memory; nothing moves, and the tensors stay the same |
| `unified` | one row of memory shared by host and device | nothing: pages migrate to the side that accesses them |
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from layerzero import _native, ops
from layerzero._control import config
from layerzero._functions import attention, paged_attention

STRATEGIES = ("contiguous", "paged", "virtual", "unified")


class KvCache(ABC):
    """The interface of all strategies. Lengths are kept on the host, so that nothing synchronizes the device."""

    strategy: str

    def __init__(self, batch: int, kv_heads: int, head_dim: int, capacity: int, dtype: Any, device: Any) -> None:
        self.batch, self.kv_heads, self.head_dim, self.capacity = batch, kv_heads, head_dim, capacity
        self.dtype, self.device = dtype, device
        self.lengths = [0] * batch

    def extend(self, sequence: int, k: Any, v: Any) -> None:
        """Appends tokens to one sequence: ``[tokens, kv_heads, head_dim]``."""
        self._check_sequence(sequence)
        tokens = k.shape[0]
        self._check(tokens, k, v)
        first = self.lengths[sequence]
        lengths = [first + tokens if row == sequence else length for row, length in enumerate(self.lengths)]
        self._add(lengths, [sequence] * tokens, range(first, first + tokens), k, v)

    def append(self, k: Any, v: Any) -> None:
        """Appends one token to every sequence: ``[batch, kv_heads, head_dim]``."""
        self._check(self.batch, k, v)
        self._add([length + 1 for length in self.lengths], range(self.batch), list(self.lengths), k, v)

    def attend(self, q: Any, **params: Any) -> Any:
        """One decode step, ``q [batch, heads, head_dim]``, over all appended tokens."""
        with _native.Scope(kv_strategy=self.strategy):
            return self._attend(q, params)

    def release(self, sequence: int) -> None:
        """Removes a sequence; its row can be used for another one."""
        self._check_sequence(sequence)
        self.lengths[sequence] = 0

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of memory in use now."""

    def _check_sequence(self, sequence: int) -> None:
        if not 0 <= sequence < self.batch:
            raise ValueError(f"there is no sequence {sequence}: the cache has {self.batch} sequences, numbered from 0")

    def _check(self, tokens: int, k: Any, v: Any) -> None:
        for name, given in (("k", k), ("v", v)):
            expected = (tokens, self.kv_heads, self.head_dim)
            if tuple(given.shape) != expected or given.dtype != self.dtype:
                found = f"{list(given.shape)} of {given.dtype}"
                raise ValueError(f"{name} is {found}, but the cache takes {list(expected)} of {self.dtype}")

    def _add(self, lengths: list[int], rows: Sequence[int], positions: Sequence[int], k: Any, v: Any) -> None:
        if max(lengths) > self.capacity:
            raise self._full(max(lengths))
        self._reserve(lengths)
        self._write(rows, positions, k, v)
        # Updated last: tokens that could not be written do not count.
        self.lengths = lengths

    def _full(self, tokens: int) -> Exception:
        return ValueError(f"a sequence would have {tokens} tokens, but the capacity of the cache is {self.capacity}")

    @abstractmethod
    def _reserve(self, lengths: list[int]) -> None: ...

    @abstractmethod
    def _write(self, rows: Sequence[int], positions: Sequence[int], k: Any, v: Any) -> None: ...

    @abstractmethod
    def _attend(self, q: Any, params: dict[str, Any]) -> Any: ...


class _Rows(KvCache):
    """One row of a tensor per sequence: ``k`` and ``v`` are ``[batch, allocated, kv_heads, head_dim]``."""

    k: Any
    v: Any

    @property
    def _allocated(self) -> int:
        tokens: int = self.k.shape[1]
        return tokens

    def _write(self, rows: Sequence[int], positions: Sequence[int], k: Any, v: Any) -> None:
        import torch

        if len(set(rows)) == 1 and len(positions):
            row, first = rows[0], positions[0]
            self.k[row, first : first + len(positions)] = k
            self.v[row, first : first + len(positions)] = v
            return
        index = torch.tensor([list(rows), list(positions)], device=self.device)
        self.k[index[0], index[1]] = k
        self.v[index[0], index[1]] = v

    def _attend(self, q: Any, params: dict[str, Any]) -> Any:
        import torch

        longest = max(self.lengths)
        lengths = None
        if any(length != longest for length in self.lengths):
            lengths = torch.tensor(self.lengths, dtype=torch.int32, device=self.device)
        return attention(q, self.k[:, :longest], self.v[:, :longest], kv_lens=lengths, **params)


class Contiguous(_Rows):
    """One block of memory, which is copied to a larger one when it is full."""

    strategy = "contiguous"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.k, self.v = (self._empty(0) for _ in range(2))

    def _empty(self, tokens: int) -> Any:
        import torch

        # Zeros: kernels may read past the end of a sequence, where a NaN would propagate.
        return torch.zeros((self.batch, tokens, self.kv_heads, self.head_dim), dtype=self.dtype, device=self.device)

    def _reserve(self, lengths: list[int]) -> None:
        if max(lengths) <= self._allocated:
            return
        tokens = min(max(max(lengths), 2 * self._allocated, 16), self.capacity)
        for name in ("k", "v"):
            old, new = getattr(self, name), self._empty(tokens)
            new[:, : old.shape[1]] = old
            setattr(self, name, new)

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use now."""
        return int(self.k.nbytes + self.v.nbytes)


def _exhausted(message: str) -> Exception:
    error = _native.ValidationError(message)
    error.reasons = [_native.reason("VIRTUAL_MEMORY_EXHAUSTED", message)]
    return error


class Virtual(_Rows):
    """Reserved addresses for the full capacity, and physical memory as far as the longest sequence. Every row
    is mapped as far as the longest one, because kernels read whole tiles."""

    strategy = "virtual"

    def __init__(self, *arguments: Any, chunk: int) -> None:
        from layerzero import _memory

        super().__init__(*arguments)
        granularity = _memory.granularity(self.device)
        chunk = -(-chunk // granularity) * granularity
        self._token = self.kv_heads * self.head_dim * self.dtype.itemsize
        # Rows start at a chunk, and grow by as many chunks as hold whole tokens.
        self._step = math.lcm(chunk, self._token)
        self._row = -(-self.capacity * self._token // self._step) * self._step
        size = self.batch * self._row
        try:
            self._ranges: list[_memory.Range]
            if self.device.type == "cpu":
                self._ranges = [_memory.HostRange(size, chunk) for _ in range(2)]
            else:
                self._ranges = [_memory.CudaRange(size, chunk, self.device.index or 0) for _ in range(2)]
        except (OSError, OverflowError, RuntimeError) as error:
            raise _exhausted(f"{size} bytes of addresses on {self.device} cannot be reserved: {error}") from error
        # torch determines the device from the first mapped chunk.
        for one in self._ranges:
            one.map(0, chunk)
        self.k, self.v = (self._rows(one.tensor()) for one in self._ranges)
        self._mapped = 0
        self._reserve([1])

    def _full(self, tokens: int) -> Exception:
        return _exhausted(str(super()._full(tokens)))

    def _rows(self, memory: Any) -> Any:
        shape = (self.batch, self._row // self._token, self.kv_heads, self.head_dim)
        size = self.dtype.itemsize
        strides = (self._row // size, self._token // size, self.head_dim, 1)
        return memory.view(self.dtype).as_strided(shape, strides)

    def _reserve(self, lengths: list[int]) -> None:
        end = -(-max(lengths) * self._token // self._step) * self._step
        if end <= self._mapped:
            return
        for one in self._ranges:
            for row in range(self.batch):
                one.map(row * self._row + self._mapped, row * self._row + end)
        for tensor in (self.k, self.v):
            tensor[:, self._mapped // self._token : end // self._token] = 0
        self._mapped = end

    def release(self, sequence: int) -> None:
        """Removes a sequence, and unmaps memory that no other sequence needs."""
        super().release(sequence)
        end = max(-(-max(self.lengths) * self._token // self._step), 1) * self._step
        for one in self._ranges:
            for row in range(self.batch):
                one.unmap(row * self._row + end, row * self._row + self._mapped)
        self._mapped = min(self._mapped, end)

    @property
    def nbytes(self) -> int:
        """Bytes of mapped memory; reserved addresses do not count."""
        return sum(one.mapped for one in self._ranges)


class Unified(_Rows):
    """Memory for the full capacity, shared by host and device."""

    strategy = "unified"

    def __init__(self, *arguments: Any) -> None:
        import torch

        super().__init__(*arguments)
        shape = (self.batch, self.capacity, self.kv_heads, self.head_dim)
        if self.device.type == "cpu":
            self.k, self.v = (torch.zeros(shape, dtype=self.dtype) for _ in range(2))
            self.host_k, self.host_v = self.k, self.v
            return
        from layerzero import _memory

        size = math.prod(shape) * self.dtype.itemsize
        ranges = [_memory.ManagedRange(size, self.device.index or 0) for _ in range(2)]
        self.k, self.v = (one.tensor().zero_().view(self.dtype).view(shape) for one in ranges)
        # The same memory as host tensors, valid once the device has finished.
        self.host_k, self.host_v = (one.host().view(self.dtype).view(shape) for one in ranges)

    def _reserve(self, lengths: list[int]) -> None:
        pass

    @property
    def nbytes(self) -> int:
        """Bytes of allocated memory, on either side."""
        return int(self.k.nbytes + self.v.nbytes)


class Paged(KvCache):
    """A pool of pages, and a page table per sequence. The pool doubles when no page is free; page numbers do not change."""

    strategy = "paged"

    def __init__(self, *arguments: Any, page_size: int) -> None:
        super().__init__(*arguments)
        self.page_size = page_size
        self.tables: list[list[int]] = [[] for _ in range(self.batch)]
        self._free: list[int] = []
        self._csr: tuple[Any, Any, Any] | None = None
        self.k, self.v = (self._empty(0) for _ in range(2))

    def _empty(self, pages: int) -> Any:
        import torch

        return torch.zeros((pages, self.page_size, self.kv_heads, self.head_dim), dtype=self.dtype, device=self.device)

    def _reserve(self, lengths: list[int]) -> None:
        for table, length in zip(self.tables, lengths, strict=True):
            while len(table) * self.page_size < length:
                if not self._free:
                    self._double()
                table.append(self._free.pop())
        self._csr = None

    def _double(self) -> None:
        count = self.k.shape[0]
        more = max(count, self.batch)
        for name in ("k", "v"):
            old, new = getattr(self, name), self._empty(count + more)
            new[:count] = old
            setattr(self, name, new)
        self._free = list(range(count + more - 1, count - 1, -1))

    def _write(self, rows: Sequence[int], positions: Sequence[int], k: Any, v: Any) -> None:
        import torch

        size = self.page_size
        slots = [self.tables[row][at // size] * size + at % size for row, at in zip(rows, positions, strict=True)]
        ops.kv_append(k, v, self.k, self.v, torch.tensor(slots, dtype=torch.int64, device=self.device))

    def table(self) -> tuple[Any, Any, Any]:
        """The page table in CSR form: `kv_indptr`, `kv_indices`, `kv_last_page_len`. The same tensors until a token is appended."""
        import torch

        if self._csr is None:
            # After a failed write a sequence may have a page more than it needs.
            pages = [-(-length // self.page_size) for length in self.lengths]
            starts = [sum(pages[:row]) for row in range(self.batch + 1)]
            last = [length - (count - 1) * self.page_size if count else 0 for length, count in zip(self.lengths, pages, strict=True)]
            used = [page for table, count in zip(self.tables, pages, strict=True) for page in table[:count]]
            numbers = (starts, used, last)
            indptr, indices, last_len = (torch.tensor(one, dtype=torch.int32, device=self.device) for one in numbers)
            self._csr = (indptr, indices, last_len)
        return self._csr

    def _attend(self, q: Any, params: dict[str, Any]) -> Any:
        indptr, indices, last = self.table()
        return paged_attention(q, self.k, self.v, kv_indptr=indptr, kv_indices=indices, kv_last_page_len=last, **params)

    def release(self, sequence: int) -> None:
        """Removes a sequence; its pages return to the pool."""
        super().release(sequence)
        self._free += self.tables[sequence]
        self.tables[sequence] = []
        self._csr = None

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use now."""
        return int(self.k.nbytes + self.v.nbytes)


def kv_cache(
    strategy: str | None = None, *, batch: int, kv_heads: int, head_dim: int, capacity: int, dtype: Any, device: Any, page_size: int = 16
) -> KvCache:
    """A KV cache for `batch` sequences of up to `capacity` tokens. The default strategy is the setting
    ``kv_cache.strategy``; chunks of `virtual` have the size ``kv_cache.physical_chunk_size_mb``.
    """
    import torch

    settings = config()
    strategy = strategy or settings["kv_cache.strategy"].value
    if strategy not in STRATEGIES:
        raise ValueError(f"unknown KV-cache strategy {strategy!r}; expected one of {', '.join(STRATEGIES)}")
    common = (batch, kv_heads, head_dim, capacity, dtype, torch.device(device))
    if strategy == "paged":
        return Paged(*common, page_size=page_size)
    if strategy == "virtual":
        return Virtual(*common, chunk=int(float(settings["kv_cache.physical_chunk_size_mb"].value) * 2**20))
    return {"contiguous": Contiguous, "unified": Unified}[strategy](*common)
