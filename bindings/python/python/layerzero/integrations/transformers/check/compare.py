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
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

import layerzero as lz
from layerzero.integrations import transformers as integration

from . import configs, inputs

FLOOR = 2e-5
# Where Transformers' own implementations differ from each other by more than this, that difference says nothing.
CEILING = 1e-3
LARGEST = 100_000_000

PARTS = ("attention", "norms", "rope")
Outputs = dict[str, list[tuple[torch.Tensor, torch.Tensor | None]]]


@dataclass
class Result:
    """What came out for one architecture and one part of the integration."""

    architecture: str
    part: str
    outcome: str
    detail: str


def check(architecture: str, parts: Sequence[str] = PARTS) -> list[Result]:
    """Attention, norms and rotary embeddings of one architecture."""
    with torch.no_grad():
        try:
            subject = reference(architecture)
        except configs.NotBuilt as error:
            return [Result(architecture, "model", "not built", str(error))]
        except Exception as error:
            return [Result(architecture, "model", "not built", _short(error))]
        functions = {"attention": attention, "norms": norms, "rope": rope}
        return [Result(architecture, part, *functions[part](subject)) for part in parts]


@dataclass
class Subject:
    """A tiny model of an architecture that computes attention by the plain formula, its inputs and what it gives."""

    kind: Any
    config: Any
    model: Any
    given: inputs.Inputs
    images: inputs.Inputs | None
    expected: Outputs


def reference(architecture: str) -> Subject:
    kind = configs.model_class(architecture)
    config = _config(architecture, kind)
    model = build(kind, config, "eager")
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        # Weights as they are initialized make all scores about 0, and any mask or scale would look right.
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = noise * 0.15 if parameter.ndim > 1 else parameter.data + noise * 0.2
    given = _inputs(model)
    subject = Subject(kind, config, model, given, inputs.with_images(model, given), {})
    subject.expected = run(subject, model)
    return subject


def _inputs(model: Any) -> inputs.Inputs:
    """The first inputs that a model can be called with."""
    first: Exception | None = None
    for given in inputs.candidates(model):
        try:
            if tensors(model(**given)):
                return given
        except Exception as error:
            first = first or error
    raise configs.NotBuilt(f"no inputs are known that it takes: {_short(first) if first else 'it has no outputs'}")


def _config(architecture: str, kind: Any) -> Any:
    """A configuration from which a model can be built, of the two that there are."""
    for fill in (False, True):
        try:
            config = configs.tiny_config(architecture, fill)
            with torch.device("meta"):
                weights = sum(one.numel() for one in build(kind, config, "eager").parameters())
        except Exception:
            if fill:
                raise
            continue
        if weights > LARGEST:
            raise configs.NotBuilt(f"{weights / 1e6:.0f} million weights are too many")
        return config


def build(kind: Any, config: Any, implementation: str | None, weights: PreTrainedModel | None = None) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = kind._from_config(copy.deepcopy(config), attn_implementation=implementation).eval()
    if weights is not None:
        model.load_state_dict(weights.state_dict())
    return model


def run(subject: Subject, model: Any) -> Outputs:
    """Every case that a model has; one that fails has its error as the outcome."""
    found: Outputs = {}
    names = inputs.parameters(model)
    given = subject.given
    extra = {"use_cache": False} if "use_cache" in names else {}
    found["plain"] = tensors(_call(model, given, extra))
    images = subject.images
    if images is not None:
        found["images"] = _tried(lambda: tensors(_call(model, images, extra)))
    if "input_ids" in given and "attention_mask" in names:
        for side in ("left", "right"):
            with_mask = inputs.padded(given, side, model.config)
            keep = with_mask["attention_mask"].bool() if with_mask["attention_mask"].shape == with_mask["input_ids"].shape else None
            found[f"{side} padding"] = _tried(lambda: tensors(_call(model, with_mask, extra), keep))
        if "past_key_values" in names and "use_cache" in names:
            found["cache"] = _tried(lambda: cached(model, inputs.padded(given, "left", model.config), names))
    return found


def _call(model: Any, given: inputs.Inputs, extra: dict[str, Any]) -> Any:
    # Some models draw random numbers.
    torch.manual_seed(0)
    return model(**given, **extra)


def _tried(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return error


def cached(model: Any, given: dict[str, torch.Tensor], names: Any) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    """A prompt, a further piece of it and two single tokens."""
    found = []
    cache: Any = None
    decoder = "decoder_input_ids" if "decoder_input_ids" in given else "input_ids"
    ids, mask = given[decoder], given["attention_mask"]
    rest = {name: one for name, one in given.items() if name not in ("input_ids", "attention_mask", decoder)}
    length = ids.shape[1]
    encoded: Any = None
    for start, end in ((0, length - 4), (length - 4, length - 2), (length - 2, length - 1), (length - 1, length)):
        step = {decoder: ids[:, start:end], "use_cache": True, "past_key_values": cache, **rest}
        keep = None
        if decoder == "input_ids":
            step["attention_mask"] = mask[:, :end]
            keep = mask[:, start:end].bool()
            if "position_ids" in names:
                step["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)[:, start:end]
        elif encoded is None:
            step.update(input_ids=given["input_ids"], attention_mask=mask)
        else:
            step.update(encoder_outputs=encoded, attention_mask=mask)
        output = model(**step)
        cache = output.past_key_values
        if cache is None:
            raise ValueError("the model returned no cache")
        if decoder != "input_ids" and encoded is None:
            encoded = (output.encoder_last_hidden_state,)
        logits = output.logits if hasattr(output, "logits") else output.last_hidden_state
        found.append((logits, keep))
    return found


def tensors(output: Any, keep: torch.Tensor | None = None) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    """The floats of an output in order, each with which of its rows are no padding."""
    if isinstance(output, torch.Tensor):
        if not output.is_floating_point():
            return []
        rows = keep is not None and output.shape[:2] == keep.shape
        return [(output, keep if rows else None)]
    if isinstance(output, Cache):
        return []
    if hasattr(output, "items"):
        # Only the plain formula has attention weights.
        output = [one for name, one in output.items() if not name.endswith("attentions")]
    return [pair for one in output for pair in tensors(one, keep)] if isinstance(output, (list, tuple)) else []


def distance(actual: Any, expected: Any) -> float:
    """The largest difference, relative to the largest element where that is above 1."""
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
    """Counts calls of our operations, and collects the warnings of the integration."""
    calls: list[int] = []
    said: list[str] = []
    kept = lz.attention

    def counted(*arguments: Any, **keywords: Any) -> Any:
        calls.append(1)
        return kept(*arguments, **keywords)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lz.attention = counted
        try:
            yield calls, said
        finally:
            lz.attention = kept
            said += dict.fromkeys(str(one.message) for one in caught if "layerzero" in str(one.message))


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
    with _watched() as (calls, said):
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
        wanted = [expected[case]]
        allowed = FLOOR
        if case in sdpa and not isinstance(sdpa[case], Exception):
            wanted.append(sdpa[case])
            difference = distance(sdpa[case], expected[case])
            allowed = max(FLOOR, 4 * difference if difference < CEILING else 0)
        worst = min(distance(outputs, one) for one in wanted)
        if not worst <= allowed:
            return "different", f"{case}: {worst:.1e}, {allowed:.1e} is allowed"
    if halves:
        return "different", halves
    if said:
        return "own path", said[0]
    return "equal", f"{len(calls)} calls" if calls else "no attention through the interface"


def _failure(error: Exception, case: str = "") -> tuple[str, str]:
    text = f"{case}: {_short(error)}" if case else _short(error)
    return ("refused" if "layerzero" in str(error) and not isinstance(error, KeyError) else "failed"), text


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:240]


def _half(subject: Subject, own: list[tuple[Any, Outputs]], other: Any) -> str:
    """What differs with bfloat16, which is held to the distance of a model's own implementations from float32."""
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


def run_half(subject: Subject, model: Any) -> Any:
    given = {name: one.to(torch.bfloat16) if one.is_floating_point() else one for name, one in subject.given.items()}
    extra = {"use_cache": False} if "use_cache" in inputs.parameters(model) else {}
    try:
        return tensors(_call(model, given, extra))
    except Exception as error:
        if "layerzero" in str(error):
            raise
        return None


def _relative(actual: Any, expected: Any) -> float:
    """The median of the relative differences of rows, the largest of all tensors.

    Not the largest row: where a router chooses between experts, rounding may choose another for some tokens.
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
    kept = {
        name: module.apply_rotary_pos_emb
        for name, module in list(sys.modules.items())
        if name.startswith("transformers.models.") and "apply_rotary_pos_emb" in vars(module)
    }
    try:
        return _swapped(subject, integration.swap_rope)
    finally:
        for name, function in kept.items():
            setattr(sys.modules[name], "apply_rotary_pos_emb", function)


def _swapped(subject: Subject, swap: Callable[[Any], Any]) -> tuple[str, str]:
    other = copy.deepcopy(subject.model)
    half = copy.deepcopy(subject.model).to(torch.bfloat16)
    exact, own = subject.expected["plain"], run_half(subject, half)
    with _watched() as (_, said):
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
