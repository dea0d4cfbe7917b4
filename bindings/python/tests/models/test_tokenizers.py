"""Transformers' fast tokenizers with LayerZero underneath, and tokenizer packages as kernels."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tokenizers
from transformers import PreTrainedTokenizerFast

import layerzero as lz
from layerzero.integrations import tokenizers as integration

DATA = Path(__file__).parents[4] / "target/oracles/tokenizers-4"
TEXTS = [
    "The quick brown fox isn't jumping.",
    "  Straße 東京 👩‍🚀 e\u0301\n\ndef f(x): return 12345",
    "<|endoftext|> a <|endoftext|>",
    "",
]


@pytest.fixture(scope="module", params=["gpt2", "llama3", "qwen3"])
def fast(request):
    return PreTrainedTokenizerFast(
        tokenizer_file=str(DATA / f"{request.param}.json"), pad_token="<|endoftext|>" if request.param != "llama3" else "<|end_of_text|>"
    )


CALLS = [
    {},
    {"add_special_tokens": False},
    {"padding": True},
    {"padding": "max_length", "max_length": 40},
    {"padding": True, "padding_side": "left", "pad_to_multiple_of": 8},
    {"padding": True, "return_tensors": "pt"},
    {"padding": True, "return_tensors": "np"},
    {"truncation": True, "max_length": 5},
    {"return_offsets_mapping": True},
    {"return_attention_mask": False, "return_token_type_ids": True, "return_length": True},
]


@pytest.mark.parametrize("options", CALLS, ids=lambda options: "-".join(options) or "plain")
def test_results_equal_the_from_library(fast, options):
    for texts in (TEXTS, TEXTS[0], [TEXTS[1]]):
        wanted = fast(texts, **options)
        integration.install()
        try:
            found = fast(texts, **options)
            repeated = fast(texts, **options)
        finally:
            integration.uninstall()
        assert list(found) == list(wanted)
        for key in wanted:
            for one in (found, repeated):
                assert type(one[key]) is type(wanted[key])
                np.testing.assert_equal(np.asarray(one[key], dtype=object), np.asarray(wanted[key], dtype=object))
        assert found.is_fast and found.tokens(0) == wanted.tokens(0) and found.char_to_token(0, 0) == wanted.char_to_token(0, 0)


def test_decoding_and_pairs(fast):
    ids = fast(TEXTS)["input_ids"]
    wanted = [fast.decode(row, skip_special_tokens=skip) for row in ids for skip in (False, True)]
    wrapped = integration.wrap(PreTrainedTokenizerFast(tokenizer_object=fast.backend_tokenizer))
    assert isinstance(wrapped, PreTrainedTokenizerFast)
    assert [wrapped.decode(row, skip_special_tokens=skip) for row in ids for skip in (False, True)] == wanted
    assert wrapped(TEXTS[0], TEXTS[1])["input_ids"] == fast(TEXTS[0], TEXTS[1])["input_ids"]


def test_added_tokens_are_used(fast):
    wrapped = integration.wrap(PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer.from_str(fast.backend_tokenizer.to_str())))
    before = wrapped("a [NEW] b")["input_ids"]
    wrapped.add_tokens(["[NEW]"])
    after = wrapped("a [NEW] b")["input_ids"]
    assert after == wrapped.backend_tokenizer.encode("a [NEW] b").ids != before


def test_environment_variable_enables_it():
    program = f"""
import layerzero, transformers
from transformers import PreTrainedTokenizerFast
assert PreTrainedTokenizerFast._encode_plus.__module__ == "layerzero.integrations.tokenizers"
print(PreTrainedTokenizerFast(tokenizer_file={str(DATA / "gpt2.json")!r})("hello world")["input_ids"])
"""
    environment = {**os.environ, "LAYERZERO_TOKENIZERS": "1"}
    done = subprocess.run([sys.executable, "-c", program], check=False, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "[31373, 995]", done.stderr


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def model(request, tmp_path_factory):
    """A SentencePiece model, trained here on a real multilingual text."""
    folder = tmp_path_factory.mktemp("model")
    lines = (DATA / "languages.txt").read_text(encoding="utf-8").splitlines()
    text = [line.strip() for line in lines if line.strip()][::20][:4000]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_prefix=str(folder / "m"),
        vocab_size=2000,
        model_type=request.param,
        character_coverage=0.98,
        byte_fallback=request.param == "bpe",
        minloglevel=2,
    )
    return folder / "m.model"


def test_a_sentencepiece_model_gives_the_tokens_of_its_library(model):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    lines = (DATA / "languages.txt").read_text(encoding="utf-8").splitlines()
    texts = [line for line in lines if line.strip()][3::11][:4000] + TEXTS + ["  two  spaces ", "<s> </s> <unk>"]
    wanted = processor.encode(texts)
    found = lz.tokenize(texts, model)
    assert found == wanted
    assert lz.tokenize(texts[:5], processor) == wanted[:5]
    some = wanted[:500]
    assert lz.detokenize(some, model) == processor.decode(some)


@pytest.mark.parametrize("package", ["tokenizers", "tiktoken", "sentencepiece"])
def test_tokenizer_packages_as_kernels(package, model):
    assert package in lz.load_backends(package)
    id = {"tokenizers": str(DATA / "gpt2.json"), "tiktoken": "cl100k_base", "sentencepiece": model}[package]
    tokenizer = lz.register_tokenizer(f"for-{package}", id)
    texts = [text for text in TEXTS if text]
    with lz.disabled():
        wanted = lz.ops.tokenize_encode(texts, tokenizer)
    lz.lock("tokenize.encode", f"{package}.encode")
    try:
        found = lz.ops.tokenize_encode(texts, tokenizer)
    finally:
        lz.unlock("tokenize.encode")
    assert list(found[0]) == list(wanted[0]) and list(found[1]) == list(wanted[1])
