"""Proves on a GPU what the descriptors declare: `deterministic` kernels return the same bits in every run, also while other work runs, and
rows of `is_batch_invariant` kernels have the same bits alone, in other batches and at other positions.

    python promises.py --output FOLDER
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from cases import SCORED, small  # noqa: E402
from reference_cases import wide  # noqa: E402
from reference_checks import flat, same_bits  # noqa: E402

import layerzero as lz  # noqa: E402
from layerzero import _native, backends  # noqa: E402
from layerzero._prepare import expressions_compiled_inline  # noqa: E402

FOLDER = Path(backends.__file__).parent
BF16, F32 = torch.bfloat16, torch.float32
ROWS = 37


def normal(*shape, dtype=BF16):
    return torch.randn(shape, device="cuda").to(dtype)


def table(positions, features):
    angles = torch.rand(positions, features, device="cuda")
    return {"cos": angles.cos(), "sin": angles.sin()}


def rope_append():
    caches = {"k_cache": normal(64, 16, 8, 128), "v_cache": normal(64, 16, 8, 128)}
    rows = {"q": normal(ROWS, 32, 128), "k": normal(ROWS, 8, 128), "v": normal(ROWS, 8, 128), "slots": torch.arange(ROWS, device="cuda"),
            "positions": torch.arange(ROWS, device="cuda")}  # fmt: skip
    return rows, {**caches, **table(64, 64)}


def linear_attention(length):
    outer = (ROWS, *length)
    rows = {"q": normal(*outer, 16, 128), "k": normal(*outer, 16, 128), "v": normal(*outer, 32, 128), "g": -normal(*outer, 32, dtype=F32).abs(),
            "beta": torch.rand(*outer, 32, device="cuda")}  # fmt: skip
    state = normal(ROWS, 32, 128, 128, dtype=F32)
    return {**rows, "initial_state" if length else "state": state}, {"qk_l2norm": True, **({"return_state": True} if length else {})}


def state_space(length):
    outer = (ROWS, *length)
    rows = {"x": normal(*outer, 64, 64), "dt": normal(*outer, 64), "b": normal(*outer, 1, 128), "c": normal(*outer, 1, 128)}
    state = {"initial_state" if length else "state": normal(ROWS, 64, 64, 128, dtype=F32)}
    return {**rows, **state}, {"a": -torch.rand(64, device="cuda"), **({"return_state": True} if length else {})}


def fp8_linear():
    # Fewer rows have a kernel of their own, which is checked with one row.
    rows = {"x": normal(300, 4096).to(torch.float8_e4m3fn), "x_scale": torch.rand(300, device="cuda")}
    others = {"weight": normal(6144, 4096).to(torch.float8_e4m3fn), "weight_scale": torch.rand(6144, device="cuda")}
    return rows, {**others, "x_granularity": "row", "weight_granularity": "row"}


def fp4_linear():
    # Rows for which both kernels exist.
    x, weight = (torch.randint(0, 256, (count, 2048), dtype=torch.uint8, device="cuda").view(torch.float4_e2m1fn_x2) for count in (128, 6144))
    x_scale, weight_scale = (torch.rand(count, 256, device="cuda").to(torch.float8_e4m3fn) for count in (128, 6144))
    return {"x": x, "x_scale": x_scale}, {"weight": weight, "weight_scale": weight_scale, "format": "nvfp4"}


def table_rows():
    table = {"table": torch.randint(0, 256, (500, 2048), dtype=torch.uint8, device="cuda"), "scale": torch.rand(500, 128, device="cuda")}
    return {"ids": torch.randint(0, 500, (ROWS,), device="cuda")}, {**table, "format": "int4", "output_dtype": "bf16"}


def drafts():
    draft, target = (torch.softmax(normal(ROWS, count, 32000, dtype=F32), -1) for count in (3, 4))
    return {"draft_probs": draft, "draft_tokens": torch.randint(0, 32000, (ROWS, 3), device="cuda", dtype=torch.int32), "target_probs": target}, {"seed": 5}


#: For each operation the inputs with one row per token or request, and the other arguments.
CALLS = {
    "norm.rms": lambda: ({"x": normal(ROWS, 4096)}, {"weight": normal(4096)}),
    "norm.rms.add": lambda: ({"x": normal(ROWS, 4096), "residual": normal(ROWS, 4096)}, {"weight": normal(4096)}),
    "norm.rms.quantize": lambda: ({"x": normal(ROWS, 4096)}, {"weight": normal(4096), "format": "fp8_e4m3", "granularity": "row"}),
    "norm.rms.add.quantize": lambda: (
        {"x": normal(ROWS, 4096), "residual": normal(ROWS, 4096)}, {"weight": normal(4096), "format": "fp8_e4m3", "granularity": "row"},
    ),
    "activation.silu_mul": lambda: ({"gate": normal(ROWS, 14336), "up": normal(ROWS, 14336)}, {}),
    "activation.gelu_mul": lambda: ({"gate": normal(ROWS, 14336), "up": normal(ROWS, 14336)}, {"approximate": "tanh"}),
    "posenc.rope": lambda: ({"x": normal(ROWS, 1, 32, 128), "positions": torch.arange(ROWS, device="cuda")[:, None]}, table(64, 64)),
    "rope.append": rope_append,
    "attention.state.merge": lambda: ({"v": normal(ROWS, 3, 32, 128), "s": normal(ROWS, 3, 32, dtype=F32)}, {}),
    "moe.route": lambda: ({"logits": normal(ROWS, 128)}, {"top_k": 8}),
    "mlp.linear": lambda: ({"x": normal(ROWS, 4096)}, {"weight": normal(6144, 4096), "activation": "silu"}),
    "attention.linear.prefill": lambda: linear_attention((130,)),
    "attention.linear.decode": lambda: linear_attention(()),
    "ssm.scan": lambda: state_space((130,)),
    "ssm.step": lambda: state_space(()),
    "mlp.linear.fp8": fp8_linear,
    "mlp.linear.fp4": fp4_linear,
    "embedding.lookup.quantized": table_rows,
    "sampling.speculative": drafts,
    "conv.causal1d": lambda: ({"x": normal(ROWS, 70, 4352)}, {"weight": normal(4352, 4), "activation": "silu", "return_state": True}),
    "conv.causal1d.step": lambda: ({"x": normal(ROWS, 4352), "state": normal(ROWS, 4352, 3)}, {"weight": normal(4352, 4)}),
}  # fmt: skip
WRITTEN = ("residual", "state")


def made(operation, call):
    """The results, and the inputs that were replaced, one row per token or request."""
    call = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in call.items()}
    _native.compile_cold([(operation, (), call)], 4)
    with expressions_compiled_inline():
        results = flat(getattr(lz.ops, operation.replace(".", "_"))(**call))
    torch.cuda.synchronize()
    return [*results, *(call[name] for name in WRITTEN if name in call)]


def batch_invariant(operation, _kernel):
    """Compares each part of the batch, and the batch in another order, with the whole."""
    rows, others = CALLS[operation]()
    whole = made(operation, {**rows, **others})
    orders = [torch.tensor(order, device="cuda") for order in ([0], [17], [36], [5, 6, 7], list(range(20, 36)), list(reversed(range(ROWS))))]
    for order in orders:
        part = made(operation, {**{name: value[order].contiguous() for name, value in rows.items()}, **others})
        for one, other in zip(part, whole, strict=True):
            assert same_bits(one, other[order]), f"rows {order.tolist()[:4]}…"
    return len(orders)


def deterministic(operation, kernel):
    """Compares five runs, three of them while another stream is busy."""
    call, rows, others = None, {}, {}
    if operation in CALLS:
        rows, others = CALLS[operation]()
        call = {**rows, **others}
    else:
        seed = SCORED + 1 if kernel.endswith(".score_mod") else 1
        drawn = small(operation, "bf16", seed) or wide(operation, "bf16", seed)
        call = {name: value.cuda().contiguous() if isinstance(value, torch.Tensor) else value for name, value in drawn.items()}
    try:
        first = made(operation, call)
    except lz.NoKernelFoundError:
        # A kernel for one row.
        call = {**{name: value[:1].contiguous() for name, value in rows.items()}, **others}
        first = made(operation, call)
    noise, stream = torch.randn(2048, 2048, device="cuda"), torch.cuda.Stream()
    for turn in range(4):
        if turn:
            with torch.cuda.stream(stream):
                noise @ noise
        for one, other in zip(made(operation, call), first, strict=True):
            assert same_bits(one, other), f"run {turn + 2}"
    return 5


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default=".")
    parser.add_argument("--backends", nargs="*", default=["triton"])
    options = parser.parse_args()
    lz.load_backends("torch", *options.backends)
    torch.manual_seed(0)
    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), "kept": [], "broken": [], "not_run": []}
    for backend in options.backends:
        for operation, kernels in json.loads((FOLDER / f"{backend}.cuda.json").read_text())["ops"].items():
            for kernel in kernels:
                for promise, check in (("deterministic", deterministic), ("is_batch_invariant", batch_invariant)):
                    if not kernel.get(promise):
                        continue
                    line = f"{kernel['kernel_id']} {promise}"
                    lz.lock(operation, kernel["kernel_id"])
                    try:
                        found["kept"].append(f"{line}: {check(operation, kernel['kernel_id'])} runs")
                    except AssertionError as error:
                        found["broken"].append(f"{line}: {error}")
                    except Exception as error:
                        found["not_run"].append(f"{line}: {type(error).__name__}: {error.__cause__ or error}"[:300])
                    finally:
                        lz.unlock(operation)
    Path(options.output, "promises.json").write_text(json.dumps(found, indent=1) + "\n")
    for name in ("broken", "not_run"):
        for line in found[name]:
            print(name, line, flush=True)
    print(len(found["kept"]), "promises kept,", len(found["broken"]), "broken,", len(found["not_run"]), "not run")
    return 1 if found["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
