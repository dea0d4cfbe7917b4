"""Checks the GPU references on a GPU: selection with `disabled` and `deterministic`, values, determinism,
CUDA graphs, readiness, sampling.

    python references.py [--seeds 12] [--only NAME ...] [--operations PREFIX ...]

Prints one line per check, a table of latencies, and PASS or FAIL at the end.
"""

import argparse
import json
import sys
import time
import traceback
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from reference_cases import FLOATS, wide  # noqa: E402
from reference_checks import differences, flat, same_bits  # noqa: E402

import layerzero as lz  # noqa: E402

WRITTEN = ("residual", "k_cache", "v_cache", "state")
OPERATIONS = sorted(name for name in lz.list_operations() if not name.startswith("tokenize."))


def there(call, device="cuda"):
    """The same call on a device, with the same strides."""

    def moved(tensor):
        # As bits, because torch cannot copy every small dtype.
        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=bits, device=device).copy_(tensor.view(bits)).view(tensor.dtype)

    return {name: moved(value) if isinstance(value, torch.Tensor) else value for name, value in call.items()}


def made(operation, call):
    results = flat(getattr(lz.ops, operation.replace(".", "_"))(**call))
    return [*results, *(call[name] for name in WRITTEN if name in call)]


def check_disabled(options):
    """Every operation under `lz.disabled()`: the GPU reference is selected, and agrees with the host reference."""
    ran = 0
    for operation in OPERATIONS:
        for seed in range(options.seeds):
            dtype = FLOATS[seed % 3]
            call = wide(operation, dtype, seed)
            with lz.disabled():
                expected = made(operation, there(call, "cpu"))
                on_card = there(call)
                kernel = lz.which(operation, **on_card).kernel_id
                assert kernel == f"torch.reference.{operation}", f"{operation} case {seed}: {kernel}"
                found = made(operation, on_card)
            wrong = differences(operation, dtype, found, expected)
            assert not wrong, f"{operation} case {seed} of {dtype}: {wrong}"
            ran += 1
    return f"{ran} calls of {len(OPERATIONS)} operations"


def large():
    """Calls of a size at which a GPU splits sums between blocks."""
    vocab, generator = 128_256, torch.Generator("cuda").manual_seed(1)

    def normal(*shape, dtype=torch.float32):
        return torch.randn(shape, device="cuda", generator=generator).to(dtype)

    half = torch.bfloat16
    indptr = torch.tensor([0, 700, 1500], dtype=torch.int32, device="cuda")
    pages = torch.arange(64, dtype=torch.int32, device="cuda")
    table = {"kv_indptr": torch.tensor([0, 40, 64], dtype=torch.int32, device="cuda"), "kv_indices": pages, "kv_last_page_len": torch.tensor([5, 16], dtype=torch.int32, device="cuda")}
    cache = normal(64, 16, 8, 128, dtype=half)
    q, k = normal(2, 1024, 32, 128, dtype=half), normal(2, 1024, 8, 128, dtype=half)
    probs = torch.softmax(normal(4, 5, vocab), -1)
    slots = torch.randint(-1, 1024, (4096,), device="cuda", generator=generator)
    weight = torch.randint(-128, 128, (4096, 4096), device="cuda", generator=generator, dtype=torch.int8)
    return {
        "sampling.topk": {"logits": normal(1, vocab), "k": 50},
        "sampling.topp": {"logits": normal(1, vocab), "p": 0.9},
        "sampling.speculative": {"draft_probs": probs[:, :4].contiguous(), "draft_tokens": torch.zeros((4, 4), dtype=torch.int32, device="cuda"), "target_probs": probs},
        "attention.gqa.prefill": {"q": q, "k": k, "v": k, "causal": True},
        "attention.gqa.decode": {"q": normal(2, 32, 128, dtype=half), "k": k, "v": k},
        "attention.cross.prefill": {"q": q, "k": k, "v": k},
        "attention.gqa.prefill.ragged": {"q": normal(1500, 32, 128, dtype=half), "k": normal(1500, 8, 128, dtype=half), "v": normal(1500, 8, 128, dtype=half), "qo_indptr": indptr, "kv_indptr": indptr, "causal": True},
        "attention.gqa.decode.paged": {"q": normal(2, 32, 128, dtype=half), "k_cache": cache, "v_cache": cache, **table},
        "norm.rms": {"x": normal(4096, 8192, dtype=half), "weight": normal(8192, dtype=half)},
        "norm.layer": {"x": normal(4096, 8192, dtype=half), "weight": normal(8192, dtype=half)},
        "mlp.linear": {"x": normal(64, 14336, dtype=half), "weight": normal(4096, 14336, dtype=half)},
        "mlp.fused": {"x": normal(64, 4096, dtype=half), "gate_weight": normal(14336, 4096, dtype=half), "up_weight": normal(14336, 4096, dtype=half), "down_weight": normal(4096, 14336, dtype=half)},
        "mlp.linear.weight_only": {"x": normal(16, 4096, dtype=half), "weight": weight, "scale": normal(4096).abs(), "format": "int8"},
        "mlp.linear.int8": {"x": weight[:64], "weight": weight, "x_scale": normal(64).abs(), "weight_scale": normal(4096).abs()},
        "quantize": {"x": normal(64, 4096, 1024), "format": "int8", "granularity": "tensor"},
        "kv.append": {"k": normal(4096, 8, 128, dtype=half), "v": normal(4096, 8, 128, dtype=half), "k_cache": cache.clone(), "v_cache": cache.clone(), "slots": slots},
        "attention.state.merge": {"v": normal(4096, 16, 32, 128, dtype=half), "s": normal(4096, 16, 32)},
        "moe.route": {"logits": normal(4096, 128, dtype=half), "top_k": 8},
        "moe.experts": {"x": normal(512, 1024, dtype=half), "indices": torch.randint(0, 32, (512, 4), device="cuda", generator=generator, dtype=torch.int32), "weights": normal(512, 4).abs(), "gate_up_weight": normal(32, 1024, 1024, dtype=half) / 32, "down_weight": normal(32, 1024, 512, dtype=half) / 32},
        "attention.linear.prefill": {"q": normal(1, 1000, 16, 128, dtype=half), "k": normal(1, 1000, 16, 128, dtype=half), "v": normal(1, 1000, 32, 128, dtype=half), "g": -normal(1, 1000, 32).abs(), "beta": normal(1, 1000, 32).sigmoid(), "qk_l2norm": True, "return_state": True},
        "ssm.scan": {"x": normal(1, 1000, 64, 64, dtype=half), "dt": normal(1, 1000, 64, dtype=half), "a": -normal(64).abs(), "b": normal(1, 1000, 1, 128, dtype=half), "c": normal(1, 1000, 1, 128, dtype=half), "return_state": True},
        "norm.group": {"x": normal(2, 320, 16384, dtype=half), "groups": 32},
        "logits.logprobs": {"logits": normal(16, vocab), "tokens": torch.zeros(16, dtype=torch.int32, device="cuda"), "top_k": 5},
        "sampling.minp": {"logits": normal(1, vocab), "p": 0.05},
    }  # fmt: skip


def check_deterministic(options):
    """Every operation with `deterministic=True`: the same bits over several runs, while other work runs concurrently."""
    noise, side = torch.randn(2048, 2048, device="cuda"), torch.cuda.Stream()
    calls = {operation: there(wide(operation, "f32", 4)) for operation in OPERATIONS}
    several = [*calls.items(), *((operation, call) for operation, call in large().items() if operation in calls)]
    lz.configure(deterministic=True)
    try:
        for operation, call in several:
            kernel = lz.which(operation, **call).kernel_id
            known = next(one for one in lz.list_kernels(operation) if one["id"] == kernel)
            assert known["deterministic"] and known["platform"] == "cuda", f"{operation}: {kernel}"
            first = None
            for _ in range(8):
                with torch.cuda.stream(side):
                    noise @ noise
                found = made(operation, {name: value.clone() if name in WRITTEN else value for name, value in call.items()})
                torch.cuda.synchronize()
                first = first or found
                assert all(same_bits(one, other) for one, other in zip(first, found, strict=True)), f"{operation}: other bits in another run"
    finally:
        lz.configure(deterministic=False)
    return f"{len(several)} calls, 8 runs each"


def check_torch_deterministic(options):
    """torch's deterministic mode accepts every reference."""
    torch.use_deterministic_algorithms(True)
    try:
        with lz.disabled():
            for operation in OPERATIONS:
                made(operation, there(wide(operation, "f32", 2)))
            torch.cuda.synchronize()
    finally:
        torch.use_deterministic_algorithms(False)
    return f"{len(OPERATIONS)} operations"


def check_graphs(options):
    """References marked as safe for capture are captured and replayed."""
    safe = {one["operation"] for one in lz.list_kernels(backend="torch_reference") if one["cuda_graph_safe"]}
    ran = 0
    for operation in sorted(safe & set(OPERATIONS)):
        call = there(wide(operation, "f32", 5))
        lz.lock(operation, f"torch.reference.{operation}")
        try:
            kept = {name: call[name].clone() for name in WRITTEN if name in call}
            expected = [one.clone() for one in made(operation, {**call, **{name: value.clone() for name, value in kept.items()}})]
            graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                made(operation, {**call, **{name: value.clone() for name, value in kept.items()}})
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(graph):
                captured = made(operation, call)
            for name, value in kept.items():
                call[name].copy_(value)
            graph.replay()
            torch.cuda.synchronize()
            wrong = differences(operation, "f32", captured, [one.cpu() for one in expected])
            assert not wrong, f"{operation}: {wrong}"
            ran += 1
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"{operation}: {type(error).__name__}: {error}") from error
        finally:
            lz.unlock(operation)
    return f"{ran} operations"


def check_readiness(options):
    """Readiness covers the GPU, and reports missing kernels there."""
    report = lz.readiness_check().to_dict()
    assert report["platforms"] == ["cpu", "cuda"], report["platforms"]
    check = next(one for one in report["checks"] if one["name"] == "kernels")
    assert check["ok"], check
    lz.unregister_backend("torch_reference")
    try:
        check = next(one for one in lz.readiness_check().to_dict()["checks"] if one["name"] == "kernels")
        assert not check["ok"] and "attention.cross.prefill" in check["detail"], check
        text = check["detail"]
    finally:
        from layerzero import backends

        backends._STATES.pop("torch_reference", None)
        backends.load_imported()
    return text


def check_draws(options):
    """A draft and its verification with the same seed and offset are independent, with every kernel of both."""
    vocab, requests = 5, 20_000
    draft = torch.tensor([0.4, 0.3, 0.2, 0.06, 0.04], device="cuda")
    kept = torch.tensor([4 / 9, 3 / 9, 2 / 9, 0.0, 0.0], device="cuda")
    target, behind = torch.tensor([0.1, 0.35, 0.25, 0.2, 0.1]), torch.tensor([0.3, 0.1, 0.1, 0.3, 0.2])
    logits = draft.log().expand(requests, 2, vocab).contiguous()
    probs = torch.stack((target, behind)).cuda().expand(requests, 2, vocab).contiguous()
    pairs = []
    drafters = [("sampling.topk", {"k": 3}), ("sampling.topp", {"p": 0.85})]
    for operation, params in drafters:
        for drafter in usable(operation, logits=logits, **params):
            lz.lock(operation, drafter)
            try:
                tokens = getattr(lz.ops, operation.replace(".", "_"))(logits=logits, **params)[:, :1].contiguous()
            finally:
                lz.unlock(operation)
            call = {"draft_probs": kept.expand(requests, 1, vocab).contiguous(), "draft_tokens": tokens, "target_probs": probs}
            for verifier in usable("sampling.speculative", **call):
                lz.lock("sampling.speculative", verifier)
                try:
                    found, _ = lz.ops.sampling_speculative(**call)
                finally:
                    lz.unlock("sampling.speculative")
                for place, expected in ((0, target), (1, behind)):
                    drawn = found[:, place].cpu()
                    counts = torch.bincount(drawn[drawn >= 0].long(), minlength=vocab).double()
                    wanted = counts.sum() * expected.double()
                    statistic = float(((counts - wanted) ** 2 / wanted).sum())
                    assert statistic < 33.4, f"{drafter} verified by {verifier}: {counts.tolist()} for {expected.tolist()}, chi-square {statistic:.0f}"
                pairs.append(f"{drafter} + {verifier}")
    return f"{len(pairs)} pairs of kernels: {', '.join(pairs)}"


def usable(operation, **call):
    return [one["kernel"] for one in lz.explain(operation, **call).to_dict()["candidates"] if not one["reasons"]]


def milliseconds(function):
    for _ in range(3):
        function()
    best = float("inf")
    for _ in range(5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(10):
            function()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / 10)
    return best


def times():
    """Latency of the references next to the equivalent torch expression, including dispatch."""
    import torch.nn.functional as F

    half = torch.bfloat16
    x, gate, up, weight = (torch.randn(4096, 8192, device="cuda", dtype=half) for _ in range(4))
    wide_weight = torch.randn(8192, 8192, device="cuda", dtype=half)
    scale = torch.randn(8192, device="cuda", dtype=half)
    q, k = (torch.randn(1, 32, 2048, 128, device="cuda", dtype=half) for _ in range(2))
    ids = torch.randint(0, 4096, (4096,), device="cuda")

    def attention():
        scores = (q.float() @ k.float().transpose(-1, -2)) * 128**-0.5
        return (torch.softmax(scores, -1) @ k.float()).to(half)

    pairs = {
        "activation.silu_mul": ({"gate": gate, "up": up}, lambda: F.silu(gate) * up),
        "activation.gelu_mul": ({"gate": gate, "up": up}, lambda: F.gelu(gate) * up),
        "activation.silu": ({"x": x}, lambda: F.silu(x)),
        "activation.gelu": ({"x": x}, lambda: F.gelu(x)),
        "activation.relu": ({"x": x}, lambda: F.relu(x)),
        "activation.relu_squared": ({"x": x}, lambda: F.relu(x).square()),
        "norm.rms": ({"x": x, "weight": scale}, lambda: F.rms_norm(x, (8192,), scale, 1e-6)),
        "norm.layer": ({"x": x, "weight": scale}, lambda: F.layer_norm(x, (8192,), scale)),
        "mlp.linear": ({"x": x, "weight": wide_weight}, lambda: F.linear(x, wide_weight)),
        "embedding.lookup": ({"table": weight, "ids": ids}, lambda: F.embedding(ids, weight)),
        "attention.standard.prefill": ({"q": q, "k": k, "v": k, "layout": "BHSD"}, attention),
    }
    print(f"{'operation':34}{'reference ms':>14}{'torch ms':>12}{'ratio':>8}")
    with lz.disabled():
        for operation, (call, plain) in pairs.items():
            function = getattr(lz.ops, operation.replace(".", "_"))
            ours, theirs = milliseconds(lambda f=function, c=call: f(**c)), milliseconds(plain)
            print(f"{operation:34}{ours:14.4f}{theirs:12.4f}{ours / theirs:8.2f}", flush=True)


CHECKS = {name.removeprefix("check_"): value for name, value in list(globals().items()) if name.startswith("check_")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--only", nargs="*", choices=[*CHECKS, "times"])
    parser.add_argument("--operations", nargs="*", default=[""], help="check only operations whose names start so")
    options = parser.parse_args()
    OPERATIONS[:] = [name for name in OPERATIONS if name.startswith(tuple(options.operations))]
    lz.load_backends()
    print(json.dumps({"torch": torch.__version__, "device": torch.cuda.get_device_name(), "backends": [one["name"] for one in _backends()]}))
    failed = []
    for name, check in CHECKS.items():
        if options.only and name not in options.only:
            continue
        began = time.monotonic()
        try:
            message = check(options)
            print(f"ok    {name}: {message} ({time.monotonic() - began:.1f} s)", flush=True)
        except Exception as error:
            failed.append(name)
            print(f"WRONG {name}: {type(error).__name__}: {str(error)[:1500]}", flush=True)
            if not isinstance(error, AssertionError):
                traceback.print_exc()
    if not options.only or "times" in options.only:
        times()
    print("FAIL: " + ", ".join(failed) if failed else "PASS", flush=True)
    return 1 if failed else 0


def _backends():
    from layerzero import _native

    return _native.backends()


if __name__ == "__main__":
    import os

    # cuBLAS is deterministic on several streams only with a fixed workspace size, as torch's deterministic mode requires.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    sys.exit(main())
