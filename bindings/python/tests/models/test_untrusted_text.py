"""Special tokens in untrusted text: encoded as plain text on request, in every entry point."""

import json

import pytest
import tokenizers
from sentencepiece_models import random_texts, train
from transformers import PreTrainedTokenizerFast

import layerzero as lz
from layerzero.integrations import tokenizers as integration

TEXT = "hello<|end|> world <|begin|><tool><|end|><|endoftext|>"


@pytest.fixture
def definition(tokenizer_path):
    return json.loads(tokenizer_path.read_text()) | {"truncation": None, "padding": None}


@pytest.fixture
def library(definition):
    made = tokenizers.Tokenizer.from_str(json.dumps(definition))
    made.encode_special_tokens = True
    return made


def test_special_tokens_in_a_text_are_text(definition, library):
    tokenizer = lz.Tokenizer.from_json(json.dumps(definition))
    special = {token["id"] for token in definition["added_tokens"] if token["special"]}
    texts = [TEXT, "", *(text + TEXT[: number % 50] + text for number, text in enumerate(random_texts(200, 8)))]
    for add in (False, True):
        wanted = [encoding.ids for encoding in library.encode_batch(texts, add_special_tokens=add)]
        assert lz.tokenize(texts, tokenizer, add_special_tokens=add, split_special_tokens=True) == wanted
    plain = lz.tokenize(texts, tokenizer, add_special_tokens=False, split_special_tokens=True)
    assert not special & {id for row in plain for id in row}
    assert special & set(lz.tokenize(TEXT, tokenizer, add_special_tokens=False))
    ids, offsets = lz.tokenize(TEXT, tokenizer, return_offsets=True, split_special_tokens=True)
    assert (ids, [tuple(pair) for pair in offsets]) == (library.encode(TEXT).ids, library.encode(TEXT).offsets)


def test_the_operation_and_every_kernel_take_the_split_tokenizer(definition, library):
    tokenizer = lz.Tokenizer.from_json(json.dumps(definition))
    split = tokenizer.splitting_special_tokens()
    assert split.digest != tokenizer.digest
    assert split.digest == tokenizer.splitting_special_tokens().digest == split.splitting_special_tokens().digest
    wanted = library.encode(TEXT).ids
    # Until its native kernel is verified, a tokenizer is encoded by another one.
    assert tokenizer.wait_verified() and split.wait_verified()
    assert lz.which("tokenize.encode", [TEXT], split).kernel_id == lz.which("tokenize.encode", [TEXT], tokenizer).kernel_id
    assert "tokenizers" in lz.load_backends("tokenizers")
    for kernel in (None, "tokenize.hf.encode", "tokenizers.encode"):
        if kernel:
            lz.lock("tokenize.encode", kernel)
        try:
            assert list(lz.ops.tokenize_encode([TEXT], split)[0]) == wanted, kernel
        finally:
            lz.unlock("tokenize.encode")
    with lz.disabled():
        assert list(lz.ops.tokenize_encode([TEXT], split)[0]) == wanted


def test_encodings_of_tiktoken():
    assert lz.tokenize("<|endoftext|>", "r50k_base") == [50256]
    split = lz.tokenize("<|endoftext|>", "r50k_base", split_special_tokens=True)
    assert 50256 not in split and lz.detokenize(split, "r50k_base") == "<|endoftext|>"


def test_transformers(definition, library):
    wrapped = integration.wrap(PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer.from_str(json.dumps(definition))))
    for _ in range(3):
        assert wrapped(TEXT, split_special_tokens=True)["input_ids"] == library.encode(TEXT).ids
    assert wrapped(TEXT)["input_ids"] != library.encode(TEXT).ids
    wrapped.split_special_tokens = True
    assert wrapped(TEXT)["input_ids"] == library.encode(TEXT).ids == lz.tokenize(TEXT, wrapped)
    assert lz.tokenize(TEXT, library) == library.encode(TEXT).ids


def test_sentencepiece_models_have_nothing_to_split(tmp_path):
    path = train(tmp_path, "bpe")
    assert lz.tokenize("<s> a </s>", path, split_special_tokens=True) == lz.tokenize("<s> a </s>", path)


def test_split_special_tokens_field_is_validated(definition):
    split = lz.Tokenizer.from_json(json.dumps(definition)).splitting_special_tokens()
    assert lz.Tokenizer.from_json(json.dumps(definition | {"split_special_tokens": True})).digest == split.digest
    with pytest.raises(ValueError, match="`split_special_tokens` must be true or absent, found 1"):
        lz.Tokenizer.from_json(json.dumps(definition | {"split_special_tokens": 1}))
