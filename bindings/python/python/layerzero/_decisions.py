"""Decisions as files: dispatch tables that are solved ahead of time, and lockfiles of recorded decisions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from layerzero import _native
from layerzero._inspect import other_backends
from layerzero._prepare import Call, checked_calls, compile_cold
from layerzero._report import Report, table


def _calls(calls: Iterable[Call]) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    return [(operation, (), arguments) for operation, arguments in checked_calls(calls)]


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
    device: str | None = None,
) -> Report:
    """Selects kernels ahead of time, and writes the decisions to `path` as a dispatch table for `load_dispatch_table`.

    Solves calls like `calls` at every size of their bucketed axes, and the workloads that the schemas of
    `operations` list. `model` is stored in the table as its model id. `ranges` sets the size range of an
    axis: ``{"seq_k": (1, 4096)}``. A call outside the table selects its kernel when it is made, or is refused
    with `outside_is_error`. Ctrl-C stops solving and keeps the decisions made so far. With `compile_jit`, JIT
    kernels are first compiled for `calls`, several at a time, so that they can be selected.

    `device` solves for another device than that of the tensors: one of this machine (``"cuda:0"``) or a simulated one
    (``"h100"``, …), for which nothing can be compiled. A table is loaded only where the device and the kernels are the same.
    """
    described = checked_calls(calls)
    if compile_jit and device is not None and _native.is_simulated(device):
        raise ValueError(f"kernels cannot be compiled for {device}, which is not in this machine: solve without compile_jit")
    if compile_jit:
        compile_cold(described)
    wider = [(axis, first, last) for axis, (first, last) in (ranges or {}).items()]
    text, decided, holes, cancelled = _native.solve(
        model, _calls(described), list(operations), wider, outside_is_error, compile_jit, progress, device, other_backends(device) if device else []
    )
    _write(path, text)
    data = {
        "path": None if path is None else os.fspath(path),
        "decided": decided,
        "holes": [{"operation": operation, "why": why} for operation, why in holes],
        "cancelled": cancelled,
        "table": text,
    }
    title = f"{decided} cells solved" + (" (cancelled)" if cancelled else "")
    return Report((table(title, ("operation without a kernel", "why"), holes),), data)


def record_decisions(on: bool = True) -> None:
    """Starts or stops recording decisions for `freeze`. Starting discards what was recorded before."""
    _native.record_decisions(on)


def freeze(
    path: str | os.PathLike[str] | None = "layerzero.lock", calls: Iterable[Call] | None = None, *, device: str | None = None
) -> str:
    """Writes the decision lockfile: decisions made now for `calls`, or all recorded decisions. Returns its text.

    `device` decides as if the tensors of `calls` were on another device: one of this machine (``"cuda:0"``) or a simulated
    one (``"h100"``, …), where kernels are selected by their scores without measurements.
    """
    if device is not None and calls is None:
        raise ValueError("recorded decisions have a device of their own: pass calls together with device")
    text = _native.freeze(None if calls is None else _calls(calls), device, other_backends(device) if device else [])
    _write(path, text)
    return text


def verify_lockfile(path: str | os.PathLike[str] = "layerzero.lock") -> Report:
    """Compares the recorded decisions with a lockfile. Decisions that only one side has are not a difference.
    Raises `ValueError` if nothing was recorded."""
    differing, unmet, unlocked = _native.verify_lockfile(os.fspath(path))
    if not _native.recorded_decisions():
        raise ValueError(
            f"no decisions were recorded, so there is nothing to compare with {os.fspath(path)}: "
            "call lz.record_decisions() before the calls to verify"
        )
    data = {"agrees": not differing, "differing": differing, "unmet": unmet, "unlocked": unlocked}
    title = "decisions match the lockfile" if not differing else "decisions differ from the lockfile"
    return Report((table(title, ("differs",), [(one,) for one in differing]),), data)
