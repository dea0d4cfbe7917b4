"""GPU-only behavior: CUDA graphs, streams, cold starts, out-of-memory. Writes the results as JSON.

    python scenarios.py --output FOLDER [--only graphs streams ...]
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
from captures import captured  # noqa: E402
from memory import memory  # noqa: E402

import layerzero as lz  # noqa: E402
from layerzero import _native  # noqa: E402
from layerzero._bench import shapes as shapes_module  # noqa: E402
from layerzero._bench import shapes_experts, shapes_sparse  # noqa: E402

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
        "attention.sparse.block": shapes_sparse._block(1024, 32, 8, 128, 64, 64, 4),
        "attention.sparse.variable_block": shapes_sparse._variable(1024, 32, 8, 128, 16, 32, 0.3),
        "norm.rms.quantize": shapes_experts._norm_quantize(64, 4096, False),
        "mlp.linear.fp8": shapes_experts._fp8(64, 4096, 6144, "row"),
        "mlp.linear.fp4": shapes_experts._fp4(128, 4096, 6144, "nvfp4"),
        "embedding.lookup.quantized": shapes_experts._lookup(64, 32000, 4096, "int4"),
    }
    for operation, shape in made.items():
        function, arguments = getattr(lz.ops, operation.replace(".", "_")), shape.arguments
        warm(operation, arguments)
        for kernel in (one["id"] for one in lz.list_kernels(operation) if one["platform"] == "cuda"):
            line = {"operation": operation, "kernel": kernel}
            lz.lock(operation, kernel)
            try:
                graph, result = captured(lambda: function(**arguments))  # noqa: B023
                for value in arguments.values():
                    if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
                        value.normal_()
                graph.replay()
                torch.cuda.synchronize()
                replayed = tuple(one.clone() for one in result) if isinstance(result, tuple) else result.clone()
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
    seed, offset = torch.tensor(5, device="cuda"), torch.tensor(0, device="cuda")
    drafts = {name: value for name, value in shapes_sparse._speculative(64, 3, 1000).arguments.items() if name != "seed"}
    for operation, call in (("sampling.topk", {"logits": torch.randn(64, 1000, device="cuda"), "k": 50}), ("sampling.speculative", drafts)):
        call |= {"seed_tensor": seed, "offset_tensor": offset}
        warm(operation, call)
        found += sampled_graphs(operation, call, offset)
    return found


def sampled_graphs(operation, call, offset):
    found, function = [], getattr(lz.ops, operation.replace(".", "_"))

    def tokens(result):
        return result[0] if isinstance(result, tuple) else result

    for kernel in (one["id"] for one in lz.list_kernels(operation) if one["platform"] == "cuda"):
        line = {"operation": operation, "kernel": kernel}
        lz.lock(operation, kernel)
        try:
            graph, result = captured(lambda: tokens(function(**call)))
            drawn = []
            for step in range(3):
                offset.fill_(step * 4)
                graph.replay()
                torch.cuda.synchronize()
                drawn.append(result.clone())
                line[f"as eager {step}"] = bool(torch.equal(result, tokens(function(**call))))
            line["draws differ"] = not torch.equal(drawn[0], drawn[1])
            line["off"] = 0.0 if line["draws differ"] and all(line[f"as eager {step}"] for step in range(3)) else 1e9
        except lz.CudaGraphUnsafeError:
            line["refused"] = True
        except Exception as error:
            line["error"] = f"{type(error).__name__}: {error.__cause__ or error}"[:300]
        finally:
            lz.unlock(operation)
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


PARTS = {"graphs": graphs, "streams": streams, "plan_handles": plan_handles, "cold_start": cold_start, "out_of_memory": out_of_memory, "memory": memory, "compiled_block": compiled_block, "formats": formats}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default=".")
    parser.add_argument("--only", nargs="*", default=list(PARTS))
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
