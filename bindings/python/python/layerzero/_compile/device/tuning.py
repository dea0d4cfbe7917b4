"""Measures the kernels of a program's steps; selection uses the results when the model is planned again."""

from __future__ import annotations

from typing import Any

import torch

from layerzero import _native
from layerzero._compile.device.program import Flipped, Program, Step


def tune(program: Program, samples: int) -> list[dict[str, Any]]:
    """One entry per different step whose kernel the engine selects: operation, source, how many steps are like it, and the times."""
    found: dict[Any, dict[str, Any]] = {}
    for step in program.steps:
        if step.about["kernel"] is None:
            continue
        key = _signature(step)
        if key in found:
            found[key]["steps"] += 1
            continue
        data = _native.tune(step.operation, tuple(_arguments(step)), dict(step.about["params"]), samples, None)
        kernels = [(one["kernel"], one["state"], one.get("median_ns")) for one in data["kernels"]]
        found[key] = {
            "operation": step.operation,
            "source": step.about["source"],
            "steps": 1,
            "selected": step.about["kernel"],
            "best": data["best"],
            "kept": data["kept"],
            "kernels": kernels,
        }
        if data["cancelled"]:
            break
    return list(found.values())


def _signature(step: Step) -> Any:
    """What selection depends on: the operation, its params, and shapes, strides and dtypes of its inputs."""
    inputs = tuple(None if row is None else (tuple(row[2]), tuple(row[3]), row[5]) for row in step.about["inputs"])
    return step.operation, tuple(sorted(step.about["params"].items())), inputs


def _arguments(step: Step) -> list[Any]:
    """The inputs of a step. Those that it changes in place are copies: measuring must not change a cache."""
    dense = [one.view.flip(one.axes) if isinstance(one, Flipped) else one for one in step.inputs]
    return [_copy(one) if index in step.about["written"] else one for index, one in enumerate(dense)]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)
