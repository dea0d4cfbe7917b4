"""Compares every GPU kernel of the backends with the host reference, and writes the results as JSON.

CI has no such device: what a run on one found is checked in under `results/h200`. The run also writes `verified.json`, with a digest of the
adapters of each backend whose kernels all ran without a difference; checked in next to the adapters, it makes `lz.doctor()` say *verified*.

    python conform.py --output FOLDER [--backends torch triton ...] [--seeds 12] [--seconds 200]
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from cases import DTYPES, HAVE_EXPRESSIONS, SCORED, small  # noqa: E402
from reference_cases import wide  # noqa: E402
from reference_checks import differences, tolerances  # noqa: E402

import layerzero as lz  # noqa: E402
from layerzero import _native, backends  # noqa: E402
from layerzero._prepare import expressions_compiled_inline  # noqa: E402
from layerzero.backends import _verified  # noqa: E402

#: Operations whose tokens are compared by their distribution, because kernels draw them in different ways.
DRAWS = ("sampling.topk", "sampling.topp", "sampling.speculative")
FOLDER = Path(backends.__file__).parent


def flat(value):
    return list(value) if isinstance(value, tuple | list) else [] if value is None else [value]


def there(call, device):
    return {name: value.to(device).clone() if isinstance(value, torch.Tensor) else value for name, value in call.items()}


def run(operation, kernel, call):
    """The results of a kernel, and the tensors that it may have changed."""
    lz.lock(operation, kernel)
    try:
        with expressions_compiled_inline():
            made = getattr(lz.ops, operation.replace(".", "_"))(**call)
    finally:
        lz.unlock(operation)
    changed = [value for name, value in call.items() if name in ("residual", "k_cache", "v_cache", "state") and isinstance(value, torch.Tensor)]
    return [*flat(made), *changed]


def off(actual, expected, dtype, operation):
    """The largest difference in units of the tolerance."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return math.inf
    if not actual.is_floating_point() or actual.element_size() == 1:
        actual = actual.cpu()
        same = actual.view(torch.uint8) == expected.view(torch.uint8)
        if actual.is_floating_point():
            # All NaN are equal.
            same |= actual.float().isnan() & expected.float().isnan()
        return 0.0 if bool(same.all()) else math.inf
    # The lse of half-precision inputs is float32, but computed from products of those inputs.
    known = tolerances(operation)
    relative, absolute = max(known[actual.dtype], known[dtype] if actual.dtype == torch.float32 else (0, 0))
    actual, expected = actual.cpu().double(), expected.double()
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    worst = torch.where(same, 0, (actual - expected).abs() / (absolute + relative * expected.abs()))
    worst = worst.nan_to_num(nan=math.inf)
    return float(worst.max()) if worst.numel() else 0.0


def kept(logits, k, p):
    """The probability of each token, as the operations define it."""
    weights = torch.softmax(logits.double(), -1)
    order = torch.argsort(weights, descending=True, stable=True)
    sorted_weights = weights[order]
    keep = torch.ones_like(sorted_weights, dtype=torch.bool)
    if k:
        keep[k:] = False
    if p:
        sums = (sorted_weights * keep).cumsum(0)
        keep &= (sums - sorted_weights * keep) < p * sums[-1]
    chosen = torch.zeros_like(weights)
    chosen[order[keep]] = sorted_weights[keep]
    return chosen / chosen.sum()


def sampling(operation, kernel, seed):
    """The difference between samples and their distribution, in units of what chance allows (six standard deviations)."""
    generator = torch.Generator().manual_seed(seed)
    vocab, rows = 60, 20000
    if operation == "sampling.speculative":
        draft = torch.softmax(torch.randn(1, vocab, generator=generator), -1)
        target = torch.softmax(torch.randn(2, vocab, generator=generator), -1)
        tokens = torch.multinomial(draft[0], rows, replacement=True, generator=generator).int()[:, None]
        call = {"draft_probs": draft.expand(rows, 1, vocab).contiguous(), "draft_tokens": tokens, "target_probs": target.expand(rows, 2, vocab).contiguous(), "seed": seed}
        found, accepted = run(operation, kernel, there(call, "cuda"))
        expected, drawn = target[0].double(), found[:, 0].cpu()
        if int(accepted.max()) > 1 or bool((found[:, 1].cpu() == -1).ne(accepted.cpu() == 0).any()):
            return math.inf
    else:
        logits = torch.randn(vocab, generator=generator) * 2
        params = {"k": 9} if operation == "sampling.topk" else {"p": 0.8, "top_k": seed % 2 * 12}
        call = {"logits": logits.expand(rows, vocab).contiguous(), "seed": seed, "temperature": 1.0, **params}
        drawn = run(operation, kernel, there(call, "cuda"))[0].cpu()
        expected = kept(logits, params.get("k") or params.get("top_k"), params.get("p"))
    counts = torch.bincount(drawn.long(), minlength=vocab).double()
    if bool((counts[expected == 0] > 0).any()):
        return math.inf
    inside = expected > 0
    statistic = ((counts[inside] - rows * expected[inside]) ** 2 / (rows * expected[inside])).sum()
    freedom = int(inside.sum()) - 1
    return float((statistic - freedom) / (6 * math.sqrt(2 * freedom)))


def odd_rows(operation, kernel):
    """Rows without a positive weight, with NaN and with infinities."""
    inf, nan = math.inf, math.nan
    logits = torch.randn(5, 60, generator=torch.Generator().manual_seed(1))
    logits[1], logits[2], logits[3, 7], logits[4, 3] = nan, -inf, inf, nan
    params = {"k": 5} if operation == "sampling.topk" else {"p": 0.9}
    drawn = run(operation, kernel, there({"logits": logits, "seed": 3, **params}, "cuda"))[0].cpu().tolist()
    good = drawn[1] == -1 and drawn[2] == -1 and drawn[3] == 7 and drawn[4] != 3
    return 0.0 if good else math.inf


def sampling_shape(operation, rows):
    """A call with as many rows as are sampled, so that kernels are compiled for it."""
    zeros = torch.zeros(rows, 60, device="cuda")
    if operation == "sampling.speculative":
        tokens = torch.zeros(rows, 1, dtype=torch.int32, device="cuda")
        return {"draft_probs": zeros[:, None], "draft_tokens": tokens, "target_probs": torch.zeros(rows, 2, 60, device="cuda")}
    return {"logits": zeros, **({"k": 1} if operation == "sampling.topk" else {"p": 0.5})}


def compile_for(operation, call, problems):
    for kernel, why in _native.compile_cold([(operation, (), call)], 4)[2]:
        if "FLASHINFER_DISABLE_JIT" not in why:
            problems.setdefault(f"{kernel}: {why}"[:400], 0)


def hold_sampling(operation, kernels, problems):
    """Checks distributions and unusual rows."""
    for kernel, (name, _) in kernels.items():
        for seed in range(4 if operation != "sampling.speculative" else 3):
            line = {"kernel": kernel, "dtype": "f32", "case": f"distribution {seed}" if seed < 3 else "odd rows"}
            try:
                compile_for(operation, sampling_shape(operation, 20000 if seed < 3 else 5), problems)
                line["off"] = round(sampling(operation, kernel, seed) if seed < 3 else odd_rows(operation, kernel), 3)
            except Exception as error:
                line["error"] = f"{type(error).__name__}: {error.__cause__ or error}"[:300]
            yield name, line


def hold(operation, kernels, dtype, seed, problems):
    """One call with every kernel that can run it."""
    call = small(operation, dtype, seed)
    is_wide = call is None
    call = wide(operation, dtype, seed) if is_wide else call
    if is_wide and seed % 2:
        # Most kernels decline other strides.
        call = {name: value.contiguous() if isinstance(value, torch.Tensor) else value for name, value in call.items()}
    on_device = there(call, "cuda")
    compile_for(operation, on_device, problems)
    candidates = {one["kernel"]: one for one in lz.explain(operation, **on_device).to_dict()["candidates"]}
    expected = None
    for kernel, (name, dtypes) in kernels.items():
        # Their calls are those with expressions; others have NaN in hidden values, which no flash kernel excludes (docs/gpu.md).
        if dtype not in dtypes or is_wide and kernel.endswith(".score_mod"):
            continue
        line = {"kernel": kernel, "dtype": dtype, "case": seed}
        reasons = candidates.get(kernel, {}).get("reasons", [])
        if reasons:
            line["declined"] = sorted({reason["code"] for reason in reasons})
        else:
            # If it crashes the process, the last line of output names the kernel.
            LAST.write_text(json.dumps({**line, "operation": operation}))
            try:
                actual = run(operation, kernel, there(call, "cuda"))
                torch.cuda.synchronize()
                if expected is None:
                    expected = run(operation, f"reference.{operation}", there(call, "cpu"))
                if is_wide:
                    line["off"] = math.inf if differences(operation, dtype, actual, expected) else 0.0
                else:
                    worst = [off(one, other, DTYPES[dtype], operation) for one, other in zip(actual, expected, strict=True)]
                    line["off"] = round(max(worst, default=0.0), 3)
            except Exception as error:
                # A module of FlashInfer that was not compiled beforehand is not compiled here.
                declines = isinstance(error.__cause__, NotImplementedError) or "FLASHINFER_DISABLE_JIT" in str(error.__cause__ or error)
                line["declined" if declines else "error"] = f"{type(error).__name__}: {error.__cause__ or error}"[:300]
        if line.get("off", 0) > 1 or "error" in line:
            line["call"] = {key: list(value.shape) if isinstance(value, torch.Tensor) else value for key, value in call.items()}
        yield name, line


LAST = Path(f"/tmp/conform-{os.getpid()}.last")


def kernels_of(names):
    """Kernels by operation: id → backend and dtypes."""
    found = {}
    for name in names:
        descriptor = json.loads((FOLDER / f"{name}.cuda.json").read_text())
        for operation, kernels in descriptor["ops"].items():
            for kernel in kernels:
                found.setdefault(operation, {})[kernel["kernel_id"]] = (name, kernel["dtypes"])
    return found


def child(options):
    """Checks the kernels of one operation, and writes the results line by line."""
    import faulthandler

    faulthandler.enable()
    # Only compiled kernels take part, because compiling one module takes minutes.
    os.environ["FLASHINFER_DISABLE_JIT"] = "1"
    lz.load_backends(*options.backends)
    usable = [one.name for one in backends.states() if one.state == "ok" and one.name in options.backends]
    kernels, problems = kernels_of(usable)[options.operation], {}
    with open(options.output, "w", encoding="utf-8") as file:
        if options.operation in DRAWS:
            for name, line in hold_sampling(options.operation, kernels, problems):
                print(json.dumps([name, line]), file=file, flush=True)
        else:
            taken = {dtype for _, dtypes in kernels.values() for dtype in dtypes}
            floats = [dtype for dtype in ("bf16", "f16", "f32") if dtype in taken]
            seeds = [*range(options.seeds), *(range(SCORED, SCORED + options.seeds) if options.operation in HAVE_EXPRESSIONS else ())]
            for dtype in floats or sorted(taken):
                for seed in seeds:
                    for name, line in hold(options.operation, kernels, dtype, seed, problems):
                        print(json.dumps([name, line]), file=file, flush=True)
        for problem in problems:
            print(json.dumps([None, problem]), file=file, flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default=".")
    parser.add_argument("--backends", nargs="*", default=["torch", "torch_reference", "triton", "liger", "flashinfer"])
    parser.add_argument("--operation", help="check only this operation, in this process")
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1e6)
    parser.add_argument("--workers", type=int, default=6)
    options = parser.parse_args()
    if options.operation:
        return child(options)
    end = time.monotonic() + options.seconds
    waiting, running, lines, problems = list(kernels_of(options.backends)), {}, {name: [] for name in options.backends}, []
    folder = Path(tempfile.mkdtemp())
    while waiting or running:
        while waiting and len(running) < options.workers:
            operation = waiting.pop(0)
            path = folder / f"{operation}.jsonl"
            command = [sys.executable, __file__, "--operation", operation, "--output", str(path), "--seeds", str(options.seeds), "--backends", *options.backends]
            running[operation] = (subprocess.Popen(command, stderr=subprocess.PIPE, text=True), path)
        for operation, (process, path) in list(running.items()):
            if process.poll() is None and time.monotonic() < end:
                continue
            del running[operation]
            process.kill()
            errors = process.communicate()[1]
            for text in path.read_text().splitlines() if path.exists() else ():
                name, line = json.loads(text)
                if name is None:
                    problems.append(line)
                else:
                    lines[name].append(line)
            if process.returncode:
                last = Path(f"/tmp/conform-{process.pid}.last")
                words = last.read_text() if last.exists() else ""
                problems.append(f"{operation}: ended with {process.returncode} in {words}: {errors[-1500:]}")
        time.sleep(0.05)
    versions = {backend.name: backends._version(backend.distribution) for backend in backends.BACKENDS}
    device, bad = torch.cuda.get_device_name(), len(problems)
    verified = _verified.recorded()
    stopped = {problem.split(": ")[0] for problem in problems if ": ended with " in problem}
    for problem in problems:
        print("PROBLEM", problem, flush=True)
    for name, found in lines.items():
        ran = sum("off" in line for line in found)
        wrong = [line for line in found if line.get("off", 0) > 1 or "error" in line]
        bad += len(wrong)
        kernels = sorted({line["kernel"] for line in found if "off" in line})
        record = {
            "backend": name, "version": versions.get(name), "torch": torch.__version__, "device": device,
            "date": time.strftime("%Y-%m-%d"), "digest": _verified.digest(name), "ran": ran, "bad": len(wrong), "kernels": kernels, "runs": found,
        }  # fmt: skip
        text = json.dumps(record, separators=(",", ":")).replace('},{"kernel', '},\n{"kernel')
        Path(options.output, f"{name}-{versions.get(name) or 'none'}-{device.split()[-1].lower()}.json").write_text(text + "\n")
        every = kernels_of([name])
        never = sorted({kernel for one in every.values() for kernel in one} - set(kernels))
        print(f"{name} {versions.get(name)}: {ran} runs of {len(kernels)} kernels, {len(wrong)} bad; never run: {never}", flush=True)
        for line in wrong[:40]:
            print("   ", json.dumps(line)[:420])
        if not wrong and not never and not stopped & every.keys():
            about = {"digest": record["digest"], "date": record["date"], "device": device, "library": f"{name} {record['version']}"}
            verified[name] = {"cuda": {**about, "torch": record["torch"], "kernels": len(kernels)}}
    text = json.dumps(verified, indent=2, sort_keys=True)
    Path(options.output, "verified.json").write_text(text + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
