"""GPU adapters tested on the host: Triton kernels interpreted and compiled for an absent GPU, and reuse of
FlashInfer plans."""

import functools
import importlib
import importlib.util
import subprocess
import sys
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "cuda"))
from conform import run  # noqa: E402

import layerzero as lz  # noqa: E402
from layerzero import backends  # noqa: E402
from layerzero.backends import torch as torch_backend  # noqa: E402


@pytest.fixture
def as_kernel():
    def register(operation, function):
        lz.register_kernel(operation=operation, id=f"composedone.{operation}", backend="composedone")(
            functools.wraps(function)(lambda *arguments, **keywords: function(*arguments, **keywords))
        )
        return f"composedone.{operation}"

    yield register
    lz.unregister_backend("composedone")


_COMPILED = """
import sys
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from layerzero.backends.triton import _embedding_kernels as y, _experts_kernels as e, _experts_quantized_kernels as q, _fp4_kernels as w, _fp8_kernels as f, _kernels as k, _linear_kernels as l, _norm_kernels as n, _paged_kernels as p, _recurrent_kernels as r, _rope_append_kernels as t, _sampling_kernels as d, _score_expressions as x, _score_mod_kernels as a, _sparse_kernels as b

numbers = {"i": "i32", "f": "fp32"}
def source(kernel, pointers, constants, warps=4, **others):
    names = kernel.arg_names
    signature = {name: pointers.get(name, "constexpr" if name in constants else others.get(name, "i32")) for name in names}
    return ASTSource(fn=kernel, signature=signature, constexprs=constants), warps

half = "*bf16"
every = [
    source(k.rms_norm, {"x": half, "residual": half, "weight": half, "out": half}, {"HAS_WEIGHT": True, "ADDS": True, "BLOCK": 4096}, 8, eps="fp32", offset="fp32"),
    source(k.silu_mul, {"gate": half, "up": half, "out": half}, {"BLOCK": 1024}),
    source(k.gelu_mul, {"gate": half, "up": half, "out": half}, {"TANH": False, "BLOCK": 1024}),
    source(k.rope, {"x": half, "cos": "*fp32", "sin": "*fp32", "positions": "*i64", "out": half}, {"HAS_POSITIONS": True, "INTERLEAVED": True, "HALF": 64, "REST": 64}),
    source(k.merge, {"v": half, "s": "*fp32", "out": half, "lse": "*fp32"}, {"BLOCK": 128}),
    source(k.append, {"k": half, "v": half, "k_cache": "*fp8e4nv", "v_cache": "*fp8e4nv", "slots": "*i64"}, {"SATURATES": True, "LARGEST": 448.0, "BLOCK": 1024}),
    source(k.largest, {"x": half, "parts": "*i32"}, {"PARTS": 512, "BLOCK": 8192}, 8),
]
layer = {"x": half, "weight": half, "up": half, "bias": half, "out": half}
for gated in (False, True):
    kind = {"KIND": 2, "HAS_BIAS": not gated, "GATED": gated, "EVEN": gated}
    every.append(source(l.gemv, layer, {**kind, "N_BLOCK": 2, "K_BLOCK": 1024}))
    every.append(source(l.skinny, layer, {**kind, "M_BLOCK": 32, "N_BLOCK": 64, "K_BLOCK": 128}))
every.append(source(l.fixed, layer, {"KIND": 2, "HAS_BIAS": True, "EVEN": True, "M_BLOCK": 64, "N_BLOCK": 128, "K_BLOCK": 64}))
tables = dict.fromkeys(("qo_indptr", "kv_indptr", "kv_indices", "last_page_len"), "*i32")
caches = {"q": half, "k_cache": half, "v_cache": half, **tables, **dict.fromkeys(("slopes", "lse", "partial", "stats"), "*fp32"), "out": half}
flags = {"CAUSAL": True, "HAS_CAP": True, "HAS_SLOPES": True, "HAS_LSE": True}
for splits in (1, 32):
    blocks = {"SPLITS": splits, "REQUESTS": 64, "H_BLOCK": 16, "D_BLOCK": 128, "N_BLOCK": 64}
    every.append(source(p.attend, caches, {**flags, **blocks}, scale="fp32", soft_cap="fp32"))
joined = {"partial": "*fp32", "stats": "*fp32", "out": half, "lse": "*fp32"}
every.append(source(p.combine, joined, {"HAS_LSE": True, "SPLITS": 32, "D_BLOCK": 128}))
for stored, most in (("*i8", 127.0), ("*fp8e4nv", 448.0), ("*fp8e5", 57344.0)):
    both = {"x": half, "parts": "*i32", "scale": "*fp32", "zero": "*i32", "out": stored}
    made = {"HAS_SCALE": False, "HAS_ZERO": stored == "*i8", "LARGEST": most}
    every.append(source(k.quantize, both, {**made, "PARTS": 512, "BLOCK": 4096}))
    every.append(source(k.quantize_blocks, both, {**made, "GROUPS": 32, "SIZE": 128}))
    norm = {"x": half, "residual": half, "weight": half, "scale": "*fp32", "out": stored}
    flags = {"HAS_WEIGHT": True, "ADDS": True, "HAS_SCALE": False, "ONE_SCALE": False, "WHOLE": stored == "*i8", "LARGEST": most, "GROUPS": 32, "SIZE": 128}
    every.append(source(n.rms_norm_quantize, norm, flags, eps="fp32", offset="fp32"))
    back = {"quantized": stored, "scale": "*fp32", "zero": "*i32", "out": half}
    every.append(source(k.dequantize, back, {"PER_BLOCK": True, "HAS_ZERO": stored == "*i8", "BLOCK": 4096}, 8))
sorting = dict.fromkeys(("indices", "counts", "order", "tiles"), "*i32")
every.append(source(e.count, sorting, {"BLOCK": 1024}))
every.append(source(e.place, sorting, {"M_BLOCK": 16, "EXPERTS": 128, "BLOCK": 1024}))
mixture = {**sorting, **dict.fromkeys(("x", "weight", "bias", "hidden", "out"), half), "factors": "*fp32", "results": "*fp32"}
blocks = {"EVEN": True, "M_BLOCK": 64, "N_BLOCK": 64, "K_BLOCK": 64}
kind = {"KIND": 2, "HAS_BIAS": True, "INTERLEAVED": True, "HAS_LIMIT": True, **blocks}
every.append(source(e.gate_up, mixture, kind, alpha="fp32", limit="fp32", up_offset="fp32"))
every.append(source(e.down, mixture, {"HAS_BIAS": True, **blocks}))
every.append(source(e.combine, mixture, {"BLOCK": 1024}))
# DeepSeek-V3, a format with scales by row, int4 and MXFP4 in groups, and int4 with scaled weights.
for stored, scale, format, features, scaling, group in (
    ("*fp8e4nv", "*fp32", 0, 128, q.STEPS, 0), ("*i8", "*fp32", 1, 1, q.SUMS, 0), ("*u8", "*fp32", 2, 1, q.STEPS, 0),
    ("*u8", "*u8", 3, 1, q.WEIGHTS, 32), ("*u8", "*fp32", 2, 1, q.WEIGHTS, 0),
):
    dtype = tl.float32 if scaling == q.WEIGHTS and format == 2 else tl.bfloat16
    quantized = {**mixture, "weight": stored, "scale": scale, "hidden": "*fp32"}
    of_scales = {"FORMAT": format, "FEATURES": features, "SCALING": scaling, "GROUP": group, "DTYPE": dtype}
    tile = {"EVEN": format == 0, "M_BLOCK": 16, "N_BLOCK": 64, "K_BLOCK": 32 if dtype == tl.float32 else 128}
    flags = {"KIND": 2, "HAS_BIAS": True, "INTERLEAVED": True, "HAS_LIMIT": True}
    every.append(source(q.gate_up, quantized, {**flags, **of_scales, **tile}, alpha="fp32", limit="fp32", up_offset="fp32"))
    every.append(source(q.down, quantized, {"HAS_BIAS": True, **of_scales, **tile, "PARTS": 1 if dtype == tl.float32 else 2}))
router = {"logits": half, "bias": "*fp32", "weights": "*fp32", "indices": "*i32"}
for groups in (1, 8):
    tile = {"GROUPS": groups, "GROUP_BLOCK": groups, "SIZE": 256 // groups, "BLOCK": 256 // groups}
    choice = {"SIGMOID": groups == 8, "HAS_BIAS": groups == 8, "RENORMALIZE": True, "TOP2": groups == 8, **tile}
    every.append(source(e.route, router, choice, scale="fp32"))
singles = dict.fromkeys(("g", "solved_keys", "solved_values", "first", "last", "state", "a", "d", "dt_bias"), "*fp32")
delta = {**singles, **dict.fromkeys(("q", "k", "v", "beta", "out"), half)}
states = {"HAS_FIRST": True, "HAS_LAST": True}
every.append(source(r.delta_step, delta, {"CHANNEL": True, "NORM": True, **states, "K_BLOCK": 128, "V_BLOCK": 32}, scale="fp32"))
chunks = {"PRECISION": "tf32x3", "CHUNK": 64}
every.append(source(r.delta_solve, delta, {"NORM": True, **chunks, "K_BLOCK": 32, "V_BLOCK": 32}))
every.append(source(r.delta_chunks, delta, {"NORM": True, **states, **chunks, "K_BLOCK": 32, "V_BLOCK": 32}, scale="fp32"))
scan = {**singles, **dict.fromkeys(("x", "dt", "b", "c", "out"), half)}
optional = {"HAS_D": True, "HAS_BIAS": True, "SOFTPLUS": True}
every.append(source(r.ssm_step, scan, {**optional, "P_BLOCK": 32, "N_BLOCK": 128}, low="fp32", high="fp32"))
every.append(source(r.ssm_chunks, scan, {**optional, **states, **chunks, "P_BLOCK": 32, "N_BLOCK": 32}, low="fp32", high="fp32"))
conv = dict.fromkeys(("x", "weight", "bias", "first", "out", "last"), half)
every.append(source(r.causal_conv, conv, {"HAS_BIAS": True, "SILU": True, **states, "WIDTH": 4, "TAPS": 4, "T_BLOCK": 16, "C_BLOCK": 128}))
rows = {**dict.fromkeys(("q", "k", "v", "out"), half), "cos": "*fp32", "sin": "*fp32", "positions": "*i64", "slots": "*i64"}
for stored, largest in ((half, 0.0), ("*fp8e4nv", 448.0)):
    sizes = {"INTERLEAVED": False, "LARGEST": largest, "HALF": 64, "REST": 1, "BLOCK": 1024}
    every.append(source(t.rope_append, {**rows, "k_cache": stored, "v_cache": stored}, sizes))
codes = {"x": "*fp8e4nv", "weight": "*fp8e4nv", "x_scale": "*fp32", "weight_scale": "*fp32", "bias": half, "out": half}
for by in (1, 2):
    kind = {"KIND": 0, "HAS_BIAS": True, "X_BY": by, "W_BY": by, "PRECISE": by == 1, "EVEN": True, "M_BLOCK": 64, "N_BLOCK": 64, "K_BLOCK": 128}
    every.append(source(f.product, codes, kind))
nibbles = {**dict.fromkeys(("x", "weight", "x_scale", "weight_scale", "codes", "scale"), "*u8"), **dict.fromkeys(("x_global", "weight_global", "partial"), "*fp32"), "bias": half}
ends = {"KIND": 2, "HAS_BIAS": True, "HAS_X_GLOBAL": True, "HAS_W_GLOBAL": True}
for by_power, operand, kind in ((False, tl.float16, "*fp16"), (True, tl.bfloat16, "*bf16")):
    every.append(source(w.gemv, {**nibbles, "out": half}, {**ends, "BY_POWER": by_power, "EVEN": True, "N_BLOCK": 4, "WORDS": 256}))
    every.append(source(w.unpack, {**nibbles, "out": kind}, {"BY_POWER": by_power, "OPERAND": operand, "ROWS": 4, "BYTES": 512}))
    for x_copied, w_copied, splits, rows in ((False, False, 4, 16), (True, False, 1, 64), (True, True, 1, 128)):
        copies = {name: kind for name, is_copied in (("x", x_copied), ("weight", w_copied)) if is_copied}
        blocks = {"X_COPIED": x_copied, "W_COPIED": w_copied, "EVEN": True, "SPLITS": splits, "M_BLOCK": rows, "N_BLOCK": 64, "BYTES": 64}
        every.append(source(w.product, {**nibbles, **copies, "out": half}, {**ends, "BY_POWER": by_power, "OPERAND": operand, **blocks}))
every.append(source(w.combine, {**nibbles, "out": half}, {**ends, "SPLITS": 4, "BLOCK": 1024}))
for packed, sign, kind in ((True, 8, ""), (False, 128, ""), (False, 0, "e4m3"), (True, 0, "e2m1")):
    table = {"table": "*u8", "ids": "*i64", "scale": "*u8" if kind == "e2m1" else "*fp32", "zero": "*i32", "out": half}
    every.append(source(y.lookup, table, {"NIBBLES": packed, "HALF": sign, "FLOAT": kind, "HAS_ZERO": kind == "", "BYTES": 1024}))
sparse = {**dict.fromkeys(("q", "k", "v", "out"), half), **dict.fromkeys(("indptr", "indices", "row_sizes", "sizes", "numbers", "visible", "keys", "counts"), "*i32"), "mask": "*i1", "lse": "*fp32"}
blocks = {"HAS_CAP": True, "HAS_LSE": True, "M_BLOCK": 64, "N_BLOCK": 64, "D_BLOCK": 128}
for whole in (True, False):
    every.append(source(b.block, sparse, {**blocks, "WHOLE": whole, "TILES": 2}, scale="fp32", soft_cap="fp32"))
every.append(source(b.blocks_of_keys, sparse, {"N_BLOCK": 128, "BLOCK": 128}))
every.append(source(b.visible_keys, sparse, {"BLOCK": 1024}))
every.append(source(b.variable_block, sparse, {**blocks, "R_BLOCK": 64}, scale="fp32", soft_cap="fp32"))
draws = {**dict.fromkeys(("draft", "target"), "*fp32"), **dict.fromkeys(("drafted", "tokens", "accepted"), "*i32"), **dict.fromkeys(("uniforms", "sums"), "*fp64"), "seed": "*i64", "offset": "*i64"}
for given in (True, False):
    every.append(source(d.verify, draws, {"HAS_SEED": given, "HAS_OFFSET": given, "POSITIONS": 8, "PART": 4096}, 8))
every.append(source(d.emit, draws, {"PARTS": 32, "PART": 4096}, 8))
from cases import EXPRESSIONS
from layerzero import _native
tables = ("lengths", "qo_indptr", "kv_indptr", "kv_indices", "last_page_len")
scored = {**dict.fromkeys(("q", "k", "v", "mask", "out"), half), **dict.fromkeys(("slopes", "sinks", "parameters", "k_scale", "v_scale", "lse", "partial", "stats"), "*fp32"), **dict.fromkeys(tables, "*i32")}
names = ("CAUSAL", "HAS_LEFT", "HAS_RIGHT", "HAS_CAP", "HAS_SLOPES", "HAS_SINKS", "HAS_LENGTHS", "HAS_LSE")
codes = {"k": "*fp8e4nv", "v": "*fp8e4nv"}
for text, has, mask, splits, wide, ragged, keys, cache in (
    (EXPRESSIONS[6], True, 2, 1, False, False, 0, {}), (EXPRESSIONS[7], False, 0, 8, False, False, 0, {}), (EXPRESSIONS[1], False, 0, 1, False, True, 1, {}),
    (EXPRESSIONS[1], False, 0, 8, False, True, 2, codes), (EXPRESSIONS[8], False, 0, 1, True, False, 2, {}),
):
    scored |= cache
    if wide:
        scored = {name: "*fp32" if kind in (half, "*fp8e4nv") else kind for name, kind in scored.items()}
    modify = x.build(_native.score_mod_steps(text.encode(), 2)).modify
    kind = {"MODIFY": modify, "REAL": tl.float64 if wide else tl.float32, "PARAMETERS": 2, **dict.fromkeys(names, has), "MASK": mask, "UNIT": 8, "SPLITS": splits, "RAGGED": ragged, "KEYS": keys, "REQUESTS": 8 if ragged else 1, "HAS_K_SCALE": bool(cache), "HAS_V_SCALE": bool(cache)}
    dims = {"HEAD_DIM": 128, "VALUE_DIM": 128, "M_BLOCK": 32 if wide else 128, "N_BLOCK": 32, "D_BLOCK": 128, "V_BLOCK": 128}
    every.append(source(a.attend, scored, {**kind, **dims}, 4 if wide else 8, scale="fp32", soft_cap="fp32"))
# With as many warps as the adapters use for such blocks: fewer have too few registers, and are slow to compile.
for one, warps in every:
    triton.compile(one, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
print(len(every))
"""


def test_triton_kernels_compile_for_an_absent_gpu(tmp_path):
    pytest.importorskip("triton")
    import os

    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE.parent / "cuda"), environment.get("PYTHONPATH"))))
    done = subprocess.run([sys.executable, "-c", _COMPILED], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and done.stdout.strip() == "82", done.stderr


@pytest.mark.parametrize(("bits", "step"), [(8, 1), (11, 16)])
@pytest.mark.parametrize(("largest", "kind"), [(448.0, torch.float8_e4m3fn), (57344.0, torch.float8_e5m2), (127.0, None)])
def test_one_correction_gives_the_codes_of_a_division(bits, step, largest, kind):
    """`_codes_of` for values of at most 11 bits: all significands, as the largest value of a group (of f16 some) and as values in it."""
    np = pytest.importorskip("numpy")
    count = 1 << (bits - 1)
    significands = (count + np.arange(count)).astype(np.float32) / np.float32(count)

    def code(ratio):
        return np.rint(ratio) if kind is None else torch.from_numpy(ratio).to(kind).view(torch.uint8).numpy()

    for top in significands[::step]:
        scale = np.float32(top / np.float32(largest))
        inverse = np.float32(1) / scale
        values = np.concatenate([significands * np.float32(2.0**-down) for down in range(22)])
        values = values[values <= top]
        ratio = values * inverse
        # Exact before it is rounded to f32, as in a fused multiplication and addition.
        remainder = (values - ratio.astype(np.float64) * float(scale)).astype(np.float32)
        ratio = (ratio.astype(np.longdouble) + remainder.astype(np.longdouble) * np.longdouble(inverse)).astype(np.float32)
        assert (code(ratio) == code(values / scale)).all(), top


_INTERPRETED = """
import functools
import json
import sys
from math import inf
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
import triton.language as tl
from cases import DTYPES, EXPRESSIONS, SCORED, small
from conform import off, run, there
from reference_cases import wide
from reference_checks import differences
import layerzero as lz
from layerzero import backends
from layerzero.backends import triton
from layerzero.backends.triton._tiles import Tile

launch = triton._launch

def checked(key, *rest):
    # The launcher reads the device from the end of the key.
    assert isinstance(key[-1], int), key
    launch(key, *rest)

triton._launch = triton._norms._launch = checked
# Small vocabularies have several parts.
triton._sampling._PART = 16
# The interpreter computes with the bits of bf16; and few inputs have several parts.
triton._fp4._OPERANDS["mxfp4"] = tl.float32
triton._fp4._SKINNY = ((16, Tile(16, 32, 64, 4, 2)), (inf, Tile(64, 64, 64, 4, 2)))
# Their kernels decode fp8 by its bits, and accept any block size.
by_bits = ("embedding.lookup.quantized", "mlp.linear.fp4")
# Enough for every format and granularity.
counts = {"moe.experts.quantized": 19, "embedding.lookup.quantized": 20, "mlp.linear.fp4": 20}
descriptor = json.loads((Path(backends.__file__).parent / "triton.cuda.json").read_text())["ops"]
operations = {kernel["kernel_id"]: operation for operation, kernels in descriptor.items() for kernel in kernels}
for id, function in triton.KERNELS.items():
    operation = operations[id]
    lz.register_kernel(operation=operation, id=id.replace("triton.", "interpreted."), backend="interpreted")(functools.wraps(function)(lambda *a, f=function, **k: f(*a, **k)))
    # The interpreter is slow: one in three formats, and half a dozen variants, are run.
    seeds = range(SCORED, SCORED + len(EXPRESSIONS)) if id.endswith(".score_mod") else range(counts.get(operation, 40 if "quantize" in operation else 3))
    for seed in seeds:
        call = small(operation, "f32", seed)
        is_wide = call is None
        if is_wide:
            call = {name: value.contiguous() if hasattr(value, "contiguous") else value for name, value in wide(operation, "f32", seed).items()}
            # As the descriptor limits it.
            if any(0 in getattr(value, "shape", ()) for value in call.values()) or operation not in by_bits and call.get("granularity") == "block" and call.get("block_size", 128) not in (32, 128):
                continue
        # The interpreter does not round to 8 bits as devices do; stored weights are only read.
        if not operation.startswith("attention.") and operation not in (*by_bits, "moe.experts.quantized") and ("fp8" in call.get("format", "") or any(getattr(value, "dtype", None) in (DTYPES["f8_e4m3"], DTYPES["f8_e5m2"]) for value in call.values())):
            continue
        actual = run(operation, id.replace("triton.", "interpreted."), there(call, "cpu"))
        expected = run(operation, f"reference.{operation}", there(call, "cpu"))
        if is_wide:
            assert differences(operation, "f32", actual, expected) == [], (operation, seed)
            continue
        worst = max(off(one, other, DTYPES["f32"], operation) for one, other in zip(actual, expected, strict=True))
        assert worst <= 1, (operation, seed, worst)
"""


def test_interpreted_triton_kernels_agree_with_the_reference():
    pytest.importorskip("triton")
    import os

    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", _INTERPRETED, str(HERE.parent / "cuda")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("layout", ["BSHD", "BHSD"])
def test_flash_attention_gets_heads_first(monkeypatch, as_kernel, layout):
    """Replaces torch's GPU function with a host implementation of its documented behavior."""
    flash_calls = []

    def flash(q, k, v, dropout, is_causal, *, scale):
        flash_calls.append((q.shape, k.shape, dropout))
        keys, values = (one.repeat_interleave(q.shape[1] // k.shape[1], 1) for one in (k, v))
        scores = q @ keys.transpose(-1, -2) * scale
        if is_causal:
            late = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + k.shape[2] - q.shape[2])
            scores = scores.masked_fill(late, -torch.inf)
        return torch.softmax(scores, -1) @ values, torch.logsumexp(scores, -1), None, None, 0, 0, None, None, None

    monkeypatch.setattr(torch, "_scaled_dot_product_flash_attention", flash)
    q, k, v = torch.randn(2, 5, 6, 16), torch.randn(2, 9, 2, 16), torch.randn(2, 9, 2, 16)
    calls = {
        "attention.gqa.prefill": {"q": q, "k": k, "v": v, "causal": True, "return_lse": True},
        "attention.gqa.decode": {"q": q[:, 0], "k": k, "v": v, "return_lse": True},
    }
    for operation, call in calls.items():
        if layout == "BHSD":
            call = {name: one.transpose(1, 2).contiguous() if getattr(one, "ndim", 0) == 4 else one for name, one in call.items()}
        kernel = as_kernel(operation, torch_backend.KERNELS[f"torch.cuda.sdpa.flash.{operation.removeprefix('attention.')}"])
        found = run(operation, kernel, {**call, "layout": layout})
        expected = run(operation, f"reference.{operation}", {**call, "layout": layout})
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
    assert flash_calls == [((2, 6, 5, 16), (2, 2, 9, 16), 0.0), ((2, 6, 1, 16), (2, 2, 9, 16), 0.0)]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), pytest.raises(NotImplementedError, match="is disabled"):
        torch_backend._flash(q, k, v, False, 1.0)


@pytest.fixture
def plans(monkeypatch):
    """Loads the module without the library that its package imports."""
    path = Path(backends.__file__).parent / "flashinfer" / "_plans.py"
    spec = importlib.util.spec_from_file_location("plans_alone", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "scratch", lambda like: None)
    monkeypatch.setattr(module, "_raw_stream", lambda index: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return module


def test_plan_is_reused_only_for_the_same_unwritten_tensors(plans):
    table = torch.arange(4)
    made = []

    def recipe(call_key):
        return plans.Recipe(call_key, lambda memory: object(), lambda wrapper: made.append(1))

    def plan_for(*watched):
        return plans.planned(("kernel",), watched[0], watched, recipe)

    first = plan_for(table)
    assert plan_for(table) is first and len(made) == 1
    # An equal tensor is a different one, even at the same address.
    plan_for(table.clone())
    assert len(made) == 2
    plan_for(table)
    table.add_(1)
    plan_for(table)
    assert len(made) == 4
    with torch.inference_mode():
        uncounted = torch.arange(4)
        plan_for(uncounted)
        plan_for(uncounted)
    assert len(made) == 6


def test_plan_handle_plans_once_with_its_own_workspace(plans, monkeypatch):
    monkeypatch.setattr(plans, "SCRATCH_BYTES", 64)
    made, ran = [], []

    class Wrapper:
        def __init__(self, memory):
            self.memory = memory

    def recipe(call_key, table):
        return plans.Recipe(call_key, Wrapper, lambda wrapper: made.append(table.tolist()))

    @plans.with_plan
    def kernel(x, table, *, scale):
        planned = plans.planned(("kernel", scale), x, (table,), recipe, table)
        ran.append(planned.wrapper)
        return x * scale

    x, table = torch.ones(2), torch.arange(3)
    run = kernel.plan(x, table, scale=2.0)
    assert made == [[0, 1, 2]] and ran == []
    assert run(x, table, scale=2.0).tolist() == [2, 2] and ran[-1].memory.numel() == 64
    # A handle does not plan again for other values or tensors: that is the caller's responsibility.
    table.add_(1)
    run(x, table.clone(), scale=2.0)
    assert len(made) == 1 and ran[-1] is ran[0]
    other = kernel.plan(x, table, scale=2.0)
    other(x, table, scale=2.0)
    assert made == [[0, 1, 2], [1, 2, 3]] and ran[-1] is not ran[0] and ran[-1].memory is not ran[0].memory
    # Calls without a handle have their own plans.
    kernel(x, table, scale=2.0)
    assert len(made) == 3 and len(plans._THREAD.plans) == 1
    with pytest.raises(RuntimeError, match="make a new plan"):
        run(x, table, scale=3.0)
    assert plans._THREAD.handle is None


def test_workspace_is_not_in_a_graph_pool(monkeypatch):
    """Long-lived memory is allocated by another thread, whose allocations no capture redirects; memory of a capture is not cached."""
    path = Path(backends.__file__).parent / "flashinfer" / "_plans.py"
    spec = importlib.util.spec_from_file_location("plans_alone", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    threads, empty = [], torch.empty

    def recording_empty(*arguments, **keywords):
        threads.append(threading.current_thread())
        return empty(*arguments, **keywords)

    capturing = [True]
    monkeypatch.setattr(module, "_raw_stream", lambda index: 0)
    monkeypatch.setattr(module, "SCRATCH_BYTES", 16)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(torch, "empty", recording_empty)
    like = empty(1)
    first = module.scratch(like)
    capturing[0] = False
    second = module.scratch(like)
    assert second is not first and module.scratch(like) is second
    assert [thread is threading.current_thread() for thread in threads] == [True, False]


def test_plans_are_bounded_and_keep_their_wrappers(plans):
    wrappers = []

    def recipe(call_key):
        return plans.Recipe(call_key, lambda memory: wrappers.append(call_key[0]) or call_key[0], lambda wrapper: None)

    table = torch.arange(4)

    def plan_for(number, watched):
        return plans.planned((number,), table, watched, recipe)

    for _ in range(3):
        table.add_(1)
        plan_for(0, (table,))
    assert wrappers == [0]
    for number in range(1, plans.MAX_PLANS + 5):
        plan_for(number, ())
    assert len(plans._THREAD.plans) == plans.MAX_PLANS


def test_recipe_is_called_only_on_a_plan_miss(plans):
    calls = []

    def recipe(call_key, table):
        calls.append(call_key[0])
        return plans.Recipe(("kernel",), lambda memory: "wrapper", lambda wrapper: call_key[0])

    def plan_for(number, table):
        return plans.planned((number,), table, (table,), recipe, table)

    one, other = torch.arange(4), torch.arange(4)
    first = plan_for(1, one)
    assert plan_for(1, one) is first and calls == [1]
    # Another call key with the same plan: found through the plan, and directly from then on.
    assert plan_for(2, one) is first and plan_for(2, one) is first and calls == [1, 2]
    # The wrapper is planned for another table: the first plan is invalid, whichever key finds it.
    second = plan_for(1, other)
    assert second.wrapper == "wrapper" and first.versions is None and not first.watched
    assert plan_for(1, one) is not first and plan_for(2, one).empty == 1
    assert calls == [1, 2, 1, 1, 2]


def test_flashinfer_module_depends_on_the_call():
    path = Path(backends.__file__).parent / "flashinfer" / "_compile.py"
    spec = importlib.util.spec_from_file_location("compile_alone", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    call = {"T": "bf16", "head_dim": "128", "heads": "8", "kv_heads": "8", "window_left": "-1", "soft_cap": "0.0"}
    assert module.module_of("flashinfer.norm.rms.bf16", {}) == ["norm"]
    assert module.module_of("flashinfer.fa3.gqa.prefill.paged", call) == ["prefill", "fa3", "bfloat16", 128, 128, False, False]
    assert module.module_of("flashinfer.cuda_cores.gqa.decode", {**call, "window_left": "7"}) == ["decode", "bfloat16", 128, 128, True, False]
    assert module.module_of("flashinfer.fa2.sparse.block", {**call, "block_rows": "1"})[0] == "decode"
    assert module.module_of("flashinfer.fa2.mla.decode", {"T": "f16", "dim_ckv": "512", "dim_kpe": "64"}) == ["mla", "fa2", "float16", 512, 64]


class _Compiled:
    """What Triton 3.6 returns after a launch."""

    function, packed_metadata = 77, ("packed",)

    def __init__(self, scratch):
        self.launched = []
        self.run = self
        self.global_scratch_size, self.profile_scratch_size = scratch, 0
        self.launch_cooperative_grid, self.launch_pdl = False, True

    def launch(self, *arguments):
        self.launched.append(("launch", arguments))

    def __call__(self, *arguments):
        self.launched.append(("run", arguments))


@pytest.mark.parametrize(("scratch", "by"), [(0, "launch"), (64, "run")])
def test_compiled_kernel_is_launched_directly(monkeypatch, scratch, by):
    triton = pytest.importorskip("triton") and importlib.import_module("layerzero.backends.triton")
    compiled, calls = _Compiled(scratch), []

    class Kernel:
        arg_names = ("x", "out", "count", "BLOCK")

        def __getitem__(self, grid):
            return lambda *arguments, **keywords: calls.append((grid, arguments, keywords)) or compiled

    monkeypatch.setattr(triton, "_READY", {})
    monkeypatch.setattr(triton, "_IS_DIRECT", True)
    monkeypatch.setattr(triton, "_raw_stream", lambda device: 1000 + device)
    x, out = torch.ones(4), torch.empty(4)
    for _ in range(3):
        triton._launch(("key", 3), 5, 2, (x, out), (4,), lambda: triton._Recipe(Kernel(), (16,), 8))
    assert calls == [((5, 2), (x, out, 4), {"BLOCK": 16, "num_warps": 8})]
    before = (False, True, None, None, ("packed",)) if by == "launch" else (("packed",),)
    expected = (5, 2, 1, 1003, 77, *before, None, None, None, x.data_ptr(), out.data_ptr(), 4, 16)
    assert compiled.launched == [(by, expected)] * 2


def test_largest_block_of_a_gpu(monkeypatch):
    from types import SimpleNamespace

    from layerzero import _device_memory

    def segment(device, *blocks):
        states = [{"size": abs(size), "state": "inactive" if size > 0 else "active_allocated"} for size in blocks]
        active = sum(-size for size in blocks if size < 0)
        return {"device": device, "total_size": sum(map(abs, blocks)), "active_size": active, "blocks": states}

    segments = [segment(0, 64, -64, 32), segment(0, 20, 12), segment(1, 4096)]
    stats = {"reserved_bytes": {"all": {"current": 192}}, "active_bytes": {"all": {"current": 64}}}
    cuda = SimpleNamespace(is_initialized=lambda: True, memory_snapshot=lambda: segments, mem_get_info=lambda index: (10, 1000))
    cuda.memory_stats_as_nested_dict = lambda index: stats
    fake = SimpleNamespace(cuda=cuda)
    monkeypatch.setitem(sys.modules, "torch", fake)
    assert _device_memory.largest_block(0) == 64 and _device_memory.inactive_bytes(0) == 128
    # Unused segments can be released to the driver and allocated as one block.
    segments.append(segment(0, 40))
    assert _device_memory.largest_block(0) == 10 + 32 + 40
    cuda.is_initialized = lambda: False
    assert _device_memory.largest_block(0) is None and _device_memory.inactive_bytes(0) == 0
