"""A backend in a worker process (`lz.isolate_backend`) on a GPU: results, stale data, in-place inputs, workers that end, a lost device
context, open handles, and the cost of a call. Writes the results as JSON.

    python isolation.py --output FOLDER
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
from captures import captured  # noqa: E402

import layerzero as lz  # noqa: E402
from layerzero import _device_isolation  # noqa: E402

HERE = Path(__file__).parent
HANG, CRASH, OUT_OF_BOUNDS = 102.0, 104.0, 109.0
KERNEL = "legacy.cuda.norm.rms"
BF16 = torch.bfloat16


def worker():
    return _device_isolation._WORKERS["legacy"]


def normal(*shape, dtype=BF16):
    return torch.randn(shape, device="cuda").to(dtype)


def same(one, other):
    torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


def locked(operation, kernel, function):
    lz.lock(operation, kernel)
    try:
        return function()
    finally:
        lz.unlock(operation)


def results():
    """Dtypes, views into larger allocations, strides, `out=`, an input that is changed in place, and empty tensors."""
    for dtype in (BF16, torch.float32):
        big = normal(70, 4096, dtype=dtype)
        for x in (big, big[3:40], big[:, 64:1088], big.t()):
            weight = normal(x.shape[-1], dtype=dtype)
            same(locked("norm.rms", KERNEL, lambda: lz.ops.norm_rms(x, weight, eps=1e-5)), F.rms_norm(x, x.shape[-1:], weight, 1e-5))
        out = torch.full_like(big, 9.0)
        assert locked("norm.rms", KERNEL, lambda: lz.ops.norm_rms(big, eps=1e-5, out=out)) is out
        same(out, F.rms_norm(big, (4096,), eps=1e-5))
        residual, before = normal(70, 4096, dtype=dtype), None
        before = residual.clone()
        y = locked("norm.rms.add", "legacy.cuda.norm.rms.add", lambda: lz.ops.norm_rms_add(big, residual, eps=1e-5))
        assert torch.equal(residual, before + big)
        same(y, F.rms_norm(residual, (4096,), eps=1e-5))
        gate = normal(5, 3, 257, dtype=dtype)
        same(locked("activation.silu_mul", "legacy.cuda.silu_mul", lambda: lz.ops.activation_silu_mul(gate, gate)), F.silu(gate) * gate)
    assert "layerzero" not in os.listdir(HERE)
    return "ok"


def stale_data():
    """Inputs are written, on streams of their own, immediately before the call; results are read immediately after it."""
    wrong, streams = 0, [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    noise = torch.randn(4096, 4096, device="cuda")

    def run():
        nonlocal wrong
        x, out = torch.empty(64, 4096, device="cuda"), torch.empty(64, 4096, device="cuda")
        for turn in range(60):
            with torch.cuda.stream(streams[turn % 3]):
                for _ in range(3):
                    noise @ noise
                x.fill_(turn + 1).narrow(1, 0, 2048).neg_()
                lz.ops.norm_rms(x, eps=0.0, out=out)
                good = out.sign().sum() == 0 and bool(((out.abs() - 1).abs() < 1e-5).all())
                wrong += not good
                out.fill_(0)
                torch.cuda.current_stream().synchronize()

    locked("norm.rms", KERNEL, run)
    assert wrong == 0, wrong
    return "60 calls, 0 stale"


def dying_worker():
    """The call of a worker that ends is answered by another kernel; the circuit opens; the worker is started again."""
    x = normal(64, 4096)
    found = {}
    lz.configure(**{"circuit_breaker.failure_threshold": 3, "circuit_breaker.timeout_ms": 1000})
    lz.reset_kernel(KERNEL)
    assert lz.which("norm.rms", x).kernel_id == KERNEL
    starts = worker().starts
    for turn in range(3):
        process = worker().process
        if process is not None:
            killer = threading.Timer(0.5, os.kill, (process.pid, signal.SIGKILL))
            killer.start()
        same(lz.ops.norm_rms(x, eps=HANG if process is not None else CRASH), F.rms_norm(x, (4096,), eps=HANG if process is not None else CRASH))
        if process is not None:
            killer.join()
        found[f"failure {turn}"] = str(next(one for one in lz.explain("norm.rms", x).to_dict()["candidates"] if one["kernel"] == KERNEL)["last_failure"])[:160]
        time.sleep(0.5)
    found["selected with an open circuit"] = lz.which("norm.rms", x).kernel_id
    assert found["selected with an open circuit"] != KERNEL
    assert any("WORKER_CRASHED" in str(one) for one in found.values()), found
    time.sleep(1.5)
    lz.reset_kernel(KERNEL)
    same(locked("norm.rms", KERNEL, lambda: lz.ops.norm_rms(x, eps=1e-5)), F.rms_norm(x, (4096,), eps=1e-5))
    assert worker().starts > starts
    found["starts"] = worker().starts
    lz.configure(**{"circuit_breaker.failure_threshold": 100})
    return found


def lost_context():
    """An illegal access in the worker does not affect this process."""
    x = normal(64, 4096)
    same(lz.ops.norm_rms(x, eps=OUT_OF_BOUNDS), F.rms_norm(x, (4096,), eps=OUT_OF_BOUNDS))
    failure = next(one for one in lz.explain("norm.rms", x).to_dict()["candidates"] if one["kernel"] == KERNEL)["last_failure"]
    torch.cuda.synchronize()
    lz.reset_kernel(KERNEL)
    until = time.monotonic() + 30
    while True:
        try:
            same(locked("norm.rms", KERNEL, lambda: lz.ops.norm_rms(x, eps=1e-5)), F.rms_norm(x, (4096,), eps=1e-5))
            return str(failure)[:200]
        except lz.LayerZeroError:
            assert time.monotonic() < until
            time.sleep(0.2)


def handles():
    """No handle stays open, so memory that this process frees is free; no file stays open either."""
    def run():
        for _ in range(50):
            x = normal(16, 1024)
            lz.ops.norm_rms(x, eps=1e-5)
            assert worker().open_handles == 0
        files = len(os.listdir("/proc/self/fd"))
        time.sleep(2)
        torch.cuda.empty_cache()
        before = torch.cuda.mem_get_info()[0]
        for _ in range(5):
            x = torch.ones(1 << 28, device="cuda").view(-1, 1024)
            lz.ops.norm_rms(x, eps=1e-5)
            assert worker().open_handles == 0
            del x
            torch.cuda.empty_cache()
        busy = before - torch.cuda.mem_get_info()[0]
        # The worker keeps memory for its next call, and releases it when it is idle.
        time.sleep(2)
        return {"files": len(os.listdir("/proc/self/fd")) - files, "bytes while busy": busy, "bytes": before - torch.cuda.mem_get_info()[0]}

    found = locked("norm.rms", KERNEL, run)
    assert found["files"] <= 0 and found["bytes"] < 64 << 20 and found["bytes while busy"] < 3 << 30, found
    return found


def captures():
    """Another kernel runs during capture."""
    x = normal(64, 4096)
    graph, y = captured(lambda: lz.ops.norm_rms(x, eps=1e-5))
    x.normal_()
    graph.replay()
    torch.cuda.synchronize()
    same(y, F.rms_norm(x, (4096,), eps=1e-5))
    return "ok"


def expandable():
    """Memory of expandable segments has no handles: the call is declined, and another kernel runs."""
    script = f"""
import sys, torch, layerzero as lz
lz.load_backends("torch")
lz.isolate_backend("legacy", "device_backend", python=sys.executable, path=[{str(HERE)!r}])
x = torch.randn(64, 4096, device="cuda")
y = lz.ops.norm_rms(x, eps=1e-5)
torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (4096,), eps=1e-5))
lz.lock("norm.rms", {KERNEL!r})
try:
    lz.ops.norm_rms(x, eps=1e-5)
    print("shared")
except lz.LayerZeroError as error:
    print(str(error).splitlines()[-1].strip()[:200])
"""
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-800:]
    return done.stdout.strip()


def cost():
    """Microseconds of a call, in the worker and in this process."""
    found = {}
    for rows in (64, 8192):
        x = normal(rows, 4096)
        for name, kernel in (("worker", KERNEL), ("in process", "torch.cuda.norm.rms")):
            def run():
                times = []
                for _ in range(60):
                    torch.cuda.synchronize()
                    begin = time.perf_counter()
                    lz.ops.norm_rms(x, eps=1e-5)
                    torch.cuda.synchronize()
                    times.append((time.perf_counter() - begin) * 1e6)
                return round(statistics.median(times), 1)

            found[f"{rows}x4096 {name}"] = locked("norm.rms", kernel, run)
    return found


PARTS = (results, stale_data, handles, captures, cost, dying_worker, lost_context, expandable)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default=".")
    options = parser.parse_args()
    lz.load_backends("torch")
    lz.configure(**{"worker.deadline_seconds": 20.0, "circuit_breaker.failure_threshold": 100})
    begin = time.perf_counter()
    # The worker has this interpreter but not this import path: no LayerZero.
    isolated = lz.isolate_backend("legacy", "device_backend", python=sys.executable, path=[HERE])
    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), "runs_in": isolated.runs_in,
             "start_seconds": round(time.perf_counter() - begin, 2)}  # fmt: skip
    bad = 0
    for part in PARTS:
        try:
            found[part.__name__] = part()
        except Exception as error:
            bad += 1
            found[part.__name__] = f"FAILED {type(error).__name__}: {error.__cause__ or error}"[:600]
        print(part.__name__, found[part.__name__], flush=True)
    Path(options.output, "isolation.json").write_text(json.dumps(found, indent=1) + "\n")
    lz.unregister_backend("legacy")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
