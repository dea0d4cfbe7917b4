"""Native plugins, and kernels that run in a process of their own, as a program sees them."""

from __future__ import annotations

import os
from typing import NamedTuple

from layerzero import _native


class Worker(NamedTuple):
    """A process that runs kernels of one backend."""

    backend: str
    #: The module that registers its kernels, or ``backend:<name>`` for a backend that is installed.
    source: str
    #: The number of its process; ``None`` before the first call and after its end.
    process_id: int | None
    #: How often it was started.
    starts: int


def workers() -> list[Worker]:
    """The worker processes of this one. They are started by the first call that needs them."""
    return [Worker(*told) for told in _native.list_workers()]


class Plugin(NamedTuple):
    """A native plugin that was loaded."""

    backend: str
    kernels: list[str]
    #: Where it runs and who said so, if that is not this process.
    runs_in: str | None


def load_plugin(path: str | os.PathLike[str]) -> Plugin:
    """Loads a native plugin (``.so``) from one of ``plugins.directories``, and registers its kernels.

    Its owner and permissions, and its hash and signature where ``plugins.manifest`` and ``plugins.keys`` ask for them, are
    checked before any of its code runs. ``backend_isolation`` says whether it runs in this process.
    """
    return Plugin(*_native.load_plugin(path))
