"""`lz bench gpu`: every kernel that can run a shape, torch alone, and the selected kernel, interleaved in one run."""

from __future__ import annotations

import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch

import layerzero as lz
from layerzero import _native
from layerzero._bench import shapes_experts, shapes_recurrent, shapes_sparse
from layerzero._bench.shapes import Shape, _decode, _paged, _prefill, shapes
from layerzero._report import Report, table

#: Minimum duration of a sample, and number of samples.
_SAMPLE_SECONDS = 0.003
_ROUNDS = 15
#: Kernels that are slower than the fastest by this factor in a first sample are not measured further.
_TOO_SLOW = 2.5
#: If tuning selected another kernel than the fastest one here and both are within this factor, both are
#: measured this many times more.
_CLOSE, _MORE_ROUNDS = 1.1, 45


def _bind(function: Callable[..., Any], arguments: dict[str, Any]) -> Callable[[], Any]:
    """A call with keyword arguments as written in a program: unpacking a dictionary costs the host as much as a tensor does."""
    names = ", ".join(arguments)
    keywords = ", ".join(f"{name}={name}" for name in arguments)
    factory: Callable[..., Callable[[], Any]] = eval(f"lambda function, {names}: lambda: function({keywords})")
    return factory(function, *arguments.values())


def _call(shape: Shape) -> Callable[[], Any]:
    return _bind(getattr(lz.ops, shape.operation.replace(".", "_")), shape.arguments)


def _sample(call: Callable[[], Any], times: int) -> float:
    """Seconds per call, including the device's work."""
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
    """A context in which an operation is locked to one kernel."""

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
    """The difference between a result and torch's; `None` for operations that sample, change their inputs or round to few bits."""
    if shape.family in ("sampling", "speculative sampling", "append", "quantize", "norm + quantize", "FP4 linear", "FP8 linear", "quantized MoE") or {"residual", "state"} & shape.arguments.keys():
        return None
    ours, theirs = _floats(call()), _floats(shape.by_torch())
    worst = 0.0
    for one, other in zip(ours, theirs, strict=False):
        worst = max(worst, float(((one - other).abs() / (1 + other.abs())).max()))
    return worst


def measure(shape: Shape) -> dict[str, Any]:
    """Measures one shape: all candidates and torch interleaved, before and after tuning."""
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
        if quick[name] > _TOO_SLOW * fastest:
            kernels[name].append(quick[name])
    tuning = lz.tune(operation, samples=30, **shape.arguments).data
    tuned = lz.which(operation, **shape.arguments).kernel_id
    others = {"torch": shape.by_torch, "selected": call, **({"torch_prepared": shape.prepared} if shape.prepared else {})}
    times: dict[str, list[float]] = {name: [] for name in others}
    counts.update({name: _times(other) for name, other in others.items()})
    for turn in range(_ROUNDS):
        running = [name for name in kernels if quick[name] <= _TOO_SLOW * fastest]
        # Each round starts with another kernel, so that none always follows the same one.
        for name in running[turn % len(running) :] + running[: turn % len(running)]:
            with _Locked(operation, name):
                call()
                call()
                kernels[name].append(_sample(call, counts[name]))
        for name, other in others.items():
            other()
            times[name].append(_sample(other, counts[name]))
    medians = {name: statistics.median(samples) for name, samples in kernels.items()}
    best = min(medians, key=medians.__getitem__)
    if tuned != best and tuned in medians and medians[tuned] <= _CLOSE * medians[best]:
        pair = [best, tuned]
        for _ in range(_MORE_ROUNDS):
            pair.reverse()
            for name in pair:
                with _Locked(operation, name):
                    call()
                    call()
                    kernels[name].append(_sample(call, counts[name]))
        medians = {name: statistics.median(samples) for name, samples in kernels.items()}
        best = min(medians, key=medians.__getitem__)
    untuned_name = next((name for name in names if name in medians), best)
    taken = {name: statistics.median(samples) for name, samples in times.items()}
    return {
        "family": shape.family, "shape": shape.name, "operation": operation, "composed_by_torch": shape.composed, "ceiling_by_traffic": None if shape.ceiling is None else round(shape.ceiling, 3),
        "kernels_us": {name: round(value * 1e6, 2) for name, value in sorted(medians.items(), key=lambda one: one[1])},
        "off": {name: None if value is None else round(value, 5) for name, value in off.items()},
        "failed": failed, "rounds": {name: len(samples) for name, samples in kernels.items()}, "best": best, "tuned": tuned, "untuned": untuned_name,
        "tuning": {"kept": tuning["kept"], **{one["kernel"]: round(one["median_ns"] / 1e3, 2) for one in tuning["kernels"] if "median_ns" in one}},
        **{f"{name}_us": round(value * 1e6, 2) for name, value in taken.items()},
        "tuned_over_best": round(_slower(kernels, tuned, best), 4),
        "untuned_over_best": round(_slower(kernels, untuned_name, best), 4),
        "speedup": round(taken["torch"] / taken["selected"], 3),
        "speedup_over_prepared": round(taken["torch_prepared"] / taken["selected"], 3) if "torch_prepared" in taken else None,
    }  # fmt: skip


def _slower(kernels: dict[str, list[float]], one: str, best: str) -> float:
    """The latency of a kernel relative to the best: median over rounds, so that drift affects both equally."""
    if one not in kernels:
        return math.inf
    rounds = zip(kernels[one], kernels[best], strict=False)
    return statistics.median(mine / theirs for mine, theirs in rounds)


def _mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Speedups by family, and the distance of selections from the best."""
    families: dict[str, list[float]] = {}
    prepared: dict[str, list[float]] = {}
    for one in results:
        families.setdefault(one["family"], []).append(one["speedup"])
        if one["speedup_over_prepared"] is not None:
            prepared.setdefault(one["family"], []).append(one["speedup_over_prepared"])
    return {
        "shapes": len(results),
        "tuned_within_1_percent": sum(one["tuned_over_best"] <= 1.01 for one in results),
        "worst_tuned_over_best": max(one["tuned_over_best"] for one in results),
        "mean_untuned_over_best": round(statistics.fmean(one["untuned_over_best"] for one in results), 4),
        "speedup_by_family": {family: round(_mean(values), 3) for family, values in families.items()},
        "speedup_over_prepared_by_family": {family: round(_mean(values), 3) for family, values in prepared.items()},
        "speedup_composed": round(_mean([one["speedup"] for one in results if one["composed_by_torch"]] or [1.0]), 3),
    }


class _Case(NamedTuple):
    """One kernel through selection, and its library called directly with the same tensors."""

    name: str
    kernel: str
    shape: Shape
    by_hand: Callable[[], Any]
    out: Any = None


def _cases() -> Iterator[Callable[[], _Case]]:
    """Factories of the cases, so that a missing library fails only its own cases."""
    x, weight = torch.randn(1, 256, device="cuda", dtype=torch.bfloat16), torch.randn(256, device="cuda", dtype=torch.bfloat16)
    norm = Shape("norm", "1x256", "norm.rms", {"x": x, "weight": weight}, lambda: None, False)
    out = torch.empty_like(x)
    yield lambda: _Case("norm_rms, torch", "torch.cuda.norm.rms", norm, lambda: torch.nn.functional.rms_norm(x, (256,), weight, 1e-6))

    def by_flashinfer(out: Any) -> _Case:
        import flashinfer

        name = "norm_rms, FlashInfer" if out is None else "norm_rms out=, FlashInfer"
        return _Case(name, "flashinfer.norm.rms.bf16", norm, lambda: flashinfer.rmsnorm(x, weight, 1e-6, out=out), out)

    yield lambda: by_flashinfer(None)
    yield lambda: by_flashinfer(out)

    prefill, decode = _prefill(1, 32, 8, 128, 128, True), _decode(16, 32, 8, 512, 128)
    for phase, shape in (("prefill", prefill), ("decode", decode)):
        q, k, v = (shape.arguments[name] for name in ("q", "k", "v"))

        def own(phase: str = phase, shape: Shape = shape) -> _Case:
            return _Case(f"{phase}, torch's own choice", f"torch.cuda.sdpa.own.gqa.{phase}", shape, shape.by_torch)

        def flash(phase: str = phase, shape: Shape = shape, q: Any = q, k: Any = k, v: Any = v) -> _Case:
            rows = (lambda: q.transpose(1, 2)) if phase == "prefill" else (lambda: q.unsqueeze(2))
            causal = phase == "prefill"

            def by_hand() -> Any:
                attend = torch._scaled_dot_product_flash_attention
                return attend(rows(), k.transpose(1, 2), v.transpose(1, 2), 0.0, causal)[0].transpose(1, 2)

            return _Case(f"{phase}, torch's flash attention", f"torch.cuda.sdpa.flash.gqa.{phase}", shape, by_hand)

        def cudnn(phase: str = phase, shape: Shape = shape, q: Any = q, k: Any = k, v: Any = v) -> _Case:
            rows = (lambda: q.transpose(1, 2)) if phase == "prefill" else (lambda: q.unsqueeze(2))
            causal = phase == "prefill"

            def by_hand() -> Any:
                attend = torch._scaled_dot_product_cudnn_attention
                return attend(rows(), k.transpose(1, 2), v.transpose(1, 2), None, False, 0.0, causal)[0].transpose(1, 2)

            return _Case(f"{phase}, torch's cuDNN attention", f"torch.cuda.sdpa.cudnn.gqa.{phase}", shape, by_hand)

        yield from (own, flash, cudnn)
    for backend in ("fa2", "fa3"):

        def single(backend: str = backend) -> _Case:
            import flashinfer

            q, k, v = (prefill.arguments[name][0] for name in ("q", "k", "v"))

            def by_hand() -> Any:
                return flashinfer.single_prefill_with_kv_cache(q, k, v, causal=True, backend=backend)

            return _Case(f"prefill of one request, FlashInfer {backend}", f"flashinfer.{backend}.single.gqa.prefill", prefill, by_hand)

        yield single
    for cores in ("cuda_cores", "tensor_cores"):
        yield partial(_planned, cores)


def _planned(cores: str) -> _Case:
    import flashinfer

    shape = _paged(4, 8, 2, 64, 128, 16)
    given = shape.arguments
    memory = torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(memory, "NHD", use_tensor_cores=cores == "tensor_cores")
    wrapper.plan(given["kv_indptr"], given["kv_indices"], given["kv_last_page_len"], 8, 2, 128, 16, q_data_type=torch.bfloat16, sm_scale=128**-0.5)
    cache = (given["k_cache"], given["v_cache"])
    name = f"paged decode with a kept plan, FlashInfer {cores.replace('_', ' ')}"
    return _Case(name, f"flashinfer.{cores}.gqa.decode.paged", shape, lambda: wrapper.run(given["q"], cache))


def host_cost(on_progress: Callable[[list[dict[str, Any]]], None] = lambda rows: None) -> list[dict[str, Any]]:
    """Host overhead in microseconds of a call through selection and of the library called directly; then of CUDA graph replays of
    both. `on_progress` is called with the rows after each case."""
    rows: list[dict[str, Any]] = []
    for make in _cases():
        row: dict[str, Any] = {}
        rows.append(row)
        try:
            case = make()
            row["case"] = case.name
            operation, arguments = case.shape.operation, dict(case.shape.arguments)
            if case.out is not None:
                arguments["out"] = case.out
            function = getattr(lz.ops, operation.replace(".", "_"))
            _native.compile_cold([(operation, (), case.shape.arguments)], 4)
            with _Locked(operation, case.kernel):
                call = _bind(function, arguments)
                ours, theirs = _host(call, case.by_hand)
                row.update({"ours_us": ours, "by_hand_us": theirs, "over_us": round(ours - theirs, 3)})
                ours, theirs = _host(_captured(call).replay, _captured(case.by_hand).replay)
                row.update({"replay_us": ours, "replay_by_hand_us": theirs})
        except Exception as error:
            row["problem"] = f"{type(error).__name__}: {error.__cause__ or error}"[:300]
        on_progress(rows)
    return rows


def _captured(call: Callable[[], Any]) -> Any:
    """A CUDA graph of one call."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph


def _host(ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[float, float]:
    """Microseconds until a call returns, interleaved; the device is synchronized in between."""
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
    """Runs all families, or these; results are written after each shape, so that an aborted run keeps its results."""
    if not torch.cuda.is_available():
        raise ValueError("lz bench gpu requires torch with a CUDA device")
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

    def keep_host(rows: list[dict[str, Any]]) -> None:
        data["host"] = rows
        _write(output, data)

    if not families:
        host_cost(keep_host)
    for make in chain(shapes(), shapes_experts.shapes(), shapes_recurrent.shapes(), shapes_sparse.shapes()):
        if time.monotonic() > end:
            data["problems"].append("stopped by the time limit")
            break
        try:
            shape = make()
            if families and shape.family not in families:
                continue
            result = measure(shape)
            data["results"].append(result)
            print(
                f"{result['family']:14} {result['shape']:38} torch {result['torch_us']:9.1f}  selected {result['selected_us']:9.1f} µs "
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
    rows = [
        (one["family"], one["shape"], one["torch_us"], one["selected_us"], one["speedup"], one["tuned"], one["tuned_over_best"], one["untuned_over_best"])
        for one in data["results"]
    ]
    columns = ("family", "shape", "torch µs", "selected µs", "speedup", "kernel", "tuned/best", "untuned/best")
    return Report((table(f"{data['device']}, torch {data['torch']}", columns, rows),), data)


def _driver() -> str | None:
    import subprocess

    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip().splitlines()[0]
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return None


def _write(output: str | None, data: dict[str, Any]) -> None:
    if output is not None:
        Path(output).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
