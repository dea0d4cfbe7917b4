"""CUDA graph capture: trials of kernels in a separate process, and preparing a stream for capture.

That a kernel can be captured proves little: torch's allocator serves captures too, from the graph's memory
pool. So a trial also checks memory. Memory that a kernel allocates during capture and keeps (a workspace, a
cache) belongs to the graph, and the next call would use it at the same time as a replay; memory that replays
allocate from the device is never released. A trial covers one shape: a library may use another code path for
the next.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from layerzero import _native, ops
from layerzero._control import config, lock, unlock
from layerzero._prepare import Call
from layerzero._report import Report, table

if TYPE_CHECKING:
    from pathlib import Path

#: Integer tensors up to this many elements are index tables, whose values matter.
_MAX_TABLE_ELEMENTS = 1 << 24
#: The size that torch's allocator rounds up to.
_BLOCK = 512
#: The tolerated difference between a replay and the same call without a graph, relative to the largest value:
#: only the order of sums may differ.
_TOLERANCE = 0.02

_LOG = logging.getLogger("layerzero.graph")


def verify_capture(calls: Iterable[Call], *, seconds: float = 600.0) -> Report:
    """Captures and replays these calls in a separate process, with every kernel that can run them and is
    marked as safe for capture. Under ``graph_strict_mode`` kernels that pass may be captured for such calls;
    a kernel that crashes the process is reported.
    """
    import tempfile
    from pathlib import Path

    given = [(operation, dict(arguments)) for operation, arguments in calls]
    trials = [(number, kernel) for number, (operation, arguments) in enumerate(given) for kernel in _candidates(operation, arguments)]
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "calls"
        pack([(operation, arguments) for operation, arguments in given], file)
        left = list(trials)
        while left:
            lines, code = _child(file, left, seconds)
            found += lines
            left = left[len(lines) :]
            if left:
                number, kernel = left.pop(0)
                found.append({"call": number, "kernel": kernel, "why": f"the trial process ended with {code}"})
    for one in found:
        operation, arguments = given[one["call"]]
        one["operation"] = operation
        if one["why"] is None:
            _native.mark_captured(one["kernel"], operation, (), arguments)
    rows = [(one["operation"], one["kernel"], "safe" if one["why"] is None else "unsafe", one["why"]) for one in found]
    return Report((table("captures", ("operation", "kernel", "capture", "why"), rows),), {"trials": found})


def prepare_capture(calls: Iterable[Call], stream: Any = None) -> Any:
    """Makes each call ``graph_safety.warmup_iterations`` times on a stream (a new one by default) before it is captured:
    this compiles kernels, creates library handles and makes plans, which is not possible during capture. A warning of the
    logger ``layerzero.graph`` names calls after which more memory than ``graph_safety.memory_delta_warning_mb`` stays
    allocated: a capture keeps it. Under ``graph_strict_mode`` kernels are tried first. Returns the stream, for
    ``torch.cuda.graph(..., stream=stream)``.
    """
    import torch

    settings = config()
    iterations = int(settings["graph_safety.warmup_iterations"].value)
    allowed = float(settings["graph_safety.memory_delta_warning_mb"].value) * 2**20
    given = [(operation, dict(arguments)) for operation, arguments in calls]
    if settings["graph_strict_mode"].value == "true":
        verify_capture(given)
    stream = torch.cuda.Stream() if stream is None else stream
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for operation, arguments in given:
            for _ in range(iterations):
                _function(operation)(**arguments)
            before = torch.cuda.memory_allocated()
            _function(operation)(**arguments)
            grown = torch.cuda.memory_allocated() - before
            if grown > allowed:
                _LOG.warning("%s keeps %.1f MiB per call, which a capture would keep too", operation, grown / 2**20)
    torch.cuda.current_stream().wait_stream(stream)
    return stream


def _function(operation: str) -> Any:
    return getattr(ops, operation.replace(".", "_"))


def _candidates(operation: str, arguments: Mapping[str, Any]) -> list[str]:
    """Kernels that can run a call and are marked as safe for capture, best first."""
    plan = _native.which(operation, None, [], **arguments)
    listed = {one["id"] for one in _native.kernels(operation) if one["cuda_graph_safe"] and one["platform"] == "cuda"}
    return [kernel for kernel in (plan["kernel_id"], *plan["fallbacks"]) if kernel in listed]


def _child(file: Path, trials: list[tuple[int, str]], seconds: float) -> tuple[list[dict[str, Any]], int | str]:
    import json
    import subprocess
    import tempfile

    from layerzero import backends

    loaded = [state.name for state in backends.states() if state.state == "ok"]
    code = "import sys; from layerzero._graphs import try_all; try_all(*sys.argv[1:])"
    command = [sys.executable, "-c", code, str(file), json.dumps(trials), json.dumps(loaded)]
    # A trial must not store measurements or failures, and strict mode would require a trial of its own.
    settings = file.with_suffix(".yaml")
    iterations = config()["graph_safety.warmup_iterations"].value
    settings.write_text(
        f"graph_strict_mode: false\nperfdb:\n  enabled: false\ngraph_safety:\n  warmup_iterations: {iterations}\n", encoding="utf-8"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LAYERZERO_")}
    environment["LAYERZERO_CONFIG"] = str(settings)
    with tempfile.TemporaryFile("w+") as output:
        try:
            ended: int | str = subprocess.run(command, stdout=output, env=environment, timeout=seconds, check=False).returncode
        except subprocess.TimeoutExpired:
            ended = f"a timeout after {seconds:.0f} s"
        output.seek(0)
        return [json.loads(line) for line in output if line.startswith("{")], ended


def pack(calls: list[tuple[str, dict[str, Any]]], file: Path) -> None:
    """Writes calls to a file for another process: index tables with values, other tensors as shape, strides and dtype."""
    import torch

    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if not value.is_floating_point() and value.numel() <= _MAX_TABLE_ELEMENTS:
            return {"values": value.cpu(), "device": str(value.device)}
        form = (tuple(value.shape), value.stride(), value.dtype)
        return {"form": form, "device": str(value.device)}

    torch.save([(operation, {name: one(value) for name, value in arguments.items()}) for operation, arguments in calls], file)


def unpack(file: Path) -> list[tuple[str, dict[str, Any]]]:
    """Reads calls from a file; tensors without values get random ones."""
    import torch

    def one(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if "values" in value:
            return value["values"].to(value["device"])
        shape, strides, dtype = value["form"]
        tensor = torch.empty_strided(shape, strides, dtype=dtype, device=value["device"])
        return tensor.copy_(torch.randn(shape, device=value["device"]).to(dtype)) if dtype.is_floating_point else tensor.zero_()

    read = torch.load(file, weights_only=True)
    return [(operation, {name: one(value) for name, value in arguments.items()}) for operation, arguments in read]


def verdict(*, kept: int, grown: int, off: float) -> str | None:
    """Why a capture is unsafe, or `None`. `kept`: bytes that the graph keeps in addition to its results;
    `grown`: bytes that replays allocated on the device; `off`: relative difference between a replay and the
    call without a graph."""
    if kept > 0:
        return f"it keeps {kept} bytes of the graph's memory in addition to its results"
    if grown > 0:
        return f"replays allocated {grown} bytes of device memory"
    if not off <= _TOLERANCE:
        return f"a replay differs by {off:.3g} of the largest value"
    return None


def _tensors(values: Iterable[Any]) -> list[Any]:
    import torch

    return [value for value in values if isinstance(value, torch.Tensor)]


def _several(result: Any) -> list[Any]:
    return _tensors(result if isinstance(result, tuple) else (result,))


def new_bytes(results: list[Any], arguments: Iterable[Any]) -> int:
    """Bytes of the results' own storages, as torch's allocator counts them."""
    known = {tensor.untyped_storage().data_ptr() for tensor in _tensors(arguments)}
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in results}
    return sum(-(-size // _BLOCK) * _BLOCK for address, size in storages.items() if address not in known)


def difference(ones: list[Any], others: list[Any]) -> float:
    """The largest difference, relative to the largest value; NaN equals NaN."""
    worst = 0.0
    for one, other in zip(ones, others, strict=True):
        one, other = one.double(), other.double()
        deviation = (one - other).abs().masked_fill(one == other, 0).masked_fill(one.isnan() & other.isnan(), 0)
        if deviation.numel():
            largest = float(other.nan_to_num(0, 0, 0).abs().max())
            worst = max(worst, float(deviation.nan_to_num(float("inf")).max()) / max(largest, 1.0))
    return worst


def _trial(operation: str, arguments: dict[str, Any]) -> str | None:
    """Why a call, with the kernel that the operation is locked to, is unsafe to capture; `None` if it is safe."""
    import torch

    call = _function(operation)
    inputs = _tensors(arguments.values())
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        _warm_libraries()
        for _ in range(max(1, int(config()["graph_safety.warmup_iterations"].value))):
            call(**arguments)
    # torch itself keeps memory for the first graph of a process, which is not a leak of the kernel.
    idle, count = torch.cuda.CUDAGraph(), torch.zeros(1, device="cuda")
    with torch.cuda.graph(idle, stream=stream):
        count.add_(1)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = _several(call(**arguments))
    kept = torch.cuda.memory_allocated() - before - new_bytes(results, inputs)
    for tensor in inputs:
        if tensor.is_floating_point():
            tensor.copy_(torch.randn(tensor.shape, device=tensor.device).to(tensor.dtype))
    # Operations may change their inputs: each run starts with the same values.
    values = [tensor.clone() for tensor in inputs]

    def restore() -> None:
        for tensor, initial in zip(inputs, values, strict=True):
            tensor.copy_(initial)

    def growth() -> int:
        torch.cuda.synchronize()
        free: int = torch.cuda.mem_get_info()[0]
        for _ in range(4):
            restore()
            graph.replay()
        torch.cuda.synchronize()
        return free - int(torch.cuda.mem_get_info()[0])

    restore()
    graph.replay()
    # Other processes may use the device too; memory that replays allocate, they allocate every time.
    grown = min(growth() for _ in range(3))
    replayed = [one.clone() for one in (*results, *inputs)]
    restore()
    eager = [*_several(call(**arguments)), *inputs]
    torch.cuda.synchronize()
    return verdict(kept=kept, grown=grown, off=difference(replayed, eager))


def _warm_libraries() -> None:
    """Has cuBLAS and cuDNN create their handles and workspaces for this stream, so that they do not count as the kernel's."""
    import torch

    ones = torch.ones((16, 16), device="cuda", dtype=torch.bfloat16)
    torch.mm(ones, ones)
    torch.nn.functional.conv2d(ones[None, None], ones[None, None, :3, :3])


def try_all(file: str, trials: str, loaded: str) -> None:
    """The main function of the trial process: prints one line of JSON per trial, as soon as it is over."""
    import json
    from pathlib import Path

    from layerzero._register import load_backends

    # Reading the calls imports torch, which loads its backends.
    calls = unpack(Path(file))
    load_backends(*json.loads(loaded))
    for number, kernel in json.loads(trials):
        operation, arguments = calls[number]
        # The first call compiles the kernel if necessary, outside of the measured part.
        _native.mark_warm(kernel, operation, (), arguments)
        lock(operation, kernel)
        try:
            why = _trial(operation, arguments)
        except Exception as error:
            why = f"{type(error).__name__}: {error.__cause__ or error}"[:300]
        finally:
            unlock(operation)
        print(json.dumps({"call": number, "kernel": kernel, "why": why}), flush=True)
