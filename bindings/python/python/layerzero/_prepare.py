"""What is done before calls come: measuring, warming up, tables that decide beforehand."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from layerzero import _native, ops
from layerzero._inspect import Explanation, explain
from layerzero._report import Report, table

# A call that is not made yet: an operation, its arguments by name.
Call = tuple[str, Mapping[str, Any]]


def tune(
    operation: str,
    /,
    *args: Any,
    samples: int = 20,
    progress: bool | Callable[[str, float, int, int], object] | None = None,
    **keywords: Any,
) -> Report:
    """Measures every kernel that could run a call and keeps what it found; decisions follow at once.

    Kernels take turns, so that drift hits all alike, and measuring ends early once their order is settled. Ctrl-C ends it
    too, and what was measured is kept. `progress` shows a bar (by default where the error stream is a terminal), or is
    called with kernel, nanoseconds, samples taken and samples at most.
    """
    told: Callable[[str, float, int, int], object] | None = None
    if callable(progress):
        told = progress
    elif progress or (progress is None and sys.stderr.isatty()):
        told = _bar
    try:
        data = _native.tune(operation, args, keywords, samples, told)
    finally:
        if told is _bar:
            print(file=sys.stderr)
    rows = [
        (
            one["kernel"],
            "ok" if one["state"] == "measured" else one["state"],
            one["median_ns"] / 1e3 if "median_ns" in one else None,
            one["p95_ns"] / 1e3 if "p95_ns" in one else None,
            one.get("samples"),
            one["why"],
        )
        for one in data["kernels"]
    ]
    title = f"{operation}: {data['best'] or 'nothing could be measured'}"
    if not data["kept"]:
        title += f" (NOT KEPT: {data['lost']})"
    elif data["cancelled"]:
        title += " (broken off; what was measured is kept)"
    columns = ("kernel", "state", "median µs", "p95 µs", "samples", "why")
    return Report((table(title, columns, rows),), data)


def _bar(kernel: str, nanoseconds: float, done: int, most: int) -> None:
    width = 30
    filled = width * done // max(most, 1)
    line = f"{'█' * filled}{'·' * (width - filled)} {done}/{most} {kernel} {nanoseconds / 1e3:.1f} µs"
    print(f"\r\x1b[K{line[:110]}", end="", file=sys.stderr, flush=True)


def dry_run(calls: Iterable[Call]) -> list[Explanation]:
    """What would be chosen for calls, and why, without making any of them."""
    return [explain(operation, **arguments) for operation, arguments in calls]


def compile_cold(
    calls: Iterable[Call], workers: int | None = None, progress: bool | Callable[[int, int, str | None], object] | None = None
) -> tuple[list[tuple[str, list[str]]], int, list[tuple[str, str]]]:
    """Compiles what only has to be compiled to be possible for calls, several at a time: what was made, how many were warm, what
    failed and why."""
    told: Callable[[int, int, str | None], object] | None = None
    if callable(progress):
        told = progress
    elif progress or (progress is None and sys.stderr.isatty()):
        told = _compiling
    try:
        several = [(operation, (), dict(arguments)) for operation, arguments in calls]
        return _native.compile_cold(several, workers or min(8, os.cpu_count() or 1), told)
    finally:
        if told is _compiling:
            print(file=sys.stderr)


def _compiling(done: int, most: int, kernel: str | None) -> None:
    width = 30
    filled = width * done // max(most, 1)
    line = f"{'█' * filled}{'·' * (width - filled)} {done}/{most} {kernel or ''}"
    print(f"\r\x1b[K{line[:110]}", end="", file=sys.stderr, flush=True)


def warmup(
    calls: Iterable[Call],
    *,
    manifest: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    progress: bool | Callable[[int, int, str | None], object] | None = None,
) -> Report:
    """Compiles every kernel that could run these calls, several at a time, and makes each call once, before requests come.

    With `manifest`, what was warmed up is written there as JSON: operation, kernel, and the shape and dtype of each tensor.
    `progress` shows a bar (by default where the error stream is a terminal), or is called with how many kernels are compiled, how
    many there are, and the last one's id. A kernel that cannot be compiled is told, and the others serve.
    """
    calls = list(calls)
    compiled, already, failed = compile_cold(calls, workers, progress)
    done = []
    for operation, arguments in calls:
        plan = _native.which(operation, **arguments)
        getattr(ops, operation.replace(".", "_"))(**arguments)
        shapes = {
            name: {"shape": [int(size) for size in value.shape], "dtype": str(value.dtype)}
            for name, value in arguments.items()
            if hasattr(value, "shape") and hasattr(value, "dtype")
        }
        params = {name: value for name, value in arguments.items() if isinstance(value, bool | int | float | str)}
        done.append({"operation": operation, "kernel": plan["kernel_id"], "tensors": shapes, "params": params})
    data = {
        "version": 1,
        "calls": done,
        "compiled": [{"kernel": kernel, "artifacts": artifacts} for kernel, artifacts in compiled],
        "already_warm": already,
        "failed": [{"kernel": kernel, "why": why} for kernel, why in failed],
    }
    if manifest is not None:
        import json

        with open(manifest, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=2)
    rows = [(one["operation"], one["kernel"]) for one in done]
    tables = [table("warm", ("operation", "kernel"), rows)]
    if failed:
        tables.append(table("could not be compiled", ("kernel", "why"), failed))
    return Report(tuple(tables), data)


def load_dispatch_table(path: str | os.PathLike[str]) -> Report:
    """Uses a dispatch table from now on. One of another machine, or of other kernels, is refused with what differs."""
    import json

    data: dict[str, Any] = json.loads(_native.load_dispatch_table(os.fspath(path)))
    rows = [(operation,) for operation in data["operations"]]
    return Report((table(f"{data['path']}: {data['model_id']}", ("operation",), rows),), data)
