"""Free GPU memory for Python kernels, which allocate through torch's caching allocator."""

from __future__ import annotations

import sys
from typing import Any


def _torch() -> Any:
    """The program's torch, if it has initialized CUDA."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None


def inactive_bytes(index: int) -> int:
    """Bytes of a device that torch's allocator has reserved but not allocated to a tensor."""
    torch = _torch()
    if torch is None:
        return 0
    stats = torch.cuda.memory_stats_as_nested_dict(index)
    inactive: int = stats["reserved_bytes"]["all"]["current"] - stats["active_bytes"]["all"]["current"]
    return inactive


def largest_block(index: int) -> int | None:
    """The largest block that torch could allocate: the largest inactive block of its segments, or the driver's free memory plus
    the unused segments that torch can release. The driver maps pages, so its free memory is not fragmented."""
    torch = _torch()
    if torch is None:
        return None
    inactive = unused = 0
    for segment in torch.cuda.memory_snapshot():
        if segment["device"] != index:
            continue
        if segment["active_size"] == 0:
            unused += segment["total_size"]
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                inactive = max(inactive, block["size"])
    from_driver: int = torch.cuda.mem_get_info(index)[0] + unused
    return max(inactive, from_driver)
