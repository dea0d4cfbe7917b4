"""Graph captures: kernels tried in a process of their own, and what must be done on a stream before it is captured.

That a kernel can be captured proves little: torch's allocator serves captures too, from memory that belongs to the graph. So a trial
looks at memory as well. What a kernel allocates inside of a capture and keeps (a workspace, a cache) is the graph's, and the next
call would use it while a replay does; what replays take from the device, they take for ever. And it is a trial of one shape: a
library may take another way for the next.
"""

from __future__ import annotations

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

#: Whole numbers are tables, and their values matter; more than this of them is no table.
_MOST_NUMBERS = 1 << 24
#: What torch's allocator rounds sizes up to.
_BLOCK = 512
#: How far a replay may be from the same call made eagerly, of the largest value: the order of sums may differ, nothing else.
_TOLERANCE = 0.02


def verify_capture(calls: Iterable[Call], *, seconds: float = 600.0) -> Report:
    """Captures these calls with every kernel that could run them and says it can be captured, in a process of its own, and replays
    them. Kernels that pass may be captured for such calls under ``graph_strict_mode``; a kernel that ends the process is only told.
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
                found.append({"call": number, "kernel": kernel, "why": f"the process that tried it ended with {code}"})
    for one in found:
        operation, arguments = given[one["call"]]
        one["operation"] = operation
        if one["why"] is None:
            _native.mark_captured(one["kernel"], operation, (), arguments)
    rows = [(one["operation"], one["kernel"], "safe" if one["why"] is None else "unsafe", one["why"]) for one in found]
    return Report((table("captures", ("operation", "kernel", "capture", "why"), rows),), {"trials": found})


def prepare_capture(calls: Iterable[Call], stream: Any = None) -> Any:
    """Makes each call twice on a stream that is to be captured (a new one unless it is given), so that kernels are compiled, libraries
    have their handles there and plans are made, which a capture cannot do. Under ``graph_strict_mode`` kernels are tried first.
    Gives the stream, for ``torch.cuda.graph(..., stream=stream)``.
    """
    import torch

    given = [(operation, dict(arguments)) for operation, arguments in calls]
    if config()["graph_strict_mode"].value == "true":
        verify_capture(given)
    stream = torch.cuda.Stream() if stream is None else stream
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for operation, arguments in given:
            for _ in range(2):
                _function(operation)(**arguments)
    torch.cuda.current_stream().wait_stream(stream)
    return stream


def _function(operation: str) -> Any:
    return getattr(ops, operation.replace(".", "_"))


def _candidates(operation: str, arguments: Mapping[str, Any]) -> list[str]:
    """What could run a call, best first, as far as its descriptor lets it into captures: the list that trials can only shorten."""
    plan = _native.which(operation, **arguments)
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
    # What a trial measures and how it fails is nobody's, and it is the one that must not wait for a trial.
    settings = file.with_suffix(".yaml")
    settings.write_text("graph_strict_mode: false\nperfdb:\n  enabled: false\n", encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LAYERZERO_")}
    environment["LAYERZERO_CONFIG"] = str(settings)
    with tempfile.TemporaryFile("w+") as output:
        try:
            ended: int | str = subprocess.run(command, stdout=output, env=environment, timeout=seconds, check=False).returncode
        except subprocess.TimeoutExpired:
            ended = f"its {seconds:.0f} s"
        output.seek(0)
        return [json.loads(line) for line in output if line.startswith("{")], ended


def pack(calls: list[tuple[str, dict[str, Any]]], file: Path) -> None:
    """Writes calls for another process: numbers of tables as they are, of other tensors shape, strides and dtype alone."""
    import torch

    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if not value.is_floating_point() and value.numel() <= _MOST_NUMBERS:
            return {"values": value.cpu(), "device": str(value.device)}
        form = (tuple(value.shape), value.stride(), value.dtype)
        return {"form": form, "device": str(value.device)}

    torch.save([(operation, {name: one(value) for name, value in arguments.items()}) for operation, arguments in calls], file)


def unpack(file: Path) -> list[tuple[str, dict[str, Any]]]:
    """Reads them; what came without values is drawn."""
    import torch

    def one(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if "values" in value:
            return value["values"].to(value["device"])
        shape, strides, dtype = value["form"]
        made = torch.empty_strided(shape, strides, dtype=dtype, device=value["device"])
        return made.copy_(torch.randn(shape, device=value["device"]).to(dtype)) if dtype.is_floating_point else made.zero_()

    read = torch.load(file, weights_only=True)
    return [(operation, {name: one(value) for name, value in arguments.items()}) for operation, arguments in read]


def verdict(*, kept: int, grown: int, off: float) -> str | None:
    """Why a capture is not safe, by the bytes that it keeps besides its results, those that replays took from the device, and how far
    a replay is from the call itself."""
    if kept > 0:
        return f"it keeps {kept} bytes of the graph's memory besides its results"
    if grown > 0:
        return f"replays took {grown} bytes of the device's memory"
    if not off <= _TOLERANCE:
        return f"a replay is off by {off:.3g} of the largest value"
    return None


def _tensors(values: Iterable[Any]) -> list[Any]:
    import torch

    return [value for value in values if isinstance(value, torch.Tensor)]


def _several(result: Any) -> list[Any]:
    return _tensors(result if isinstance(result, tuple) else (result,))


def new_bytes(results: list[Any], arguments: Iterable[Any]) -> int:
    """Bytes of storages that results have of their own, as torch's allocator counts them."""
    known = {tensor.untyped_storage().data_ptr() for tensor in _tensors(arguments)}
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in results}
    return sum(-(-size // _BLOCK) * _BLOCK for address, size in storages.items() if address not in known)


def difference(ones: list[Any], others: list[Any]) -> float:
    """The largest, of the largest value; NaN counts as equal to itself."""
    worst = 0.0
    for one, other in zip(ones, others, strict=True):
        one, other = one.double(), other.double()
        apart = (one - other).abs().masked_fill(one == other, 0).masked_fill(one.isnan() & other.isnan(), 0)
        if apart.numel():
            largest = float(other.nan_to_num(0, 0, 0).abs().max())
            worst = max(worst, float(apart.nan_to_num(float("inf")).max()) / max(largest, 1.0))
    return worst


def _trial(operation: str, arguments: dict[str, Any]) -> str | None:
    """Why a call, with the kernel that the operation is locked to, is not safe in a capture."""
    import torch

    call = _function(operation)
    inputs = _tensors(arguments.values())
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        _warm_libraries()
        for _ in range(3):
            call(**arguments)
    # torch itself keeps something for the first graph of a process, which is nobody's leak.
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
    # Operations may change their inputs: each run begins with the same.
    drawn = [tensor.clone() for tensor in inputs]

    def begin() -> None:
        for tensor, values in zip(inputs, drawn, strict=True):
            tensor.copy_(values)

    def growth() -> int:
        torch.cuda.synchronize()
        free: int = torch.cuda.mem_get_info()[0]
        for _ in range(4):
            begin()
            graph.replay()
        torch.cuda.synchronize()
        return free - int(torch.cuda.mem_get_info()[0])

    begin()
    graph.replay()
    # Others may use the device as well; what replays take, they take every time.
    grown = min(growth() for _ in range(3))
    replayed = [one.clone() for one in (*results, *inputs)]
    begin()
    eager = [*_several(call(**arguments)), *inputs]
    torch.cuda.synchronize()
    return verdict(kept=kept, grown=grown, off=difference(replayed, eager))


def _warm_libraries() -> None:
    """cuBLAS and cuDNN make handles and workspaces for a stream when they are first used on it, which is not the kernel's doing."""
    import torch

    ones = torch.ones((16, 16), device="cuda", dtype=torch.bfloat16)
    torch.mm(ones, ones)
    torch.nn.functional.conv2d(ones[None, None], ones[None, None, :3, :3])


def try_all(file: str, trials: str, loaded: str) -> None:
    """What the process does that tries: a line of JSON for each trial, as soon as it is over."""
    import json
    from pathlib import Path

    from layerzero._register import load_backends

    # torch comes with the calls, and its kernels come with it.
    calls = unpack(Path(file))
    load_backends(*json.loads(loaded))
    for number, kernel in json.loads(trials):
        operation, arguments = calls[number]
        # It is compiled where it lies by now, or by its first call, which nobody waits for here.
        _native.mark_warm(kernel, operation, (), arguments)
        lock(operation, kernel)
        try:
            why = _trial(operation, arguments)
        except Exception as error:
            why = f"{type(error).__name__}: {error.__cause__ or error}"[:300]
        finally:
            unlock(operation)
        print(json.dumps({"call": number, "kernel": kernel, "why": why}), flush=True)
