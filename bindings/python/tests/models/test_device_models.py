"""Transformers models and generation whose steps torch runs, as on a device, compared with eager execution and the native executor."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
import test_generation as generation  # noqa: E402
from test_compiled_models import CAUSAL, ENCODERS  # noqa: E402
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM  # noqa: E402

import layerzero as lz  # noqa: E402


class Ids(torch.nn.Module):
    """A model of token ids without a cache."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result = self.model(input_ids=ids, use_cache=False) if hasattr(self.model, "lm_head") else self.model(input_ids=ids)
        return result.logits if hasattr(result, "logits") else result.last_hidden_state


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma2", "gpt2", "bert"])
def test_models_equal_eager_execution(kind):
    torch.manual_seed(0)
    if kind in ENCODERS:
        model = AutoModel.from_config(AutoConfig.for_model(kind, **ENCODERS[kind]))
    else:
        attention = "eager" if kind == "gemma2" else "sdpa"
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **CAUSAL[kind]), attn_implementation=attention)
    model = Ids(model).eval()
    sizes = ({0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=64)},)
    compiled = lz.compile(model, (torch.randint(3, 60, (2, 9)),), dynamic_shapes=sizes, executor="torch")
    for batch, length in ((2, 9), (1, 1), (3, 17)):
        ids = torch.randint(3, 60, (batch, length))
        with torch.no_grad():
            torch.testing.assert_close(compiled(ids), model(ids), rtol=1e-3, atol=1e-3)
    assert compiled.fallbacks == []


@pytest.mark.parametrize("cache", ["contiguous", "paged"])
@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_generation_equals_greedy_decoding(kind, cache):
    model = generation.tiny(kind)
    generator = lz.Generator(model, cache=cache, executor="torch")
    prompts = generation.prompts()
    found = lz.generate(generator, prompts, max_new_tokens=generation.NEW)
    assert found == [generation.greedy(model, prompt) for prompt in prompts]
    # Programs of the session's caches are dropped with it.
    gc.collect()
    assert generator.cached_plans <= 1
    assert generator.fallbacks == []


def test_bfloat16_decodes_like_the_native_executor():
    model = generation.tiny("llama").to(torch.bfloat16)
    native, by_torch = lz.Generator(model), lz.Generator(model, executor="torch")
    steps = [{0: [5, 9, 11], 1: [7]}, {0: [4], 1: [4]}, {1: [3, 3]}]
    sessions = [native.session(), by_torch.session()]
    for step in steps:
        expected, found = (session.step(step) for session in sessions)
        torch.testing.assert_close(found.float(), expected.float(), rtol=5e-2, atol=0.3)


def test_quantized_weights_decode_like_the_native_executor():
    model = generation.tiny("llama")
    native, by_torch = lz.Generator(model, weights="int8"), lz.Generator(model, executor="torch", weights="int8")
    assert by_torch.accuracy.bytes_after == native.accuracy.bytes_after
    sessions = [native.session(), by_torch.session()]
    for step in ({0: [5, 9, 11], 1: [7]}, {0: [4], 1: [4]}):
        expected, found = (session.step(step) for session in sessions)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
