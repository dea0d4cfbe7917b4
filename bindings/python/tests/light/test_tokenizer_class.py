"""`lz.Tokenizer`: vocabulary, counting, arrays, streams, pickling, batches, and files of other formats."""

import base64
import copy
import json
import pickle
import random

import numpy as np
import pytest

import layerzero as lz

TEXTS = ["hello world", "", "Straße 東京 👩‍🚀", "  x = 12345\n", "<|end|> hello<tool>"]


@pytest.fixture
def tokenizer(tokenizer_path):
    return lz.Tokenizer.from_file(tokenizer_path)


def test_vocabulary(tokenizer, tokenizer_path):
    definition = json.loads(tokenizer_path.read_text(encoding="utf-8"))
    ids = dict(definition["model"]["vocab"])
    ids.update({token["content"]: token["id"] for token in definition["added_tokens"]})
    assert tokenizer.vocab_size == len(ids)
    assert {token: tokenizer.token_to_id(token) for token in ids} == ids
    assert all(tokenizer.id_to_token(number) == token for token, number in ids.items())
    assert tokenizer.id_to_token(10**9) is None and tokenizer.token_to_id("no such token") is None
    assert f"vocab_size={len(ids)}" in repr(tokenizer)


def test_methods_are_the_functions(tokenizer):
    rows = lz.tokenize(TEXTS, tokenizer)
    assert tokenizer.encode(TEXTS) == rows and tokenizer.encode(TEXTS[0]) == rows[0]
    assert tokenizer.decode(rows, skip_special_tokens=False) == lz.detokenize(rows, tokenizer, skip_special_tokens=False)
    assert tokenizer.count(TEXTS) == [len(row) for row in rows] == lz.count_tokens(TEXTS, tokenizer)
    assert tokenizer.count(TEXTS[2]) == len(rows[2])
    assert tokenizer.count(TEXTS[4], split_special_tokens=True) == len(tokenizer.encode(TEXTS[4], split_special_tokens=True))


def test_arrays_have_the_ids_of_the_lists(tokenizer):
    rows, ranges = lz.tokenize(TEXTS, tokenizer, return_offsets=True)
    flat = lz.tokenize(TEXTS, tokenizer, as_arrays=True, return_offsets=True)
    assert [flat.tokens[start:end].tolist() for start, end in zip(flat.indptr, flat.indptr[1:], strict=False)] == rows
    assert flat.offsets.tolist() == [list(one) for row in ranges for one in row]
    assert lz.tokenize(TEXTS[0], tokenizer, as_arrays=True).tokens.tolist() == rows[0]
    assert lz.tokenize(TEXTS[0], tokenizer, as_arrays=True).offsets is None


def test_lists_are_new_each_time(tokenizer):
    for text in ("hello world", "hello " * 3000):
        first = lz.tokenize(text, tokenizer)
        wanted = list(first)
        first[0] = -1
        first.append(7)
        second = lz.tokenize(text, tokenizer)
        assert second == wanted
        second.clear()
        assert lz.tokenize(text, tokenizer) == wanted


def test_pickle_copy_and_equality(tokenizer):
    for made in (pickle.loads(pickle.dumps(tokenizer)), copy.deepcopy(tokenizer), lz.Tokenizer.from_json(tokenizer.to_json())):
        assert made == tokenizer and hash(made) == hash(tokenizer) and made.digest == tokenizer.digest
        assert made.encode(TEXTS) == tokenizer.encode(TEXTS)
    split = tokenizer.splitting_special_tokens()
    restored = pickle.loads(pickle.dumps(split))
    assert restored == split != tokenizer and restored.encode(TEXTS[4]) == split.encode(TEXTS[4])
    assert tokenizer != "a tokenizer" and len({tokenizer, split, restored}) == 2


@pytest.mark.parametrize("skip", [False, True])
def test_stream_gives_the_text_of_all_ids(tokenizer, skip):
    for text in [*TEXTS, "".join(TEXTS), "🇩🇪 e\u0301 \ufffd\ufffd x \ufffd"]:
        ids = tokenizer.encode(text)
        stream = tokenizer.stream(skip_special_tokens=skip)
        parts = [stream.push(number) for number in ids]
        assert "".join(parts) + stream.finish() == tokenizer.decode(ids, skip_special_tokens=skip)
        # A whole character at each step.
        if "\ufffd" not in text:
            assert not any("\ufffd" in part for part in parts)
        assert stream.push(ids) + stream.finish() == tokenizer.decode(ids, skip_special_tokens=skip)


def test_stream_of_incomplete_characters(tokenizer):
    ids = tokenizer.encode("東", add_special_tokens=False)
    assert len(ids) == 3
    stream = tokenizer.stream()
    assert [stream.push(number) for number in ids[:2]] == ["", ""]
    assert stream.finish() == "\ufffd"
    # Random bytes: whatever they are, all of the valid text arrives.
    source = random.Random(5)
    for _ in range(200):
        numbers = [source.choice(ids + tokenizer.encode("aé ", add_special_tokens=False)) for _ in range(20)]
        text = "".join([stream.push(number) for number in numbers]) + stream.finish()
        assert text == tokenizer.decode(numbers)


def test_stream_refuses_what_is_no_id(tokenizer):
    stream = tokenizer.stream()
    with pytest.raises((TypeError, ValueError, OverflowError)):
        stream.push("a")
    with pytest.raises((TypeError, ValueError, OverflowError)):
        stream.push(-1)
    # An unknown id has no text, as in `detokenize`.
    assert stream.push(10**9) == ""


def test_batches_are_truncated_and_padded(tokenizer):
    rows = tokenizer.encode(TEXTS, add_special_tokens=True)
    batch = tokenizer.batch(TEXTS, pad_id=0)
    longest = max(map(len, rows))
    assert batch.input_ids.shape == (len(TEXTS), longest) and batch.input_ids.dtype == np.int64
    for row, ids, mask in zip(rows, batch.input_ids.tolist(), batch.attention_mask.tolist(), strict=True):
        assert ids == row + [0] * (longest - len(row)) and mask == [1] * len(row) + [0] * (longest - len(row))
    left = tokenizer.batch(TEXTS, pad_id=0, padding_side="left", pad_to_multiple_of=8)
    assert left.input_ids.shape[1] % 8 == 0 and left.input_ids[0].tolist()[-len(rows[0]) :] == rows[0]
    short = tokenizer.batch(TEXTS, max_length=4, padding="max_length", pad_id=0, return_offsets=True)
    assert short.input_ids.shape == (len(TEXTS), 4) and short.offsets.shape == (len(TEXTS), 4, 2)
    windows = tokenizer.batch("hello " * 30, max_length=8, stride=2, return_overflow=True, pad_id=0, add_special_tokens=False)
    whole = tokenizer.encode("hello " * 30, add_special_tokens=False)
    assert windows.input_ids[0].tolist() == whole[:8] and windows.input_ids[1].tolist() == whole[6:14]
    assert set(windows.sample.tolist()) == {0}


def test_batches_without_tokens(tokenizer):
    empty = tokenizer.batch([""], add_special_tokens=False, return_offsets=True)
    assert empty.input_ids.shape == (1, 0) and empty.offsets.shape == (1, 0, 2)
    padded = tokenizer.batch([""], add_special_tokens=False, padding=3, pad_id=0, return_offsets=True)
    assert padded.offsets.tolist() == [[[0, 0]] * 3] and padded.attention_mask.tolist() == [[0, 0, 0]]
    none = tokenizer.batch([], return_offsets=True)
    assert none.input_ids.shape == (0, 0) and none.sample.shape == (0,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "set `pad_id`"),
        ({"pad_id": "nothing"}, "no token 'nothing'"),
        ({"pad_id": 0, "padding": 2}, "set `max_length` to truncate"),
        ({"pad_id": 0, "padding": "max_length"}, "`max_length` is not given"),
        ({"pad_id": 0, "padding": "widest"}, "'longest', 'max_length' or a length"),
        ({"pad_id": 0, "padding": 2**62}, "does not fit into memory"),
        ({"pad_id": 0, "max_length": 1}, "leaves no room|must be less"),
        ({"pad_id": 0, "max_length": 6, "stride": 6, "return_overflow": True}, "`stride` 6 must be less"),
        ({"pad_id": 0, "truncation": "both"}, "`truncation` must be"),
        ({"pad_id": 0, "padding_side": "up"}, '"left" or "right"'),
        ({"pad_id": 0, "max_length": 4, "truncation": "only_second"}, "no second text"),
        ({"pad_id": 0, "pairs": ["a"]}, "expected pairs"),
    ],
)
def test_invalid_batches_are_refused(tokenizer, options, message):
    with pytest.raises(ValueError, match=message):
        lz.tokenize_batch(["hello world, this is a text", "a"], tokenizer, **options)


def test_ranks_of_tiktoken(tmp_path):
    known = lz.Tokenizer.from_json(json.dumps(json.loads(_encoding("r50k_base").to_json())))
    alphabet = _alphabet()
    special = {"<|endoftext|>": 50256}
    vocabulary = json.loads(known.to_json())["model"]["vocab"]
    lines = [
        (number, base64.b64encode(bytes(alphabet[character] for character in token)).decode())
        for token, number in vocabulary.items()
        if token not in special
    ]
    path = tmp_path / "r50k_base.tiktoken"
    path.write_text("".join(f"{token} {number}\n" for number, token in sorted(lines)))
    assert lz.Tokenizer.from_file(path) == known
    assert lz.Tokenizer.from_tiktoken(path, pattern="gpt2", special_tokens=special) == known
    assert lz.tokenize("hello world", path) == [31373, 995]
    path.write_text("".join(f"{token} {number}\n" for number, token in sorted(lines)[:1000]))
    with pytest.raises(ValueError, match="1000 tiktoken ranks that are not those of a built-in encoding.*from_tiktoken"):
        lz.Tokenizer.from_file(path)
    other = lz.Tokenizer.from_tiktoken(path, pattern=r"\p{L}+|\P{L}", special_tokens={"<end>": 1000})
    assert other.vocab_size == 1001 and other.decode(other.encode("hello, world<end>"), skip_special_tokens=False) == "hello, world<end>"
    path.write_text("aGVsbG8= 0\nnot base64\n")
    with pytest.raises(ValueError, match="line 2"):
        lz.Tokenizer.from_file(path)


def _encoding(name):
    return lz.register_tokenizer(f"registered {name}", name)


def _alphabet():
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    characters = {chr(byte): byte for byte in visible}
    hidden = [byte for byte in range(256) if byte not in visible]
    return characters | {chr(256 + index): byte for index, byte in enumerate(hidden)}


def test_tekken(tmp_path):
    tokens = [bytes([byte]) for byte in range(256)] + [b"he", b"ll", b"hell", b"hello", b" w", b"unused"]
    definition = {
        "config": {"pattern": r"\p{L}+| ?\p{L}+|[^\p{L}]", "default_vocab_size": 264, "default_num_special_tokens": 3},
        "vocab": [{"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None} for rank, token in enumerate(tokens)],
        "special_tokens": [{"rank": 1, "token_str": "<s>", "is_control": True}],
    }
    path = tmp_path / "tekken.json"
    path.write_text(json.dumps(definition))
    tokenizer = lz.Tokenizer.from_file(path)
    # The last rank is beyond the size; special tokens in a text are text.
    assert tokenizer.vocab_size == 264 and tokenizer.id_to_token(1) == "<s>" and tokenizer.id_to_token(2) == "<SPECIAL_2>"
    assert tokenizer.encode("hello w") == [3 + 259, 3 + 260]
    assert tokenizer.encode("<s>") == [3 + byte for byte in b"<s>"]
    assert lz.tokenize("hello", tmp_path) == [262] and tokenizer.decode([262, 263]) == "hello w"
    definition["vocab"][5]["token_bytes"] = "?"
    path.write_text(json.dumps(definition))
    with pytest.raises(ValueError, match="without a valid `vocab`"):
        lz.Tokenizer.from_file(path)


def test_vocabulary_file(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "##s", "Hello", "world", "."]) + "\n")
    lowered = lz.Tokenizer.from_vocabulary(path, lowercase=True)
    assert lowered.encode("Hello hellos world.") == [2, 5, 5, 6, 8, 9, 3]
    assert lz.Tokenizer.from_vocabulary(path, lowercase=False).encode("Hello héllo") == [2, 7, 1, 3]
    with pytest.raises(ValueError, match="lowercase.*from_vocabulary"):
        lz.Tokenizer.from_file(path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    assert lz.Tokenizer.from_file(path) == lowered
    batch = lowered.batch(["hello", "world ."], ["world", "hello hello"], pad_id="[PAD]")
    assert batch.input_ids.tolist() == [[2, 5, 3, 8, 3, 0, 0], [2, 8, 9, 3, 5, 5, 3]]
    assert batch.token_type_ids.tolist() == [[0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1, 1]]
    assert batch.special_tokens_mask.tolist() == [[1, 0, 1, 0, 1, 1, 1], [1, 0, 0, 1, 0, 0, 1]]


def test_chat_templates(tokenizer, tokenizer_path, tmp_path):
    messages = [{"role": "user", "content": "hello"}]
    with pytest.raises(ValueError, match="has no chat template"):
        tokenizer.apply_chat_template(messages)
    made = tokenizer.with_chat_template("{{ bos_token }}{{ messages[0].content }}{{ x }}", special_tokens={"bos_token": "<|begin|>"})
    assert made.apply_chat_template(messages, tokenize=False, x=None) == "<|begin|>helloNone"
    assert made.apply_chat_template(messages) == tokenizer.encode("<|begin|>hello", add_special_tokens=False)
    assert made.apply_chat_template(messages, chat_template="{{ 1 }}", tokenize=False) == "1"
    assert pickle.loads(pickle.dumps(made)).apply_chat_template(messages, tokenize=False) == "<|begin|>hello"
    named = tokenizer.with_chat_template({"default": "a", "tool_use": "{{ tools | length }}"})
    assert named.apply_chat_template(messages, tokenize=False) == "a"
    assert named.apply_chat_template(messages, tools=[{}, {}], tokenize=False) == "2"
    with pytest.raises(ValueError, match="no chat template 'x'|no chat template \"x\""):
        named.apply_chat_template(messages, chat_template="x")
    with pytest.raises(ValueError, match="refuses the conversation: roles must alternate"):
        tokenizer.with_chat_template("{{ raise_exception('roles must alternate') }}").apply_chat_template(messages)
    endless = "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}"
    with pytest.raises(ValueError, match="was stopped"):
        tokenizer.with_chat_template(endless).apply_chat_template(messages)
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_path.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "b{{ eos_token }}", "eos_token": {"content": "</s>"}}))
    loaded = lz.Tokenizer.from_file(tmp_path / "tokenizer.json")
    assert loaded == tokenizer and loaded.apply_chat_template([], tokenize=False) == "b</s>"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer_config.json", '{"tokenizer_class": "X", "model_max_length": 5}', "configuration of a tokenizer.*tokenizer.json"),
        ("config.json", '{"model_type": "llama"}', "configuration of a model"),
        ("special_tokens_map.json", '{"bos_token": "<s>"}', "map of special tokens"),
        ("vocab.json", '{"a": 0, "b": 1}', "vocabulary without merges"),
        ("merges.txt", "#version: 0.2\na b\n", "list of merges"),
        ("tokenizer.json", "version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS pointer"),
        ("tokenizer.json", "<html>not found</html>", "an HTML or XML page"),
        ("tokenizer.model", "not found", "SentencePiece"),
        ("vocab.txt", "a\nb\n", r"lowercase|no token \[UNK\]"),
    ],
)
def test_other_files_are_refused_by_what_they_are(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        lz.Tokenizer.from_file(path)
    with pytest.raises(ValueError, match=message):
        lz.tokenize("a", path)


def test_a_folder_without_tokenizer_is_refused(tmp_path):
    with pytest.raises(ValueError, match="none of tokenizer.json, tekken.json"):
        lz.tokenize("a", tmp_path)


def test_wrong_arguments_are_named(tokenizer):
    for use, message in [
        (lambda: tokenizer.encode(b"a"), "bytes at position 0"),
        (lambda: tokenizer.encode(["a", 1]), "int at position 1"),
        (lambda: tokenizer.encode(3), "int"),
        (lambda: lz.ops.tokenize_encode(b"a", tokenizer), "found bytes"),
        (lambda: tokenizer.stream().push("a"), "a token id is an integer, not str"),
        (lambda: tokenizer.stream().push([1, "a"]), "a token id is an integer, not str"),
        (lambda: tokenizer.stream().push(-1), "a token id is an integer from 0 to 4294967295, not -1"),
        (lambda: tokenizer.id_to_token(-1), "a token id is an integer from 0"),
        (lambda: tokenizer.decode([2**40]), "a token id is an integer from 0 to 2147483647, not 1099511627776"),
        (lambda: tokenizer.batch(["a"], padding=False), "`padding` must be 'longest', 'max_length' or a length, not False"),
        (lambda: tokenizer.batch(["a"], padding=0), "`padding` must be an integer of at least 1, not 0"),
        (lambda: tokenizer.batch(["a"], truncation=True), '`truncation` must be "longest_first" or .*, not True'),
        (lambda: tokenizer.batch(["a"], padding_side="up"), '`padding_side` must be "left" or "right", not .up.'),
        (lambda: tokenizer.batch(["a"], max_length=-1), "`max_length` must be an integer of at least 0, not -1"),
        (lambda: tokenizer.batch(["a"], max_length=True), "`max_length` must be"),
        (lambda: tokenizer.batch(["a"], stride=-4), "`stride` must be"),
        (lambda: tokenizer.batch(["a"], pad_to_multiple_of=0), "`pad_to_multiple_of` must be an integer of at least 1, not 0"),
        (lambda: tokenizer.batch(["a"], pad_id="nope"), "`pad_id`: the tokenizer has no token 'nope'"),
        (lambda: tokenizer.batch(["a"], pad_id=-1), "`pad_id` must be"),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            use()
