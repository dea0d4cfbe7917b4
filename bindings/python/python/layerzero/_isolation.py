"""Native plugins, and kernels that run in worker processes."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
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
    devices = sys.modules.get("layerzero._device_isolation")
    return [Worker(*row) for row in (*_native.list_workers(), *(devices.rows() if devices else ()))]


class IsolatedBackend(NamedTuple):
    """A backend that was loaded into a worker process."""

    backend: str
    kernels: list[str]
    #: Where they run, as `explain` shows it.
    runs_in: str


def isolate_backend(
    backend: str,
    module: str,
    *,
    python: str | os.PathLike[str] | None = None,
    path: Sequence[str | os.PathLike[str]] = (),
    environment: Mapping[str, str] | None = None,
) -> IsolatedBackend:
    """Loads a backend in a worker process of its own and registers its kernels, for CUDA devices and for host memory.

    `module` is imported in the worker only, so its libraries may conflict with those of this process. Like a backend with
    an entry point it has ``KERNELS``, functions by id, and ``DESCRIPTORS``, capability descriptors as text. `python` is the
    worker's interpreter, such as that of another virtual environment, which needs torch but not LayerZero; `path` are
    folders for its imports, and `environment` changes variables. Without `python`, the worker has this interpreter and
    its import path.

    Device tensors cross as CUDA IPC handles and are not copied. A kernel must not use its tensors after it returned, and
    must not change inputs in host memory. If the worker ends or hangs, the call fails, the next kernel of its plan runs,
    and a later call starts the worker again. These kernels never run during CUDA graph capture.
    """
    # Most programs do not need what it imports.
    from layerzero import _device_isolation

    return IsolatedBackend(backend, *_device_isolation.isolate(backend, module, python, path, environment))


def device_worker_of(kernel: str) -> str | None:
    """Where a kernel runs, if that is a worker of `isolate_backend`."""
    devices = sys.modules.get("layerzero._device_isolation")
    found: str | None = devices.runs_in(kernel) if devices else None
    return found


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
