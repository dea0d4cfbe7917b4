"""CPU libraries that are part of torch or act through it, and how LayerZero uses them."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from typing import Any


def libraries() -> list[dict[str, Any]]:
    """The libraries of the program's torch; empty if torch is not imported."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "backends"):
        return []
    return [_onednn(torch), _zendnn()]


def _onednn(torch: Any) -> dict[str, Any]:
    found = re.search(r"MKL-DNN v([0-9.]+)", torch.__config__.show())
    available = torch.backends.mkldnn.is_available()
    return {
        "name": "oneDNN",
        "version": found[1] if found else None,
        "state": "absent" if not available else "ok" if torch.backends.mkldnn.enabled else "disabled",
        "what": "torch.onednn.mlp.linear, with its activation; torch's own linear layers use it too",
    }


def _zendnn() -> dict[str, Any]:
    try:
        version = metadata.version("zentorch")
    except metadata.PackageNotFoundError:
        version = None
    # Its functions treat every weight as a constant and may cache a converted copy by address, so a kernel
    # that calls them would be wrong after a weight changes, or for another weight at the same address.
    return {
        "name": "ZenDNN",
        "version": version,
        "state": "absent" if version is None else "no kernels",
        "what": "acts inside torch.compile(backend='zentorch'); called directly it treats every weight as a constant",
    }
