"""Inputs for the forward of a tiny model, by the names of its parameters."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from .configs import FIRST_SPECIAL, HIDDEN

BATCH, LENGTH, PAD = 2, 11, 4


def parameters(model: torch.nn.Module) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(model.forward).parameters)


def _find(config: Any, name: str, default: Any = None) -> Any:
    """A field of a configuration or of the first of its sub-configurations that has it."""
    value = getattr(config, name, None)
    if value is not None:
        return value
    for key in getattr(config, "sub_configs", {}):
        inner = getattr(config, key, None)
        if inner is not None and (value := _find(inner, name)) is not None:
            return value
    return default


def _text(generator: torch.Generator, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(5, FIRST_SPECIAL - 10, (BATCH, length), generator=generator)


def _image(config: Any, generator: torch.Generator) -> torch.Tensor:
    size = _find(config, "image_size", 32)
    height, width = (size[0], size[-1]) if isinstance(size, (list, tuple)) else (size, size)
    return torch.randn(BATCH, _find(config, "num_channels", 3), height, width, generator=generator)


def make(model: Any) -> dict[str, torch.Tensor]:
    """What a model's forward needs at least; texts have no padding."""
    config, names = model.config, parameters(model)
    generator = torch.Generator().manual_seed(3)
    main = getattr(model, "main_input_name", "input_ids")
    given: dict[str, torch.Tensor] = {}
    if "input_ids" in names and main != "pixel_values" or main == "input_ids":
        given["input_ids"] = _text(generator)
    elif "input_ids" in names:
        given["input_ids"] = _text(generator)
    if "decoder_input_ids" in names:
        given["decoder_input_ids"] = _text(generator, 7)
    if main == "pixel_values" or ("pixel_values" in names and "input_ids" not in names) or names.get("pixel_values", _OPTIONAL).default is inspect.Parameter.empty:
        given["pixel_values"] = _image(config, generator)
    elif "pixel_values" in names and _needs_image(model):
        given["pixel_values"] = _image(config, generator)
    if main in ("input_values", "input_features", "audio_values") or any(
        name in names and "input_ids" not in names for name in ("input_values", "input_features")
    ):
        name = main if main in names else ("input_values" if "input_values" in names else "input_features")
        given[name] = _audio(config, name, generator)
        if "decoder_input_ids" not in names:
            given.pop("input_ids", None)
    if "grid_thw" in names:
        patches = _find(config, "patch_size", 8)
        width = _find(config, "in_channels") or _find(config, "num_channels") or 3
        width *= (patches[0] if isinstance(patches, (list, tuple)) else patches) ** 2 * (_find(config, "temporal_patch_size") or 1)
        given = {
            "hidden_states" if "hidden_states" in names else "pixel_values": torch.randn(BATCH * 16, width, generator=generator),
            "grid_thw": torch.tensor([[1, 4, 4]] * BATCH),
        }
        if "merge_sizes" in names:
            given["merge_sizes"] = torch.tensor([2] * BATCH)
    if "past_values" in names:
        given["past_values"] = torch.randn(BATCH, _find(config, "context_length", 32), generator=generator)
        if "past_time_features" in names:
            past = _find(config, "context_length", 32) + max(_find(config, "lags_sequence", [1]))
            features = _find(config, "num_time_features", 0) or 0
            given["past_values"] = torch.randn(BATCH, past, generator=generator)
            given["past_time_features"] = torch.randn(BATCH, past, features, generator=generator)
            given["past_observed_mask"] = torch.ones(BATCH, past)
            given["future_values"] = torch.randn(BATCH, 4, generator=generator)
            given["future_time_features"] = torch.randn(BATCH, 4, features, generator=generator)
    if "pixel_values" in given and type(model).__name__.startswith(("VideoMAE", "Vivit", "Timesformer", "XCLIP")):
        given["pixel_values"] = given["pixel_values"][:, None].expand(-1, _find(config, "num_frames", 4), -1, -1, -1).contiguous()
    if "qformer_input_ids" in names:
        given["qformer_input_ids"] = _text(generator)
    if "bbox" in names:
        given["bbox"] = torch.arange(4).expand(BATCH, LENGTH, 4).contiguous()
    if "pixel_values_videos" in names and not given:
        image = _image(config, generator)
        given["pixel_values_videos"] = image[:, None].expand(-1, _find(config, "num_frames", 4), -1, -1, -1).contiguous()
    if "visual_feats" in names:
        given["visual_feats"] = torch.randn(BATCH, 5, _find(config, "visual_feat_dim", HIDDEN), generator=generator)
        given["visual_pos"] = torch.rand(BATCH, 5, 4, generator=generator)
    return {name: value for name, value in given.items() if name in names}


_OPTIONAL = inspect.Parameter("x", inspect.Parameter.KEYWORD_ONLY, default=None)


def _needs_image(model: Any) -> bool:
    kind = type(model).__name__
    return any(part in kind for part in ("CLIP", "Clip", "Siglip", "Flava", "Vilt", "BridgeTower", "OwlV", "Owlv", "Align", "Altclip", "GroupViT", "Metaclip", "Tvp", "Blip"))


def _audio(config: Any, name: str, generator: torch.Generator) -> torch.Tensor:
    if name == "input_values":
        if _find(config, "max_length") and _find(config, "num_mel_bins"):
            return torch.randn(BATCH, _find(config, "max_length"), _find(config, "num_mel_bins"), generator=generator)
        return torch.randn(BATCH, 2400, generator=generator)
    bins = _find(config, "num_mel_bins") or _find(config, "feature_size") or _find(config, "input_dim") or 16
    if _find(config, "max_source_positions"):
        return torch.randn(BATCH, bins, 2 * _find(config, "max_source_positions"), generator=generator)
    return torch.randn(BATCH, 40, bins, generator=generator)


def padded(given: dict[str, torch.Tensor], side: str, config: Any) -> dict[str, torch.Tensor]:
    """The same inputs with the first row's text padded on one side."""
    ids = given["input_ids"].clone()
    mask = torch.ones_like(ids)
    row = slice(0, PAD) if side == "left" else slice(LENGTH - PAD, LENGTH)
    mask[0, row] = 0
    pad = _find(config, "pad_token_id", 0)
    ids[0, row] = pad if isinstance(pad, int) and pad >= 0 else 0
    return {**given, "input_ids": ids, "attention_mask": mask}
