"""Verification of calls (setting ``verify``): waiting for it, and replaying the reproducers that it writes."""

from __future__ import annotations

import os
from typing import Any

from layerzero import _native
from layerzero._report import Report, table


def wait_for_verification(timeout: float | None = None) -> bool:
    """Waits until every call that was sampled so far is verified. Returns False after the timeout in seconds."""
    return _native.wait_for_verification(float("inf") if timeout is None else timeout)


def repro(path: str | os.PathLike[str], *, export: str | os.PathLike[str] | None = None) -> Report:
    """Replays a reproducer that ``verify`` wrote: its kernel and the reference repeat the call.

    `reproduced` is True if the kernel returns a wrong result again. A kernel of a backend that is not built in must be
    registered before. With `export`, a FlashInfer-Trace definition and workload of the call are written into that folder.
    """
    import json

    name = os.fspath(path)
    data: dict[str, Any] = json.loads(_native.replay(name))
    if data["kernel_now"]["outcome"] == "needs_caller":
        data["kernel_now"] = _run_in_python(name)
    outcome, detail = data["kernel_now"]["outcome"], data["kernel_now"].get("detail")
    data["reproduced"] = outcome == "differs"
    rows = [
        ("operation", data["operation"]),
        ("kernel", f"{data['kernel']} {data['kernel_version']}"),
        ("compared with", data["judge"]),
        ("recorded", data["recorded_difference"]),
        ("recorded, against the reference now", data["reference_difference"] or "agrees"),
        ("kernel now", f"{outcome}: {detail}" if detail else outcome.replace("_", " ")),
    ]
    if data["contract_changed"]:
        rows.append(("note", "the schema of the operation has changed since"))
    if export is not None:
        data["exported"] = [os.fspath(file) for file in _native.export_reproducer(name, os.fspath(export))]
        rows += [("exported", file) for file in data["exported"]]
    return Report((table("reproducer", ("", ""), rows),), data)


def _run_in_python(path: str) -> dict[str, str]:
    """Runs a kernel that takes Python objects: numpy arrays, or torch tensors if it does not accept them."""
    recorded = _native.reproducer_arguments(path)
    failure = "neither numpy nor torch can represent its arguments"
    for create in (_array, _tensor):
        try:
            arguments = {name: create(*value) if isinstance(value, tuple) else value for name, value in recorded.items()}
        except (ImportError, TypeError):
            continue
        try:
            difference = _native.replay_with(path, **arguments)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            continue
        return {"outcome": "agrees"} if difference is None else {"outcome": "differs", "detail": difference}
    return {"outcome": "failed", "detail": failure}


def _array(data: bytes, dtype: str, shape: list[int], device: str) -> Any:
    """A numpy array; raises TypeError for dtypes that numpy does not have, and for tensors of a device."""
    import numpy

    if not device.startswith("cpu"):
        raise TypeError(device)
    return numpy.frombuffer(bytearray(data), dtype).reshape(shape)


def _tensor(data: bytes, dtype: str, shape: list[int], device: str) -> Any:
    """A torch tensor on the device of the recorded one."""
    import torch

    # Packed pairs are passed as bytes.
    kind = torch.uint8 if dtype == "float4_e2m1fn_x2" else getattr(torch, dtype)
    tensor = torch.frombuffer(bytearray(data), dtype=kind).reshape(shape) if data else torch.empty(shape, dtype=kind)
    return tensor if device.startswith("cpu") else tensor.to(device)
