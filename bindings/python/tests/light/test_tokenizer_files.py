"""Limits of tokenizer files, and that loading and encoding release the GIL."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest

import layerzero as lz


@pytest.fixture
def definition(tokenizer_path):
    with open(tokenizer_path, encoding="utf-8") as file:
        return json.load(file)


TRUNCATION = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
PADDING = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}


@pytest.mark.parametrize(("name", "stated"), [("truncation", TRUNCATION), ("padding", PADDING)])
def test_truncation_and_padding_are_refused_or_ignored_on_request(tmp_path, definition, name, stated):
    text = "hello world hello world"
    wanted = lz.tokenize(text, lz.Tokenizer.from_json(json.dumps(definition)))
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**definition, name: stated}), encoding="utf-8")
    for load in (lambda: lz.tokenize(text, path), lambda: lz.Tokenizer.from_file(path)):
        with pytest.raises(ValueError, match=f"states `{name}`.*whole_texts"):
            load()
    assert lz.tokenize(text, lz.Tokenizer.from_file(path, whole_texts=True)) == wanted
    assert lz.tokenize(text, lz.Tokenizer.from_json(path.read_text(encoding="utf-8"), whole_texts=True)) == wanted


def test_token_id_out_of_range_is_refused(definition):
    definition["added_tokens"][0]["id"] = 4294967294
    with pytest.raises(ValueError, match="`added_tokens` of the tokenizer exceeds a limit.*4294967294"):
        lz.Tokenizer.from_json(json.dumps(definition))


def test_nesting_and_pipes_are_refused(tmp_path, definition):
    with pytest.raises(ValueError, match="recursion limit"):
        lz.Tokenizer.from_json("[" * 100_000)
    nested = {"type": "Lowercase"}
    for _ in range(40):
        nested = {"type": "Sequence", "normalizers": [nested]}
    with pytest.raises(ValueError, match="`normalizer`.*nested"):
        lz.Tokenizer.from_json(json.dumps({**definition, "normalizer": nested}))
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="not a regular file"):
        lz.Tokenizer.from_file(pipe)


def large(definition, size=60_000):
    """A byte-level BPE with many more tokens, each merged from two earlier ones."""
    vocabulary = dict(definition["model"]["vocab"])
    merges = list(definition["model"]["merges"])
    letters = "abcdefghijklmnopqrstuvwxyz"
    level = [one for one in letters if one in vocabulary]
    number = 1 + max(max(vocabulary.values()), max(token["id"] for token in definition["added_tokens"]))
    known = set(vocabulary)
    while len(vocabulary) < size:
        following = []
        for left in level:
            for right in letters:
                made = left + right
                if right in known and made not in known and len(vocabulary) < size:
                    known.add(made)
                    vocabulary[made] = number
                    merges.append(f"{left} {right}" if isinstance(merges[0], str) else [left, right])
                    following.append(made)
                    number += 1
        level = following
    return json.dumps({**definition, "model": {**definition["model"], "vocab": vocabulary, "merges": merges}})


def runs_meanwhile(work, attempts=20):
    """Whether another thread runs during `work`; on a busy machine it may start too late, so one of several attempts counts."""
    return any(runs_during(work) for _ in range(attempts))


def runs_during(work):
    """One attempt, with a switch interval so long that the GIL is never taken away."""
    gate, seen = threading.Lock(), threading.Event()
    before = sys.getswitchinterval()

    def other():
        with gate:
            seen.set()

    gate.acquire()
    thread = threading.Thread(target=other)
    thread.start()
    sys.setswitchinterval(1000.0)
    try:
        gate.release()
        work()
        return seen.is_set()
    finally:
        sys.setswitchinterval(before)
        thread.join()


def test_gil_is_released_while_a_tokenizer_is_loaded_and_verified(definition):
    text = large(definition, 12_000)
    assert runs_meanwhile(lambda: lz.Tokenizer.from_json(text))
    tokenizer = lz.Tokenizer.from_json(large(definition, 13_000))
    assert runs_meanwhile(tokenizer.wait_verified)
    lz.configure({"tokenizer_verification.before_first_call": True})
    try:
        tokenizer = lz.Tokenizer.from_json(large(definition, 14_000))
        assert runs_meanwhile(lambda: lz.ops.tokenize_encode(["a"], tokenizer))
    finally:
        lz.configure({"tokenizer_verification.before_first_call": False})


def test_gil_is_released_while_long_texts_are_encoded(tokenizer_path):
    tokenizer = lz.Tokenizer.from_file(tokenizer_path)
    tokens, indptr = lz.ops.tokenize_encode(["ready"], tokenizer)[:2]
    texts = ["hello wonderful world " * 20_000] * 3
    assert runs_meanwhile(lambda: lz.ops.tokenize_encode(texts, tokenizer))
    assert len(tokens) and len(indptr) == 2


PROGRAM = """
import json, os, signal, sys, threading, time
import layerzero as lz
text = open(sys.argv[1], encoding="utf-8").read()
# A process that was started in the background ignores the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    for number in range(10_000):
        tokenizer = lz.Tokenizer.from_json(text)
        del tokenizer
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_interrupts_loading(tmp_path, definition):
    path = tmp_path / "large.json"
    path.write_text(large(definition), encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(path)], check=False, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "interrupted", done.stderr
    assert done.returncode != -signal.SIGSEGV


def test_explain_prints_no_panic(tmp_path, definition):
    """A vocabulary token that no merges produce; one library panics on it."""
    definition["model"]["vocab"] = {**definition["model"]["vocab"], "zq": 1 + max(definition["model"]["vocab"].values())}
    definition["added_tokens"] = []
    definition["post_processor"] = None
    definition["model"]["ignore_merges"] = True
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(definition), encoding="utf-8")
    # Every candidate is verified before it is listed.
    program = (
        "import sys, layerzero as lz; lz.configure({'tokenizer_verification.before_first_call': True}); "
        "print(lz.explain('tokenize.encode', ['a'], lz.Tokenizer.from_file(sys.argv[1])))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=False, capture_output=True, text=True, timeout=300)
    assert "tokenize.github_bpe.encode" in done.stdout
    assert "panicked" not in done.stderr + done.stdout
    assert "no merges lead to" in done.stdout


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", b"", "an empty file"),
        ("tokenizer.json", b"<!DOCTYPE html><html></html>", "an HTML or XML page"),
        ("tokenizer.json", b"\xef\xbb\xbf{}", "a byte-order mark"),
        ("tokenizer.json", b"{", "not valid JSON"),
        ("tokenizer.json", b'{"other": 1.5}', "a JSON object without the key `model`"),
        ("tekken.json", b'{"config": {}}', "a `tekken.json` without a valid `config.default_vocab_size`"),
        ("image.png", b"\x89PNG\r\n\x1a\n", "a file of an unknown format; expected a tokenizer.json"),
        ("model.gguf", b"GGUF\x03\0\0\0", "a file of an unknown format"),
        ("tokenizer.model", b"\x89PNG", "not a SentencePiece model"),
        ("vocab.txt", b"[UNK]\n", "tokenizer_config.json"),
        ("ranks.tiktoken", b"not a rank\n", "line 1 of the ranks"),
    ],
)
def test_files_that_are_no_tokenizer_are_named(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    for load in (lambda: lz.tokenize("a", path), lambda: lz.Tokenizer.from_file(path)):
        with pytest.raises(ValueError, match=message) as caught:
            load()
        assert str(path) in str(caught.value) and "the JSON" not in str(caught.value)


def test_a_folder_is_loaded_as_its_file(tmp_path, tokenizer_path):
    shutil.copy(tokenizer_path, tmp_path / "tokenizer.json")
    assert lz.Tokenizer.from_file(tmp_path) == lz.Tokenizer.from_file(tokenizer_path)
    with pytest.raises(ValueError, match="has no tokenizer: none of tokenizer.json"):
        lz.Tokenizer.from_file(tmp_path / "..")
