"""Calls that are considered together: blocks of operations, quantization formats, and draft and target models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from layerzero import _native
from layerzero._inspect import other_backends
from layerzero._prepare import Call, checked_call, checked_calls
from layerzero._report import Report, table


class BlockPlan(Report):
    """The kernels of a block of operations, selected jointly, and what that saves compared with selecting step by step."""


class BlockRun(NamedTuple):
    """The result of a block."""

    outputs: Any
    kernels: tuple[str | None, ...]
    plan: BlockPlan | None


class FormatChoice(NamedTuple):
    """The quantization format that was selected, the kernel that runs it, and whether stored data must be requantized."""

    format: str
    kernel_id: str
    requantize: bool
    points: float


class SpeculativePair(NamedTuple):
    """The kernels of a draft model and its target, and the sum of their scores."""

    draft: str
    target: str
    score: float


def _backends(device: str | None) -> list[dict[str, Any]]:
    return other_backends(device) if device else []


def _conversions(step: dict[str, Any]) -> Iterator[str]:
    """What happens to the inputs of a step before its kernel runs."""
    if conversion := step["conversion"]:
        yield f"{conversion['from']} → {conversion['to']} in {conversion['by']}, cost {conversion['cost']:.1f}"
    if made := step.get("dequantization"):
        yield f"dequantize {' and '.join(made['inputs'])} for {made['operation']}, cost {made['cost']:.1f}"


def _plan(text: str, written: str) -> BlockPlan:
    import json

    data: dict[str, Any] = json.loads(written)
    rows = [
        (
            " + ".join(step["operations"]),
            step["kernel"],
            step["takes"] or None,
            step["makes"] or None,
            "; ".join(_conversions(step)) or None,
            step["score"],
            step["cost"],
        )
        for step in data["joint"]["steps"]
    ]
    columns = ("operations", "kernel", "takes", "makes", "conversion before", "score", "cost")
    title = text.partition("\n")[0]
    why = table("differences to selecting step by step", ("operation", "alone", "jointly", "why"), [
        (one["operation"], one["alone"][0], one["jointly"][0], one["why"]) for one in data["differences"]
    ])
    return BlockPlan((table(title, columns, rows), *([why] if data["differences"] else [])), data)


def plan_block(calls: Iterable[Call], *, dtypes: Sequence[str] = (), device: str | None = None) -> BlockPlan:
    """The kernels of a block of operations on host tensors, selected jointly: one that scores lower by itself may be better in
    a block, because its output needs no conversion or because it fuses its neighbor.

    Each call takes the first output of the previous one as its first tensor, which is omitted:
    ``[("norm.rms", {"x": x, "weight": w}), ("activation.silu", {})]``. `dtypes` allows other element types between the
    operations, which changes results. `device` plans as if the tensors were on another device, as in `explain`.
    """
    return _plan(*_native.plan_block(checked_calls(calls), list(dtypes), device, _backends(device)))


def run_block(calls: Iterable[Call], *, dtypes: Sequence[str] = ()) -> BlockRun:
    """Runs a block of operations on host tensors: each takes the first output of the previous one (see `plan_block`).

    With the setting ``plan_mode`` the block runs as `plan_block` plans it; otherwise each is an ordinary call. `outputs` are
    those of the last operation, `kernels` has the kernel that ran each operation as planned, or `None` for an ordinary call.
    Kernels that are written in Python are not used.
    """
    outputs, kernels, plan = _native.run_block(checked_calls(calls), list(dtypes))
    return BlockRun(outputs, tuple(kernels), None if plan is None else _plan(*plan))


def choose_format(calls: Mapping[str, Call], *, stored: str | None = None, device: str | None = None) -> FormatChoice:
    """Selects among quantization formats by accuracy and speed, as the settings ``quant_formats`` weigh them.

    `calls` has the call of each format, the preferred one first: ``{"int8": ("mlp.linear.weight_only", {...}), ...}``.
    `stored` is the format of data that is already quantized. A format is only selected together with a kernel that can run
    it; otherwise `NoKernelFoundError` lists why each was rejected. `device` is as in `explain`.
    """
    if not isinstance(calls, Mapping):
        raise TypeError(f"`calls` must map each format to its call, such as {{'int8': (operation, arguments)}}, not {calls!r}")
    described = [(name, *checked_call(call)) for name, call in calls.items()]
    return FormatChoice(*_native.choose_format(described, stored, device, _backends(device)))


def speculative_pair(
    draft: Call, target: Call, *, pipeline_stages: tuple[int, int] = (1, 1), device: str | None = None
) -> SpeculativePair:
    """Selects the kernels of a draft model and its target together, by the settings ``speculative_decoding``.

    Models that do not fit together are a `ValidationError` or `NoKernelFoundError` with the property that prevents it:
    `pipeline_stages` (of draft and target), draft size, algorithm or cache. `device` is as in `explain`.
    """
    pair = _native.speculative_pair(checked_call(draft), checked_call(target), pipeline_stages, device, _backends(device))
    return SpeculativePair(*pair)


def speculative_tokens(batch: int) -> int:
    """The number of tokens to draft for a batch of this size, by the settings ``speculative_decoding``."""
    return _native.speculative_tokens(batch)
