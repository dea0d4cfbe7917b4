"""GPU-only behavior: CUDA graphs, streams, cold starts, out-of-memory, a decode step of a whole model. Writes
the results as JSON.

    python scenarios.py --output FOLDER [--only graphs streams ...]

The decode step is timed, so it runs only on request and while nothing else runs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
from memory import memory  # noqa: E402

import layerzero as lz  # noqa: E402
from layerzero import _native  # noqa: E402
from layerzero._bench import shapes as shapes_module  # noqa: E402

ROOT = Path(__file__).parent


def warm(operation, arguments):
    _native.compile_cold([(operation, (), arguments)], 8)


def close(one, other):
    several = zip(*(value if isinstance(value, tuple) else (value,) for value in (one, other)), strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in several)


def graphs():
    """Captured calls replay what an eager call does, with inputs changed in place; unsafe kernels are refused."""
    found = []
    made = {
        "norm.rms": shapes_module._norm(64, 4096, False),
        "activation.silu_mul": shapes_module._gate(64, 14336),
        "posenc.rope": shapes_module._rope(1, 64, 32),
        "attention.gqa.prefill": shapes_module._prefill(1, 32, 8, 512, 128, True),
        "attention.gqa.decode": shapes_module._decode(16, 32, 8, 512, 128),
        "attention.gqa.decode.paged": shapes_module._paged(16, 32, 8, 512, 128, 16),
        "attention.mla.decode.paged": shapes_module._latent(4, 128, 256, 64),
        "attention.state.merge": shapes_module._merge(64, 4),
    }
    for operation, shape in made.items():
        function, arguments = getattr(lz.ops, operation.replace(".", "_")), shape.arguments
        warm(operation, arguments)
        for kernel in (one["id"] for one in lz.list_kernels(operation) if one["platform"] == "cuda"):
            line = {"operation": operation, "kernel": kernel}
            lz.lock(operation, kernel)
            try:
                stream = torch.cuda.Stream()
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    for _ in range(2):
                        function(**arguments)
                torch.cuda.current_stream().wait_stream(stream)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream):
                    captured = function(**arguments)
                for value in arguments.values():
                    if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
                        value.normal_()
                graph.replay()
                torch.cuda.synchronize()
                replayed = tuple(one.clone() for one in captured) if isinstance(captured, tuple) else captured.clone()
                line["off"] = close(replayed, function(**arguments))
            except lz.LayerZeroError as error:
                codes = sorted({reason.code for reason in error.reasons})
                line["refused"] = codes
                if codes == ["KERNEL_FAILED"]:
                    line["error"] = f"{type(error).__name__}: {error.__cause__ or error}"[:300]
            except Exception as error:
                line["error"] = f"{type(error).__name__}: {error.__cause__ or error}"[:300]
            finally:
                lz.unlock(operation)
            found.append(line)
    # Sampling: a replay with another offset gives other tokens, those of an eager call with that offset.
    logits = torch.randn(64, 1000, device="cuda")
    seed, offset = torch.tensor(5, device="cuda"), torch.tensor(0, device="cuda")
    call = {"logits": logits, "k": 50, "seed_tensor": seed, "offset_tensor": offset}
    warm("sampling.topk", call)
    for kernel in (one["id"] for one in lz.list_kernels("sampling.topk") if one["platform"] == "cuda"):
        line = {"operation": "sampling.topk", "kernel": kernel}
        lz.lock("sampling.topk", kernel)
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(2):
                    lz.ops.sampling_topk(**call)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                captured = lz.ops.sampling_topk(**call)
            drawn = []
            for step in range(3):
                offset.fill_(step * 4)
                graph.replay()
                torch.cuda.synchronize()
                drawn.append(captured.clone())
                line[f"as eager {step}"] = bool(torch.equal(captured, lz.ops.sampling_topk(**call)))
            line["draws differ"] = not torch.equal(drawn[0], drawn[1])
            line["off"] = 0.0 if line["draws differ"] and all(line[f"as eager {step}"] for step in range(3)) else 1e9
        except lz.CudaGraphUnsafeError:
            line["refused"] = True
        except Exception as error:
            line["error"] = f"{type(error).__name__}: {error.__cause__ or error}"[:300]
        finally:
            lz.unlock("sampling.topk")
        found.append(line)
    return found


def streams():
    """A call on a separate stream runs after that stream's earlier work, however long that takes."""
    found = []
    for operation, shape in {
        "norm.rms": shapes_module._norm(64, 4096, False),
        "activation.silu_mul": shapes_module._gate(64, 14336),
        "attention.gqa.decode.paged": shapes_module._paged(16, 32, 8, 512, 128, 16),
    }.items():
        function, arguments = getattr(lz.ops, operation.replace(".", "_")), shape.arguments
        warm(operation, arguments)
        first = next(iter(arguments.values()))
        for kernel in (lz.which(operation, **arguments).kernel_id, *lz.which(operation, **arguments).fallbacks):
            lz.lock(operation, kernel)
            line = {"operation": operation, "kernel": kernel, "races": 0}
            try:
                stream = torch.cuda.Stream()
                for _ in range(20):
                    torch.cuda.synchronize()
                    first.zero_()
                    fresh = torch.randn_like(first)
                    torch.cuda.synchronize()
                    with torch.cuda.stream(stream):
                        torch.cuda._sleep(3_000_000)
                        first.copy_(fresh)
                        result = function(**arguments)
                    torch.cuda.synchronize()
                    expected = function(**arguments)
                    torch.cuda.synchronize()
                    line["races"] += close(result, expected) > 1e-3
            except Exception as error:
                line["error"] = f"{type(error).__name__}: {error.__cause__ or error}"[:300]
            finally:
                lz.unlock(operation)
            found.append(line)
    return found


_COLD = """
import json, sys, time, torch
import layerzero as lz
lz.load_backends("torch", "triton")
if sys.argv[1] == "inline":
    lz.configure({"jit.mode": "inline"})
    # A cold kernel scores lower if it would compile inside the call; a preference compensates.
    preference = lz.prefer("triton")
    preference.__enter__()
x, w = torch.randn(64, 4096, device="cuda", dtype=torch.bfloat16), torch.randn(4096, device="cuda", dtype=torch.bfloat16)
r = torch.zeros_like(x)
if sys.argv[1] == "warmup":
    start = time.perf_counter()
    lz.warmup([("norm.rms.add", {"x": x, "residual": r, "weight": w})], progress=False)
    torch.cuda.synchronize()
    print(json.dumps({"warmup_ms": round((time.perf_counter() - start) * 1e3, 1)}), flush=True)
lz.lock("norm.rms.add", "torch.cuda.norm.rms.add"); lz.ops.norm_rms_add(x, r, w); lz.unlock("norm.rms.add"); torch.cuda.synchronize()
began, trace, last = time.perf_counter(), [], None
while time.perf_counter() - began < float(sys.argv[2]):
    start = time.perf_counter()
    lz.ops.norm_rms_add(x, r, w)
    torch.cuda.synchronize()
    took = time.perf_counter() - start
    kernel = lz.which("norm.rms.add", x, r, w).kernel_id
    if kernel != last or took > 0.01:
        trace.append({"at_ms": round((start - began) * 1e3, 1), "took_ms": round(took * 1e3, 3), "next": kernel})
        last = kernel
print(json.dumps(trace[:12]))
"""


def plan_handles():
    """A plan handle keeps its kernel and its plan: eagerly, on another stream, captured; and refuses calls that do not match."""
    found = []
    made = {
        "norm.rms": shapes_module._norm(64, 4096, False),
        "attention.gqa.prefill": shapes_module._prefill(1, 32, 8, 512, 128, True),
        "attention.gqa.decode": shapes_module._decode(16, 32, 8, 512, 128),
        "attention.gqa.decode.paged": shapes_module._paged(16, 32, 8, 512, 128, 16),
        "attention.mla.decode.paged": shapes_module._latent(4, 128, 256, 64),
    }
    for operation, shape in made.items():
        function, arguments = getattr(lz.ops, operation.replace(".", "_")), shape.arguments
        warm(operation, arguments)
        for kernel in (one["id"] for one in lz.list_kernels(operation) if one["platform"] == "cuda"):
            line = {"operation": operation, "kernel": kernel}
            try:
                lz.lock(operation, kernel)
                try:
                    handle = function.plan(**arguments)
                    expected = function(**arguments)
                finally:
                    lz.unlock(operation)
                line["planned"] = handle.kernel
                line["off"] = close(handle.run(**arguments), expected)
                stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    elsewhere = handle.run(**arguments)
                torch.cuda.synchronize()
                line["off_elsewhere"] = close(elsewhere, expected)
                with torch.cuda.graph(graph, stream=stream):
                    captured = handle.run(**arguments)
                graph.replay()
                torch.cuda.synchronize()
                line["off_captured"] = close(captured, expected)
                name, first = next((name, value) for name, value in arguments.items() if isinstance(value, torch.Tensor))
                try:
                    handle.run(**{**arguments, name: torch.cat((first, first))})
                except lz.ValidationError as error:
                    line["other_size"] = sorted({reason.code for reason in error.reasons})
                host = []
                for call in (function, handle.run):
                    lz.lock(operation, kernel)
                    try:
                        call(**arguments)
                        torch.cuda.synchronize()
                        start = time.perf_counter()
                        for _ in range(200):
                            call(**arguments)
                        host.append(round((time.perf_counter() - start) / 200 * 1e6, 2))
                    finally:
                        lz.unlock(operation)
                    torch.cuda.synchronize()
                line["host_us"] = {"call": host[0], "run": host[1]}
            except lz.LayerZeroError as error:
                line["refused"] = sorted({reason.code for reason in error.reasons})
                line["error"] = f"{type(error).__name__}: {error.__cause__ or error}"[:300]
            found.append(line)
    return found


def cold_process(mode, seconds):
    """A process that makes calls for a while, with nothing compiled before it started."""
    environment = {**os.environ, "TRITON_CACHE_DIR": f"/tmp/cold-{mode}-{os.getpid()}"}
    command = [sys.executable, "-c", _COLD, mode, str(seconds)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def cold_trace(process, seconds):
    """The output of such a process."""
    try:
        output, errors = process.communicate(timeout=max(seconds, 0.1))
    except subprocess.TimeoutExpired:
        process.kill()
        return "it took too long"
    if process.returncode != 0:
        return errors[-600:]
    *before, trace = [json.loads(line) for line in output.strip().splitlines()]
    return [*before, *trace]


def cold_start():
    """The first calls of a process whose kernels are cold: with background compilation, with compilation
    inside calls, and after a warmup."""
    return {mode: cold_trace(cold_process(mode, 3), 90) for mode in ("background", "inline", "warmup")}


def out_of_memory():
    """A kernel that needs more memory than is free falls back to the next; the error says so if none is left."""
    x = torch.randn(64, 4096, device="cuda", dtype=torch.bfloat16)

    @lz.register_kernel(operation="activation.relu", id="greedy.relu", platform="cuda", priority=100)
    def greedy(x):
        torch.empty(1 << 42, device="cuda", dtype=torch.uint8)
        return x

    result = lz.ops.activation_relu(x)
    found = {"fell back": bool(torch.equal(result, F.relu(x)))}
    lz.lock("activation.relu", "greedy.relu")
    try:
        lz.ops.activation_relu(x)
        found["error"] = None
    except lz.LayerZeroError as error:
        found["error"] = f"{type(error).__name__}: {error}"[:200]
        found["reasons"] = sorted({reason.code for reason in error.reasons})
    finally:
        lz.unlock("activation.relu")
        lz.unregister_backend("greedy")
    return found


def decode_step():
    """Tokens per second of a stack of layers with the shape of Llama 3 8B: torch alone, FlashInfer called directly, and through selection."""
    layers, batch, context, page_size = 32, 16, 1024, 16
    hidden, heads, kv_heads, head_dim, inner = 4096, 32, 8, 128, 14336

    def weight(*shape):
        return torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_(std=0.02)

    model = [
        {
            "qkv": weight((heads + 2 * kv_heads) * head_dim, hidden), "o": weight(hidden, heads * head_dim),
            "gate": weight(inner, hidden), "up": weight(inner, hidden), "down": weight(hidden, inner),
            "first": weight(hidden), "second": weight(hidden),
            "k": weight(batch * context // page_size, page_size, kv_heads, head_dim),
            "v": weight(batch * context // page_size, page_size, kv_heads, head_dim),
        }
        for _ in range(layers)
    ]  # fmt: skip
    pages = context // page_size
    indptr = torch.arange(0, batch * pages + 1, pages, dtype=torch.int32, device="cuda")
    indices = torch.arange(batch * pages, dtype=torch.int32, device="cuda")
    last = torch.full((batch,), page_size, dtype=torch.int32, device="cuda")
    positions = torch.full((batch, 1), context - 1, dtype=torch.int64, device="cuda")
    slots = torch.arange(batch, device="cuda") * context + context - 1
    angles = torch.rand(8192, head_dim // 2, device="cuda")
    cos, sin = angles.cos(), angles.sin()
    table = torch.cat((cos, sin), -1)
    start = weight(batch, hidden)
    sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]

    def by_torch():
        x = start
        for layer in model:
            y = F.rms_norm(x, (hidden,), layer["first"], 1e-5)
            q, k, v = (one.unflatten(-1, (-1, head_dim)) for one in F.linear(y, layer["qkv"]).split(sizes, -1))
            c, s = cos[positions[:, 0]][:, None], sin[positions[:, 0]][:, None]
            turned = []
            for one in (q, k):
                a, b = one.float().chunk(2, -1)
                turned.append(torch.cat((a * c - b * s, b * c + a * s), -1).to(x.dtype))
            q, k = turned
            layer["k"].view(-1, kv_heads, head_dim)[slots], layer["v"].view(-1, kv_heads, head_dim)[slots] = k, v
            keys, values = (layer[name].view(batch, context, kv_heads, head_dim).transpose(1, 2) for name in ("k", "v"))
            attended = F.scaled_dot_product_attention(q[:, :, None], keys, values, enable_gqa=True)[:, :, 0]
            x = x + F.linear(attended.flatten(1), layer["o"])
            y = F.rms_norm(x, (hidden,), layer["second"], 1e-5)
            x = x + F.linear(F.silu(F.linear(y, layer["gate"])) * F.linear(y, layer["up"]), layer["down"])
        return x

    def through_selection():
        residual = start.clone()
        y = lz.ops.norm_rms(residual, model[0]["first"], eps=1e-5)
        for number, layer in enumerate(model):
            q, k, v = (one.unflatten(-1, (-1, head_dim)).contiguous() for one in F.linear(y, layer["qkv"]).split(sizes, -1))
            q = lz.ops.posenc_rope(q[:, None], cos, sin, positions)[:, 0]
            k = lz.ops.posenc_rope(k[:, None], cos, sin, positions)[:, 0]
            lz.ops.kv_append(k, v, layer["k"], layer["v"], slots)
            attended = lz.ops.attention_gqa_decode_paged(q, layer["k"], layer["v"], indptr, indices, last)
            y = lz.ops.norm_rms_add(F.linear(attended.flatten(1), layer["o"]), residual, layer["second"], eps=1e-5)
            y = F.linear(lz.ops.activation_silu_mul(F.linear(y, layer["gate"]), F.linear(y, layer["up"])), layer["down"])
            following = model[number + 1]["first"] if number + 1 < layers else layer["second"]
            y = lz.ops.norm_rms_add(y, residual, following, eps=1e-5)
        return residual

    variants = {"torch": by_torch, "LayerZero": through_selection}
    try:
        import flashinfer

        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(torch.empty(128 << 20, dtype=torch.uint8, device="cuda"), "NHD", use_tensor_cores=True)
        wrapper.plan(indptr, indices, last, heads, kv_heads, head_dim, page_size, q_data_type=torch.bfloat16)
        from flashinfer.page import append_paged_kv_cache

        requests = torch.arange(batch, dtype=torch.int32, device="cuda")
        places = torch.full((batch,), context - 1, dtype=torch.int32, device="cuda")

        def by_hand():
            residual = start.clone()
            y = flashinfer.rmsnorm(residual, model[0]["first"], 1e-5)
            for number, layer in enumerate(model):
                q, k, v = (one.contiguous() for one in F.linear(y, layer["qkv"]).split(sizes, -1))
                flashinfer.apply_rope_with_cos_sin_cache_inplace(positions[:, 0], q, k, head_dim, table)
                append_paged_kv_cache(k.unflatten(-1, (-1, head_dim)), v.unflatten(-1, (-1, head_dim)), requests, places, (layer["k"], layer["v"]), indices, indptr, last)
                attended = wrapper.run(q.unflatten(-1, (-1, head_dim)), (layer["k"], layer["v"]))
                y = F.linear(attended.flatten(1), layer["o"])
                flashinfer.fused_add_rmsnorm(y, residual, layer["second"], 1e-5)
                y = F.linear(F.silu(F.linear(y, layer["gate"])) * F.linear(y, layer["up"]), layer["down"])
                following = model[number + 1]["first"] if number + 1 < layers else layer["second"]
                flashinfer.fused_add_rmsnorm(y, residual, following, 1e-5)
            return residual

        variants["FlashInfer by hand"] = by_hand
    except (ImportError, RuntimeError):
        # Not installed, or not compiled for this.
        pass
    y = weight(batch, hidden)
    q, k = weight(batch, 1, heads, head_dim), weight(batch, 1, kv_heads, head_dim)
    for operation, arguments in (
        ("norm.rms", {"x": y, "weight": weight(hidden)}), ("norm.rms.add", {"x": y, "residual": weight(batch, hidden), "weight": weight(hidden)}),
        ("posenc.rope", {"x": q, "cos": cos, "sin": sin, "positions": positions}), ("posenc.rope", {"x": k, "cos": cos, "sin": sin, "positions": positions}),
        ("kv.append", {"k": k[:, 0], "v": k[:, 0], "k_cache": model[0]["k"], "v_cache": model[0]["v"], "slots": slots}),
        ("attention.gqa.decode.paged", {"q": q[:, 0], "k_cache": model[0]["k"], "v_cache": model[0]["v"], "kv_indptr": indptr, "kv_indices": indices, "kv_last_page_len": last}),
        ("activation.silu_mul", {"gate": weight(batch, inner), "up": weight(batch, inner)}),
    ):  # fmt: skip
        warm(operation, arguments)
        lz.tune(operation, **{name: value.clone() if name in ("residual", "k_cache", "v_cache") else value for name, value in arguments.items()})
    found, results = {}, {}
    graphs_of = {}
    for name, step in list(variants.items()):
        try:
            results[name] = step().float()
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                step()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                step()
            graphs_of[name] = graph
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error} {error.__cause__}"[:300]}
    samples = {(name, how): [] for name in variants for how in ("eager", "graph") if name in graphs_of}
    for _ in range(7):
        for name, how in samples:
            call = variants[name] if how == "eager" else graphs_of[name].replay
            call()
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(5):
                call()
            torch.cuda.synchronize()
            samples[name, how].append((time.perf_counter() - began) / 5)
    for (name, how), taken in samples.items():
        took = statistics.median(taken)
        found.setdefault(name, {})[how] = {"ms": round(took * 1e3, 3), "tokens_per_s": round(batch / took, 1)}
    for name, result in results.items():
        found[name]["off"] = float((result - results["torch"]).abs().max() / results["torch"].abs().max())
    found["shape"] = {"layers": layers, "batch": batch, "context": context}
    return found


def compiled_block():
    """A small Llama block with lz.ops under torch.compile in one graph, captured as CUDA graphs by torch."""
    seq, hidden, heads, kv_heads, head_dim, inner = 64, 1024, 8, 2, 128, 2816

    def weight(*shape):
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16) * 0.02

    x, first, second = weight(1, seq, hidden) * 50, 1 + weight(hidden), 1 + weight(hidden)
    qkv, o = weight((heads + 2 * kv_heads) * head_dim, hidden), weight(hidden, heads * head_dim)
    gate, up, down = weight(inner, hidden), weight(inner, hidden), weight(hidden, inner)
    angles = torch.rand(seq, head_dim // 2, device="cuda")
    cos, sin = angles.cos(), angles.sin()

    def turned(y, count):
        return lz.ops.posenc_rope(y.reshape(1, seq, count, head_dim), cos, sin)

    def block(x):
        q, k, v = F.linear(lz.ops.norm_rms(x, first), qkv).split((heads * head_dim, kv_heads * head_dim, kv_heads * head_dim), -1)
        v = v.reshape(1, seq, kv_heads, head_dim).contiguous()
        x = x + F.linear(lz.ops.attention_gqa_prefill(turned(q, heads), turned(k, kv_heads), v, causal=True).flatten(2), o)
        y = lz.ops.norm_rms(x, second)
        return x + F.linear(lz.ops.activation_silu_mul(F.linear(y, gate), F.linear(y, up)), down)

    def by_torch(x):
        def norm(x, w):
            return F.rms_norm(x, (hidden,), w, 1e-6)

        def turned(y, count):
            a, b = y.reshape(1, seq, count, head_dim).float().chunk(2, -1)
            c, s = cos[None, :, None], sin[None, :, None]
            return torch.cat((a * c - b * s, b * c + a * s), -1).to(y.dtype).transpose(1, 2)

        q, k, v = F.linear(norm(x, first), qkv).split((heads * head_dim, kv_heads * head_dim, kv_heads * head_dim), -1)
        v = v.reshape(1, seq, kv_heads, head_dim).transpose(1, 2)
        attended = F.scaled_dot_product_attention(turned(q, heads), turned(k, kv_heads), v, is_causal=True, enable_gqa=True)
        x = x + F.linear(attended.transpose(1, 2).flatten(2), o)
        y = norm(x, second)
        return x + F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down)

    found = {}
    with torch.no_grad():
        expected = by_torch(x)
        block(x)
        # JIT kernels take part from the second run on.
        time.sleep(3)
        found["eager"] = {"off": close(block(x), expected)}
        for mode in ("default", "reduce-overhead"):
            compiled = torch.compile(block, fullgraph=True, mode=mode)
            for _ in range(4):
                result = compiled(x)
            found[mode] = {"off": close(result, expected)}
    found["largest"] = float(expected.abs().max())
    return found


def formats():
    """8-bit formats run on the device, 4-bit formats are declined with the reason."""
    x, found = torch.randn(64, 4096, device="cuda", dtype=torch.bfloat16), {}
    for name in ("int8", "fp8_e4m3", "fp8_e5m2", "int4", "mxfp4", "nvfp4"):
        call = {"x": x, "format": name, "granularity": "block" if name.endswith("fp4") else "tensor"}
        try:
            found[name] = lz.which("quantize", **call).kernel_id
        except lz.LayerZeroError as error:
            found[name] = {"declined": sorted({reason.code for reason in error.reasons})}
    return found


PARTS = {"graphs": graphs, "streams": streams, "plan_handles": plan_handles, "cold_start": cold_start, "out_of_memory": out_of_memory, "memory": memory, "decode_step": decode_step, "compiled_block": compiled_block, "formats": formats}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default=".")
    parser.add_argument("--only", nargs="*", default=[name for name in PARTS if name != "decode_step"])
    parser.add_argument("--name", default="scenarios", help="name of the results file")
    options = parser.parse_args()
    try:
        import flashinfer  # noqa: F401
    except ImportError:
        pass
    lz.load_backends("torch", "triton", "flashinfer")
    torch.manual_seed(0)
    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
    for name in options.only:
        began = time.monotonic()
        try:
            found[name] = PARTS[name]()
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error} ({error.__cause__})"[:600]}
        print(name, round(time.monotonic() - began, 1), "s", json.dumps(found[name])[:2500], flush=True)
        Path(options.output, f"{options.name}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
