"""Attention that the integration cannot express is refused, or computed by the model itself with a warning."""

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from layerzero.integrations import transformers as integration  # noqa: E402

TINY = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def registered():
    integration.register()
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def inputs():
    ids = torch.randint(2, 96, (2, 9), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    return ids.masked_fill(mask == 0, 0), mask


def built(config, implementation):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation=implementation).eval()
    for parameter in model.parameters():
        parameter.data = parameter.data + torch.randn_like(parameter) * 0.2
    return model


def bloom():
    return transformers.BloomConfig(vocab_size=96, hidden_size=32, n_layer=2, n_head=4, pad_token_id=0)


def test_model_without_the_attention_table_keeps_its_own_attention():
    ids, mask = inputs()
    expected = built(bloom(), "eager")(ids, attention_mask=mask).logits
    with pytest.warns(UserWarning, match="BloomForCausalLM computes attention without the table .* keeps its own .eager."):
        model = built(bloom(), "layerzero")
    assert model.config._attn_implementation == "eager"
    assert torch.equal(model(ids, attention_mask=mask).logits, expected)


def test_configuration_changed_later_gets_the_expected_masks():
    ids, mask = inputs()
    model = built(bloom(), "eager")
    expected = model(ids, attention_mask=mask).logits
    model.config._attn_implementation = "layerzero"
    assert torch.equal(model(ids, attention_mask=mask).logits, expected)


def test_model_with_a_class_per_implementation_is_supported():
    config = transformers.GPTJConfig(vocab_size=96, n_embd=32, n_layer=2, n_head=4, rotary_dim=4, n_positions=64)
    ids, mask = inputs()
    expected = built(config, "eager")(ids, attention_mask=mask).logits
    with pytest.warns(UserWarning, match="GPTJForCausalLM .* keeps its own"):
        model = built(config, "layerzero")
    torch.testing.assert_close(model(ids, attention_mask=mask).logits, expected)


def test_changing_the_implementation_of_a_built_model():
    model = built(transformers.LlamaConfig(**TINY), "sdpa")
    ids, mask = inputs()
    expected = model(ids, attention_mask=mask).logits
    model.set_attn_implementation("layerzero")
    assert model.config._attn_implementation == "layerzero"
    torch.testing.assert_close(model(ids, attention_mask=mask).logits[mask == 1], expected[mask == 1], rtol=1e-4, atol=1e-4)


def attention(model):
    return model.model.layers[0].self_attn


def tensors(dtype=torch.float32):
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(1, heads, 5, 8, generator=generator).to(dtype) for heads in (4, 2, 2)]


@pytest.mark.parametrize("name", ["indices", "block_indices", "cache", "something_new"])
def test_an_unknown_keyword_is_refused(name):
    module = attention(built(transformers.LlamaConfig(**TINY), "layerzero"))
    with pytest.raises(NotImplementedError, match=f"keyword `{name}`.*LlamaAttention.*sdpa"):
        integration.attention_forward(module, *tensors(), None, scaling=0.3, **{name: torch.ones(1)})
    integration.attention_forward(module, *tensors(), None, scaling=0.3, **{name: None})


def gpt_oss():
    more = {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
    return transformers.GptOssConfig(**TINY, **more)


def test_attention_sinks_are_computed():
    ids, mask = inputs()
    theirs, ours = built(gpt_oss(), "eager"), built(gpt_oss(), "layerzero")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ours(ids, attention_mask=mask).logits
    torch.testing.assert_close(found[mask == 1], theirs(ids, attention_mask=mask).logits[mask == 1], rtol=1e-4, atol=1e-4)


def test_differing_formula_uses_the_models_own():
    """The formula of GPT-OSS has attention sinks even if no keyword passes them."""
    module = attention(built(gpt_oss(), "layerzero"))
    source = __import__(type(module).__module__, fromlist=["eager_attention_forward"])
    expected = source.eager_attention_forward(module, *tensors(), None, scaling=0.3)[0]
    with pytest.warns(UserWarning, match="computes attention differently from this model's own formula.*GptOssAttention"):
        found = integration.attention_forward(module, *tensors(), None, scaling=0.3)[0]
    assert torch.equal(found, expected)


def test_missing_mask_hides_nothing_for_eager_masks():
    module = attention(built(gpt_oss(), "layerzero"))
    source = __import__(type(module).__module__, fromlist=["eager_attention_forward"])
    keywords = {"scaling": 0.3, "s_aux": module.sinks}
    expected = source.eager_attention_forward(module, *tensors(), None, **keywords)[0]
    found = integration.attention_forward(module, *tensors(), None, **keywords)[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_dtype_without_kernels_is_computed_by_sdpa():
    module = attention(built(transformers.LlamaConfig(**TINY), "layerzero"))
    given = tensors(torch.float64)
    with pytest.warns(UserWarning, match="float64; sdpa computes it"):
        found = integration.attention_forward(module, *given, None, scaling=0.3)[0]
    expected = transformers.AttentionInterface()["sdpa"](module, *given, None, scaling=0.3)[0]
    assert torch.equal(found, expected)


def test_requesting_attention_weights_warns():
    module = attention(built(transformers.LlamaConfig(**TINY), "layerzero"))
    with pytest.warns(UserWarning, match="returns no attention weights"):
        integration.attention_forward(module, *tensors(), None, scaling=0.3, output_attentions=True)
    weights = integration.attention_forward(attention(built(gpt_oss(), "layerzero")), *tensors(), None, scaling=0.3, output_attentions=True)[1]
    assert weights.shape == (1, 4, 5, 5)
