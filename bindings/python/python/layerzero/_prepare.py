"""Work ahead of calls: tuning, warmup and dispatch tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from layerzero import _native, ops
from layerzero._compile.compiled import CompiledModel
from layerzero._inspect import Explanation, explain
from layerzero._numbers import whole
from layerzero._report import Report, table

# A call that is described but not made: an operation and its arguments by name.
Call = tuple[str, Mapping[str, Any]]


def checked_call(call: Call) -> tuple[str, dict[str, Any]]:
    """A described call. Refuses anything but an operation and its arguments."""
    if isinstance(call, tuple | list) and len(call) == 2 and isinstance(call[0], str) and isinstance(call[1], Mapping):
        return call[0], dict(call[1])
    raise TypeError(f"a call is an operation and its arguments, such as ('norm.rms', {{'x': x}}), not {call!r}")


def checked_calls(calls: Iterable[Call]) -> list[tuple[str, dict[str, Any]]]:
    """Described calls, as a list."""
    return [checked_call(call) for call in ([calls] if isinstance(calls, str) else calls)]


def tune(
    operation: str | CompiledModel,
    /,
    *args: Any,
    samples: int = 20,
    progress: bool | Callable[[str, float, int, int], object] | None = None,
    **keywords: Any,
) -> Report:
    """Measures every kernel that can run a call and stores the results; selection uses them at once.

    Samples of the kernels are interleaved, so that drift affects all equally, and measuring ends early once
    their order is settled. Ctrl-C stops it, and finished measurements are stored. `progress` shows a bar (by
    default if stderr is a terminal), or is called with kernel, nanoseconds, samples taken and the maximum
    number of samples.

    A compiled model instead of an operation is measured in place: every kernel of every different step of its
    plan for these inputs. Its next run plans again with the results.
    """
    if isinstance(operation, CompiledModel):
        return operation.tune(*args, samples=samples, **keywords)
    samples = whole("samples", samples, 1, 2**32 - 1)
    on_progress: Callable[[str, float, int, int], object] | None = None
    if callable(progress):
        on_progress = progress
    elif progress or (progress is None and sys.stderr.isatty()):
        on_progress = _bar
    try:
        data = _native.tune(operation, args, keywords, samples, on_progress)
    finally:
        if on_progress is _bar:
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
    title = f"{operation}: {data['best'] or 'no kernel could be measured'}"
    if not data["kept"]:
        title += f" (NOT STORED: {data['lost']})"
    elif data["cancelled"]:
        title += " (cancelled; finished measurements are stored)"
    columns = ("kernel", "state", "median µs", "p95 µs", "samples", "why")
    return Report((table(title, columns, rows),), data)


def _bar(kernel: str, nanoseconds: float, done: int, total: int) -> None:
    width = 30
    filled = width * done // max(total, 1)
    line = f"{'█' * filled}{'·' * (width - filled)} {done}/{total} {kernel} {nanoseconds / 1e3:.1f} µs"
    print(f"\r\x1b[K{line[:110]}", end="", file=sys.stderr, flush=True)


def dry_run(calls: Iterable[Call]) -> list[Explanation]:
    """Explanations of calls, without making any of them."""
    return [explain(operation, **arguments) for operation, arguments in checked_calls(calls)]


def compile_cold(
    calls: Iterable[Call], workers: int | None = None, progress: bool | Callable[[int, int, str | None], object] | None = None
) -> tuple[list[tuple[str, list[str]]], int, list[tuple[str, str]]]:
    """Compiles every cold kernel that can run these calls, several at a time. Returns the compiled kernels
    with their artifacts, the number of warm kernels, and the failed kernels with the reason."""
    on_progress: Callable[[int, int, str | None], object] | None = None
    if callable(progress):
        on_progress = progress
    elif progress or (progress is None and sys.stderr.isatty()):
        on_progress = _compiling
    try:
        several = [(operation, (), arguments) for operation, arguments in checked_calls(calls)]
        return _native.compile_cold(several, workers or min(8, os.cpu_count() or 1), on_progress)
    finally:
        if on_progress is _compiling:
            print(file=sys.stderr)


def _compiling(done: int, total: int, kernel: str | None) -> None:
    width = 30
    filled = width * done // max(total, 1)
    line = f"{'█' * filled}{'·' * (width - filled)} {done}/{total} {kernel or ''}"
    print(f"\r\x1b[K{line[:110]}", end="", file=sys.stderr, flush=True)


def expressions_compiled_inline() -> AbstractContextManager[None]:
    """A context in which calls of this thread compile the kernel of their `score_mod`. Otherwise it is compiled in the background."""
    module = sys.modules.get("layerzero.backends.triton._score_mod")
    return nullcontext() if module is None else module.compiled_inline()


def warmup(
    calls: Iterable[Call],
    *,
    manifest: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    progress: bool | Callable[[int, int, str | None], object] | None = None,
) -> Report:
    """Compiles every kernel that can run these calls, several at a time, and makes each call once, before requests arrive.

    With `manifest`, the warmed-up calls are written there as JSON: operation, kernel, and the shape and dtype
    of each tensor. `progress` shows a bar (by default if stderr is a terminal), or is called with the number
    of compiled kernels, their total, and the id of the last one. A kernel that cannot be compiled is
    reported, and the other kernels are used.
    """
    described = checked_calls(calls)
    compiled, already, failed = compile_cold(described, workers, progress)
    done = []
    for operation, arguments in described:
        plan = _native.which(operation, None, [], **arguments)
        with expressions_compiled_inline():
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
        tables.append(table("failed to compile", ("kernel", "why"), failed))
    return Report(tuple(tables), data)


def load_dispatch_table(path: str | os.PathLike[str]) -> Report:
    """Loads a dispatch table and uses it from now on. A table of another machine or of other kernels is refused with the differences."""
    import json

    data: dict[str, Any] = json.loads(_native.load_dispatch_table(os.fspath(path)))
    rows = [(operation,) for operation in data["operations"]]
    return Report((table(f"{data['path']}: {data['model_id']}", ("operation",), rows),), data)
