"""Transformers models with tiny configurations, compiled once and compared with eager execution for several sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, DynamicCache

import layerzero as lz

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}
DECODER = {**SMALL, "num_key_value_heads": 2, "intermediate_size": 48, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ENCODER = {**SMALL, "intermediate_size": 48, "pad_token_id": 0}
EXPERTS = ("mixtral", "qwen3_moe", "olmoe")
WITHOUT_SDPA = ("gemma2", "bloom", "gptj", "mpnet", "convnext", "convnextv2", "resnet", "regnet", "mobilenet_v2")

CAUSAL: dict[str, dict[str, Any]] = {
    "llama": DECODER,
    "mistral": {**DECODER, "sliding_window": None},
    "qwen2": DECODER,
    "qwen3": {**DECODER, "head_dim": 8},
    "gemma": {**DECODER, "head_dim": 8},
    "gemma2": {**DECODER, "head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 8},
    "phi": {**DECODER},
    "phi3": DECODER,
    "granite": DECODER,
    "olmo": DECODER,
    "olmo2": DECODER,
    "starcoder2": {**DECODER, "sliding_window": None},
    "stablelm": DECODER,
    "glm": {**DECODER, "head_dim": 8},
    "smollm3": DECODER,
    "cohere": DECODER,
    "nemotron": DECODER,
    "gpt_neox": {**ENCODER},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 64},
    "opt": {**SMALL, "ffn_dim": 48, "word_embed_proj_dim": 32, "pad_token_id": 0},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 64, "rotary_dim": 4},
    "mixtral": {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen3_moe": {**DECODER, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "olmoe": {**DECODER, "num_experts": 4, "num_experts_per_tok": 2},
}
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": ENCODER,
    "roberta": {**ENCODER, "max_position_embeddings": 66},
    "electra": {**ENCODER, "embedding_size": 32},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": 64, "max_position_embeddings": 64},
    "albert": {**ENCODER, "embedding_size": 16},
    "camembert": {**ENCODER, "max_position_embeddings": 66},
    "xlm-roberta": {**ENCODER, "max_position_embeddings": 66},
    "ernie": ENCODER,
    "modernbert": {**ENCODER, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2},
    "mpnet": {**ENCODER, "max_position_embeddings": 66},
    "clip_text_model": {**ENCODER, "projection_dim": 16, "eos_token_id": 2, "bos_token_id": 1},
}
BART = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 64, "max_position_embeddings": 64, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}  # fmt: skip
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 64, "pad_token_id": 0, "decoder_start_token_id": 0}
ENCODER_DECODERS: dict[str, dict[str, Any]] = {
    "t5": T5,
    "umt5": T5,
    "bart": BART,
    "mbart": BART,
    "marian": BART,
    "pegasus": BART,
    "blenderbot-small": BART,
}
IMAGES = {"image_size": 16, "patch_size": 4, "num_channels": 3}
STAGES = {"num_channels": 3, "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2]}
VISION: dict[str, dict[str, Any]] = {
    **{name: {**ENCODER, **IMAGES} for name in ("vit", "deit", "dinov2", "beit", "vit_msn", "ijepa")},
    "clip_vision_model": {**ENCODER, **IMAGES, "projection_dim": 16},
    "siglip_vision_model": {**ENCODER, **IMAGES},
    "convnext": {"num_channels": 3, "hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2},
    "convnextv2": {"num_channels": 3, "hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2},
    "resnet": {**STAGES, "layer_type": "bottleneck"},
    "regnet": {**STAGES, "groups_width": 4},
    "swin": {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [1, 2], "num_heads": [2, 2], "window_size": 4},
    "mobilenet_v2": {"num_channels": 3, "depth_multiplier": 0.25, "image_size": 32},
}
SIZES = ((2, 12), (1, 5), (3, 33))
BATCH, LENGTH = Dim("batch", min=1, max=16), Dim("length", min=2, max=60)


class _Adapter(torch.nn.Module):
    """Named inputs to the first result, without a cache, which `torch.export` cannot describe."""

    def __init__(self, model: torch.nn.Module, *names: str) -> None:
        super().__init__()
        self.model, self.names = model, names
        takes_cache = "pixel_values" not in names and hasattr(model.config, "use_cache")
        self.keywords = {"use_cache": False} if takes_cache else {}

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, inputs)), **self.keywords)[0]


class _Cached(torch.nn.Module):
    """A causal model with its cache as inputs and outputs: tokens, then keys and values per layer."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, past: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
        cache = DynamicCache()
        for layer, (k, v) in enumerate(past):
            cache.update(k, v, layer)
        result = self.model(input_ids=tokens, past_key_values=cache, use_cache=True)
        return result.logits, [(layer.keys, layer.values) for layer in cache.layers]


def _model(make: Any, kind: str, config: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    attention = "eager" if kind in WITHOUT_SDPA else "sdpa"
    model = make.from_config(AutoConfig.for_model(kind, **config), attn_implementation=attention).eval()
    if kind in EXPERTS:
        # The other implementations have sizes that depend on the routing.
        model.set_experts_implementation("batched_mm")
    return model


def _equal(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def _tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(3, 64, (batch, length))


@pytest.mark.parametrize("kind", [*CAUSAL, *ENCODERS])
@torch.no_grad()
def test_language_model_equals_eager_for_every_size(kind: str) -> None:
    make, config = (AutoModelForCausalLM, CAUSAL[kind]) if kind in CAUSAL else (AutoModel, ENCODERS[kind])
    model = _Adapter(_model(make, kind, config), "input_ids").eval()
    compiled = lz.compile(model, (_tokens(2, 12),), dynamic_shapes=(({0: BATCH, 1: LENGTH},),))
    for batch, length in SIZES:
        tokens = _tokens(batch, length)
        _equal(compiled(tokens), model(tokens))


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt2", "opt", "bert", "distilbert", "modernbert", "mixtral"])
@torch.no_grad()
def test_padded_batches_of_uneven_lengths_equal_eager(kind: str) -> None:
    make, config = (AutoModelForCausalLM, CAUSAL[kind]) if kind in CAUSAL else (AutoModel, ENCODERS[kind])
    model = _Adapter(_model(make, kind, config), "input_ids", "attention_mask").eval()
    sizes = {0: BATCH, 1: LENGTH}
    sample = (_tokens(2, 12), torch.ones(2, 12, dtype=torch.int64))
    compiled = lz.compile(model, sample, dynamic_shapes=((sizes, sizes),))
    for batch, length in SIZES:
        tokens, real = _tokens(batch, length), torch.arange(length)[None]
        # Padding after the tokens, and before them; one row has none.
        for mask in (real < length - torch.arange(batch)[:, None], real >= torch.arange(batch)[:, None]):
            rows = mask.bool()
            _equal(compiled(tokens, mask.long())[rows], model(tokens, mask.long())[rows])


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma", "gpt2", "mistral", "phi3"])
@torch.no_grad()
def test_prefill_and_decode_with_a_cache_equal_eager(kind: str) -> None:
    model = _Cached(_model(AutoModelForCausalLM, kind, CAUSAL[kind])).eval()
    past_length, new = Dim("past", min=2, max=60), Dim("new", min=2, max=60)
    _, past = model(_tokens(2, 7), [])
    sizes = [({0: BATCH, 2: past_length},) * 2] * len(past)
    compiled = lz.compile(model, (_tokens(2, 3), past), dynamic_shapes=({0: BATCH, 1: new}, sizes))
    for batch, length in ((2, 7), (1, 3), (3, 20)):
        _, expected = model(_tokens(batch, length), [])
        found = expected
        # A longer part of the prompt, then single tokens.
        for count in (5, 1, 1, 1):
            tokens = _tokens(batch, count)
            logits, expected = model(tokens, expected)
            ours, found = compiled(tokens, found)
            _equal(ours, logits)
            _equal(found, expected)
    assert compiled.cached_plans <= 12


@pytest.mark.parametrize("kind", ENCODER_DECODERS)
@torch.no_grad()
def test_encoder_decoder_equals_eager_for_every_size(kind: str) -> None:
    model = _Adapter(_model(AutoModelForSeq2SeqLM, kind, ENCODER_DECODERS[kind]), "input_ids", "attention_mask", "decoder_input_ids").eval()
    source = {0: BATCH, 1: LENGTH}
    shapes = ((source, source, {0: BATCH, 1: Dim("target", min=2, max=60)}),)
    compiled = lz.compile(model, (_tokens(2, 12), torch.ones(2, 12, dtype=torch.int64), _tokens(2, 7)), dynamic_shapes=shapes)
    for (batch, length), target in zip(SIZES, (7, 9, 1)):
        mask = (torch.arange(length)[None] < length - torch.arange(batch)[:, None]).long()
        inputs = (_tokens(batch, length), mask, _tokens(batch, target))
        _equal(compiled(*inputs), model(*inputs))


@torch.no_grad()
def test_speech_model_equals_eager() -> None:
    config = {**BART, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 32, "suppress_tokens": None}
    model = _Adapter(_model(AutoModel, "whisper", config), "input_features", "decoder_input_ids").eval()
    shapes = (({0: BATCH}, {0: BATCH, 1: Dim("target", min=2, max=30)}),)
    compiled = lz.compile(model, (torch.randn(2, 8, 40), _tokens(2, 5)), dynamic_shapes=shapes)
    for batch, target in ((2, 5), (1, 9), (3, 1)):
        inputs = (torch.randn(batch, 8, 40), _tokens(batch, target))
        _equal(compiled(*inputs), model(*inputs))


@pytest.mark.parametrize("kind", VISION)
@torch.no_grad()
def test_vision_model_equals_eager(kind: str) -> None:
    size = VISION[kind].get("image_size", 32)
    model = _Adapter(_model(AutoModel, kind, VISION[kind]), "pixel_values").eval()
    compiled = lz.compile(model, (torch.randn(2, 3, size, size),), dynamic_shapes=(({0: Dim("batch", min=1, max=8)},),))
    for batch in (2, 1, 4):
        images = torch.randn(batch, 3, size, size)
        _equal(compiled(images), model(images))


def test_the_suite_has_at_least_44_architectures() -> None:
    assert len({*CAUSAL, *ENCODERS, *ENCODER_DECODERS, *VISION, "whisper"}) >= 44
