"""Virtual memory ranges: addresses are reserved once, and chunks are mapped to physical memory when they are
needed, so that data grows without being copied. The host's operating system does that by itself; on a GPU the
driver's virtual memory API does.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from abc import ABC, abstractmethod
from typing import Any

#: Constants of the driver API.
_PINNED, _DEVICE, _READ_WRITE, _OUT_OF_MEMORY, _ATTACH_GLOBAL = 1, 1, 3, 2, 1


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]  # noqa: RUF012


class _Properties(ctypes.Structure):
    _fields_ = [  # noqa: RUF012
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class _Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]  # noqa: RUF012


class _Driver:
    """The functions of the CUDA driver library that are used here."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        size, address, number = ctypes.c_size_t, ctypes.c_uint64, ctypes.c_ulonglong
        for name, kinds in {
            "cuMemGetAllocationGranularity": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int),
            "cuMemAddressReserve": (ctypes.c_void_p, size, size, address, number),
            "cuMemAddressFree": (address, size),
            "cuMemCreate": (ctypes.c_void_p, size, ctypes.c_void_p, number),
            "cuMemRelease": (address,),
            "cuMemMap": (address, size, size, address, number),
            "cuMemUnmap": (address, size),
            "cuMemSetAccess": (address, size, ctypes.c_void_p, size),
            "cuMemAllocManaged": (ctypes.c_void_p, size, ctypes.c_uint),
            "cuMemFree_v2": (address,),
        }.items():
            getattr(self.library, name).argtypes = kinds

    def __call__(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        if code == _OUT_OF_MEMORY:
            raise MemoryError(f"out of device memory ({name})")
        if code != 0:
            raise RuntimeError(f"the CUDA driver function {name} failed with error {code}")


_driver: _Driver | None = None


def _cuda() -> _Driver:
    """The driver, with torch's context initialized."""
    global _driver
    if _driver is None:
        import torch

        torch.cuda.init()
        _driver = _Driver()
    return _driver


class Range(ABC):
    """Reserved addresses of a device, mapped to memory in chunks. Tensors over it keep it alive."""

    #: Bytes of a chunk.
    chunk: int
    #: Bytes that are mapped.
    mapped: int

    @abstractmethod
    def tensor(self) -> Any:
        """The whole range as bytes; only mapped bytes may be accessed."""

    @abstractmethod
    def map(self, begin: int, end: int) -> None:
        """Maps a part whose bounds are multiples of the chunk; mapped chunks stay as they are."""

    @abstractmethod
    def unmap(self, begin: int, end: int) -> None:
        """Unmaps a part, which must not be in use."""


def granularity(device: Any) -> int:
    """The size that chunks of a device must be multiples of."""
    if device.type == "cpu":
        return mmap.PAGESIZE
    size = ctypes.c_size_t()
    _cuda()("cuMemGetAllocationGranularity", ctypes.byref(size), ctypes.byref(_properties(device.index or 0)), 0)
    return size.value


def _properties(index: int) -> _Properties:
    return _Properties(type=_PINNED, location=_Location(_DEVICE, index))


class HostRange(Range):
    """On the host, where memory is mapped on first access."""

    def __init__(self, size: int, chunk: int) -> None:
        self.chunk = chunk
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self._pages = mmap.mmap(-1, size, flags=flags)
        self._mapped_chunks: set[int] = set()

    @property
    def mapped(self) -> int:  # type: ignore[override]
        """Bytes that may be accessed."""
        return len(self._mapped_chunks) * self.chunk

    def tensor(self) -> Any:
        """The whole range."""
        import torch

        return torch.frombuffer(self._pages, dtype=torch.uint8)

    def map(self, begin: int, end: int) -> None:
        """Counts only: the operating system maps the memory."""
        self._mapped_chunks.update(range(begin // self.chunk, end // self.chunk))

    def unmap(self, begin: int, end: int) -> None:
        """Returns the memory to the operating system; it reads as 0 afterwards."""
        self._mapped_chunks.difference_update(range(begin // self.chunk, end // self.chunk))
        if end > begin:
            self._pages.madvise(mmap.MADV_DONTNEED, begin, end - begin)


class _OnDevice(Range):
    """Exposes device memory that is not torch's through `__cuda_array_interface__`."""

    address: int
    size: int
    index: int

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.address, False), "version": 3}

    def tensor(self) -> Any:
        """The whole range. Its first chunk must be mapped, because torch determines the device from it."""
        import torch

        return torch.as_tensor(self, device=torch.device("cuda", self.index))


class CudaRange(_OnDevice):
    """Device memory."""

    def __init__(self, size: int, chunk: int, index: int) -> None:
        self._call = _cuda()
        self.index, self.size, self.chunk = index, size, chunk
        self._properties = _properties(index)
        self._mapped_chunks: set[int] = set()
        reserved = ctypes.c_uint64()
        self._call("cuMemAddressReserve", ctypes.byref(reserved), self.size, 0, 0, 0)
        self.address = reserved.value

    @property
    def mapped(self) -> int:  # type: ignore[override]
        """Bytes that are mapped."""
        return len(self._mapped_chunks) * self.chunk

    def map(self, begin: int, end: int) -> None:
        """Maps one chunk at a time, so that each can be unmapped separately."""
        access = _Access(_Location(_DEVICE, self.index), _READ_WRITE)
        for number in range(begin // self.chunk, end // self.chunk):
            if number in self._mapped_chunks:
                continue
            address, handle = self.address + number * self.chunk, ctypes.c_uint64()
            self._call("cuMemCreate", ctypes.byref(handle), self.chunk, ctypes.byref(self._properties), 0)
            try:
                self._call("cuMemMap", address, self.chunk, 0, handle, 0)
            finally:
                # The memory lives as long as it is mapped.
                self._call("cuMemRelease", handle)
            self._mapped_chunks.add(number)
            self._call("cuMemSetAccess", address, self.chunk, ctypes.byref(access), 1)

    def unmap(self, begin: int, end: int) -> None:
        """Unmaps chunks after synchronizing the device."""
        import torch

        torch.cuda.synchronize(self.index)
        for number in range(begin // self.chunk, end // self.chunk):
            if number in self._mapped_chunks:
                self._call("cuMemUnmap", self.address + number * self.chunk, self.chunk)
                self._mapped_chunks.discard(number)

    def __del__(self) -> None:
        # At process exit the driver releases everything itself.
        if hasattr(self, "address") and not sys.is_finalizing():
            self.unmap(0, self.size)
            self._call("cuMemAddressFree", self.address, self.size)


class ManagedRange(_OnDevice):
    """Managed memory of host and device, whose pages migrate to the side that accesses them. All of it is mapped from the start."""

    def __init__(self, size: int, index: int) -> None:
        self._call = _cuda()
        self.index, self.size, self.chunk = index, size, 1
        self.mapped = size
        reserved = ctypes.c_uint64()
        self._call("cuMemAllocManaged", ctypes.byref(reserved), size, _ATTACH_GLOBAL)
        self.address = reserved.value

    def map(self, begin: int, end: int) -> None:
        """Nothing to do: all of it is mapped."""

    def unmap(self, begin: int, end: int) -> None:
        """Nothing to do: it is released as a whole."""

    def host(self) -> Any:
        """The same memory as a host tensor; the device must have finished with it."""
        import torch

        memory: Any = (ctypes.c_ubyte * self.size).from_address(self.address)
        # The tensor keeps the array alive, and the array this range.
        memory.range = self
        return torch.frombuffer(memory, dtype=torch.uint8)

    def __del__(self) -> None:
        if hasattr(self, "address") and not sys.is_finalizing():
            import torch

            torch.cuda.synchronize(self.index)
            self._call("cuMemFree_v2", self.address)
