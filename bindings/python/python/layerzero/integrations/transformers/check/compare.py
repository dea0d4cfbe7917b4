"""Compares a tiny model with and without the integration."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

import layerzero as lz
from layerzero.integrations import transformers as integration

from . import configs
from .models import Outputs, Subject, build, reference, run, run_half, short

FLOOR = 2e-5
# If Transformers' own implementations differ from each other by more than this, the difference is not used as
# a tolerance.
CEILING = 1e-3
PARTS = ("attention", "norms", "rope")


@dataclass
class Result:
    """The outcome for one architecture and one part of the integration."""

    architecture: str
    part: str
    outcome: str
    detail: str


def check(architecture: str, parts: Sequence[str] = PARTS) -> list[Result]:
    """Checks attention, norms and rotary embeddings of one architecture."""
    with torch.no_grad():
        try:
            subject = reference(architecture)
        except configs.NotBuilt as error:
            return [Result(architecture, "model", "not built", str(error))]
        except Exception as error:
            return [Result(architecture, "model", "not built", short(error))]
        functions = {"attention": attention, "norms": norms, "rope": rope}
        return [Result(architecture, part, *functions[part](subject)) for part in parts]


def distance(actual: Any, expected: Any) -> float:
    """The largest difference, relative to the largest element if that is above 1."""
    worst = 0.0
    if len(actual) != len(expected):
        return float("inf")
    for (one, _), (other, keep) in zip(actual, expected, strict=True):
        if one.shape != other.shape:
            return float("inf")
        one, other = (tensor.double() if keep is None else tensor.double()[keep] for tensor in (one, other))
        if one.numel() == 0:
            continue
        finite = torch.isfinite(other)
        if not torch.equal(finite, torch.isfinite(one)):
            return float("inf")
        one, other = one[finite], other[finite]
        if one.numel():
            worst = max(worst, float((one - other).abs().max() / other.abs().max().clamp(min=1)))
    return worst


@contextmanager
def _watched() -> Iterator[tuple[list[int], list[str]]]:
    """Counts attention calls, and collects the warnings of the integration."""
    calls: list[int] = []
    messages: list[str] = []
    original = lz.attention

    def counted(*arguments: Any, **keywords: Any) -> Any:
        calls.append(1)
        return original(*arguments, **keywords)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lz.attention = counted
        try:
            yield calls, messages
        finally:
            lz.attention = original
            messages += dict.fromkeys(str(one.message) for one in caught if "layerzero" in str(one.message))


def attention(subject: Subject) -> tuple[str, str]:
    kind, config, model, expected = subject.kind, subject.config, subject.model, subject.expected
    own = [(model, expected)]
    sdpa: Outputs = {}
    try:
        other = build(kind, config, "sdpa", model)
        sdpa = run(subject, other)
        own.append((other, sdpa))
    except Exception:
        # Not every model supports it.
        pass
    with _watched() as (calls, messages):
        try:
            ours = build(kind, config, integration.NAME, model)
            found = run(subject, ours)
            halves = _half(subject, own, ours)
        except Exception as error:
            return _failure(error)
    for case, outputs in found.items():
        if isinstance(expected[case], Exception):
            continue
        if isinstance(outputs, Exception):
            return _failure(outputs, case)
        references = [expected[case]]
        allowed = FLOOR
        if case in sdpa and not isinstance(sdpa[case], Exception):
            references.append(sdpa[case])
            difference = distance(sdpa[case], expected[case])
            allowed = max(FLOOR, 4 * difference if difference < CEILING else 0)
        worst = min(distance(outputs, one) for one in references)
        if not worst <= allowed:
            return "different", f"{case}: difference {worst:.1e}, allowed {allowed:.1e}"
    if halves:
        return "different", halves
    if messages:
        return "own path", messages[0]
    return "equal", f"{len(calls)} calls" if calls else "no attention through the interface"


def _failure(error: Exception, case: str = "") -> tuple[str, str]:
    text = f"{case}: {short(error)}" if case else short(error)
    return ("refused" if "layerzero" in str(error) and not isinstance(error, KeyError) else "failed"), text


def _half(subject: Subject, own: list[tuple[Any, Outputs]], other: Any) -> str:
    """The difference with bfloat16, whose tolerance is the difference of the model's own implementations from float32."""
    found = run_half(subject, copy.deepcopy(other).to(torch.bfloat16))
    messages = []
    for model, exact in own:
        rounded = run_half(subject, copy.deepcopy(model).to(torch.bfloat16))
        if rounded is None:
            continue
        if found is None:
            return "bf16: fails"
        own_error, error = _relative(rounded, exact["plain"]), _relative(found, exact["plain"])
        if error <= 3 * own_error + 0.02:
            return ""
        messages.append(f"bf16: {error:.1e} from float32, the model's own {own_error:.1e}")
    return messages[0] if messages else ""


def _relative(actual: Any, expected: Any) -> float:
    """The median of the relative differences of rows, the largest of all tensors.

    Not the largest row: with a mixture of experts, rounding may route some tokens to another expert.
    """
    worst = 0.0
    for (one, _), (other, _) in zip(actual, expected, strict=True):
        if one.shape == other.shape and other.numel() and torch.isfinite(other).all():
            one, other = (tensor.double().reshape(-1, tensor.shape[-1] if tensor.ndim else 1) for tensor in (one, other))
            worst = max(worst, float(((one - other).norm(dim=-1) / other.norm(dim=-1).clamp(min=1e-6)).median()))
    return worst


def norms(subject: Subject) -> tuple[str, str]:
    return _swapped(subject, integration.swap_norms)


def rope(subject: Subject) -> tuple[str, str]:
    originals = {
        name: module.apply_rotary_pos_emb
        for name, module in list(sys.modules.items())
        if name.startswith("transformers.models.") and "apply_rotary_pos_emb" in vars(module)
    }
    try:
        return _swapped(subject, integration.swap_rope)
    finally:
        for name, function in originals.items():
            setattr(sys.modules[name], "apply_rotary_pos_emb", function)


def _swapped(subject: Subject, swap: Callable[[Any], Any]) -> tuple[str, str]:
    other = copy.deepcopy(subject.model)
    half = copy.deepcopy(subject.model).to(torch.bfloat16)
    exact, own = subject.expected["plain"], run_half(subject, half)
    with _watched() as (_, messages):
        try:
            report = swap(other)
            found = run(subject, other)
            swap(half)
            swapped = run_half(subject, half) if own is not None else None
        except Exception as error:
            return _failure(error)
    for case, outputs in found.items():
        if isinstance(subject.expected[case], Exception):
            continue
        if isinstance(outputs, Exception):
            return _failure(outputs, case)
        worst = distance(outputs, subject.expected[case])
        if not worst <= 5 * FLOOR:
            return "different", f"{case}: {worst:.1e}"
    if own is not None:
        if swapped is None:
            return "failed", "bf16"
        allowed, found_error = _relative(own, exact), _relative(swapped, exact)
        if not found_error <= 3 * allowed + 0.02:
            return "different", f"bf16: {found_error:.1e} from float32, the model's own {allowed:.1e}"
    return "equal", f"{len(report)} swapped, {len(report.left)} left" if hasattr(report, "left") else str(report)
