"""Inputs for the forward of a tiny model, by the names of its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch

from .configs import FIRST_SPECIAL, HIDDEN

BATCH, LENGTH, PAD = 2, 11, 4
Inputs = dict[str, torch.Tensor]


def parameters(model: torch.nn.Module) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(model.forward).parameters)


def find(config: Any, name: str, default: Any = None) -> Any:
    """A field of a configuration or of the first of its sub-configurations that has it."""
    value = getattr(config, name, None)
    if value is not None:
        return value
    for key in getattr(config, "sub_configs", {}):
        inner = getattr(config, key, None)
        if inner is not None and (value := find(inner, name)) is not None:
            return value
    return default


def candidates(model: Any) -> Iterator[Inputs]:
    """Inputs that a model may need, the most likely first."""
    names = parameters(model)
    generator = torch.Generator().manual_seed(3)
    main = getattr(model, "main_input_name", "input_ids")
    shared = _shared(model, names, generator)
    texts = {"input_ids": _text(generator)} if "input_ids" in names else {}
    if "input_ids" in names and "image_embeds_position_mask" in names:
        shared["image_embeds_position_mask"] = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    images = list(_images(model.config, names, generator))
    sounds = list(_sounds(model.config, names, generator))
    others = images + sounds
    if main not in ("input_ids", "decoder_input_ids") or not texts:
        yield from ({**shared, **other} for other in others)
    if texts:
        yield {**shared, **texts}
        yield from ({**shared, **texts, **other} for other in others)
        yield from ({**shared, **texts, **image, **sound} for image in images for sound in sounds)
    yield from ({**shared, **other} for other in others)
    yield shared


def _text(generator: torch.Generator, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(5, FIRST_SPECIAL - 10, (BATCH, length), generator=generator)


def _shared(model: Any, names: Any, generator: torch.Generator) -> Inputs:
    """Inputs whose form is known from their name."""
    config = model.config
    given: Inputs = {}
    if "decoder_input_ids" in names:
        given["decoder_input_ids"] = _text(generator, 7)
    if "qformer_input_ids" in names:
        given["qformer_input_ids"] = _text(generator)
    if "bbox" in names:
        given["bbox"] = torch.arange(4).expand(BATCH, LENGTH, 4).contiguous()
    if "query_embeds" in names:
        given["query_embeds"] = torch.randn(BATCH, 4, HIDDEN, generator=generator)
    if "visual_feats" in names:
        given["visual_feats"] = torch.randn(BATCH, 5, find(config, "visual_feat_dim", HIDDEN), generator=generator)
        given["visual_pos"] = torch.rand(BATCH, 5, 4, generator=generator)
    if "flattened_patches" in names:
        width = find(config, "patch_embed_hidden_size", HIDDEN)
        patches = torch.randn(BATCH, 6, width + 2, generator=generator)
        patches[..., :2] = torch.arange(6)[:, None]
        given["flattened_patches"] = patches
    if "past_values" in names and "past_time_features" not in names:
        given["past_values"] = torch.randn(BATCH, find(config, "context_length", 32), find(config, "num_input_channels", 1), generator=generator)
    if "past_time_features" in names:
        past = find(config, "context_length", 32) + max(find(config, "lags_sequence", [1]))
        features = getattr(config, "num_time_features", 0)
        given["past_values"] = torch.randn(BATCH, past, generator=generator)
        given["past_time_features"] = torch.randn(BATCH, past, features, generator=generator)
        given["past_observed_mask"] = torch.ones(BATCH, past)
        given["future_values"] = torch.randn(BATCH, 4, generator=generator)
        given["future_time_features"] = torch.randn(BATCH, 4, features, generator=generator)
    return given


def _images(config: Any, names: Any, generator: torch.Generator) -> Iterator[Inputs]:
    size = find(config, "image_size", 32)
    height, width = (size[0], size[-1]) if isinstance(size, (list, tuple)) else (size, size)
    channels = find(config, "num_channels") or 3
    channels = channels if isinstance(channels, int) else 3
    if "grid_thw" in names:
        patch = find(config, "patch_size", 8)
        features = channels * (patch[0] if isinstance(patch, (list, tuple)) else patch) ** 2 * (find(config, "temporal_patch_size") or 1)
        name = "hidden_states" if "hidden_states" in names else "pixel_values"
        given = {name: torch.randn(BATCH * 16, features, generator=generator), "grid_thw": torch.tensor([[1, 4, 4]] * BATCH)}
        if "merge_sizes" in names:
            given["merge_sizes"] = torch.tensor([2] * BATCH)
        yield given
    image = torch.randn(BATCH, channels, height, width, generator=generator)
    frames = int(find(config, "num_frames") or 4)
    video = torch.randn(BATCH, frames, channels, height, width, generator=generator)
    if "spatial_shapes" in names:
        patch = find(config, "patch_size", 8)
        yield {
            "pixel_values": torch.randn(BATCH, 16, channels * patch**2, generator=generator),
            "pixel_attention_mask": torch.ones(BATCH, 16, dtype=torch.int64),
            "spatial_shapes": torch.tensor([[4, 4]] * BATCH),
        }
    if "pixel_values" in names:
        extra: Inputs = {}
        if "image_sizes" in names:
            extra["image_sizes"] = torch.tensor([[height, width]] * BATCH)
        yield {"pixel_values": image}
        yield {"pixel_values": image, **extra}
        yield {"pixel_values": video, **extra}
        for side in (64, 224):
            yield {"pixel_values": torch.randn(BATCH, channels, side, side, generator=generator)}
        yield {"pixel_values": torch.randn(BATCH, 2, channels, height, width, generator=generator), **extra}
    if "pixel_values_videos" in names:
        yield {"pixel_values_videos": video}


def _sounds(config: Any, names: Any, generator: torch.Generator) -> Iterator[Inputs]:
    bins = find(config, "num_mel_bins") or find(config, "feature_size") or find(config, "input_dim") or find(config, "input_feat_per_channel") or 16
    length = 2 * (find(config, "max_source_positions") or 20)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    for name in ("input_features", "input_values", "audio_values", "audio_mel"):
        if name not in names:
            continue
        forms = [random(BATCH, bins, length), random(BATCH, length, bins)]
        for width in (80, 160, 64, 128):
            forms += [random(BATCH, 40, width), random(BATCH, width, 40)]
        waves = [random(BATCH, 2400), random(BATCH, 1, 2400)]
        if find(config, "max_length") and find(config, "num_mel_bins"):
            forms.insert(0, random(BATCH, find(config, "max_length"), bins))
        for form in waves + forms if name == "input_values" else forms + waves:
            given = {name: form}
            for mask in ("input_features_mask", "padding_mask", "audio_mel_mask"):
                if mask in names:
                    given[mask] = torch.ones(BATCH, form.shape[-1] if form.shape[1] in (bins, 1) or form.ndim == 2 else form.shape[1], dtype=torch.bool)
            yield given


def padded(given: Inputs, side: str, config: Any) -> Inputs:
    """The same inputs with the first row's text padded on one side."""
    ids = given["input_ids"].clone()
    mask = torch.ones_like(ids)
    row = slice(0, PAD) if side == "left" else slice(ids.shape[1] - PAD, ids.shape[1])
    mask[0, row] = 0
    pad = find(config, "pad_token_id", 0)
    ids[0, row] = pad if isinstance(pad, int) and pad >= 0 else 0
    return {**given, "input_ids": ids, "attention_mask": mask}


def with_images(model: Any, given: Inputs) -> Inputs | None:
    """Texts with as many placeholders as the images have features, for models that merge them."""
    token = find(model.config, "image_token_id") or find(model.config, "image_token_index")
    names = parameters(model)
    if token is None or not hasattr(model, "get_image_features") or "pixel_values" not in names or set(given) != {"input_ids"}:
        return None
    generator = torch.Generator().manual_seed(5)
    accepted = set(inspect.signature(model.get_image_features).parameters)
    if "image_grid_thw" in names:
        images: Iterator[Inputs] = ({**one, "image_grid_thw": one["grid_thw"]} for one in _images(model.config, ("grid_thw",), generator))
    else:
        images = _images(model.config, names, generator)
    for image in images:
        image = {name: one for name, one in image.items() if name in names}
        try:
            features = model.get_image_features(**{name: one for name, one in image.items() if name in accepted})
            features = getattr(features, "pooler_output", features)
            count = sum(one.shape[0] for one in features) if isinstance(features, (list, tuple)) else features.flatten(0, -2).shape[0]
            placeholders = torch.full((BATCH, count // BATCH), token)
            ids = given["input_ids"]
            inputs = {"input_ids": torch.cat((ids[:, :2], placeholders, ids[:, 2:]), 1), **image}
            if "mm_token_type_ids" in names:
                inputs["mm_token_type_ids"] = (inputs["input_ids"] == token).long()
            model(**inputs)
            return inputs
        except Exception:
            continue
    return None
