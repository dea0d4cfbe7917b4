"""Continuous batching of Transformers with LayerZero's attention gives the same tokens as with Transformers' own."""

import warnings

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")

import layerzero as lz  # noqa: E402
from layerzero.integrations import transformers as integration  # noqa: E402

TINY = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0, "eos_token_id": None,
}  # fmt: skip
PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [20, 21, 22], [40]]


def tiny(kind, **more):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**TINY, **more)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        parameter.data = parameter.data + torch.randn_like(parameter) * 0.2
    return model


def generate(model):
    generation = transformers.GenerationConfig(max_new_tokens=6, do_sample=False, eos_token_id=-1, pad_token_id=0)
    batching = transformers.ContinuousBatchingConfig(page_size=4, num_blocks=32, max_batch_tokens=16)
    results = model.generate_batch(PROMPTS, generation, batching, warmup=False)
    assert len(results) == len(PROMPTS)
    return sorted((tuple(one.prompt_ids), tuple(one.generated_tokens)) for one in results.values())


@pytest.fixture
def calls(monkeypatch):
    """Counts the calls of attention over requests of different lengths, and with a mask."""
    counts = {"ragged": 0, "masked": 0}
    ragged, attention = lz.ops.attention_gqa_prefill_ragged, lz.attention

    def count(name, function):
        def counted(*arguments, **keywords):
            counts[name] += 1
            return function(*arguments, **keywords)

        return counted

    monkeypatch.setattr(lz.ops, "attention_gqa_prefill_ragged", count("ragged", ragged))
    monkeypatch.setattr(lz, "attention", count("masked", attention))
    return counts


@pytest.mark.parametrize("kind", ["Llama", "Qwen3"])
def test_requests_of_different_lengths(kind, calls):
    model = tiny(kind)
    expected = generate(model)
    assert not calls["ragged"]
    with integration.paged_attention():
        assert generate(model) == expected
    assert calls["ragged"] >= 12
    calls["ragged"] = 0
    assert generate(model) == expected and not calls["ragged"]


def test_layers_with_windows_use_the_mask(calls):
    model = tiny("Mistral", sliding_window=4)
    expected = generate(model)
    with integration.paged_attention():
        assert generate(model) == expected
    assert calls["masked"] and not calls["ragged"]


def test_attention_that_layerzero_does_not_know_keeps_its_implementation(calls):
    model = tiny("GptOss", num_local_experts=2, num_experts_per_tok=1, layer_types=["full_attention"] * 2)
    expected = generate(model)
    with integration.paged_attention(), pytest.warns(UserWarning, match="not used for paged attention with attention sinks"):
        assert generate(model) == expected
    assert not calls["ragged"] and not calls["masked"]


def test_unknown_keywords_go_to_transformers():
    """`own` is what had the name before."""
    from layerzero.integrations.transformers import _paged

    results = []
    forward = _paged._replacement(lambda *arguments, **keywords: results.append(keywords) or (None, None))
    module = torch.nn.Module()
    module.layer_idx = 0
    q = torch.randn(1, 4, 3, 8)
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            forward(module, q, q, q, None, scaling=0.3, cache=object(), something_new=1)
    assert [one["something_new"] for one in results] == [1, 1]
    assert not caught, "one warning for each reason"
