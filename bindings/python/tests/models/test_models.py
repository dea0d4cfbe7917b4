"""Tiny models with random weights: LayerZero's attention gives the same logits and tokens as torch's."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from layerzero.integrations import transformers as integration  # noqa: E402

integration.register()
VOCABULARY = 96


def tiny(**more):
    return {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None, **more}


SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
GEMMA = {**SMALL, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 6, "attn_logit_softcapping": 2.0}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**tiny(**SMALL)),
    "gpt2": lambda: transformers.GPT2Config(**tiny(n_embd=32, n_layer=2, n_head=4, n_positions=64)),
    "mistral": lambda: transformers.MistralConfig(**tiny(**SMALL, sliding_window=6)),
    "gemma2": lambda: transformers.Gemma2Config(**tiny(**GEMMA)),
}


def model(name, implementation):
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation=implementation)
    return made.eval()


def pair(name):
    # torch's attention has no soft cap, so Gemma is compared with the eager formula.
    return model(name, "eager" if name == "gemma2" else "sdpa"), model(name, "layerzero")


def prompts():
    """A batch whose first row is padded on the left."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(2, VOCABULARY, (2, 11), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    return ids.masked_fill(mask == 0, 0), mask


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_logits(name):
    theirs, ours = pair(name)
    ids, mask = prompts()
    torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=1e-4, atol=1e-4)
    expected, actual = (one(ids, attention_mask=mask).logits for one in (theirs, ours))
    # Padded positions are ignored.
    torch.testing.assert_close(actual[mask == 1], expected[mask == 1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_generated_tokens(name, cache):
    theirs, ours = pair(name)
    ids, mask = prompts()
    keywords = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "disable_compile": True}
    if cache == "static":
        keywords["cache_implementation"] = "static"
    expected, actual = (one.generate(ids, **keywords) for one in (theirs, ours))
    assert torch.equal(actual, expected)
    torch.manual_seed(5)
    drawn = theirs.generate(ids, **{**keywords, "do_sample": True})
    torch.manual_seed(5)
    assert torch.equal(ours.generate(ids, **{**keywords, "do_sample": True}), drawn)


@torch.no_grad()
def test_encoder_attention_is_bidirectional():
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    found = []
    for implementation in ("sdpa", "layerzero"):
        torch.manual_seed(0)
        found.append(transformers.AutoModel.from_config(config, attn_implementation=implementation).eval())
    ids, mask = prompts()
    for keywords in ({}, {"attention_mask": mask}):
        expected, actual = (one(ids, **keywords).last_hidden_state for one in found)
        keep = keywords.get("attention_mask", torch.ones_like(ids)) == 1
        torch.testing.assert_close(actual[keep], expected[keep], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_compiled_model_has_no_breaks():
    ours = model("llama", "layerzero")
    ids, _ = prompts()
    expected = ours(ids, use_cache=False).logits
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(ids, use_cache=False).logits, expected, rtol=1e-4, atol=1e-4)


def test_gradients_and_dropout_are_refused():
    ours = model("llama", "layerzero")
    ids, _ = prompts()
    with pytest.raises(Exception, match="requires grad"):
        ours(ids)
