"""Score expressions as Triton functions, without a GPU: the generated source, what is declined, values in Triton's interpreter, and when
kernels are compiled."""

import itertools
import os
import random
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "cuda"))
from cases import DECLINED, EXPRESSIONS  # noqa: E402

from layerzero import _native  # noqa: E402
from layerzero.backends.triton import _score_mod  # noqa: E402
from layerzero.backends.triton._score_expressions import expression_of, source_of  # noqa: E402


def source(text, parameters=2):
    return source_of(_native.score_mod_steps(text.encode(), parameters))


def test_sources():
    head = "@triton.jit\ndef modify(score, b, h, q_idx, kv_idx, q_pos, given, REAL: tl.constexpr):\n"
    assert source("score + p0 * (kv_idx - q_pos)") == head + (
        "    t0 = given[1]\n"
        "    t1 = kv_idx - q_pos\n"
        "    t2 = kv_idx.to(REAL)\n"
        "    t3 = q_pos.to(REAL)\n"
        "    t4 = t2 - t3\n"
        "    t5 = t0 * t4\n"
        "    t6 = score + t5\n"
        "    return t6\n"
    )
    assert source("score if q_pos - kv_idx < 128 else -inf") == head + (
        "    t0 = q_pos - kv_idx\n"
        "    t1 = tl.full((), 128, tl.int32)\n"
        "    t2 = t0 < t1\n"
        '    t3 = tl.full((), float("inf"), REAL)\n'
        "    t4 = -t3\n"
        "    t5 = tl.where(t2, score, t4)\n"
        "    return t5\n"
    )
    # Division by a power of two, integers of 64 bits, rounding to integers.
    assert source("score / 8 if kv_idx * kv_idx > 7 * kv_idx // 2 else h") == head + (
        "    t0 = kv_idx.to(tl.int64) * kv_idx.to(tl.int64)\n"
        "    t1 = tl.full((), 7, tl.int32)\n"
        "    t2 = t1 * kv_idx\n"
        "    t3 = tl.full((), 2, tl.int32)\n"
        "    t4 = t2 // t3\n"
        "    t5 = t0.to(tl.int64) > t4.to(tl.int64)\n"
        "    t6 = tl.full((), 8, tl.int32)\n"
        "    t7 = t6.to(REAL)\n"
        "    t8 = score * tl.full((), 0.125, REAL)\n"
        "    t9 = h.to(REAL)\n"
        "    t10 = tl.where(t5, t8, t9)\n"
        "    return t10\n"
    )
    # A dividend that may be negative.
    assert "floor_divide(t1, t2)" in source("score if (q_pos - 1) // 3 == 0 else 0")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("score if score > 0 else -inf", "compares the score"),
        ("score * kv_idx", "rounding errors of scores 4.1943e.06 times"),
        ("exp(score)", "without bound"),
        ("score * score", "without bound"),
        ("log(score)", "without bound"),
        ("5 * score", "5 times"),
        ("score / 0.1", "10 times"),
        ("1 / score", "without bound"),
        ("score + kv_idx // p0", "numbers that are not integers"),
        ("score + kv_idx % 2.5", "numbers that are not integers"),
        ("score + kv_idx // h", "may be 0"),
        ("score + 1 / -kv_idx", "negative zero"),
        ("score + kv_idx * kv_idx * kv_idx", "exceed 2.53"),
    ],
)
def test_declined(text, reason):
    with pytest.raises(NotImplementedError, match=reason):
        source(text)
    # Declined again from the cache, with the same reason.
    for _ in range(2):
        with pytest.raises(NotImplementedError, match=reason):
            expression_of(text, 2)


@pytest.mark.parametrize("text", [*EXPRESSIONS, "score * p0", "tanh(score / p0) * p0", "min(exp(min(score, 0)), 1)", "score / (1 + kv_idx)", "4 * score", "0 * exp(score) + score"])
def test_accepted(text):
    assert source(text).startswith("@triton.jit\ndef modify(")


def test_the_list_of_declined_expressions_is_declined():
    for text in DECLINED:
        with pytest.raises(NotImplementedError):
            source(text)


def test_invalid_texts_and_unknown_steps_reach_no_source():
    for text in ("__import__('os')", "score; import os", "score\nimport os", "score.to", "tl.load(q)", "given[0]", "p2", "lambda: 0", "score if", "", "(" * 600 + "score" + ")" * 600):
        with pytest.raises(ValueError, match="score_mod must be"):
            expression_of(text, 2)
    for name in ("import os", "system", "", "__class__"):
        with pytest.raises(NotImplementedError, match="does not know"):
            source_of([("slot", 0), ("slot", 1), (name, 0)])


class _Writer:
    """Random expressions."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def one(self, *values):
        return self.random.choice(values)

    def integer(self, depth):
        if depth == 0 or self.random.random() < 0.2:
            return self.one("b", "h", "q_idx", "kv_idx", "q_pos", str(self.random.randint(0, 9)), str(self.random.randint(-3000, 3000)))
        a, b = self.integer(depth - 1), self.integer(depth - 1)
        return self.one(
            f"({a} + {b})", f"({a} - {b})", f"{a} * {self.random.randint(-5, 5)}", f"-{a}", f"abs({a})", f"min({a}, {b})", f"max({a}, {b}, 3)",
            f"{a} // {self.one(-7, -2, 1, 3, 64)}", f"{a} % {self.one(-5, 2, 16)}", f"ceil_div({a}, {self.one(-3, 4)})", f"({a} if {self.truth(depth - 1)} else {b})",
        )  # fmt: skip

    def truth(self, depth):
        if depth == 0 or self.random.random() < 0.1:
            return self.one("true", f"{self.integer(0)} {self.one('<', '<=', '>', '>=', '==', '!=')} {self.integer(0)}")
        a, b = self.truth(depth - 1), self.truth(depth - 1)
        i, j = self.integer(depth - 1), self.integer(depth - 1)
        return self.one(f"({a} and {b})", f"({a} or {b})", f"not ({a})", f"{i} < {j}", f"{i} <= {j} <= {i}", f"{i} in [{j}, 3]", f"{i} not in [{j}]", f"{i} < p0", f"{i} * 0.5 != {j}")

    def real(self, depth):
        """Without the score."""
        if depth == 0:
            return self.one("p0", "p1", "0.25", "-1.5", self.integer(1))
        a, b = self.real(depth - 1), self.real(depth - 1)
        return self.one(
            f"({a} + {b})", f"({a} - {b})", f"{a} * {b}", f"{a} / {self.one('8', '-3', '(1 + abs(kv_idx - q_pos))')}", f"tanh({a})", f"sqrt(abs({a}))", f"log(1 + abs({a}))",
            f"exp(-abs({a}))", f"min({a}, {b})", f"max({a}, {b})", f"({a} if {self.truth(1)} else {b})", f"-{a}",
        )  # fmt: skip

    def score(self, depth):
        if depth == 0:
            return self.one("score", "score * 0.5", "-score", "score / 2")
        a, b = self.score(depth - 1), self.real(depth - 1)
        return self.one(
            f"{a} + {b}", f"({a} if {self.truth(2)} else {b})", f"({a} if {self.truth(2)} else -inf)", f"min({a}, {b})", f"max({a}, {b})", f"tanh({a}) * 2", f"abs({a}) - {b}", a,
        )  # fmt: skip


_NAMES = {"triton", "jit", "def", "modify", "score", "b", "h", "q_idx", "kv_idx", "q_pos", "given", "REAL", "tl", "constexpr", "full", "where", "exp", "log", "sqrt", "abs",
          "to", "int32", "int64", "float64", "float", "inf", "nan", "tanh", "minimum", "maximum", "divide", "floor_divide", "modulo", "return"}  # fmt: skip


def test_sources_have_a_closed_vocabulary():
    accepted = 0
    for seed in range(300):
        text = _Writer(seed).score(4)
        try:
            generated = source(text)
        except NotImplementedError:
            continue
        accepted += 1
        compile(generated, "generated", "exec")
        words = set(re.findall(r"[A-Za-z_]\w*", re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "0", re.sub(r"\bt\d+\b", "", generated)))) - {"int0", "float0"}
        assert words <= _NAMES, (text, words - _NAMES)
        assert set(re.sub(r"\w", "", generated)) <= set("@.():,=+-*/%<>![] \n\""), text
    assert accepted > 150


_INTERPRETED = """
import sys
sys.path[:0] = sys.argv[1:3]
import torch
from test_score_mod_kernel import _Writer
from reference_checks import differences
import layerzero as lz
from layerzero.backends.triton import _score_mod

lz.register_kernel(operation="attention.gqa.prefill", id="interpreted.score_mod", backend="interpreted")(lambda *a, **k: _score_mod.prefill(*a, **k))
generator = torch.Generator().manual_seed(0)
ran = 0
for seed in range(int(sys.argv[3]), int(sys.argv[3]) + 120):
    q, k, v = (torch.randn(2, length, heads, 16, generator=generator) for length, heads in ((9, 4), (21, 2), (21, 2)))
    call = {"q": q, "k": k, "v": v, "causal_offset": seed % 30 - 12, "return_lse": True, "score_mod": _Writer(seed).score(4), "score_params": torch.randn(2, 4, 2, generator=generator)}
    results = []
    for kernel in ("interpreted.score_mod", "reference.attention.gqa.prefill"):
        lz.lock("attention.gqa.prefill", kernel)
        try:
            results.append(list(lz.ops.attention_gqa_prefill(**call)))
        except lz.LayerZeroError as error:
            assert isinstance(error.__cause__, NotImplementedError), (call["score_mod"], error)
            break
        finally:
            lz.unlock("attention.gqa.prefill")
    else:
        ran += 1
        problems = differences("attention.gqa.prefill", "f32", *results)
        assert not problems, (call["score_mod"], problems)
print(ran)
"""


def test_interpreted_expressions_agree_with_the_reference():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-W", "ignore", "-c", _INTERPRETED, str(HERE.parent / "cuda"), str(HERE), "1000"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


@pytest.fixture
def compilations(monkeypatch):
    """Compilations are recorded instead of made."""
    monkeypatch.setattr(_score_mod, "_COMPILED", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    made, may_end = [], threading.Event()

    def compile(one):
        assert may_end.wait(30)
        made.append(one.key)
        with _score_mod._CHANGED:
            _score_mod._COMPILED[one.key] = "no registers" if one.key[0] == "bad" else ""
            _score_mod._WAITING.pop(one.key, None)
            _score_mod._CHANGED.notify_all()

    monkeypatch.setattr(_score_mod, "_compile", compile)
    made_by = (made, may_end)
    yield made_by
    may_end.set()
    _score_mod.wait_for_compilations(30)


def one(key):
    return _score_mod._Compilation(key, (), 0, None)


def test_calls_are_declined_while_their_expression_is_compiled(compilations):
    made, may_end = compilations
    for _ in range(2):
        with pytest.raises(NotImplementedError, match="is being compiled"):
            _score_mod._ensure_compiled(one(("good", 0)))
    with pytest.raises(NotImplementedError, match="is being compiled"):
        _score_mod._ensure_compiled(one(("bad", 0)))
    assert not _score_mod.wait_for_compilations(0.05) and made == []
    may_end.set()
    assert _score_mod.wait_for_compilations(30) and made == [("good", 0), ("bad", 0)]
    _score_mod._ensure_compiled(one(("good", 0)))
    with pytest.raises(NotImplementedError, match="could not be compiled: no registers"):
        _score_mod._ensure_compiled(one(("bad", 0)))


def test_expressions_are_compiled_in_the_call_on_request(compilations, monkeypatch):
    made, may_end = compilations
    may_end.set()
    with _score_mod.compiled_inline():
        _score_mod._ensure_compiled(one(("inner", 0)))
    monkeypatch.setattr(_score_mod, "_setting", lambda name: {"jit.mode": "inline"}.get(name, "true"))
    _score_mod._ensure_compiled(one(("inline", 0)))
    assert made == [("inner", 0), ("inline", 0)]
    monkeypatch.setattr(_score_mod, "_setting", lambda name: {"jit.enable_background_compile": "false"}.get(name, ""))
    with pytest.raises(NotImplementedError, match="enable_background_compile is false"):
        _score_mod._ensure_compiled(one(("never", 0)))
    assert _score_mod.wait_for_compilations(5) and ("never", 0) not in made


def test_nothing_is_compiled_during_a_capture(compilations, monkeypatch):
    made, may_end = compilations
    may_end.set()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(NotImplementedError, match="during CUDA graph capture"), _score_mod.compiled_inline():
        _score_mod._ensure_compiled(one(("captured", 0)))
    assert made == []


def test_settings_are_read():
    assert _score_mod._setting("jit.mode") in ("never", "when_warm", "inline")
    assert _score_mod._setting("jit.enable_background_compile") in ("true", "false")


def test_tiles_fit_into_shared_memory():
    for memory in (101376, 166912, 232448):
        for rows in (1, 8, 17, 33, 64, 4096):
            for features in (32, 128, 256, 512):
                for causal, size, mask in itertools.product((True, False), (2, 4), (0, 1, 2, 4)):
                    tile = _score_mod.tile_of(rows, features, size, mask, causal, memory)
                    assert tile.rows >= 16 and tile.stages >= 1
                    taken = tile.rows * features // 2 * size + tile.stages * tile.keys * (features * size + tile.rows * mask)
                    assert taken <= memory, (memory, rows, features, causal, size, mask, tile)


def test_parts_of_keys_have_at_least_two_reads():
    # The interpreter has four processors.
    splits = _score_mod._splits
    assert splits(1, 64, 64, -1) == 1 and splits(1, 1 << 16, 64, -1) == 4 and splits(2, 1 << 16, 64, -1) == 2 and splits(100, 1 << 16, 64, -1) == 1


_COMPILED_AHEAD = """
import contextlib
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import compiler
from triton.runtime.jit import JITFunction

class Driver:
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)

triton.runtime.driver.set_active(Driver())
compiler.CompiledKernel._init_handles = lambda self: None
torch.cuda.device = lambda device: contextlib.nullcontext()
torch.cuda.is_current_stream_capturing = lambda: False
from layerzero.backends import triton as launching
from layerzero.backends.triton import _score_mod
from layerzero.backends.triton._score_expressions import expression_of

class OnDevice:
    def __init__(self, tensor):
        self.tensor = tensor
    def __getattr__(self, name):
        return getattr(self.tensor, name)
    def get_device(self):
        return 0

compiled, launched = [], []
one_more = JITFunction._do_compile
JITFunction._do_compile = lambda self, *rest, **more: (compiled.append(self), one_more(self, *rest, **more))[1]

def launch(key, rows, columns, tensors, numbers, recipe):
    kernel, constants, warps, stages, _ = recipe()
    names = kernel.arg_names[len(tensors) + len(numbers):]
    options = {"num_warps": warps} if stages is None else {"num_warps": warps, "num_stages": stages}
    before = len(compiled)
    tensors = [one.tensor if isinstance(one, OnDevice) else one for one in tensors]
    kernel.warmup(*tensors, *numbers, **dict(zip(names, constants, strict=True)), **options, grid=(rows, columns))
    launched.append((key[0], len(compiled) - before))

launching._launch = launch
_score_mod._shared_memory, _score_mod._processors = (lambda device: 232448), (lambda device: 132)
expression = expression_of("score + p0 * kv_idx", 1)
requests = _score_mod._Requests(*(OnDevice(torch.zeros(count, dtype=torch.int32)) for count in (2, 2, 1, 1)), None, None)
params = OnDevice(torch.zeros(1, 8, 1))
common = {"window_left": -1, "window_right": -1, "soft_cap": 0.0, "return_lse": True, "heads_first": False}
for length in (16, 4096):
    q, k = (torch.zeros(1, length, heads, 64, dtype=torch.bfloat16) for heads in (8, 2))
    with _score_mod.compiled_inline():
        _score_mod.attend(OnDevice(q), OnDevice(k), OnDevice(k), None, None, None, expression, params, None, causal=True, offset=length, sm_scale=1.0, **common)
        _score_mod.attend(OnDevice(q[:, 0].contiguous()), OnDevice(k), OnDevice(k), None, None, None, expression, params, None, causal=False, offset=1, sm_scale=0.1, **common)
        _score_mod.attend(OnDevice(q[0]), OnDevice(k), OnDevice(k), None, None, None, expression, params, None, causal=True, offset=0, sm_scale=0.1, requests=requests, **common)
assert set(_score_mod._COMPILED.values()) == {""}, _score_mod._COMPILED
assert [name for name, _ in launched] == ["score_mod", "score_mod", "score_mod", "score_mod", "score_mod", "combine", "score_mod"], launched
assert not any(count for _, count in launched), launched
print(len(compiled))
"""


def test_calls_of_all_sizes_launch_what_was_compiled_without_them(tmp_path):
    """For a GPU that is absent: kernels are compiled from dtypes and placeholders, and no call may compile again."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", _COMPILED_AHEAD], capture_output=True, text=True, env=environment)
    # Both lengths share the kernels of whole sequences and of requests; longer caches are split.
    assert done.returncode == 0 and done.stdout.strip() == "5", done.stderr + done.stdout
