"""Tokenizers by name, and the token cache."""

import array
import json
import random
import sys
import warnings

import numpy as np
import pytest

import layerzero as lz
from layerzero import _native
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


@pytest.fixture
def tokenizer(tokenizer_path):
    return lz.Tokenizer.from_file(tokenizer_path)


def encode(cache, texts, tokenizer, model="model", special=True):
    return cache.encode(texts, tokenizer, model, special, False)


def test_cache_hits_are_not_encoded_again_but_some_are_validated(tokenizer):
    cache = TokenCache(max_entries=10)
    expected = [lz.ops.tokenize_encode([text], tokenizer)[0].tolist() for text in ("a", "bb")]
    assert encode(cache, ["a", "bb"], tokenizer) == expected
    for _ in range(1100):
        assert encode(cache, ["a"], tokenizer) == expected[:1]
    counts = cache.counters()
    # 10 % of the first 100, 1 % of the next 1000.
    assert (counts.hits, counts.misses, counts.validations, counts.mismatches, counts.entries) == (1100, 2, 20, 0, 2)
    # Results are copies that the caller may change.
    encode(cache, ["a"], tokenizer)[0].append(99)
    assert encode(cache, ["a"], tokenizer) == expected[:1]
    # The oldest entries are evicted.
    encode(cache, [str(number) for number in range(30)], tokenizer)
    assert cache.counters().entries == 10
    before = cache.counters()
    encode(cache, ["a", "29", "20", "19"], tokenizer)
    after = cache.counters()
    assert (after.hits - before.hits, after.misses - before.misses) == (2, 2)
    cache.clear()
    assert cache.counters().entries == 0 and encode(cache, ["a"], tokenizer) == expected[:1]


def test_hits_and_misses_of_one_call_are_in_order(tokenizer):
    cache = TokenCache(max_characters=50)
    encode(cache, ["b", "", "d"], tokenizer)
    texts = ["a", "b", "é" * 50, "", "hello " * 100, "d", "a", "é" * 51]
    assert encode(cache, texts, tokenizer) == [row for text in texts for row in lz.tokenize([text], tokenizer)]
    counts = cache.counters()
    # The two texts of more than 50 characters are not cached.
    assert (counts.hits, counts.misses, counts.entries) == (3, 8, 5)
    rows, ranges = cache.encode(texts, tokenizer, "model", True, True)
    assert (rows, ranges) == lz.tokenize(texts, tokenizer, return_offsets=True)
    assert (rows, ranges) == cache.encode(texts, tokenizer, "model", True, True)
    assert cache.encode([], tokenizer, "model", True, True) == ([], []) and encode(cache, [], tokenizer) == []


def test_without_entries_nothing_is_cached(tokenizer):
    cache = TokenCache(max_entries=0)
    assert encode(cache, ["a"], tokenizer) == encode(cache, ["a"], tokenizer) == lz.tokenize(["a"], tokenizer)
    assert cache.counters() == (0, 2, 0, 0, 0)


def test_wrong_cache_entries_are_removed(tokenizer):
    cache = TokenCache()
    expected = encode(cache, ["a", "bb"], tokenizer)
    cache._entries.put("model", tokenizer, True, "a", [1, 2, 3])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = [encode(cache, ["bb", "a"], tokenizer) for _ in range(20)]
    # The wrong entry is there until the validation of a hit finds it.
    assert results[0] == [expected[1], [1, 2, 3]]
    assert results[-1] == [expected[1], expected[0]] and cache.counters().mismatches == 1
    assert any("differ from a fresh encoding" in str(warning.message) for warning in caught)


def test_cache_keys_differ_by_model_and_encoding_options(tokenizer):
    cache = TokenCache()
    for tokenizer_of_key in (tokenizer, tokenizer.splitting_special_tokens()):
        for model in "ab":
            for special in (False, True):
                for offsets in (False, True):
                    cache.encode(["text"], tokenizer_of_key, model, special, offsets)
    counts = cache.counters()
    assert (counts.hits, counts.misses, counts.entries) == (0, 16, 16)


def test_settings_of_the_cache_change_validation_and_isolation(tokenizer):
    def validations(**settings):
        lz.configure({f"tokenizer_cache.{key}": value for key, value in settings.items()})
        cache = TokenCache()
        counts = []
        encode(cache, ["a"], tokenizer)
        for hits in (100, 1000, 1000):
            before = cache.counters().validations
            encode(cache, ["a"] * hits, tokenizer)
            counts.append(cache.counters().validations - before)
        encode(cache, ["a"], tokenizer, model="another")
        return cache.counters().misses, counts

    misses, usual = validations()
    try:
        assert misses == 2
        rates = {"validation_rate_initial": 1.0, "validation_rate_warmup": 0.5, "validation_rate_stable": 0.25}
        misses, changed = validations(enable_namespace_isolation=False, **rates)
        assert misses == 1 and all(after > before for before, after in zip(usual, changed, strict=True)), (usual, changed)
    finally:
        validations(
            enable_namespace_isolation=True, validation_rate_initial=0.1, validation_rate_warmup=0.01, validation_rate_stable=0.001
        )


def test_lists_equal_the_arrays_of_any_batch(tokenizer):
    source = random.Random(11)
    parts = ["hello world", " x", "12345", "Straße", "東京", "👩‍🚀", "\n", "<|end|>", ""]
    for _ in range(200):
        texts = ["".join(source.choices(parts, k=source.randrange(12))) for _ in range(source.randrange(8))]
        special = source.random() < 0.5
        flat = lz.tokenize(texts, tokenizer, as_arrays=True, return_offsets=True, add_special_tokens=special)
        bounds = list(zip(flat.indptr, flat.indptr[1:], strict=False))
        expected = [flat.tokens[start:end].tolist() for start, end in bounds]
        assert lz.tokenize(texts, tokenizer, add_special_tokens=special) == expected
        assert lz.count_tokens(texts, tokenizer, add_special_tokens=special) == [len(row) for row in expected]
        assert _native.token_lists(texts, tokenizer, special) == expected
        rows, ranges = lz.tokenize(texts, tokenizer, add_special_tokens=special, return_offsets=True)
        assert rows == expected and ranges == [flat.offsets[start:end].tolist() for start, end in bounds]


def test_lists_of_ids_are_plain_lists_of_integers(tokenizer):
    for text in ("hello world", "hello world " * 5000, ""):
        ids = lz.tokenize(text, tokenizer, add_special_tokens=False)
        assert type(ids) is list and all(type(one) is int for one in ids)
        assert ids == lz.tokenize(text, tokenizer, add_special_tokens=False, as_arrays=True).tokens.tolist()
    assert lz.tokenize([], tokenizer) == [] and lz.tokenize([""], tokenizer, add_special_tokens=False) == [[]]
    assert lz.count_tokens([], tokenizer) == [] and lz.count_tokens("", tokenizer, add_special_tokens=False) == 0


def test_lists_own_their_integers(tokenizer):
    ids = lz.tokenize("hello world " * 100, tokenizer, add_special_tokens=False)
    number = max(ids)
    if number > 256:
        before = sys.getrefcount(number)
        more = [lz.tokenize("hello world " * 100, tokenizer, add_special_tokens=False) for _ in range(3)]
        assert sys.getrefcount(number) - before == 3 * ids.count(number)
        del more
        assert sys.getrefcount(number) == before
    else:
        pytest.fail(f"no id above 256, whose references are counted: {number}")


@pytest.mark.parametrize("wrong", [3, None, b"bytes", "a\ud800"])
def test_an_error_in_the_middle_of_a_batch_caches_nothing(tokenizer, wrong):
    cache = TokenCache()
    encode(cache, ["known"], tokenizer)
    with pytest.raises((TypeError, ValueError)):
        encode(cache, ["known", "new", wrong, "other"], tokenizer)
    assert cache.counters().entries == 1
    for function in (lz.tokenize, lz.count_tokens):
        with pytest.raises((TypeError, ValueError)):
            function(["new", wrong, "other"], tokenizer)
    assert encode(cache, ["known", "new"], tokenizer) == lz.tokenize(["known", "new"], tokenizer)


def test_lists_of_a_kernel_in_python(tokenizer):
    calls = []

    @lz.register_kernel(operation="tokenize.encode", id="test.lists.encode")
    def kernel(texts, tokenizer, *, add_special_tokens, return_offsets):
        calls.append((list(texts), add_special_tokens, return_offsets))
        indptr = np.arange(len(texts) + 1, dtype=np.int64)
        ids = np.arange(700, 700 + len(texts), dtype=np.int32)
        offsets = np.stack([indptr[:-1], indptr[1:]], axis=1)
        return (ids, indptr, offsets) if return_offsets else (ids, indptr)

    lz.lock("tokenize.encode", "test.lists.encode")
    try:
        assert encode(TokenCache(), ["a", "b"], tokenizer) == [[700], [701]]
        assert TokenCache().encode(["a"], tokenizer, "", False, True) == ([[700]], [[[0, 1]]])
        assert lz.count_tokens(["a", "b", "c"], tokenizer) == [1, 1, 1]
        assert calls == [(["a", "b"], True, False), (["a"], False, True), (["a", "b", "c"], True, False)]
    finally:
        lz.unlock("tokenize.encode")
        lz.unregister_kernel("test.lists.encode")


@pytest.mark.parametrize(
    ("indptr", "ranges"), [([0, 1], 2), ([0, 2, 1], 2), ([0, 1, 3], 2), ([-1, 1, 2], 2), ([0, 1, 2, 2], 2), ([0, 1, 2], 1)]
)
def test_wrong_rows_of_a_kernel_in_python_are_errors(tokenizer, indptr, ranges):
    """Two texts with one token each."""

    @lz.register_kernel(operation="tokenize.encode", id="test.wrong.encode")
    def kernel(texts, tokenizer, *, add_special_tokens, return_offsets):
        return np.array([7, 8], np.int32), np.array(indptr, np.int64), np.zeros((ranges, 2), np.int64)

    lz.configure(fallback_enabled=False)
    lz.lock("tokenize.encode", "test.wrong.encode")
    try:
        with pytest.raises((lz.LayerZeroError, ValueError)):
            TokenCache().encode(["a", "b"], tokenizer, "", False, True)
    finally:
        lz.unlock("tokenize.encode")
        lz.configure(fallback_enabled=True)
        lz.unregister_kernel("test.wrong.encode")


def test_detokenize_takes_lists_arrays_and_numbers_of_numpy(tokenizer):
    ids = lz.tokenize("hello world", tokenizer)
    text = lz.detokenize(ids, tokenizer)
    for dtype in (np.int32, np.int64, np.uint16):
        row = np.array(ids, dtype)
        assert lz.detokenize(row, tokenizer) == lz.detokenize(list(row), tokenizer) == lz.detokenize(row[::1], tokenizer) == text
        assert lz.detokenize(np.stack([row, row]), tokenizer) == lz.detokenize([row, ids, tuple(ids)], tokenizer)[:2] == [text] * 2
        assert lz.detokenize(np.repeat(row, 2)[::2], tokenizer) == text
    assert lz.detokenize(tuple(ids), tokenizer) == lz.detokenize(array.array("i", ids), tokenizer) == text
    assert lz.detokenize([], tokenizer) == lz.detokenize(np.array([], np.int32), tokenizer) == ""
    assert lz.detokenize([[]], tokenizer) == [""] and lz.detokenize(np.zeros((2, 0), np.int64), tokenizer) == ["", ""]
    assert lz.detokenize([ids, [], ids], tokenizer) == [text, "", text]


@pytest.mark.parametrize("wrong", [[1.5], ["a"], [1, [2]], [[1], 2], [None], 7, [2**40], np.array([1.5]), [[1], [2.5]]])
def test_detokenize_refuses_what_are_no_ids(tokenizer, wrong):
    with pytest.raises((TypeError, ValueError, OverflowError)):
        lz.detokenize(wrong, tokenizer)
