"""Memory whose addresses are there before it is: a range is reserved once, and pieces of it get memory when they are needed, so that what
lies in it grows without being copied. On the host the system does that by itself; on a GPU the driver's virtual memory calls do.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from abc import ABC, abstractmethod
from typing import Any

#: The driver's numbers.
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
    """The driver's library, as far as it is used here."""

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
            raise MemoryError(f"the device has no memory left ({name})")
        if code != 0:
            raise RuntimeError(f"the driver answered {name} with {code}")


_driver: _Driver | None = None


def _cuda() -> _Driver:
    """The driver, with torch's context on it."""
    global _driver
    if _driver is None:
        import torch

        torch.cuda.init()
        _driver = _Driver()
    return _driver


class Range(ABC):
    """Addresses of a device, and the memory behind some of them, in pieces. Tensors over it keep it alive."""

    #: Bytes of a piece.
    piece: int
    #: Bytes that have memory.
    mapped: int

    @abstractmethod
    def tensor(self) -> Any:
        """All of it as bytes; only those that have memory may be touched."""

    @abstractmethod
    def map(self, begin: int, end: int) -> None:
        """Gives memory to a stretch, whose ends are multiples of a piece; what has some keeps it."""

    @abstractmethod
    def unmap(self, begin: int, end: int) -> None:
        """Takes the memory of a stretch away; nothing may be using it."""


def smallest_piece(device: Any) -> int:
    """What pieces of memory of a device are multiples of."""
    if device.type == "cpu":
        return mmap.PAGESIZE
    least = ctypes.c_size_t()
    _cuda()("cuMemGetAllocationGranularity", ctypes.byref(least), ctypes.byref(_properties(device.index or 0)), 0)
    return least.value


def _properties(index: int) -> _Properties:
    return _Properties(type=_PINNED, location=_Location(_DEVICE, index))


class HostRange(Range):
    """On the host, where memory comes with the first touch."""

    def __init__(self, size: int, piece: int) -> None:
        self.piece = piece
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self._pages = mmap.mmap(-1, size, flags=flags)
        self._have: set[int] = set()

    @property
    def mapped(self) -> int:  # type: ignore[override]
        """Bytes that may be touched."""
        return len(self._have) * self.piece

    def tensor(self) -> Any:
        """All of it."""
        import torch

        return torch.frombuffer(self._pages, dtype=torch.uint8)

    def map(self, begin: int, end: int) -> None:
        """Nothing but counting: the system does the rest."""
        self._have.update(range(begin // self.piece, end // self.piece))

    def unmap(self, begin: int, end: int) -> None:
        """Lets the system have it back; what is there afterwards is 0."""
        self._have.difference_update(range(begin // self.piece, end // self.piece))
        if end > begin:
            self._pages.madvise(mmap.MADV_DONTNEED, begin, end - begin)


class _OnDevice(Range):
    """What torch needs to look at memory of a device that is not its own."""

    address: int
    size: int
    index: int

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.address, False), "version": 3}

    def tensor(self) -> Any:
        """All of it. Its first piece must have memory, by which torch knows the device."""
        import torch

        return torch.as_tensor(self, device=torch.device("cuda", self.index))


class CudaRange(_OnDevice):
    """On a GPU."""

    def __init__(self, size: int, piece: int, index: int) -> None:
        self._call = _cuda()
        self.index, self.size, self.piece = index, size, piece
        self._properties = _properties(index)
        self._have: set[int] = set()
        reserved = ctypes.c_uint64()
        self._call("cuMemAddressReserve", ctypes.byref(reserved), self.size, 0, 0, 0)
        self.address = reserved.value

    @property
    def mapped(self) -> int:  # type: ignore[override]
        """Bytes that have memory."""
        return len(self._have) * self.piece

    def map(self, begin: int, end: int) -> None:
        """One piece at a time, so that each can be given back by itself."""
        access = _Access(_Location(_DEVICE, self.index), _READ_WRITE)
        for number in range(begin // self.piece, end // self.piece):
            if number in self._have:
                continue
            address, handle = self.address + number * self.piece, ctypes.c_uint64()
            self._call("cuMemCreate", ctypes.byref(handle), self.piece, ctypes.byref(self._properties), 0)
            try:
                self._call("cuMemMap", address, self.piece, 0, handle, 0)
            finally:
                # It lives as long as it is mapped.
                self._call("cuMemRelease", handle)
            self._have.add(number)
            self._call("cuMemSetAccess", address, self.piece, ctypes.byref(access), 1)

    def unmap(self, begin: int, end: int) -> None:
        """Waits until the device is done with it."""
        import torch

        torch.cuda.synchronize(self.index)
        for number in range(begin // self.piece, end // self.piece):
            if number in self._have:
                self._call("cuMemUnmap", self.address + number * self.piece, self.piece)
                self._have.discard(number)

    def __del__(self) -> None:
        # A process that ends gives everything back by itself.
        if hasattr(self, "address") and not sys.is_finalizing():
            self.unmap(0, self.size)
            self._call("cuMemAddressFree", self.address, self.size)


class ManagedRange(_OnDevice):
    """Memory of host and device at once, which moves to who touches it. All of it is there from the beginning."""

    def __init__(self, size: int, index: int) -> None:
        self._call = _cuda()
        self.index, self.size, self.piece = index, size, 1
        self.mapped = size
        reserved = ctypes.c_uint64()
        self._call("cuMemAllocManaged", ctypes.byref(reserved), size, _ATTACH_GLOBAL)
        self.address = reserved.value

    def map(self, begin: int, end: int) -> None:
        """It is there already."""

    def unmap(self, begin: int, end: int) -> None:
        """It stays until all of it goes."""

    def host(self) -> Any:
        """The same memory as a tensor of the host; the device must be done with it."""
        import torch

        memory: Any = (ctypes.c_ubyte * self.size).from_address(self.address)
        # The tensor holds the array, and that the memory.
        memory.range = self
        return torch.frombuffer(memory, dtype=torch.uint8)

    def __del__(self) -> None:
        if hasattr(self, "address") and not sys.is_finalizing():
            import torch

            torch.cuda.synchronize(self.index)
            self._call("cuMemFree_v2", self.address)
