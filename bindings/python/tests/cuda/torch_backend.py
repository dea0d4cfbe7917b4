"""Holds every kernel of the torch backend on a CUDA device to the reference on the host, and says what it found as JSON.

CI has no such device: what a run on one found is checked in beside this file, and `lz.doctor()` says *verified* because of it.

    python torch_backend.py > torch-<version>-<device>.json
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import samples  # noqa: E402

import layerzero as lz  # noqa: E402
from layerzero import backends  # noqa: E402

TOLERANCE = {torch.float32: 2e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def flat(value):
    return value if isinstance(value, tuple) else () if value is None else (value,)


def to(value, device):
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value.copy())
    return value.to(device) if isinstance(value, torch.Tensor) else value


def check(operation, kernel, arguments, keywords):
    """The largest difference between the kernel on the device and the reference on the host, in units of the tolerance."""
    function = getattr(lz.ops, operation.replace(".", "_"))
    found = []
    for device, chosen in (("cuda", kernel), ("cpu", f"reference.{operation}")):
        copied = [to(value, device) for value in arguments]
        copied = [value.clone() if isinstance(value, torch.Tensor) else value for value in copied]
        lz.lock(operation, chosen)
        try:
            made = function(*copied, **{key: to(value, device) for key, value in keywords.items()})
            found.append([*flat(made), *copied])
        finally:
            lz.unlock(operation)
    worst = 0.0
    for actual, expected in zip(*found, strict=True):
        if isinstance(actual, torch.Tensor) and actual.is_floating_point():
            tolerance = TOLERANCE[actual.dtype]
            actual, expected = actual.cpu().double(), expected.double()
            same = (actual == expected) | (actual.isnan() & expected.isnan())
            off = torch.where(same, 0, (actual - expected).abs() / (tolerance * (1 + expected.abs())))
            worst = max(worst, float(off.max()) if off.numel() else 0.0)
    return worst


def attention_cases(operation):
    kv_heads = 4 if "standard" in operation else 2

    def draw(*shape):
        return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))

    if operation.endswith("decode"):
        q, k, v = draw(3, 4, 64), draw(3, 40, kv_heads, 64), draw(3, 40, kv_heads, 64)
        yield "plain", (q, k, v), {}
        yield "lengths", (q, k, v), {"kv_lens": torch.tensor([40, 1, 17], dtype=torch.int32)}
        return
    q, k, v = draw(2, 33, 4, 64), draw(2, 33, kv_heads, 64), draw(2, 33, kv_heads, 64)
    yield "plain", (q, k, v), {}
    yield "causal", (q, k, v), {"causal": True}
    yield "scale", (q, k, v), {"sm_scale": 0.3}
    longer = (q, draw(2, 48, kv_heads, 64), draw(2, 48, kv_heads, 64))
    yield "causal at the last key", longer, {"causal": True}
    yield "bool mask", (q, k, v), {"mask": draw(2, 1, 33, 33) > -0.5}
    yield "bool mask and causal", (q, k, v), {"mask": draw(2, 1, 33, 33) > -0.5, "causal": True}
    yield "a row that sees nothing", (q, k, v), {"mask": torch.ones(33, 33, dtype=torch.bool).tril(-1)}
    yield "window", (q, k, v), {"window_left": 5, "window_right": 2}
    heads_first = tuple(tensor.transpose(1, 2).contiguous() for tensor in (q, k, v))
    yield "heads first", heads_first, {"layout": "BHSD", "causal": True}


def cases(operation):
    if operation.startswith("attention.") and operation != "attention.state.merge":
        yield from attention_cases(operation)
    else:
        arguments, keywords = samples()[operation.replace(".", "_")]
        yield "sample", arguments, keywords


def cast(operation, arguments, dtype):
    """Floats in the dtype; the lse of partial results has single precision whatever the values have."""
    made = []
    for at, value in enumerate(arguments):
        value = to(value, "cpu")
        exact = operation == "attention.state.merge" and at == 1
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        made.append(value.to(dtype) if floating and not exact else value)
    return tuple(made)


def main():
    descriptor = json.loads((Path(backends.__file__).parent / "torch.cuda.json").read_text())
    found, bad = [], 0
    for operation, kernels in descriptor["ops"].items():
        for kernel in kernels:
            id = kernel["kernel_id"]
            for name in (dtype for dtype in kernel["dtypes"] if dtype in DTYPES):
                for case, arguments, keywords in cases(operation):
                    arguments = cast(operation, arguments, DTYPES[name])
                    on_device = [to(value, "cuda") for value in arguments]
                    candidates = lz.explain(
                        operation, *on_device, **{key: to(value, "cuda") for key, value in keywords.items()}
                    ).to_dict()["candidates"]
                    reasons = next(one.get("reasons", []) for one in candidates if one["kernel"] == id)
                    line = {"kernel": id, "dtype": name, "case": case}
                    if reasons:
                        line["declined"] = sorted({reason["code"] for reason in reasons})
                    else:
                        try:
                            line["off"] = round(check(operation, id, arguments, keywords), 3)
                            bad += not line["off"] <= 1
                        except Exception as error:
                            line["error"] = f"{type(error).__name__}: {error} ({error.__cause__})"[:300]
                            bad += 1
                    found.append(line)
    device = torch.cuda.get_device_name()
    ran = sum("off" in line for line in found)
    print(json.dumps({"torch": torch.__version__, "device": device, "ran": ran, "bad": bad, "runs": found}, indent=1))
    print(f"{device}, torch {torch.__version__}: {ran} runs, {bad} bad", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
