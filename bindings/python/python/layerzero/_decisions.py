"""Decisions as files: dispatch tables that are solved beforehand, and lockfiles that say what was decided."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from layerzero import _native
from layerzero._prepare import Call, compile_cold
from layerzero._report import Report, table


def _calls(calls: Iterable[Call]) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    return [(operation, (), dict(arguments)) for operation, arguments in calls]


def _write(path: str | os.PathLike[str] | None, text: str) -> None:
    if path is not None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def solve(
    calls: Iterable[Call] = (),
    *,
    operations: Sequence[str] = (),
    path: str | os.PathLike[str] | None = None,
    model: str = "any",
    ranges: Mapping[str, tuple[int, int]] | None = None,
    outside_is_error: bool = False,
    compile_jit: bool = False,
    progress: Callable[[int, int, str], object] | None = None,
) -> Report:
    """Decides beforehand, and writes the decisions to `path` as a dispatch table that `load_dispatch_table` reads.

    Calls like `calls` are decided, at every size of their bucketed axes, and the workloads of `operations` as their schemas
    name them. `model` says whose table it is. `ranges` widens axes: ``{"seq_k": (1, 4096)}``. Outside of what was decided
    calls are decided when they come, or are refused with `outside_is_error`. Ctrl-C keeps what was decided until then. With
    `compile_jit`, kernels that compile are compiled for `calls` first, several at a time, so that they can be decided for.
    """
    calls = list(calls)
    if compile_jit:
        compile_cold(calls)
    wider = [(axis, first, last) for axis, (first, last) in (ranges or {}).items()]
    text, decided, holes, cancelled = _native.solve(
        model, _calls(calls), list(operations), wider, outside_is_error, compile_jit, progress
    )
    _write(path, text)
    data = {
        "path": None if path is None else os.fspath(path),
        "decided": decided,
        "holes": [{"operation": operation, "why": why} for operation, why in holes],
        "cancelled": cancelled,
        "table": text,
    }
    title = f"{decided} cells are decided" + (" (broken off)" if cancelled else "")
    return Report((table(title, ("nothing can run", "why"), holes),), data)


def record_decisions(on: bool = True) -> None:
    """Begins or ends recording what is decided, for `freeze`. Beginning forgets what was recorded before."""
    _native.record_decisions(on)


def freeze(path: str | os.PathLike[str] | None = "layerzero.lock", calls: Iterable[Call] | None = None) -> str:
    """Writes the decision lockfile: the decisions for `calls`, made now, or whatever was recorded. Gives its text."""
    text = _native.freeze(None if calls is None else _calls(calls))
    _write(path, text)
    return text


def verify_lockfile(path: str | os.PathLike[str] = "layerzero.lock") -> Report:
    """Compares what was recorded to a lockfile. Decisions that only one side has are no disagreement; with nothing recorded
    there is nothing to compare, which is a `ValueError`."""
    differing, unmet, unlocked = _native.verify_lockfile(os.fspath(path))
    if not _native.recorded_decisions():
        raise ValueError(
            f"nothing was recorded, so that nothing can be compared to {os.fspath(path)}: "
            "call lz.record_decisions() before the calls that are to be verified"
        )
    data = {"agrees": not differing, "differing": differing, "unmet": unmet, "unlocked": unlocked}
    title = "decided as locked" if not differing else "decided otherwise"
    return Report((table(title, ("differs",), [(one,) for one in differing]),), data)
