"""SmolLM2-135M with its published weights: the same logits and the same tokens."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import smollm2  # noqa: E402

from layerzero.integrations import transformers as integration  # noqa: E402


@torch.no_grad()
def test_logits_and_sixty_four_greedy_tokens():
    integration.register()
    tokenizer, model = smollm2.load()
    prompt = tokenizer("The three laws of motion say that", return_tensors="pt")
    found = []
    for implementation in ("sdpa", "layerzero"):
        model.set_attn_implementation(implementation)
        logits = model(**prompt).logits
        tokens = model.generate(**prompt, max_new_tokens=64, min_new_tokens=64, do_sample=False, pad_token_id=0)
        found.append((logits, tokens))
    (expected, words), (actual, ours) = found
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=2e-3)
    assert torch.equal(ours, words) and ours.shape[1] == prompt["input_ids"].shape[1] + 64
    integration.swap_norms(model)
    torch.testing.assert_close(model(**prompt).logits, expected, rtol=1e-3, atol=2e-3)
