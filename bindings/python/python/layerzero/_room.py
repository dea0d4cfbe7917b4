"""How much memory of a GPU there is for kernels in Python, which get theirs from torch."""

from __future__ import annotations

import sys
from typing import Any


def _torch() -> Any:
    """The program's torch, if it works on a GPU already."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None


def held_back(index: int) -> int:
    """Bytes of a device that torch has from the driver and has not given to anybody."""
    torch = _torch()
    if torch is None:
        return 0
    stats = torch.cuda.memory_stats_as_nested_dict(index)
    held: int = stats["reserved_bytes"]["all"]["current"] - stats["active_bytes"]["all"]["current"]
    return held


def largest_block(index: int) -> int | None:
    """Bytes that torch could give in one piece: from the largest hole in what it holds, or from the driver once it has given back what
    nobody uses any more. The driver's own memory is in pages, which lie wherever there is room."""
    torch = _torch()
    if torch is None:
        return None
    hole = unused = 0
    for segment in torch.cuda.memory_snapshot():
        if segment["device"] != index:
            continue
        if segment["active_size"] == 0:
            unused += segment["total_size"]
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                hole = max(hole, block["size"])
    whole: int = torch.cuda.mem_get_info(index)[0] + unused
    return max(hole, whole)
