"""Native plugins, and kernels that run in worker processes."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import NamedTuple

from layerzero import _native


class Worker(NamedTuple):
    """A worker process that runs the kernels of one backend."""

    backend: str
    #: The module that registers its kernels, or ``backend:<name>`` for an installed backend.
    source: str
    #: Its process id; ``None`` before the first call and after its end.
    process_id: int | None
    #: How often it was started.
    starts: int


def workers() -> list[Worker]:
    """The worker processes of this process. Each is started by the first call that needs it."""
    return [Worker(*row) for row in _native.list_workers()]


def is_loadable(name: str) -> bool:
    """Whether a Python module or a backend's entry point of this name is installed."""
    # Importing this takes longer than the package itself.
    from importlib import metadata

    if name in sys.modules or name in metadata.entry_points(group="layerzero.backends").names:
        return True
    # Searching for a submodule would import its package.
    try:
        return "." not in name and importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


class Plugin(NamedTuple):
    """A native plugin that was loaded."""

    backend: str
    kernels: list[str]
    #: The worker process that it runs in and the setting that says so; ``None`` for this process.
    runs_in: str | None


def load_plugin(path: str | os.PathLike[str], *, alongside: bool = False) -> Plugin:
    """Loads a native plugin (``.so``) from one of ``plugins.directories``, and registers its kernels.

    Before any of its code runs, its owner and permissions are checked, and its hash and signature if
    ``plugins.manifest`` and ``plugins.keys`` require them. ``backend_isolation`` determines whether it runs
    in this process.

    With `alongside`, its kernels are other versions of registered kernels. After a trial they are registered next to them
    with the ids ``<id>@<version>``; ``rollout.shares``, ``rollout.canaries``, rules and locks give them calls.
    """
    return Plugin(*(_native.load_plugin_alongside(path) if alongside else _native.load_plugin(path)))
