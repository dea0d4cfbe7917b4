"""Tokenizers by name, and the token cache."""

import json
import warnings

import pytest

import layerzero as lz
from layerzero._token_cache import TokenCache


def test_an_encoding_needs_no_file_and_no_network():
    texts = ["hello world", "", "Straße 東京 👩‍🚀", "  x = 12345\n"]
    tokens = lz.tokenize(texts, "cl100k_base")
    assert tokens[0] == [15339, 1917]
    assert lz.detokenize(tokens, "cl100k_base") == texts
    assert lz.tokenize("<|endoftext|>", "cl100k_base") == [100257]
    assert lz.which("tokenize.encode", texts, lz.register_tokenizer("mine", "cl100k_base")).kernel_id.startswith("tokenize.")
    assert lz.tokenize(texts, "mine") == tokens


def test_unknown_tokenizers_are_refused():
    with pytest.raises(ValueError, match="a registered tokenizer or an encoding"):
        lz.tokenize("a", "no-such-thing")
    with pytest.raises(TypeError, match="not object"):
        lz.tokenize("a", object())


def test_an_object_with_a_definition(tokenizer_path):
    class Foreign:
        def to_str(self):
            return tokenizer_path.read_text() if hasattr(tokenizer_path, "read_text") else open(tokenizer_path).read()

    assert lz.tokenize("hello world", Foreign()) == lz.tokenize("hello world", tokenizer_path)


def test_digest_covers_everything_that_affects_tokens(tokenizer_path):
    text = open(tokenizer_path).read()
    same = lz.Tokenizer.from_json(json.dumps(json.loads(text), indent=3))
    assert same.digest == lz.Tokenizer.from_json(text).digest
    changed = json.loads(text)
    changed["added_tokens"] = changed["added_tokens"][:-1]
    assert lz.Tokenizer.from_json(json.dumps(changed)).digest != same.digest


def test_explain_gives_a_reason_for_every_rejected_kernel(tokenizer_path):
    plan = lz.explain("tokenize.encode", ["a"], lz.Tokenizer.from_file(tokenizer_path)).to_dict()
    text = json.dumps(plan)
    assert "tokenize.bpe.encode" in text and "tokenize.tiktoken.encode" in text


class Encoder:
    def __init__(self):
        self.seen = []
        self.wrong = False

    def __call__(self, texts):
        self.seen.append(list(texts))
        return [[len(text), int(self.wrong)] for text in texts]


def test_cache_hits_are_not_encoded_again_but_some_are_validated():
    cache, encode = TokenCache(max_entries=10), Encoder()
    key = cache.space("model", "d" * 64, True, False)
    assert cache.serve(key, ["a", "bb"], encode) == [[1, 0], [2, 0]]
    for _ in range(1100):
        assert cache.serve(key, ["a"], encode) == [[1, 0]]
    counts = cache.counters()
    # 10 % of the first 100, 1 % of the next 1000.
    assert (counts.hits, counts.misses, counts.validations) == (1100, 2, 20)
    # Results are copies that the caller may change.
    cache.serve(key, ["a"], encode)[0].append(99)
    assert cache.serve(key, ["a"], encode) == [[1, 0]]
    cache.serve(key, [str(number) for number in range(30)], encode)
    assert cache.counters().entries == 10


def test_wrong_cache_entries_are_removed():
    cache, encode = TokenCache(), Encoder()
    key = cache.space("", "e" * 64, True, False)
    cache.serve(key, ["a"], encode)
    encode.wrong = True
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = [cache.serve(key, ["a"], encode) for _ in range(20)]
    assert results[-1] == [[1, 1]] and cache.counters().mismatches == 1
    assert any("differ from a fresh encoding" in str(warning.message) for warning in caught)


def test_cache_keys_differ_by_model_and_encoding_options():
    cache = TokenCache()
    spaces = {cache.space(model, digest, special, offsets) for model in "ab" for digest in "xy" for special in (0, 1) for offsets in (0, 1)}
    assert len(spaces) == 16


def test_settings_of_the_cache_change_validation_and_isolation():
    def validations(**settings):
        import layerzero as lz

        lz.configure({f"tokenizer_cache.{key}": value for key, value in settings.items()})
        cache = TokenCache()
        key = cache.space("model", "f" * 64, True, False)
        counts = []
        cache.serve(key, ["a"], Encoder())
        for hits in (100, 1000, 1000):
            before = cache.counters().validations
            cache.serve(key, ["a"] * hits, Encoder())
            counts.append(cache.counters().validations - before)
        return key, counts

    key, usual = validations()
    try:
        assert key[0] == "model"
        rates = {"validation_rate_initial": 1.0, "validation_rate_warmup": 0.5, "validation_rate_stable": 0.25}
        key, changed = validations(enable_namespace_isolation=False, **rates)
        assert key[0] == "" and all(after > before for before, after in zip(usual, changed, strict=True)), (usual, changed)
    finally:
        validations(
            enable_namespace_isolation=True, validation_rate_initial=0.1, validation_rate_warmup=0.01, validation_rate_stable=0.001
        )
