"""Tiny models of the architectures, and the cases that each is run with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from . import configs, inputs

LARGEST = 100_000_000

# By case: the tensors of the output, each with a mask of rows that are not padding; or the error.
Outputs = dict[str, Any]


@dataclass
class Subject:
    """A tiny model of an architecture with eager attention, its inputs and its outputs."""

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
        # Initial weights make all scores about 0, so that any mask or scale would look right.
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = noise * 0.15 if parameter.ndim > 1 else parameter.data + noise * 0.2
    given = _inputs(model)
    subject = Subject(kind, config, model, given, inputs.with_images(model, given), {})
    subject.expected = run(subject, model)
    return subject


def _inputs(model: Any) -> inputs.Inputs:
    """The first inputs that a model accepts."""
    first: Exception | None = None
    for given in inputs.candidates(model):
        try:
            if tensors(model(**given)):
                return given
        except Exception as error:
            first = first or error
    raise configs.NotBuilt(f"no known inputs are accepted: {short(first) if first else 'it has no outputs'}")


def _config(architecture: str, kind: Any) -> Any:
    """A configuration from which a model can be built, of the two variants."""
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
    """Runs every case of a model; the outcome of a failed case is its error."""
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
    # Some models use random numbers.
    torch.manual_seed(0)
    return model(**given, **extra)


def _tried(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return error


def cached(model: Any, given: dict[str, torch.Tensor], names: Any) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    """A prompt, a continuation and two single tokens."""
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
    """The floating-point tensors of an output in order, each with a mask of rows that are not padding."""
    if isinstance(output, torch.Tensor):
        if not output.is_floating_point():
            return []
        rows = keep is not None and output.shape[:2] == keep.shape
        return [(output, keep if rows else None)]
    if isinstance(output, Cache):
        return []
    if hasattr(output, "items"):
        # Only eager attention returns attention weights.
        output = [one for name, one in output.items() if not name.endswith("attentions")]
    return [pair for one in output for pair in tensors(one, keep)] if isinstance(output, (list, tuple)) else []


def run_half(subject: Subject, model: Any) -> Any:
    given = {name: one.to(torch.bfloat16) if one.is_floating_point() else one for name, one in subject.given.items()}
    extra = {"use_cache": False} if "use_cache" in inputs.parameters(model) else {}
    try:
        return tensors(_call(model, given, extra))
    except Exception as error:
        if "layerzero" in str(error):
            raise
        return None


def short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:240]
