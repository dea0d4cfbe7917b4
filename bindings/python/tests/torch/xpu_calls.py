"""Calls every composition on a simulated Intel GPU and compares the results with the host reference.

    python xpu_calls.py LIBRARY ROUNDS

LIBRARY is `simulated_xpu.cpp`, compiled. A process of its own, because torch keeps the device until it ends. Prints JSON.
"""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "cuda"))


def simulate(library):
    torch.ops.load_library(library)
    # torch's Python module knows that this torch was not built for Intel GPUs, and would refuse them.
    torch.xpu._initialized = True
    torch.xpu.is_available = lambda: True


def problem(operation, seed):
    """What is wrong with one call, or None."""
    from reference_cases import FLOATS, wide
    from reference_checks import differences
    from references import made, there

    import layerzero as lz

    dtype = FLOATS[seed % 3]
    call = wide(operation, dtype, seed)
    with lz.disabled():
        expected = made(operation, there(call, "cpu"))
    there_call = there(call, f"xpu:{seed % 2}")
    kernel = lz.which(operation, **there_call).kernel_id
    if kernel != f"torch.reference.xpu.{operation}":
        return f"{kernel} was selected"
    found = made(operation, there_call)
    devices = {str(tensor.device) for tensor in found}
    if devices - {f"xpu:{seed % 2}"}:
        return f"results are on {devices}"
    return differences(operation, dtype, found, expected) or None


def mixed():
    """The error of a call with tensors on two devices."""
    import layerzero as lz

    x = torch.randn(3, 8)
    try:
        lz.ops.activation_silu_mul(x.to("xpu"), x)
    except lz.ValidationError as error:
        return str(error)
    return None


def main():
    library, rounds = sys.argv[1], int(sys.argv[2])
    simulate(library)
    import layerzero as lz

    ids = {kernel["id"] for kernel in lz.list_kernels(backend="torch_reference")}
    operations = sorted(id.removeprefix("torch.reference.xpu.") for id in ids if ".reference.xpu." in id)
    problems = {}
    for operation in operations:
        for seed in range(rounds):
            try:
                found = problem(operation, seed)
            except Exception as error:
                found = f"{type(error).__name__}: {error}"[:500]
            if found:
                problems[f"{operation}, case {seed}"] = found
    device = lz.explain("activation.relu", torch.randn(3, device="xpu")).to_dict()["device"]["name"]
    print(json.dumps({"operations": operations, "problems": problems, "mixed": mixed(), "device": device}))


if __name__ == "__main__":
    main()
