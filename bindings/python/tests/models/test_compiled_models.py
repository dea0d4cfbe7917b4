"""Transformers models with tiny configurations, compiled and compared with eager execution for several sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

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

CAUSAL: dict[str, dict[str, Any]] = {
    "llama": DECODER,
    "mistral": {**DECODER, "sliding_window": None},
    "qwen2": DECODER,
    "qwen3": {**DECODER, "head_dim": 8},
    "gemma": {**DECODER, "head_dim": 8},
    "phi": {**DECODER},
    "phi3": DECODER,
    "granite": DECODER,
    "olmo": DECODER,
    "olmo2": DECODER,
    "starcoder2": {**DECODER, "sliding_window": None},
    "stablelm": DECODER,
    "glm": {**DECODER, "head_dim": 8},
    "smollm3": DECODER,
    "gpt_neox": {**ENCODER},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 64},
    "opt": {**SMALL, "ffn_dim": 48, "word_embed_proj_dim": 32, "pad_token_id": 0},
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
}
VISION: dict[str, dict[str, Any]] = {
    name: {**ENCODER, "image_size": 16, "patch_size": 4, "num_channels": 3} for name in ("vit", "deit", "dinov2", "beit")
}

class _First(torch.nn.Module):
    """Only the first result, without a cache, which `torch.export` cannot describe."""

    def __init__(self, model: torch.nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keywords = {"use_cache": False} if self.name == "input_ids" and hasattr(self.model.config, "use_cache") else {}
        return self.model(**{self.name: x}, **keywords)[0]

def _model(kind: str, config: dict[str, Any], causal: bool, name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    settings = AutoConfig.for_model(kind, **config)
    make = AutoModelForCausalLM if causal else AutoModel
    return _First(make.from_config(settings, attn_implementation="sdpa").eval(), name).eval()

def _check(model: torch.nn.Module, compiled: lz.CompiledModel, x: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)

@pytest.mark.parametrize("kind", [*CAUSAL, *ENCODERS])
def test_language_model_equals_eager_for_every_size(kind: str) -> None:
    causal = kind in CAUSAL
    model = _model(kind, CAUSAL[kind] if causal else ENCODERS[kind], causal, "input_ids")
    shapes = ({0: Dim("batch", min=1, max=16), 1: Dim("length", min=2, max=60)},)
    compiled = lz.compile(model, (torch.randint(3, 64, (2, 12)),), dynamic_shapes=shapes)
    for batch, length in ((2, 12), (1, 5), (3, 33)):
        _check(model, compiled, torch.randint(3, 64, (batch, length)))

@pytest.mark.parametrize("kind", VISION)
def test_vision_model_equals_eager(kind: str) -> None:
    model = _model(kind, VISION[kind], False, "pixel_values")
    compiled = lz.compile(model, (torch.randn(2, 3, 16, 16),), dynamic_shapes=({0: Dim("batch", min=1, max=8)},))
    for batch in (2, 1, 4):
        _check(model, compiled, torch.randn(batch, 3, 16, 16))

