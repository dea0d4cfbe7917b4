"""Transformers models: the attention interface as one node of compiled graphs, and the backend of `torch.compile`."""

from __future__ import annotations

import pytest
import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

import layerzero as lz
from layerzero.integrations import torch_compile
from layerzero.integrations import transformers as lz_transformers


def _llama(attention: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=100,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config).eval()


class Logits(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, use_cache=False).logits


@torch.no_grad()
def test_attention_interface_is_one_node() -> None:
    lz_transformers.register()
    model = Logits(_llama("layerzero")).eval()
    ids = torch.randint(0, 100, (2, 7))
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    compiled = lz.compile(model, (ids,), dynamic_shapes=(sizes,))
    calls = [step["operation"] for step in compiled.plan(ids)["steps"]]
    assert calls.count("attention.gqa.prefill") == 2 and "primitive.softmax" not in calls, calls
    for shape in ((2, 7), (1, 1), (3, 20)):
        ids = torch.randint(0, 100, shape)
        torch.testing.assert_close(compiled(ids), model(ids), rtol=1e-4, atol=1e-4)


@pytest.fixture
def _fresh() -> None:
    torch._dynamo.reset()
    torch_compile.reset()


@torch.no_grad()
@pytest.mark.usefixtures("_fresh")
def test_torch_compile_of_a_causal_model() -> None:
    model = _llama("sdpa")
    compiled = torch.compile(model, backend="layerzero", dynamic=True)
    for shape in ((2, 7), (3, 12), (2, 30)):
        ids = torch.randint(0, 100, shape)
        found = compiled(input_ids=ids, use_cache=False).logits
        torch.testing.assert_close(found, model(input_ids=ids, use_cache=False).logits, rtol=1e-4, atol=1e-4)
    assert any(graph.compiled for graph in torch_compile.graphs())


@torch.no_grad()
@pytest.mark.usefixtures("_fresh")
def test_torch_compile_of_an_encoder() -> None:
    torch.manual_seed(0)
    config = BertConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=100)
    model = BertModel(config).eval()
    compiled = torch.compile(model, backend="layerzero", dynamic=True)
    mask = torch.ones(3, 9, dtype=torch.int64)
    mask[1, 5:] = 0
    ids = torch.randint(0, 100, (3, 9))
    found = compiled(input_ids=ids, attention_mask=mask).last_hidden_state
    expected = model(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
