"""Reload without a restart: plugins, kernel versions side by side, canaries, and watched policy files."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

from layerzero import _native


class PluginReload(NamedTuple):
    """A native plugin that replaced another one."""

    backend: str
    version: str
    kernels: list[str]
    #: The worker process that it runs in and the setting that says so; ``None`` for this process.
    runs_in: str | None
    #: The kernels that it replaced, with their versions.
    replaced: list[tuple[str, str]]
    #: Calls of the trial whose results were compared with the reference.
    compared_calls: int
    #: Kernels that could not be tried: they need a device or the caller's objects.
    untried: list[str]
    #: Whether nothing uses the old library any more, so that it is unloaded.
    unloaded: bool


def reload_plugin(path: str | os.PathLike[str], *, drain_seconds: float = 5.0) -> PluginReload:
    """Replaces the kernels of a backend by those of a new plugin while calls are running.

    The plugin passes the checks of `load_plugin`. Then its kernels run on made-up calls, and their results are compared
    with those of the reference. Then all kernels of its backend are replaced in one step. Running calls finish with the
    old kernels; the old library is unloaded when none is left, for which this waits up to `drain_seconds`. If anything is
    wrong with the new plugin, nothing changes, and the error says why.
    """
    return PluginReload(**_native.reload_plugin(path, drain_seconds))


class ConfigWatch:
    """A watched policy file. Watching ends with `close` or with the `with` block."""

    def __init__(self, path: str | os.PathLike[str], on_change: Callable[[str, str], object] | None = None) -> None:
        self._watch = _native.FileWatch(path, on_change or _ignore)

    def close(self) -> None:
        """Stops watching. The settings stay."""
        self._watch.close()

    def is_open(self) -> bool:
        """Whether the file is watched."""
        return self._watch.is_open()

    def __enter__(self) -> ConfigWatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _ignore(state: str, message: str) -> None:
    """The log has a record of each change."""


def watch_config(path: str | os.PathLike[str] | None = None, on_change: Callable[[str, str], object] | None = None) -> ConfigWatch:
    """Watches a policy file and applies its changes, each as a whole; an invalid file changes nothing.

    Without `path`, the file that the engine was opened with: that of ``LAYERZERO_CONFIG``, or ``layerzero.yaml``. `on_change` is called
    on another thread with the outcome of every read, including the first: ``"applied"``, ``"unchanged"``, ``"refused"`` or
    ``"unreadable"``, and the message.
    """
    return ConfigWatch(path or os.environ.get("LAYERZERO_CONFIG") or "layerzero.yaml", on_change)


def canaries() -> list[dict[str, Any]]:
    """The canaries: those of ``rollout.canaries``, and versions that were promoted or rolled back.

    Each has its `kernel` (``<id>@<version>``), the `percent` of calls that it gets, its `state` (running, promoted, rolled_back),
    `why`, its numbers of `calls`, `compared` results, `mismatches` and `errors`, its median latency and that of the stable
    version, and the latest `problem`.
    """
    return _native.canaries()


def promote_version(version: str) -> None:
    """Routes all calls of a kernel to a version (``<id>@<version>``), whatever the settings say."""
    _native.promote_version(version)


def roll_back_version(version: str) -> None:
    """Routes no more calls to a version, whatever the settings say."""
    _native.roll_back_version(version)


def keeping_results(function: Callable[..., Any], kept: list[Any]) -> Callable[..., Any]:
    """The same function, which also adds its result to a list."""

    # Not its attributes: a planner would run the function itself.
    @functools.wraps(function, updated=())
    def call(*args: Any, **keywords: Any) -> Any:
        result = function(*args, **keywords)
        kept.append(result)
        return result

    return call


def difference(found: list[Any], expected: list[Any], tolerances: list[tuple[str, float, float]]) -> str | None:
    """How the results of two kernels differ: beyond rtol and atol of their dtype, or at all if there are none."""
    by_dtype = {dtype: (rtol, atol) for dtype, rtol, atol in tolerances}
    for number, (one, other) in enumerate(zip(_tensors(found[-1]), _tensors(expected[-1]), strict=True)):
        name = f"output {number}"
        if tuple(one.shape) != tuple(other.shape) or one.dtype != other.dtype:
            return f"{name} is {one.dtype} {tuple(one.shape)}, but should be {other.dtype} {tuple(other.shape)}"
        rtol, atol = by_dtype.get(str(one.dtype).removeprefix("torch."), (0.0, 0.0))
        worst = _worst(one, other, rtol, atol)
        if worst is not None:
            return f"{name} differs by up to {worst}"
    return None


def _tensors(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


def _worst(one: Any, other: Any, rtol: float, atol: float) -> float | None:
    """The largest difference of two tensors if it is not tolerated. NaN equals NaN."""
    if hasattr(one, "detach"):
        import torch

        one, other = one.detach().to(torch.float64), other.detach().to(torch.float64)
        if torch.allclose(one, other, rtol=rtol, atol=atol, equal_nan=True):
            return None
        return float((one - other).abs().nan_to_num(nan=float("inf")).max())
    import numpy

    one, other = numpy.asarray(one, numpy.float64), numpy.asarray(other, numpy.float64)
    if numpy.allclose(one, other, rtol=rtol, atol=atol, equal_nan=True):
        return None
    return float(numpy.nan_to_num(numpy.abs(one - other), nan=float("inf")).max())
