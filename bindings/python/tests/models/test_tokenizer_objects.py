"""Tokenizer objects of other libraries: the result matches the object's current state, whatever its name."""

import gc
import json
import weakref

import pytest
import tiktoken
import tokenizers
from sentencepiece_models import TEXTS, random_texts
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import layerzero as lz
from layerzero import _native
from layerzero.integrations import tokenizers as integration

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT2_POSSESSIVE = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
CL100K_POSSESSIVE = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
MERGES = [b"he", b"ll", b"hell", b"hello", b" w", b" wo", b"aa", b"aaa", b"\n ", b"\n  ", b"  ", b"..", b"....", "é".encode()]


def encoding(name="cl100k_base", pattern=GPT2, shift=0):
    ranks = {bytes([byte]): (byte + shift) % 256 for byte in range(256)} | {token: 256 + rank for rank, token in enumerate(MERGES)}
    return tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 300, "<|x|>": 310})


@pytest.mark.parametrize("pattern", [GPT2, GPT2_POSSESSIVE, CL100K_POSSESSIVE, r"\w+"])
def test_tiktoken_encoding_is_identified_by_ranks(pattern):
    for shift in (0, 7):
        own = encoding(pattern=pattern, shift=shift)
        texts = [*TEXTS, "a\n  ", "hello world<|endoftext|>hello<|x|>", *random_texts(300, 21)]
        wanted = own.encode_batch(texts, allowed_special="all")
        for text, found, expected in zip(texts, lz.tokenize(texts, own), wanted, strict=True):
            assert found == expected, repr(text)


def test_known_ranks_under_any_name_are_the_known_encoding():
    known = _native.tokenizer_of_encoding("r50k_base")
    definition = json.loads(_native.tokenizer_json(known))
    special = {token["content"]: token["id"] for token in definition["added_tokens"]}
    from layerzero.backends.tiktoken import _alphabet

    alphabet, vocabulary = _alphabet(), definition["model"]["vocab"]
    ranks = {bytes(alphabet[letter] for letter in token): id for token, id in vocabulary.items() if token not in special}
    own = tiktoken.Encoding("another name", pat_str=GPT2_POSSESSIVE, mergeable_ranks=ranks, special_tokens=special)
    assert lz.register_tokenizer("by-ranks", own).digest == known.digest


def test_encoding_is_converted_once_and_not_kept_alive():
    own = encoding()
    assert lz.register_tokenizer("once", own).digest == lz.register_tokenizer("again", own).digest
    gone = weakref.ref(own)
    del own
    gc.collect()
    assert gone() is None


def test_ranks_that_tiktoken_could_not_use_either_are_refused():
    own = encoding()
    del own._mergeable_ranks[b"\xff"]
    with pytest.raises(ValueError, match="no token for byte 0xff"):
        lz.tokenize("a", own)


@pytest.fixture
def fast(tokenizer_path):
    definition = json.loads(tokenizer_path.read_text()) | {"truncation": None, "padding": None}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer.from_str(json.dumps(definition)))


def reversed_merges(inner):
    model = json.loads(inner.to_str())["model"]
    inner.model = models.BPE(vocab=model["vocab"], merges=[tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]][:1])


CHANGES = {
    "normalizer": lambda inner: setattr(inner, "normalizer", normalizers.Lowercase()),
    "pre_tokenizer": lambda inner: setattr(inner, "pre_tokenizer", pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)])),
    "post_processor": lambda inner: setattr(inner, "post_processor", processors.TemplateProcessing("$A <|end|> <|end|>", None, [("<|end|>", inner.token_to_id("<|end|>"))])),
    "decoder": lambda inner: setattr(inner, "decoder", decoders.Fuse()),
    "added token": lambda inner: inner.add_tokens(["WORLD"]),
    "flags of an added token": lambda inner: inner.add_tokens([AddedToken("<tool>", lstrip=True, rstrip=True)]),
    "a token that becomes special": lambda inner: inner.add_special_tokens(["<tool>"]),
    "merges": reversed_merges,
    "dropout": lambda inner: setattr(inner.model, "dropout", 1.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_wrapped_tokenizer_detects_changes(fast, change):
    text = "hello WORLD  <tool>  123 hell<|end|> world"
    wrapped, inner = integration.wrap(fast), fast.backend_tokenizer
    ids = wrapped(text)["input_ids"]
    assert ids == inner.encode(text).ids
    # Many calls, so that no validation against the library hides a stale result.
    for _ in range(5):
        wrapped(text)
    CHANGES[change](inner)
    wanted = inner.encode(text).ids
    decoded = [inner.decode(ids, skip_special_tokens=skip) for skip in (False, True)]
    assert wrapped(text)["input_ids"] == wanted
    assert [wrapped.decode(ids, skip_special_tokens=skip) for skip in (False, True)] == decoded
    if change != "dropout":
        assert lz.tokenize(text, fast) == wanted


def test_truncation_of_the_last_call_is_ignored(fast):
    long = "hello world " * 40
    wanted = fast.backend_tokenizer.encode(long).ids
    wrapped = integration.wrap(fast)
    assert len(wrapped(long, truncation=True, max_length=5)["input_ids"]) == 5
    assert wrapped(long)["input_ids"] == wanted
    assert lz.tokenize(long, fast) == wanted
