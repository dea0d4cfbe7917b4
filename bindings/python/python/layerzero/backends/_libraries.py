"""Libraries for processors that come inside of torch, or act through it, and what LayerZero makes of them."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from typing import Any


def libraries() -> list[dict[str, Any]]:
    """What the program's torch has; nothing before it imports torch."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "backends"):
        return []
    return [_onednn(torch), _zendnn()]


def _onednn(torch: Any) -> dict[str, Any]:
    found = re.search(r"MKL-DNN v([0-9.]+)", torch.__config__.show())
    there = torch.backends.mkldnn.is_available()
    return {
        "name": "oneDNN",
        "version": found[1] if found else None,
        "state": "absent" if not there else "ok" if torch.backends.mkldnn.enabled else "switched off",
        "what": "torch.onednn.mlp.linear, with its activation; torch's own linear layers use it too",
    }


def _zendnn() -> dict[str, Any]:
    try:
        version = metadata.version("zentorch")
    except metadata.PackageNotFoundError:
        version = None
    # Its functions take every weight for a constant and may remember what they made of it by its address, so that a kernel
    # that calls them would be wrong for a weight that is changed, or for another one in the same place.
    return {
        "name": "ZenDNN",
        "version": version,
        "state": "absent" if version is None else "no kernels",
        "what": "acts inside torch.compile(backend='zentorch'); called by itself it takes every weight for a constant",
    }
