"""Verification of tokenizers in the background: what calls select meanwhile, waiting, forks and exits."""

import json
import subprocess
import sys

import pytest

import layerzero as lz
from layerzero import _native

TEXTS = ["hello world 12345", "don't!!! 東京タワー"]


def made(path, name):
    """A tokenizer that no other test uses."""
    definition = json.loads(open(path).read())
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    definition["added_tokens"].append({"id": 268, "content": f"<{name}>", **plain})
    return lz.Tokenizer.from_json(json.dumps(definition))


@pytest.fixture
def paused():
    _native.pause_verification(True)
    yield
    _native.pause_verification(False)


def encoded(tokenizer):
    """Rows of ids, which are not cached."""
    return _native.token_lists(TEXTS, tokenizer, True)


def selected(tokenizer):
    return lz.which("tokenize.encode", TEXTS, tokenizer).kernel_id


def test_calls_run_the_definition_until_the_native_kernel_is_verified(tokenizer_path, paused):
    tokenizer = made(tokenizer_path, "moves")
    assert tokenizer.verification == "not started"
    tokens = encoded(tokenizer)
    assert tokenizer.verification == "running" and not tokenizer.wait_verified(timeout=0)
    assert selected(tokenizer) == "tokenize.hf.encode"
    shown = str(lz.explain("tokenize.encode", TEXTS, tokenizer))
    assert "verification against the reference is running" in shown, shown
    checks = {check["name"]: check for check in lz.readiness_check().to_dict()["checks"]}
    assert not checks["handles"]["ok"] and "verification" in checks["handles"]["detail"]
    _native.pause_verification(False)
    assert tokenizer.wait_verified() and tokenizer.verification == "verified"
    assert selected(tokenizer) == "tokenize.bpe.encode"
    assert encoded(tokenizer) == tokens
    with pytest.raises(ValueError, match="timeout"):
        tokenizer.wait_verified(timeout=-1.0)


def test_a_setting_verifies_before_the_first_call(tokenizer_path):
    lz.configure({"tokenizer_verification.before_first_call": True})
    try:
        tokenizer = made(tokenizer_path, "setting")
        lz.tokenize(TEXTS, tokenizer)
        assert tokenizer.verification == "verified" and selected(tokenizer) == "tokenize.bpe.encode"
    finally:
        lz.configure({"tokenizer_verification.before_first_call": False})


def test_a_warmup_waits_for_the_verification(tokenizer_path):
    tokenizer = made(tokenizer_path, "warmup")
    report = lz.warmup([("tokenize.encode", {"texts": TEXTS, "tokenizer": tokenizer})])
    assert "tokenize.bpe.encode" in str(report)


PROCESS = """
import json, os, sys
import layerzero as lz
definition = json.loads(open(sys.argv[1]).read())
plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
def made(name):
    added = [*definition["added_tokens"], {"id": 268, "content": f"<{name}>", **plain}]
    return lz.Tokenizer.from_json(json.dumps({**definition, "added_tokens": added}))
"""

FORKS = """
children = []
for number in range(12):
    tokenizer = made(number)
    tokens = tokenizer.encode("hello world 12345")
    pid = os.fork()
    if pid == 0:
        same = tokenizer.encode("12345 hello world hello world 12345", add_special_tokens=False)
        right = tokenizer.wait_verified() and tokenizer.verification == "verified"
        os._exit(0 if right and tokenizer.encode("hello world 12345") == tokens else 1)
    children.append(pid)
    if number % 3 == 0:
        assert tokenizer.wait_verified()
for pid in children:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert tokenizer.wait_verified() and tokenizer.verification == "verified"
"""

HELD_FORK = """
from layerzero import _native
_native.pause_verification(True)
tokenizer = made("held")
tokens = tokenizer.encode("hello world 12345")
pid = os.fork()
if pid == 0:
    # The pause and the thread belong to the parent.
    os._exit(0 if tokenizer.wait_verified() and tokenizer.encode("hello world 12345") == tokens else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert tokenizer.verification == "running"
_native.pause_verification(False)
assert tokenizer.wait_verified()
"""

EXIT = """
for number in range(5):
    made(number).encode("hello world 12345")
    kept = made(f"kept {number}")
    kept.encode("hello world")
"""

HELD_EXIT = """
from layerzero import _native
_native.pause_verification(True)
made("held").encode("hello world")
"""


@pytest.mark.parametrize("program", [FORKS, HELD_FORK, EXIT, HELD_EXIT], ids=["forks", "held fork", "exit", "held exit"])
def test_a_process_forks_and_exits_during_a_verification(tokenizer_path, program):
    done = subprocess.run([sys.executable, "-c", PROCESS + program, str(tokenizer_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done
