"""Memory of programs: one arena per session, static inputs and outputs, and a ring of staging buffers for inputs on the host."""

from __future__ import annotations

from typing import Any

import torch

from layerzero._compile.aten.base import DTYPES_BY_NAME

#: Offsets are multiples of this, as in the arena's plan.
ALIGNMENT = 64
#: Staging buffers per program: runs that may be under way at once before the host waits for the first.
STAGING_SLOTS = 4


class Arena:
    """Bytes for the intermediate results of a session's programs, which run one after the other. It grows when a program needs more;
    programs that are captured keep the memory that they were captured with."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._bytes = torch.empty(0, dtype=torch.uint8, device=device)

    @property
    def nbytes(self) -> int:
        """Its size."""
        return int(self._bytes.numel())

    def reserve(self, nbytes: int) -> torch.Tensor:
        """Memory of at least this size."""
        if nbytes > self._bytes.numel():
            self._bytes = torch.empty(-(-nbytes // ALIGNMENT) * ALIGNMENT, dtype=torch.uint8, device=self.device)
        return self._bytes


def tensor_at(memory: torch.Tensor, offset: int, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """A dense tensor at an offset in bytes."""
    size = torch.empty((), dtype=dtype).element_size()
    for length in shape:
        size *= length
    return memory[offset : offset + size].view(dtype).view(shape)


class StagingRing:
    """Copies tensors of the host to one block of the device with one transfer. The buffers are pinned, so that transfers do not block the
    host; a buffer is used again when its transfer is over."""

    def __init__(self, types: list[tuple[list[int], str]], device: torch.device, slots: int = STAGING_SLOTS) -> None:
        offsets, total = [], 0
        for shape, dtype in types:
            offsets.append(total)
            count = 1
            for size in shape:
                count *= size
            total += -(-count * DTYPES_BY_NAME[dtype].itemsize // ALIGNMENT) * ALIGNMENT
        self._is_asynchronous = device.type == "cuda"
        self._block = torch.empty(total, dtype=torch.uint8, device=device)
        self._buffers = [torch.empty(total, dtype=torch.uint8, pin_memory=self._is_asynchronous) for _ in range(slots)]
        self._done: list[Any] = [None] * slots
        self._next = 0

        def views(memory: torch.Tensor) -> list[torch.Tensor]:
            return [tensor_at(memory, offset, shape, DTYPES_BY_NAME[dtype]) for offset, (shape, dtype) in zip(offsets, types, strict=True)]

        self._parts = [views(buffer) for buffer in self._buffers]
        #: The tensors on the device.
        self.tensors = views(self._block)

    def upload(self, tensors: list[torch.Tensor]) -> None:
        """Fills `tensors` of the device, on the current stream."""
        slot = self._next
        self._next = (slot + 1) % len(self._buffers)
        if self._done[slot] is not None:
            self._done[slot].synchronize()
        for part, tensor in zip(self._parts[slot], tensors, strict=True):
            part.copy_(tensor)
        self._block.copy_(self._buffers[slot], non_blocking=True)
        if self._is_asynchronous:
            event = self._done[slot] or torch.cuda.Event()
            event.record()
            self._done[slot] = event
