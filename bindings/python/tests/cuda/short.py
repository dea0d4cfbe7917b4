"""What one minute on a GPU can show: KV-cache strategies, capture trials and pinned decisions, a cold start,
the Triton kernels under compute-sanitizer, and the host overhead of a call. Writes the results as JSON, after
each part.
    python short.py --output FOLDER [--seconds 110] [--only kv strict ...]
"""

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from scenarios import cold_process, cold_trace  # noqa: E402

import layerzero as lz  # noqa: E402
from layerzero import _graphs, _native  # noqa: E402
from layerzero._bench import gpu  # noqa: E402
from layerzero._bench import shapes as shapes_module  # noqa: E402

BEGAN = time.monotonic()


def kv():
    """The four KV-cache strategies: equal results; what growing copies and allocates."""
    found = {}
    shape = {"batch": 4, "kv_heads": 8, "head_dim": 128, "capacity": 65536, "dtype": torch.bfloat16, "device": "cuda"}
    generator = torch.Generator("cuda").manual_seed(1)

    def draw(*sizes):
        return torch.randn(sizes, device="cuda", generator=generator).to(torch.bfloat16)

    lengths = (700, 33, 5000, 1)
    rows = [(draw(length, 8, 128), draw(length, 8, 128)) for length in lengths]
    steps = [(draw(4, 8, 128), draw(4, 8, 128)) for _ in range(3)]
    q = draw(4, 32, 128)
    expected = []
    for row in range(4):
        k, v = (torch.cat((rows[row][at], *(step[at][row : row + 1] for step in steps))).float().repeat_interleave(4, 1).transpose(0, 1) for at in (0, 1))
        expected.append((torch.softmax((k @ q[row].float()[:, :, None])[..., 0] * 128**-0.5, -1)[:, None] @ v)[:, 0])
    expected = torch.stack(expected)
    for strategy in ("contiguous", "paged", "virtual", "unified"):
        line = found[strategy] = {}
        try:
            torch.cuda.empty_cache()
            free = torch.cuda.mem_get_info()[0]
            # Managed memory is allocated at once, so the capacity is kept small.
            cache = lz.kv_cache(strategy, **{**shape, "capacity": 8192 if strategy == "unified" else shape["capacity"]})
            first, growing = (cache.k.data_ptr(), cache.v.data_ptr()), []
            for row, (k, v) in enumerate(rows):
                torch.cuda.synchronize()
                start = time.perf_counter()
                cache.extend(row, k, v)
                torch.cuda.synchronize()
                growing.append(round((time.perf_counter() - start) * 1e3, 3))
            for k, v in steps:
                cache.append(k, v)
            result = cache.attend(q)
            line["off"] = float((result.float() - expected).abs().max())
            line["extend_ms"] = growing
            line["stayed"] = (cache.k.data_ptr(), cache.v.data_ptr()) == first
            line["nbytes"] = cache.nbytes
            torch.cuda.synchronize()
            line["taken_from_device"] = free - torch.cuda.mem_get_info()[0]
            line["kernel"] = "" if strategy == "paged" else lz.which("attention.gqa.decode", q, cache.k[:, :64], cache.v[:, :64]).kernel_id
            if strategy == "unified":
                line["host sees it"] = bool(torch.equal(cache.host_k[0, :700], rows[0][0].cpu()))
            if strategy == "virtual":
                address = cache.k.data_ptr()
                cache.extend(3, draw(40000, 8, 128), draw(40000, 8, 128))
                line["after 40000 more"] = {"stayed": cache.k.data_ptr() == address, "nbytes": cache.nbytes, "kept": bool(torch.equal(cache.k[0, :700], rows[0][0]))}
                cache.release(3)
                cache.release(2)
                line["after release"] = {"nbytes": cache.nbytes, "off": float((cache.attend(q)[:2].float() - expected[:2]).abs().max())}
            del cache, result
            gc.collect()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            line["not_given_back"] = free - torch.cuda.mem_get_info()[0]
        except Exception as error:
            line["error"] = f"{type(error).__name__}: {error}"[:400]
    return found


def strict():
    """Capture trials in a child process, what strict mode admits afterwards, a leak that a trial finds, and decisions pinned by a capture."""
    found = {}
    norm, other = shapes_module._norm(64, 4096, False), shapes_module._norm(64, 1000, False)
    calls = [
        ("norm.rms", norm.arguments),
        ("activation.silu_mul", shapes_module._gate(64, 14336).arguments),
        ("attention.gqa.prefill", shapes_module._prefill(1, 32, 8, 512, 128, True).arguments),
        ("attention.gqa.decode", shapes_module._decode(4, 32, 8, 512, 128).arguments),
        ("kv.append", shapes_module._append(64).arguments),
    ]
    for operation, arguments in calls:
        _native.compile_cold([(operation, (), arguments)], 4)
    began = time.monotonic()
    found["trials"] = {f"{one['operation']} {one['kernel']}": one["why"] for one in lz.verify_capture(calls, seconds=60).to_dict()["trials"]}
    found["trials_s"] = round(time.monotonic() - began, 1)
    lz.configure(graph_strict_mode=True)
    try:
        for name, shape in (("verified shape", norm), ("other shape", other)):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                lz.ops.norm_rms(**shape.arguments)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, stream=stream):
                    lz.ops.norm_rms(**shape.arguments)
                found[name] = "captured"
            except lz.CudaGraphUnsafeError as error:
                found[name] = f"refused: {sorted({reason.code for reason in error.reasons})}"
    finally:
        lz.configure(graph_strict_mode=False)
    torch.cuda.synchronize()
    kept = []

    @lz.register_kernel(operation="activation.relu", id="leaky.relu", backend="leaky", platform="cuda", priority=100, cuda_graph_safe=True)
    def leaky(x):
        if torch.cuda.is_current_stream_capturing():
            kept.append(torch.empty(4096, device="cuda"))
        return F.relu(x)

    lz.lock("activation.relu", "leaky.relu")
    found["leak"] = _graphs._trial("activation.relu", {"x": torch.randn(64, 64, device="cuda")})
    lz.unlock("activation.relu")
    lz.unregister_backend("leaky")
    served = []

    def kernel(name, priority):
        def relu(x):
            served.append(name)
            return F.relu(x)

        lz.register_kernel(operation="activation.relu", id=f"pinned.{name}", backend="pinned", platform="cuda", priority=priority, cuda_graph_safe=True)(relu)

    kernel("first", 98)
    x = torch.randn(64, 64, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        lz.ops.activation_relu(x)
    torch.cuda.synchronize()
    served.clear()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        lz.ops.activation_relu(x)
        kernel("second", 99)
        lz.ops.activation_relu(x)
    lz.ops.activation_relu(x)
    lz.unregister_backend("pinned")
    found["pinned"] = served
    return found


def host():
    """Host overhead in microseconds. Kernels that do nothing show LayerZero's share, before and after another kernel has failed."""
    found = {}
    x, weight = torch.randn(1, 256, device="cuda", dtype=torch.bfloat16), torch.randn(256, device="cuda", dtype=torch.bfloat16)
    shape = shapes_module._paged(4, 8, 2, 64, 128, 16)
    q, out = shape.arguments["q"], torch.empty_like(x)

    def norm(x, weight, *, eps, weight_offset, out=None):
        return x

    def paged(q, k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len, alibi_slopes=None, **params):
        return q

    lz.register_kernel(operation="norm.rms", id="idle.norm", backend="idle", platform="cuda", priority=100, writes_into_output=True)(norm)
    lz.register_kernel(operation="attention.gqa.decode.paged", id="idle.paged", backend="idle", platform="cuda", priority=100)(paged)

    def measure():
        rows = {}
        for name, ours, theirs in (
            ("2 tensors", lambda: lz.ops.norm_rms(x, weight), lambda: norm(x, weight, eps=1e-6, weight_offset=0.0)),
            ("3 tensors, out=", lambda: lz.ops.norm_rms(x, weight, out=out), lambda: norm(x, weight, eps=1e-6, weight_offset=0.0, out=out)),
            ("6 tensors", gpu._call(shape), lambda: paged(**shape.arguments, window_left=-1, soft_cap=0.0, sm_scale=0.1, return_lse=False, layout="NHD")),
        ):
            one, other = gpu._host(ours, theirs)
            rows[name] = round(one - other, 3)
        return rows

    found["idle kernel, over calling it"] = measure()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        found["the same on a stream of its own"] = measure()

    @lz.register_kernel(operation="activation.relu", id="failing.relu", backend="failing", platform="cuda", priority=100)
    def failing(y):
        raise RuntimeError("as it is meant to")

    lz.ops.activation_relu(x)
    found["the same after another kernel failed"] = measure()
    lz.unregister_backend("failing")
    lz.unregister_backend("idle")
    del q
    calls = 2000
    for name, asked in (
        ("torch.cuda.is_current_stream_capturing", torch.cuda.is_current_stream_capturing),
        ("torch.cuda.mem_get_info", torch.cuda.mem_get_info),
        ("transpose", lambda: x.transpose(0, 1)),
        ("empty_like", lambda: torch.empty_like(x)),
    ):
        start = time.perf_counter()
        for _ in range(calls):
            asked()
        found[name] = round((time.perf_counter() - start) / calls * 1e6, 3)
    return found


_SANITIZED = """
import torch
import layerzero as lz
from layerzero import _native
from layerzero._bench import shapes
lz.load_backends("torch", "triton")
done = []
for shape in (shapes._norm(3, 1000, False), shapes._norm(3, 1000, True), shapes._gate(3, 1000), shapes._rope(1, 3, 4), shapes._merge(3, 2), shapes._append(5)):
    _native.compile_cold([(shape.operation, (), shape.arguments)], 1)
    lz.lock(shape.operation, f"triton.{shape.operation}")
    getattr(lz.ops, shape.operation.replace(".", "_"))(**shape.arguments)
    torch.cuda.synchronize()
    done.append(shape.operation)
for shape in (
    *(shapes._quantize((3, 5, 1000), format, granularity) for format in ("int8", "fp8_e4m3", "fp8_e5m2") for granularity in ("tensor", "channel", "head")),
    shapes._quantize((5, 1000), "int8", "channel"), shapes._quantize((3, 5, 960), "fp8_e4m3", "block", 96), shapes._quantize((40, 9000), "fp8_e4m3", "tensor"),
    shapes._dequantize((5, 9001), "fp8_e4m3", "tensor"), shapes._dequantize((5, 1001), "int8", "channel"),
):
    _native.compile_cold([(shape.operation, (), shape.arguments)], 1)
    lz.lock(shape.operation, f"triton.{shape.operation}")
    getattr(lz.ops, shape.operation)(**shape.arguments)
    torch.cuda.synchronize()
    done.append(f"{shape.operation} {shape.name}")
for shape, inner in ((shapes._prefill(1, 4, 2, 96, 64, True), "prefill"), (shapes._decode(2, 4, 2, 100, 64), "decode")):
    for kernel in (f"torch.cuda.sdpa.flash.gqa.{inner}", f"torch.cuda.sdpa.cudnn.gqa.{inner}"):
        lz.lock(shape.operation, kernel)
        getattr(lz.ops, shape.operation.replace(".", "_"))(**shape.arguments)
        torch.cuda.synchronize()
        done.append(kernel)
cache = lz.kv_cache("virtual", batch=2, kv_heads=2, head_dim=64, capacity=4096, dtype=torch.bfloat16, device="cuda")
k = torch.randn(3000, 2, 64, device="cuda", dtype=torch.bfloat16)
cache.extend(0, k, k)
torch.cuda.synchronize()
print("done", done, "virtual", flush=True)
"""


class Sanitizer:
    """The Triton kernels and memory mappings under memcheck, in parallel with everything else because it starts slowly."""

    def __init__(self):
        tool = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
        self.output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = None
        if tool:
            command = [tool, "--tool", "memcheck", "--target-processes", "application-only", sys.executable, "-c", _SANITIZED]
            self.process = subprocess.Popen(command, stdout=self.output, stderr=subprocess.STDOUT)

    def result(self, seconds):
        if self.process is None:
            return {"tool": None}
        try:
            code = self.process.wait(max(seconds, 0.1))
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = "it took too long"
        self.output.seek(0)
        return {"code": code, "said": self.output.read()[-2400:]}


class ColdStart:
    """The first seconds of three processes: cold kernels compiled in the background, inside calls, and ahead of time."""

    def __init__(self):
        self.processes = {mode: cold_process(mode, 3) for mode in ("background", "inline", "warmup")}

    def result(self, seconds):
        end = time.monotonic() + seconds
        return {mode: cold_trace(process, end - time.monotonic()) for mode, process in self.processes.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default=".")
    parser.add_argument("--seconds", type=float, default=110.0)
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()

    def left():
        return options.seconds - (time.monotonic() - BEGAN)

    def wanted(name):
        return not options.only or name in options.only

    sanitizer = Sanitizer() if wanted("sanitizer") else None
    cold = ColdStart() if wanted("cold_start") else None
    lz.load_backends("torch", "triton")
    torch.manual_seed(0)
    found = {"device": torch.cuda.get_device_name(), "driver": gpu._driver(), "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), "took_s": {}}

    def part(name, does):
        began = time.monotonic()
        try:
            found[name] = does()
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error} ({error.__cause__})"[:600]}
        found["took_s"][name] = round(time.monotonic() - began, 1)
        print(f"[{time.monotonic() - BEGAN:6.1f}]", name, json.dumps(found[name])[:1500], flush=True)
        Path(options.output, "short.json").write_text(json.dumps(found, indent=1) + "\n")

    # Checks without timing run first, while other processes compile and start; timed parts run when they are done.
    if wanted("strict"):
        part("strict", strict)
    if cold is not None:
        part("cold_start", lambda: cold.result(min(left() - 40, 30)))
    if wanted("kv"):
        part("kv", kv)
    if sanitizer is not None:
        part("sanitizer", lambda: sanitizer.result(min(left() - 40, 60)))
    if wanted("host"):
        part("host", host)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
