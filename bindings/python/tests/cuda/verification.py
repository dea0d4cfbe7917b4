"""Verification of live calls (`verify: all`) on a GPU: calls of every operation agree, a kernel that is wrong once in a while is found,
quarantined and reproduced, and calls of a graph capture are left out. Writes the results as JSON.

    python verification.py --output FOLDER [--seeds 6]
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
from captures import captured  # noqa: E402
from reference_cases import FLOATS, wide  # noqa: E402
from references import OPERATIONS, made, there  # noqa: E402

import layerzero as lz  # noqa: E402

KERNEL = "wrong.norm.rms"
#: Kernels of torch that multiply an infinity or a NaN by 0 where the schema has 0 (docs/gpu.md); such a call quarantines them.
KNOWN = ("torch.cuda.activation.silu", "torch.cuda.activation.gelu", "torch.cuda.sdpa.math.")


def counts():
    """Verified calls by outcome, and mismatches by kernel."""
    metrics = lz.metrics()
    return metrics["verifications"], {one["kernel"]: one["count"] for one in metrics["verification_mismatches"]}


def agreement(seeds):
    """Calls of every operation with the kernels that selection chooses. A mismatch that is not known is an error of a shipped kernel."""
    calls, refused = 0, 0
    for operation in OPERATIONS:
        for seed in range(seeds):
            call = there(wide(operation, FLOATS[seed % 3], seed))
            try:
                made(operation, call)
            except lz.LayerZeroError:
                refused += 1
            else:
                calls += 1
    assert lz.wait_for_verification(300)
    verified, mismatches = counts()
    differences = sorted({f"{one['name']}: {one['last_error']}" for one in lz.list_circuits() if one["quarantined"]})
    found = {"operations": len(OPERATIONS), "calls": calls, "refused": refused, "verifications": verified}
    return {**found, "mismatches": mismatches, "differences": differences}


def wrong_once():
    """A kernel on the device whose fifth result is wrong."""
    calls = []

    @lz.register_kernel(backend="wrong", operation="norm.rms", id=KERNEL, platform="cuda", priority=100)
    def rms(x, weight, *, eps, weight_offset):
        calls.append(None)
        result = F.rms_norm(x, x.shape[-1:], None if weight is None else weight + weight_offset, eps)
        return result + 1 if len(calls) % 5 == 0 else result

    return calls


def detection(folder):
    """The wrong result is found, its kernel is not called again, and the reproducer repeats the call on the device."""
    calls = wrong_once()
    x = torch.randn(16, 512, device="cuda")
    expected = F.rms_norm(x, (512,), None, 1e-6)
    results = []
    for _ in range(12):
        results.append(lz.ops.norm_rms(x, eps=1e-6))
        assert lz.wait_for_verification(60)
    wrong = sum(not torch.allclose(one, expected, rtol=1e-4, atol=1e-4) for one in results)
    assert (len(calls), wrong) == (5, 1), (len(calls), wrong)
    assert counts()[1][KERNEL] == 1
    [circuit] = [one for one in lz.list_circuits() if one["name"] == KERNEL]
    assert circuit["quarantined"] and circuit["refuses"], circuit
    [file] = folder.glob("*.safetensors")
    # Right four times, then wrong again.
    reproduced = [lz.repro(file).data["reproduced"] for _ in range(5)]
    assert reproduced == [False] * 4 + [True], reproduced
    exported = lz.repro(file, export=folder / "trace").data["exported"]
    return {"calls_of_the_kernel": 5, "wrong_results_returned": wrong, "quarantined": True, "reproduced": reproduced, "exported": len(exported)}


def capture():
    """Calls of a capture are not copied to the host, which would break it."""
    before = counts()[0]
    x = torch.randn(8, 256, device="cuda")
    graph, result = captured(lambda: lz.ops.activation_silu(x))
    graph.replay()
    assert lz.wait_for_verification(60)
    torch.testing.assert_close(result, F.silu(x), rtol=1e-4, atol=1e-5)
    return {"before": before, "after": counts()[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=6)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    with tempfile.TemporaryDirectory() as folder:
        # What an earlier run has quarantined.
        lz.reset_kernel()
        lz.configure(verify="all", verify_directory=folder)
        found["agreement"] = agreement(options.seeds)
        print(json.dumps(found["agreement"], indent=1), flush=True)
        found["capture"] = capture()
        for file in Path(folder).glob("*.safetensors"):
            file.unlink()
        found["detection"] = detection(Path(folder))
    found["passed"] = all(kernel.startswith(KNOWN) for kernel in found["agreement"]["mismatches"])
    (options.output / "verification.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
