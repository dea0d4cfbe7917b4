"""Attention with a score expression on a GPU: values at real sizes, cold expressions, graph capture, and times compared with FlexAttention.

    python score_mod.py --output FOLDER [--tiles]

`--tiles` measures the kernel with other tiles than the ones that it selects.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

import layerzero as lz
from layerzero import _native
from layerzero._prepare import expressions_compiled_inline
from layerzero.backends import _verified

BF16 = torch.bfloat16
ALIBI, CAUSAL = "score + p0 * (kv_idx - q_pos)", "score if q_pos >= kv_idx else -inf"
#: Name, text, whether the calls are causal, and how FlexAttention states it (`slopes` has one number for each head).
EXPRESSIONS = {
    "ALiBi": (ALIBI, False, lambda slopes: lambda s, b, h, q, k: s + slopes[h] * (k - q)),
    "ALiBi, causal": (ALIBI, True, lambda slopes: lambda s, b, h, q, k: s + slopes[h] * (k - q)),
    "soft cap": ("tanh(score / 20) * 20", False, lambda slopes: lambda s, b, h, q, k: torch.tanh(s / 20) * 20),
    "no change": ("score", False, lambda slopes: lambda s, b, h, q, k: s),
}


def inputs(length, head_dim, heads=32, kv_heads=32):
    q, k, v = (torch.randn(1, count, length, head_dim, device="cuda", dtype=BF16) for count in (heads, kv_heads, kv_heads))
    slopes = torch.linspace(0.01, 0.2, heads, device="cuda")
    return q, k, v, slopes


def call_of(text, causal, q, k, v, slopes):
    params = {"score_params": slopes[None, :, None].contiguous()} if "p0" in text else {}
    return {"q": q, "k": k, "v": v, "layout": "BHSD", "causal": causal, "score_mod": text, **params}


def run(kernel, call, operation="attention.gqa.prefill"):
    _native.compile_cold([(operation, (), call)], 4)
    lz.lock(operation, kernel)
    try:
        with expressions_compiled_inline():
            return getattr(lz.ops, operation.replace(".", "_"))(**call)
    finally:
        lz.unlock(operation)


def relative(one, other):
    return float((one.double() - other.double()).norm() / other.double().norm())


def values():
    """The kernel compared with the composition, which computes in f64."""
    found = {}
    for (name, (text, causal, _)), (length, head_dim, dtype) in itertools.product(
        EXPRESSIONS.items(), ((2048, 64, BF16), (1000, 128, BF16), (513, 256, torch.float16), (700, 128, torch.float32))
    ):
        q, k, v, slopes = inputs(length, head_dim, 8, 2)
        call = call_of(text, causal, q.to(dtype), k.to(dtype), v.to(dtype), slopes)
        found[f"{name} {length}x{head_dim} {dtype}"] = relative(run("triton.attention.gqa.prefill.score_mod", call), run("torch.reference.attention.gqa.prefill", call))
    return found


def decode_values():
    found = {}
    for batch, length, heads, kv_heads, dtype in ((1, 8192, 32, 8, BF16), (16, 2048, 32, 8, BF16), (3, 100, 6, 2, torch.float32)):
        q, k, v = torch.randn(batch, heads, 128, device="cuda"), *(torch.randn(batch, length, kv_heads, 128, device="cuda") for _ in range(2))
        call = {"q": q.to(dtype), "k": k.to(dtype), "v": v.to(dtype), "score_mod": ALIBI, "score_params": torch.rand(batch, heads, 1, device="cuda") / 50}
        call["kv_lens"] = torch.randint(0, length, (batch,), device="cuda", dtype=torch.int32)
        one, other = (run(kernel, call, "attention.gqa.decode") for kernel in ("triton.attention.gqa.decode.score_mod", "torch.reference.attention.gqa.decode"))
        found[f"decode {batch}x{length} {dtype}"] = relative(one, other)
    return found


def tables(lengths, page_size):
    """Start of the pages of each request, the pages, and the number of slots used in the last one."""
    counts = torch.tensor([-(-length // page_size) for length in lengths])
    last = torch.tensor(lengths) - (counts - 1) * page_size
    starts = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
    pages = torch.randperm(int(starts[-1]))
    return {name: one.to("cuda", torch.int32) for name, one in (("kv_indptr", starts), ("kv_indices", pages), ("kv_last_page_len", last))}


def starts_of(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device="cuda")


def request_calls():
    """Requests of Llama 3 8B with ALiBi as an expression: concatenated, prefill and decode over pages, and over FP8 codes."""
    heads, kv_heads, head_dim, page_size = 32, 8, 128, 16
    lengths = [1024, 777, 512, 300, 2048, 64, 1500, 900]

    def normal(*shape):
        return torch.randn(shape, device="cuda", dtype=BF16)

    def call(count, requests):
        return {"score_mod": ALIBI, "score_params": (torch.rand(requests, heads, 1, device="cuda") / 50), "q": normal(count, heads, head_dim)}

    ragged = {name: normal(sum(lengths), kv_heads, head_dim) for name in ("k", "v")}
    yield "attention.gqa.prefill.ragged", {**call(sum(lengths), 8), **ragged, "qo_indptr": starts_of(lengths), "kv_indptr": starts_of(lengths), "causal": True}
    queries = [256] * 8
    for operation, lengths, more in (
        ("attention.gqa.prefill.paged", lengths, {"qo_indptr": starts_of(queries), "causal": True}), ("attention.gqa.decode.paged", [4096] * 64, {}),
        ("attention.gqa.decode.paged.fp8", [4096] * 64, {}), ("attention.gqa.decode.paged", [8192], {}),
    ):  # fmt: skip
        table = tables(lengths, page_size)
        caches = {name: normal(table["kv_indices"].shape[0], page_size, kv_heads, head_dim) for name in ("k_cache", "v_cache")}
        if operation.endswith(".fp8"):
            caches = {name: one.to(torch.float8_e4m3fn) for name, one in caches.items()}
        count = sum(queries) if "prefill" in operation else len(lengths)
        yield operation, {**call(count, len(lengths)), **caches, **table, **more}


def flex_ragged(call):
    """The same with FlexAttention: one sequence of all requests, of which each sees its own keys."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    starts, params = call["qo_indptr"], call["score_params"]
    total = call["q"].shape[0]
    request = torch.repeat_interleave(torch.arange(8, device="cuda"), starts.diff().long())
    mask = create_block_mask(lambda b, h, i, j: (request[i] == request[j]) & (i >= j), None, None, total, total, device="cuda")
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    q, k, v = (call[name].transpose(0, 1)[None].contiguous() for name in "qkv")
    slopes = params[:, :, 0].contiguous()

    def modify(score, b, h, i, j):
        return score + slopes[request[i], h] * (j - i)

    return lambda: compiled(q, k, v, score_mod=modify, block_mask=mask, enable_gqa=True)[0].transpose(0, 1)


def requests():
    """Times of calls with requests of different lengths, in microseconds: the kernel, the composition, and FlexAttention where it has the form."""
    rows = []
    for operation, call in request_calls():
        kernels = [f"triton.{operation}.score_mod", f"torch.reference.{operation}"]
        ours, composed = (run(kernel, call, operation) for kernel in kernels)
        row = {"operation": operation, "shapes": {name: list(one.shape) for name, one in call.items() if isinstance(one, torch.Tensor)}, "difference": relative(ours, composed)}
        row["selected"] = lz.which(operation, **call).kernel_id

        def locked(kernel, operation=operation, call=call):
            def function():
                lz.lock(operation, kernel)
                try:
                    return getattr(lz.ops, operation.replace(".", "_"))(**call)
                finally:
                    lz.unlock(operation)

            return function

        def plain(operation=operation, call=call):
            return getattr(lz.ops, operation.replace(".", "_"))(**call)

        functions = {"kernel": plain}
        if operation.endswith(".ragged"):
            functions["flex"] = flex_ragged(call)
            row["difference_from_flex"] = relative(ours, functions["flex"]())
        row["us"] = interleaved(functions)
        row["graph_us"] = {name: round(value / 10, 2) for name, value in interleaved({name: captured(one) for name, one in functions.items()}).items()}
        row["us"]["composition"] = interleaved({"composition": locked(kernels[1])}, 3)["composition"]
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def cold():
    """A new expression: the composition answers until its kernel is compiled."""
    q, k, v, slopes = inputs(512, 64)
    call = call_of("score + p0 * (kv_idx - q_pos) - 0.25", False, q, k, v, slopes)
    operation = "attention.gqa.prefill"
    _native.compile_cold([(operation, (), call)], 4)
    selected = lz.which(operation, **call).kernel_id
    start = time.perf_counter()
    first = lz.ops.attention_gqa_prefill(**call)
    torch.cuda.synchronize()
    first_ms = (time.perf_counter() - start) * 1e3
    from layerzero.backends.triton import _score_mod

    done = _score_mod.wait_for_compilations(60)
    waited = time.perf_counter() - start
    second = lz.ops.attention_gqa_prefill(**call)
    torch.cuda.synchronize()
    timed = time.perf_counter()
    third = lz.ops.attention_gqa_prefill(**call)
    torch.cuda.synchronize()
    return {
        "selected": selected, "first_call_ms": round(first_ms, 1), "compiled": done, "compiled_after_s": round(waited, 1),
        "third_call_ms": round((time.perf_counter() - timed) * 1e3, 3), "difference": relative(second, first), "same_bits": bool(torch.equal(second, third)),
    }  # fmt: skip


def capture():
    """A captured call replays with new inputs; one whose expression is not compiled is answered by the composition."""
    q, k, v, slopes = inputs(512, 64)
    found = {}
    for name, text in (("compiled", ALIBI), ("not compiled", "score - 0.125")):
        call = call_of(text, True, q, k, v, slopes)
        if name == "compiled":
            run("triton.attention.gqa.prefill.score_mod", call)
        else:
            lz.ops.attention_gqa_prefill(**{**call, "score_mod": ALIBI, "score_params": slopes[None, :, None]})
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            out = lz.ops.attention_gqa_prefill(**call)
        for one in (q, k, v):
            one.normal_()
        graph.replay()
        torch.cuda.synchronize()
        again = out.clone()
        graph.replay()
        torch.cuda.synchronize()
        expected = run("torch.reference.attention.gqa.prefill", call)
        found[name] = {"difference": relative(out, expected), "replays_equal": bool(torch.equal(out, again))}
        if name == "compiled":
            found[name]["same_bits_as_direct"] = bool(torch.equal(out, run("triton.attention.gqa.prefill.score_mod", call)))
    return found


def sample(function, times):
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        function()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / times * 1e3


def interleaved(functions, rounds=15):
    """Median microseconds of each on the device, interleaved; each sample takes about 4 ms. Then of replays of a graph of ten calls."""
    times, samples = {}, {name: [] for name in functions}
    for name, function in functions.items():
        for _ in range(3):
            function()
        times[name] = max(2, min(200, int(4000 / max(sample(function, 3), 1))))
    for _ in range(rounds):
        for name, function in functions.items():
            function()
            samples[name].append(sample(function, times[name]))
    return {name: round(statistics.median(one), 2) for name, one in samples.items()}


def captured(function, calls=10):
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            function()
    return graph.replay


def figures(shapes, expressions):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    rows = []
    for length, head_dim in shapes:
        q, k, v, slopes = inputs(length, head_dim)
        for name in expressions:
            text, causal, modifier = EXPRESSIONS[name]
            torch._dynamo.reset()
            compiled = torch.compile(flex_attention, dynamic=False)
            mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device="cuda") if causal else None
            modify, call = modifier(slopes), call_of(text, causal, q, k, v, slopes)

            def flex(compiled=compiled, modify=modify, mask=mask, q=q, k=k, v=v):
                return compiled(q, k, v, score_mod=modify, block_mask=mask)

            def ours(call=call):
                return lz.ops.attention_gqa_prefill(**call)

            row = {"expression": name, "text": text, "causal": causal, "heads": 32, "length": length, "head_dim": head_dim}
            begin = time.perf_counter()
            expected = flex()
            torch.cuda.synchronize()
            row["flex_compiles_s"] = round(time.perf_counter() - begin, 1)
            begin = time.perf_counter()
            run("triton.attention.gqa.prefill.score_mod", call)
            torch.cuda.synchronize()
            row["kernel_compiles_s"] = round(time.perf_counter() - begin, 1)
            row["difference_from_flex"] = relative(ours(), expected)
            row["selected"] = lz.which("attention.gqa.prefill", **call).kernel_id
            row["us"] = interleaved({"kernel": ours, "flex": flex})
            graphs = {"kernel": captured(ours), "flex": captured(flex)}
            row["graph_us"] = {which: round(value / 10, 2) for which, value in interleaved(graphs).items()}
            lz.lock("attention.gqa.prefill", "torch.reference.attention.gqa.prefill")
            try:
                row["us"] |= interleaved({"composition": ours}, 5)
            finally:
                lz.unlock("attention.gqa.prefill")
            print(json.dumps(row), flush=True)
            rows.append(row)
    return rows


CANDIDATES = (
    (64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 4, 4), (64, 128, 4, 3), (64, 128, 8, 3), (128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 4, 3),
    (128, 128, 8, 2), (128, 128, 8, 3),
)  # fmt: skip


class _WithTile:
    """A context in which the kernel has another tile."""

    def __init__(self, tile):
        from layerzero.backends.triton import _score_mod

        self.module, self.usual, self.tile = _score_mod, _score_mod.tile_of, tile and _score_mod.Tile(*tile)

    def __enter__(self):
        if self.tile:
            self.module._PLANS.clear()
            self.module.tile_of = lambda *_: self.tile

    def __exit__(self, *_):
        self.module._PLANS.clear()
        self.module.tile_of = self.usual


def tiles(shapes, expressions):
    """The fastest tiles, in device time."""
    rows = []
    for length, head_dim in shapes:
        for name in expressions:
            text, causal, _ = EXPRESSIONS[name]
            call = call_of(text, causal, *inputs(length, head_dim))

            def with_tile(tile, call=call):
                def function():
                    with _WithTile(tile):
                        return lz.ops.attention_gqa_prefill(**call)

                return function

            usable = {}
            for tile in CANDIDATES:
                try:
                    with _WithTile(tile):
                        run("triton.attention.gqa.prefill.score_mod", call)
                    torch.cuda.synchronize()
                    usable[str(tile)] = captured(with_tile(tile))
                except Exception as error:
                    print("tile", tile, f"{type(error).__name__}: {error.__cause__ or error}"[:150], flush=True)
            found = {tile: round(value / 10, 2) for tile, value in interleaved(usable, 7).items()}
            row = {"length": length, "head_dim": head_dim, "expression": name, "us": dict(sorted(found.items(), key=lambda one: one[1]))}
            print(json.dumps(row), flush=True)
            rows.append(row)
    return rows


def compile_some(shapes, expressions, all_tiles, number, count):
    """Compiles one of `count` parts of the kernels into Triton's cache."""
    dims = sorted({head_dim for _, head_dim in shapes})
    kernels = list(itertools.product(dims, expressions, (None, *CANDIDATES) if all_tiles else (None,)))
    for head_dim, name, tile in kernels[number::count]:
        text, causal, _ = EXPRESSIONS[name]
        try:
            with _WithTile(tile):
                run("triton.attention.gqa.prefill.score_mod", call_of(text, causal, *inputs(512, head_dim)))
        except Exception as error:
            print("compiling", head_dim, name, tile, f"{type(error).__name__}: {error.__cause__ or error}"[:200], flush=True)


def compile_all(options):
    """In several processes."""
    started = []
    for number in range(14):
        command = [sys.executable, __file__, "--part", str(number), "--expressions", *options.expressions, *(["--tiles"] if options.tiles else [])]
        started.append(subprocess.Popen(command))
    for process in started:
        process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default=".")
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--parts", nargs="*", default=["values", "decode_values", "cold", "capture", "requests", "figures"])
    parser.add_argument("--expressions", nargs="*", default=["ALiBi", "ALiBi, causal"])
    parser.add_argument("--compiled", action="store_true", help="the kernels are in Triton's cache")
    parser.add_argument("--part", type=int, help="only compile this part of the kernels")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.part is None and not options.compiled and (options.tiles or "figures" in options.parts):
        compile_all(options)
    lz.load_backends("torch", "torch_reference", "triton")
    shapes = [(length, head_dim) for length in (512, 2048) for head_dim in (64, 128)]
    found = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), "digest": _verified.digest("triton"),
        "dtype": "bf16",
    }  # fmt: skip
    _native.compile_cold([("attention.gqa.prefill", (), call_of(ALIBI, False, *inputs(512, 64)))], 4)
    if options.part is not None:
        compile_some(shapes, options.expressions, options.tiles, options.part, 14)
        return 0
    if options.tiles:
        found["tiles"] = tiles(shapes, options.expressions)
    for name in options.parts:
        try:
            found[name] = figures(shapes, options.expressions) if name == "figures" else globals()[name]()
        except Exception as error:
            found[name] = {"problem": f"{type(error).__name__}: {error.__cause__ or error}"[:600]}
        if name not in ("figures", "requests"):
            print(name, json.dumps(found[name]), flush=True)
        Path(options.output, "score-mod.json").write_text(json.dumps(found, indent=1) + "\n")
    return 1 if any("problem" in one for one in found.values() if isinstance(one, dict)) else 0


if __name__ == "__main__":
    sys.exit(main())
