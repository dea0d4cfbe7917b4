"""Compiled generation: greedy tokens equal those of Transformers in eager mode, for one prompt and ragged batches."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

import layerzero as lz  # noqa: E402

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96, "max_position_embeddings": 128,
    "num_key_value_heads": 2, "intermediate_size": 48, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
    "tie_word_embeddings": False,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama": SMALL,
    "qwen2": SMALL,
    "qwen3": {**SMALL, "head_dim": 8},
    "gemma": {**SMALL, "head_dim": 8},
    "gemma2": {**SMALL, "head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 8},
    "mistral": {**SMALL, "sliding_window": 6},
    "phi3": SMALL,
    "olmo2": SMALL,
    "granite": SMALL,
    "stablelm": SMALL,
    "gpt_neox": {key: value for key, value in SMALL.items() if key != "num_key_value_heads"},
    "qwen3_moe": {**SMALL, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 96, "n_positions": 128, "eos_token_id": None, "bos_token_id": None},
}
NEW = 16


def tiny(kind: str, **changes: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**MODELS[kind], **changes})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager" if kind == "gemma2" else "sdpa").eval()
    # With the small weights of an untrained model all tokens are alike; larger ones give varied tokens.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, 0.3)
    return model


@functools.cache
def llama() -> tuple[torch.nn.Module, lz.Generator]:
    """A model and its generator, for tests that change neither."""
    model = tiny("llama")
    return model, lz.Generator(model)


@torch.no_grad()
def greedy(model: torch.nn.Module, prompt: list[int], count: int = NEW) -> list[int]:
    """Tokens of the model itself, without a cache."""
    tokens = torch.tensor([prompt])
    for _ in range(count):
        tokens = torch.cat([tokens, model(input_ids=tokens, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    return tokens[0, len(prompt) :].tolist()


def prompts() -> list[list[int]]:
    torch.manual_seed(1)
    return [torch.randint(3, 96, (length,)).tolist() for length in (5, 1, 23, 11)]


@pytest.mark.parametrize("kind", MODELS)
def test_greedy_tokens_equal_eager_for_one_prompt_and_a_ragged_batch(kind: str) -> None:
    model = tiny(kind)
    generator = lz.Generator(model, validation="strict")
    expected = [greedy(model, prompt) for prompt in prompts()]
    assert len({token for tokens in expected for token in tokens}) > 8
    assert lz.generate(generator, prompts()[2], max_new_tokens=NEW) == expected[2]
    assert lz.generate(generator, prompts(), max_new_tokens=NEW) == expected
    assert model.config._attn_implementation in ("sdpa", "eager")


def test_paged_caches_give_the_same_tokens() -> None:
    model = tiny("mistral")
    generator = lz.Generator(model, cache="paged", page_size=4)
    assert generator.generate(prompts(), max_new_tokens=NEW) == [greedy(model, prompt) for prompt in prompts()]


def test_decode_steps_share_one_plan() -> None:
    for cache in ("contiguous", "paged"):
        generator = lz.Generator(tiny("llama"), cache=cache, validation="none")
        generator.generate([5, 6, 7], max_new_tokens=40)
        # One for the prompt, one for all decode steps.
        assert generator.cached_plans == 2


def test_streams_tokens_and_stops() -> None:
    model, generator = llama()
    whole = greedy(model, prompts()[0])
    assert list(generator.stream(prompts()[0], max_new_tokens=NEW)) == whole
    seen: list[Any] = []
    lz.generate(generator, prompts(), max_new_tokens=3, stream=seen.append)
    assert len(seen) == 3 and [step[0] for step in seen] == whole[:3]
    end = whole[4]
    first = whole.index(end) + 1
    assert lz.generate(generator, prompts()[0], max_new_tokens=NEW, eos=end) == whole[:first]
    assert lz.generate(generator, prompts()[0], max_new_tokens=NEW, stop=[whole[2:4]]) == whole[:4]
    assert lz.generate(generator, prompts()[0], max_new_tokens=0) == []


def test_a_sequence_that_ends_leaves_the_others_unchanged() -> None:
    model, generator = llama()
    expected = [greedy(model, prompt) for prompt in prompts()]
    end = expected[1][2]
    found = lz.generate(generator, prompts(), max_new_tokens=NEW, eos=end)
    for tokens, whole in zip(found, expected, strict=True):
        assert tokens == (whole[: whole.index(end) + 1] if end in whole else whole)


def test_sampling_repeats_with_the_seed_and_does_not_depend_on_finished_sequences() -> None:
    _, generator = llama()
    options: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "top_k": 20, "max_new_tokens": NEW}
    first = generator.generate(prompts(), seed=7, **options)
    assert first == generator.generate(prompts(), seed=7, **options)
    assert first != generator.generate(prompts(), seed=8, **options)
    end = first[1][1]
    ended = generator.generate(prompts(), seed=7, eos=end, **options)
    for tokens, whole in zip(ended, first, strict=True):
        assert tokens == (whole[: whole.index(end) + 1] if end in whole else whole)
    assert generator.generate(prompts(), top_k=1, max_new_tokens=NEW) == generator.generate(prompts(), max_new_tokens=NEW)
    assert generator.generate(prompts(), temperature=0.0, max_new_tokens=4) == generator.generate(prompts(), max_new_tokens=4)


def test_sessions_append_truncate_and_remove() -> None:
    model = tiny("llama")
    generator = lz.Generator(model, cache="paged", page_size=4)
    session = generator.session()
    tokens = prompts()[2]
    whole = session.step({0: tokens})
    # In parts, next to another sequence, and again after a part was removed.
    session.step({1: tokens[:7], 2: tokens[:3]})
    session.step({1: tokens[7:20]})
    parts = session.step({2: tokens[3:], 1: tokens[20:]})
    torch.testing.assert_close(parts, whole.expand(2, -1), rtol=1e-4, atol=1e-4)
    session.truncate(1, 9)
    torch.testing.assert_close(session.step({1: tokens[9:]}), whole, rtol=1e-4, atol=1e-4)
    before = session.nbytes
    session.remove(0)
    session.step({3: tokens})
    assert session.nbytes == before and set(session.lengths) == {1, 2, 3}
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([tokens])).logits[:, -1]
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-4)


def test_threads_share_a_generator() -> None:
    model, generator = llama()
    expected = [greedy(model, prompt) for prompt in prompts()]
    found: dict[int, list[int]] = {}
    texts = prompts()

    def run(index: int) -> None:
        found[index] = generator.generate(texts[index], max_new_tokens=NEW)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(expected))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index] for index in range(len(expected))] == expected


@torch.no_grad()
def test_generate_of_transformers_runs_the_compiled_model() -> None:
    model, generator = llama()
    longest = max(map(len, prompts()))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts()])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts()])
    options: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "repetition_penalty": 1.3}
    expected = model.generate(input_ids=ids, attention_mask=mask, **options)
    found = model.generate(input_ids=ids, attention_mask=mask, custom_generate=generator.custom_generate, **options)
    assert torch.equal(found, expected)
    with pytest.raises(NotImplementedError, match="beam search"):
        model.generate(input_ids=ids, attention_mask=mask, custom_generate=generator.custom_generate, num_beams=2, max_new_tokens=2)


def test_wrong_arguments_are_refused() -> None:
    _, generator = llama()
    with pytest.raises(ValueError, match="at least one token"):
        generator.generate([[1], []])
    with pytest.raises(ValueError, match="128 positions"):
        generator.generate([3] * 120, max_new_tokens=20)
    with pytest.raises(ValueError, match="temperature"):
        generator.generate([3], temperature=-1.0)
    with pytest.raises(ValueError, match="unknown KV-cache strategy"):
        lz.Generator(tiny("llama"), cache="virtual")
    with pytest.raises(lz.GraphImportError, match="training mode"):
        lz.Generator(tiny("llama").train())


def test_models_that_compute_attention_themselves_are_refused() -> None:
    config = AutoConfig.for_model("bloom", hidden_size=32, n_layer=1, n_head=4, vocab_size=96)
    with pytest.raises(lz.GraphImportError):
        lz.Generator(AutoModelForCausalLM.from_config(config).eval())


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quantized_generators_report_their_accuracy(weights: Any) -> None:
    model = tiny("llama", hidden_size=64, intermediate_size=128)
    generator = lz.Generator(model, weights=weights)
    assert generator.accuracy is not None
    assert generator.accuracy.bytes_after < generator.accuracy.bytes_before / (3 if weights == "int8" else 5)
    assert all(layer.error is not None and layer.error < (0.01 if weights == "int8" else 0.15) for layer in generator.accuracy.layers)
    assert generator.accuracy.outputs[0] < (0.1 if weights == "int8" else 0.9)
    assert len(generator.generate([4, 5, 6], max_new_tokens=8)) == 8
