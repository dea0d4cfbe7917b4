"""Overhead of a call from Python compared with peers, in one process. Tiny tensors on the CPU: almost all of
the latency is overhead.

LayerZero and its peers are measured interleaved, so that other load affects both; each figure is the best of
many short rounds. With `--json`, one object per line. torch tensors are read through the torch extension if it was
built (`lz torch-extension build`).

The no-op of tvm-ffi reads the same three tensors and does nothing else. Unlike LayerZero it neither selects nor runs a
kernel, and accepts views with the negative bit set and tensors that require grad.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import timeit
import warnings

# Stored measurements and failures of other processes must not affect this one.
_FOLDER = tempfile.TemporaryDirectory()
_CONFIG = pathlib.Path(_FOLDER.name) / "layerzero.yaml"
_CONFIG.write_text("perfdb:\n  enabled: false\n")
os.environ["LAYERZERO_CONFIG"] = str(_CONFIG)

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import layerzero as lz  # noqa: E402

ROUNDS, CALLS = 60, 2000


def measure(*functions):
    """Nanoseconds per call of each, measured interleaved."""
    timers = [timeit.Timer(function, timer=time.perf_counter_ns) for function in functions]
    best = [float("inf")] * len(functions)
    counts = []
    for timer in timers:
        timer.timeit(50)
        one = max(timer.timeit(20) / 20, 1)
        counts.append(max(20, min(CALLS, int(2e6 / one))))
    for _ in range(ROUNDS):
        for at, (timer, count) in enumerate(zip(timers, counts, strict=True)):
            best[at] = min(best[at], timer.timeit(count) / count)
    # The cost of calling an empty function is the harness's and is subtracted.
    empty = min(timeit.Timer(lambda: None, timer=time.perf_counter_ns).repeat(20, CALLS)) / CALLS
    return [max(value - empty, 0.1) for value in best]


def torch_cases(mode=""):
    """Name, LayerZero's call, the peer's name, the peer's call: torch tensors compared with torch's own functions and tvm-ffi's."""
    x, w = torch.randn(4, 64), torch.randn(64)
    out = torch.empty_like(x)
    norm = lambda: lz.ops.norm_rms(x, w)  # noqa: E731
    norm_out = lambda: lz.ops.norm_rms(x, w, out=out)  # noqa: E731
    nop = tvm_ffi_nop()
    if nop is not None:
        yield f"norm_rms torch out={mode}", norm_out, "tvm-ffi no-op, 3 tensors", lambda: nop(x, w, out)
    yield f"norm_rms torch{mode}", norm, "torch F.rms_norm", lambda: F.rms_norm(x, (64,), w, 1e-6)
    yield f"norm_rms torch{mode}", norm, "torch.empty_like", lambda: torch.empty_like(x)
    yield f"norm_layer torch{mode}", lambda: lz.ops.norm_layer(x, w), "torch F.layer_norm", lambda: F.layer_norm(x, (64,), w)

    q, k, v = torch.randn(1, 2, 64), torch.randn(1, 4, 2, 64), torch.randn(1, 4, 2, 64)
    sdpa = [t.transpose(1, 2) for t in (q[:, None], k, v)]
    yield (
        f"attention_standard_decode torch{mode}",
        lambda: lz.ops.attention_standard_decode(q, k, v),
        "torch F.scaled_dot_product_attention",
        lambda: F.scaled_dot_product_attention(*sdpa),
    )

    attended = torch.empty_like(q)
    yield (
        f"attention_standard_decode torch out={mode}",
        lambda: lz.ops.attention_standard_decode(q, k, v, out=attended),
        "torch F.scaled_dot_product_attention",
        lambda: F.scaled_dot_product_attention(*sdpa),
    )


def cases():
    """The same, compared with all other peers."""
    x, w = torch.randn(4, 64), torch.randn(64)
    out = torch.empty_like(x)
    norm = lambda: lz.ops.norm_rms(x, w)  # noqa: E731
    norm_out = lambda: lz.ops.norm_rms(x, w, out=out)  # noqa: E731
    nx, nw, nout = x.numpy(), w.numpy(), out.numpy()
    yield "norm_rms numpy", lambda: lz.ops.norm_rms(nx, nw), "numpy ufunc", lambda: np.add(nx, nw)
    yield (
        "norm_rms numpy out=",
        lambda: lz.ops.norm_rms(nx, nw, out=nout),
        "numpy ufunc out=",
        lambda: np.add(nx, nw, out=nout),
    )
    yield "norm_rms torch", norm, "dict selection in Python", dict_selection(x, w)
    if written_by_hand():
        ours, theirs = torch.ops.layerzero.norm_rms, torch.ops.layerzero_peer.norm_rms
        peer = "a TORCH_LIBRARY op in C++"
        yield "torch.ops.layerzero.norm_rms", lambda: ours.default(x, w), peer, lambda: theirs.default(x, w)
        yield (
            "torch.ops.layerzero.norm_rms.out",
            lambda: ours.out(x, w, out=out),
            f"{peer}, out=",
            lambda: theirs.out(x, w, out=out),
        )
    # It prints what it installs to stdout, where our figures go.
    with contextlib.redirect_stdout(sys.stderr):
        idle = flashinfer_bench_apply(x, w, "return x")
        allocating = flashinfer_bench_apply(x, w, "import torch; return torch.empty_like(x)")
    if idle is not None and allocating is not None:
        yield "norm_rms torch out=", norm_out, "FlashInfer-Bench apply(), does nothing", idle
        yield "norm_rms torch", norm, "FlashInfer-Bench apply(), only allocates", allocating
        yield "norm_rms torch", norm, "FlashInfer-Bench apply(), does nothing", idle


def hosted():
    """A Python kernel through selection, and the same function called directly."""
    x, w = torch.randn(4, 64), torch.randn(64)

    def kernel(x, weight, *, eps, weight_offset):
        return x

    lz.register_kernel(operation="norm.rms", id="bench.norm.rms", backend="bench", priority=100)(kernel)
    try:
        assert lz.ops.norm_rms(x, w) is x
        return measure(
            lambda: lz.ops.norm_rms(x, w, eps=1e-6, weight_offset=0.0), lambda: kernel(x, w, eps=1e-6, weight_offset=0.0)
        )
    finally:
        lz.unregister_backend("bench")


def tvm_ffi_nop():
    try:
        import tvm_ffi

        return tvm_ffi.get_global_func("testing.nop")
    except (ImportError, ValueError):
        return None


def written_by_hand():
    """Loads a torch operation in C++ with the same signature; compiled once per torch version."""
    from layerzero import _torch

    _torch.define()
    here = pathlib.Path(__file__).resolve().parent
    library = here.parents[2] / "target" / f"peer-op-{torch.__version__}.so"
    home = pathlib.Path(torch.__file__).parent
    if not library.exists():
        command = ["g++", "-std=c++20", "-O2", "-fPIC", "-shared", str(here / "peer_op.cpp"), "-o", str(library)]
        command += [f"-I{home / 'include'}", f"-I{home / 'include/torch/csrc/api/include'}"]
        command += [f"-L{home / 'lib'}", "-ltorch_cpu", "-lc10"]
        try:
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"The operation in C++ is left out: {error}", file=sys.stderr)
            return False
    torch.ops.load_library(library)
    return True


def dict_selection(x, w):
    """What serving frameworks write by hand: a key, a dictionary lookup, a call."""
    table = {}

    def key():
        return (
            "norm.rms", x.dtype, w.dtype, x.device.type, x.device.index, x.shape[-1], x.shape[:-1],
            x.stride(-1) == 1, x.is_contiguous(), w.is_contiguous(), x.requires_grad, w.requires_grad,
        )  # fmt: skip

    out = torch.empty_like(x)
    table[key()] = lambda x, w: out
    return lambda: table[key()](x, w)


def flashinfer_bench_apply(x, w, body):
    """A cache hit of its selection, with a minimal solution."""
    try:
        import logging

        logging.disable(logging.WARNING)
        from flashinfer_bench.apply import ApplyConfig, ApplyRuntime
        from flashinfer_bench.data import Definition, Solution, Trace, TraceSet

        definition = Definition(
            name="rmsnorm_h64",
            op_type="rmsnorm",
            axes={"rows": {"type": "var"}, "hidden": {"type": "const", "value": 64}},
            inputs={
                "x": {"shape": ["rows", "hidden"], "dtype": "float32"},
                "weight": {"shape": ["hidden"], "dtype": "float32"},
            },
            outputs={"output": {"shape": ["rows", "hidden"], "dtype": "float32"}},
            reference="def run(x, weight):\n    return x\n",
        )
        solution = Solution(
            name="solution",
            definition=definition.name,
            author="bench",
            spec={
                "language": "python",
                "target_hardware": ["cpu"],
                "entry_point": "main.py::run",
                "destination_passing_style": False,
            },
            sources=[{"path": "main.py", "content": f"def run(x, weight):\n    {body}\n"}],
        )
        trace = Trace(
            definition=definition.name,
            workload={
                "axes": {"rows": 4},
                "inputs": {"x": {"type": "random"}, "weight": {"type": "random"}},
                "uuid": "0",
            },
            solution=solution.name,
            evaluation={
                "status": "PASSED",
                "environment": {"hardware": "cpu"},
                "timestamp": "2026-01-01T00:00:00",
                "correctness": {},
                "performance": {"latency_ms": 1, "reference_latency_ms": 2, "speedup_factor": 2},
            },
        )
        traces = TraceSet(
            definitions={definition.name: definition},
            solutions={definition.name: [solution]},
            traces={definition.name: [trace]},
        )
        runtime = ApplyRuntime(traces, ApplyConfig())
        call = lambda: runtime.dispatch(definition.name, (x, w), {}, None)  # noqa: E731
        assert call().shape == x.shape
        return call
    except Exception as error:
        print(f"FlashInfer-Bench is left out: {type(error).__name__}: {error}", file=sys.stderr)
        return None


def main():
    as_json = "--json" in sys.argv
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = []
    # With autograd enabled, each tensor is checked for requires_grad.
    for mode, context in (("", torch.enable_grad()), (", no_grad", torch.no_grad())):
        with context:
            for name, ours, peer, theirs in torch_cases(mode):
                mine, other = measure(ours, theirs)
                rows.append((name, mine, peer, other))
    for name, ours, peer, theirs in cases():
        mine, other = measure(ours, theirs)
        rows.append((name, mine, peer, other))
    through, direct = hosted()
    rows.append(("hosted kernel, added cost", through - direct, "the function called directly", direct))
    for name, mine, peer, other in rows:
        if as_json:
            line = {
                "bench": "python",
                "case": name,
                "unit": "ns",
                "ours": round(mine, 1),
                "peer": peer,
                "theirs": round(other, 1),
                "speedup": round(other / mine, 2),
                "limit": None,
            }
            print(json.dumps(line))
        else:
            print(f"{name:34} {mine:9.0f} ns   {peer:38} {other:9.0f} ns   {mine / other:6.3f} x")


if __name__ == "__main__":
    main()
