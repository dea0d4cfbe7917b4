"""`lz bench gpu`: every kernel that can run a shape, torch alone, and what selection makes of it, in one run and in turns."""

from __future__ import annotations

import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import layerzero as lz
from layerzero import _native
from layerzero._bench.shapes import Shape, shapes
from layerzero._report import Report, table

#: How long one sample takes at least, and how many are taken.
_SAMPLE_SECONDS = 0.003
_ROUNDS = 7
#: Kernels that are this much slower than the fastest at first sight are measured no further.
_HOPELESS = 8.0


def _call(shape: Shape) -> Callable[[], Any]:
    function, arguments = getattr(lz.ops, shape.operation.replace(".", "_")), shape.arguments
    return lambda: function(**arguments)


def _sample(call: Callable[[], Any], times: int) -> float:
    """Seconds a call, with the device's work done."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / times


def _times(call: Callable[[], Any]) -> int:
    for _ in range(3):
        call()
    return max(1, min(2000, math.ceil(_SAMPLE_SECONDS / max(_sample(call, 3), 1e-6))))


class _Locked:
    """A call with one kernel."""

    def __init__(self, operation: str, kernel: str) -> None:
        self.operation, self.kernel = operation, kernel

    def __enter__(self) -> None:
        lz.lock(self.operation, self.kernel)

    def __exit__(self, *_: object) -> None:
        lz.unlock(self.operation)


def _floats(result: Any) -> list[Any]:
    several = result if isinstance(result, tuple) else (result,)
    return [one.float() for one in several if isinstance(one, torch.Tensor) and one.is_floating_point()]


def _difference(shape: Shape, call: Callable[[], Any]) -> float | None:
    """How far a result is from torch's, where both are the same function of the same inputs: nothing that draws or changes them."""
    if shape.family in ("sampling", "norm + add", "append", "quantise"):
        return None
    ours, theirs = _floats(call()), _floats(shape.by_torch())
    worst = 0.0
    for one, other in zip(ours, theirs, strict=False):
        worst = max(worst, float(((one - other).abs() / (1 + other.abs())).max()))
    return worst


def measure(shape: Shape) -> dict[str, Any]:
    """One shape: all candidates and torch in turns, before and after tuning."""
    call, operation = _call(shape), shape.operation
    _native.compile_cold([(operation, (), shape.arguments)], 8)
    untuned = lz.which(operation, **shape.arguments)
    names = [name for name in (untuned.kernel_id, *untuned.fallbacks)]
    kernels: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    failed: dict[str, str] = {}
    off: dict[str, float | None] = {}
    quick: dict[str, float] = {}
    for name in names:
        with _Locked(operation, name):
            try:
                call()
                off[name] = _difference(shape, call)
                counts[name] = _times(call)
                quick[name] = _sample(call, 3)
                kernels[name] = []
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {error.__cause__ or error}"[:200]
    fastest = min(quick.values())
    for name in list(kernels):
        if quick[name] > _HOPELESS * fastest:
            kernels[name].append(quick[name])
    lz.tune(operation, samples=10, **shape.arguments)
    tuned = lz.which(operation, **shape.arguments).kernel_id
    by_torch: list[float] = []
    chosen: list[float] = []
    torch_count, chosen_count = _times(shape.by_torch), _times(call)
    for turn in range(_ROUNDS):
        running = [name for name in kernels if quick[name] <= _HOPELESS * fastest]
        # Each round begins with another one, so that none always follows the same.
        for name in running[turn % len(running) :] + running[: turn % len(running)]:
            with _Locked(operation, name):
                call()
                call()
                kernels[name].append(_sample(call, counts[name]))
        call()
        chosen.append(_sample(call, chosen_count))
        by_torch.append(_sample(shape.by_torch, torch_count))
    medians = {name: statistics.median(samples) for name, samples in kernels.items()}
    best = min(medians, key=medians.__getitem__)
    untuned_name = next((name for name in names if name in medians), best)
    return {
        "family": shape.family, "shape": shape.name, "operation": operation, "composed_by_torch": shape.composed,
        "kernels_us": {name: round(value * 1e6, 2) for name, value in sorted(medians.items(), key=lambda one: one[1])},
        "off": {name: None if value is None else round(value, 5) for name, value in off.items()},
        "failed": failed, "best": best, "tuned": tuned, "untuned": untuned_name,
        "selected_us": round(statistics.median(chosen) * 1e6, 2), "torch_us": round(statistics.median(by_torch) * 1e6, 2),
        "tuned_over_best": round(medians.get(tuned, math.inf) / medians[best], 4),
        "untuned_over_best": round(medians[untuned_name] / medians[best], 4),
        "speedup": round(statistics.median(by_torch) / medians.get(tuned, math.inf), 3),
    }  # fmt: skip


def _mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Speed-ups by family, and how far choices are from the best."""
    families: dict[str, list[float]] = {}
    for one in results:
        families.setdefault(one["family"], []).append(one["speedup"])
    return {
        "shapes": len(results),
        "worst_tuned_over_best": max(one["tuned_over_best"] for one in results),
        "mean_untuned_over_best": round(statistics.fmean(one["untuned_over_best"] for one in results), 4),
        "speedup_by_family": {family: round(_mean(values), 3) for family, values in families.items()},
        "speedup_composed": round(_mean([one["speedup"] for one in results if one["composed_by_torch"]] or [1.0]), 3),
    }


def host_cost() -> list[dict[str, Any]]:
    """Microseconds on the host of a call through selection, and of the library behind it called by hand."""
    rows = []
    x, weight = torch.randn(1, 256, device="cuda", dtype=torch.bfloat16), torch.randn(256, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(x)
    pairs: list[tuple[str, str, dict[str, Any], Callable[[], Any]]] = []
    pairs.append(("norm_rms, torch", "torch.cuda.norm.rms", {"x": x, "weight": weight}, lambda: torch.nn.functional.rms_norm(x, (256,), weight, 1e-6)))
    if lz.list_kernels("norm.rms", backend="flashinfer"):
        import flashinfer

        pairs.append(("norm_rms, FlashInfer", "flashinfer.norm.rms.bf16", {"x": x, "weight": weight}, lambda: flashinfer.rmsnorm(x, weight, 1e-6)))
        pairs.append(("norm_rms out=, FlashInfer", "flashinfer.norm.rms.bf16", {"x": x, "weight": weight, "out": out}, lambda: flashinfer.rmsnorm(x, weight, 1e-6, out=out)))
    _native.compile_cold([("norm.rms", (), {"x": x, "weight": weight})], 4)
    for name, kernel, arguments, by_hand in pairs:
        with _Locked("norm.rms", kernel):
            ours, theirs = _host(lambda: lz.ops.norm_rms(**arguments), by_hand)
        rows.append({"case": name, "ours_us": ours, "by_hand_us": theirs, "over_us": round(ours - theirs, 3)})
    if lz.list_kernels("attention.gqa.decode.paged", backend="flashinfer"):
        rows.append(_host_of_a_plan())
    return rows


def _host_of_a_plan() -> dict[str, Any]:
    import flashinfer

    from layerzero._bench.shapes import _paged

    shape = _paged(4, 8, 2, 64, 128, 16)
    given = shape.arguments
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(torch.empty(128 << 20, dtype=torch.uint8, device="cuda"), "NHD")
    wrapper.plan(given["kv_indptr"], given["kv_indices"], given["kv_last_page_len"], 8, 2, 128, 16, q_data_type=torch.bfloat16, sm_scale=128**-0.5)
    cache = (given["k_cache"], given["v_cache"])
    _native.compile_cold([(shape.operation, (), given)], 4)
    with _Locked(shape.operation, "flashinfer.cuda_cores.gqa.decode.paged"):
        ours, theirs = _host(_call(shape), lambda: wrapper.run(given["q"], cache))
    return {"case": "paged decode with a kept plan, FlashInfer", "ours_us": ours, "by_hand_us": theirs, "over_us": round(ours - theirs, 3)}


def _host(ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[float, float]:
    """Microseconds until a call returns, in turns; the device is given time to keep up."""
    found: tuple[list[float], list[float]] = ([], [])
    for call in (ours, theirs):
        for _ in range(50):
            call()
    for _ in range(15):
        for samples, call in zip(found, (ours, theirs), strict=True):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(100):
                call()
            samples.append((time.perf_counter() - start) / 100 * 1e6)
    return round(statistics.median(found[0]), 3), round(statistics.median(found[1]), 3)


def run(output: str | None = None, seconds: float = 1e9, families: tuple[str, ...] = ()) -> Report:
    """Everything, or these families; what was measured is written after each shape, so that a run that is cut off leaves what it found."""
    if not torch.cuda.is_available():
        raise ValueError("lz bench gpu needs torch with a CUDA device")
    end = time.monotonic() + seconds
    torch.manual_seed(0)
    lz.load_backends()
    from layerzero import backends

    properties = torch.cuda.get_device_properties(0)
    data: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"), "device": properties.name, "torch": torch.__version__, "cuda": torch.version.cuda,
        "driver": _driver(),
        "backends": {one.name: one.version for one in backends.states() if one.state == "ok"},
        "results": [], "problems": [],
    }  # fmt: skip
    for make in shapes():
        if time.monotonic() > end:
            data["problems"].append("cut off by the time that was given")
            break
        try:
            shape = make()
            if families and shape.family not in families:
                continue
            result = measure(shape)
            data["results"].append(result)
            print(
                f"{result['family']:14} {result['shape']:38} torch {result['torch_us']:9.1f}  chosen {result['selected_us']:9.1f} µs "
                f"{result['speedup']:6.2f}x  tuned/best {result['tuned_over_best']:.3f} untuned/best {result['untuned_over_best']:.3f} {result['tuned']}",
                file=sys.stderr, flush=True,
            )  # fmt: skip
            data["summary"] = summary(data["results"])
        except Exception as error:
            data["problems"].append(f"{make}: {type(error).__name__}: {error} ({error.__cause__})"[:400])
            print(data["problems"][-1], file=sys.stderr, flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        _write(output, data)
    try:
        data["host"] = host_cost()
    except Exception as error:
        data["problems"].append(f"host cost: {type(error).__name__}: {error} ({error.__cause__})"[:400])
    _write(output, data)
    rows = [
        (one["family"], one["shape"], one["torch_us"], one["selected_us"], one["speedup"], one["tuned"], one["tuned_over_best"], one["untuned_over_best"])
        for one in data["results"]
    ]
    columns = ("family", "shape", "torch µs", "chosen µs", "speed-up", "kernel", "tuned/best", "untuned/best")
    return Report((table(f"{data['device']}, torch {data['torch']}", columns, rows),), data)


def _driver() -> str | None:
    import subprocess

    try:
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(asked, capture_output=True, text=True, timeout=20).stdout.strip().splitlines()[0]
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return None


def _write(output: str | None, data: dict[str, Any]) -> None:
    if output is not None:
        Path(output).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
