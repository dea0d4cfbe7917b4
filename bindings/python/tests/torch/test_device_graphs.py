"""Compiled models whose steps torch runs: the executor for devices, compared with the native one on the host."""

from __future__ import annotations

import threading

import pytest
import torch
from test_compile import DecoderLayer, Mlp, NaiveAttention
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

import layerzero as lz
from layerzero._compile.device import Constants, constants, memory, program
from layerzero._compile.device.functions import PRIMITIVES
from layerzero._compile.device.session import MAX_PROGRAMS


def both(model: nn.Module, args: tuple[torch.Tensor, ...], **options: object) -> tuple[lz.CompiledModel, lz.CompiledModel]:
    native = lz.compile(model.eval(), args, **options)
    return native, lz.compile(model, args, executor="torch", **options)


def assert_equal(model: nn.Module, args: tuple[torch.Tensor, ...], tolerance: float = 1e-4, **options: object) -> lz.CompiledModel:
    native, by_torch = both(model, args, **options)
    torch.testing.assert_close(by_torch(*args), native(*args), rtol=tolerance, atol=tolerance)
    # A second run reuses memory of the first.
    torch.testing.assert_close(by_torch(*args), native(*args), rtol=tolerance, atol=tolerance)
    return by_torch


@pytest.mark.parametrize("model, shapes", [(Mlp(), [(4, 16)]), (DecoderLayer(), [(2, 7, 32)]), (NaiveAttention(), [(2, 3, 5, 8)] * 3)])
def test_models_equal_the_native_executor(model, shapes):
    assert_equal(model, tuple(torch.randn(shape) for shape in shapes))


def test_one_program_per_size_and_one_arena():
    model = DecoderLayer().eval()
    compiled = lz.compile(model, (torch.randn(2, 7, 32),), dynamic_shapes=({0: Dim("batch"), 1: Dim("length")},), executor="torch")
    for length in (3, 12, 3, 1, 12):
        x = torch.randn(2, length, 32)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    graph = compiled._graph
    assert compiled.cached_plans == 3
    largest = max(compiled.plan(torch.randn(2, length, 32))["arena_bytes"] for length in (1, 3, 12))
    assert largest <= graph.arena.nbytes < 2 * largest
    for length in range(1, MAX_PROGRAMS + 10):
        compiled(torch.randn(1, length, 32))
    assert compiled.cached_plans == MAX_PROGRAMS


class Constant(nn.Module):
    """Its weight is computed from constants of the device, and its other branch is not."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64))
        self.scale = nn.Parameter(torch.rand(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ torch.cat((self.weight * self.scale, self.weight), 1) + torch.exp(self.scale).sum()


def test_results_of_constants_are_computed_once(monkeypatch):
    monkeypatch.setattr(constants, "HOST_BYTES", 0)
    monkeypatch.setattr(Constants, "add", _as_on_a_device)
    model = Constant().eval()
    compiled = lz.compile(model, (torch.randn(3, 64),), dynamic_shapes=({0: Dim("rows")},), executor="torch", disabled_passes=("fold",))
    for rows in (3, 5, 3):
        x = torch.randn(rows, 64)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    assert compiled.plan(torch.randn(3, 64))["computed_constants"] >= 3
    graph = compiled._graph
    shared = len(graph.computed)
    compiled(torch.randn(9, 64))
    assert len(graph.computed) == shared


def _as_on_a_device(self, build, name, tensor):
    tensor = tensor.detach()
    self._remember(tensor, tensor)
    return build.constant(name, tensor)


def test_explain_names_the_kernel_of_every_step_and_fallbacks():
    model = DecoderLayer().eval()
    x = torch.randn(1, 4, 32)
    compiled = lz.compile(model, (x,), executor="torch")
    text = compiled.explain(x)
    assert "torch.reference.norm.rms" in text and "torch.reference.attention.gqa.prefill" in text and "device cpu" in text
    assert compiled.fallbacks == []
    steps = compiled.plan(x)["steps"]
    assert all(step["kernel"] for step in steps) and all(step["source"] for step in steps)


def test_a_kernel_that_fails_falls_back_visibly(caplog):
    x = torch.randn(2, 8)
    about = {
        "operation": "norm.rms", "kernel": "acme.norm", "function": _fails, "takes_out": False, "graph_safe": True, "copy": None,
        "params": {"eps": 1e-6, "weight_offset": 0.0}, "source": "model.py:1", "written": [],
        "inputs": [("input", 0, [2, 8], [8, 1], 0, "float32"), None], "outputs": [("output", 0, [2, 8], [8, 1], 0, "float32")],
    }  # fmt: skip
    out = torch.empty(2, 8)
    step = program.Step(about, lambda row: x if row[0] == "input" else out)
    with pytest.raises(RuntimeError) as failed:
        step.run()
    step.fall_back(failed.value)
    step.run()
    torch.testing.assert_close(out, F.rms_norm(x, (8,), None, 1e-6))
    assert step.kernel == "torch.reference.norm.rms" and "acme.norm failed" in step.fallback
    assert "acme.norm failed" in caplog.text
    # A kernel that may have changed its inputs is not repeated.
    changing = program.Step({**about, "written": [0]}, lambda row: x if row[0] == "input" else out)
    with pytest.raises(RuntimeError, match="out of order"):
        changing.fall_back(RuntimeError("out of order"))


def _fails(*_, **__):
    raise RuntimeError("out of order")


class Reversed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.flip(x, (0, 1)) * 2 + x


def test_views_with_negative_strides():
    assert_equal(Reversed(), (torch.randn(3, 5),))


def test_bad_inputs_are_refused():
    compiled = lz.compile(Mlp().eval(), (torch.randn(4, 16),), executor="torch", nan="refuse")
    with pytest.raises(lz.ValidationError, match="dtype"):
        compiled(torch.randn(4, 16, dtype=torch.float64))
    with pytest.raises(lz.ValidationError):
        compiled(torch.randn(4, 17))
    with pytest.raises(lz.ValidationError, match="NaN"):
        compiled(torch.full((4, 16), float("nan")))
    with pytest.raises(lz.ValidationError, match="meta"):
        compiled(torch.empty(4, 16, device="meta"))
    with pytest.raises(ValueError, match="executor"):
        lz.compile(Mlp().eval(), (torch.randn(4, 16),), executor="gpu")


def test_threads_share_a_model():
    model = DecoderLayer().eval()
    compiled = lz.compile(model, (torch.randn(1, 7, 32),), dynamic_shapes=({1: Dim("length")},), executor="torch")
    failures = []

    def work(length):
        for _ in range(5):
            x = torch.randn(1, length, 32)
            if not torch.allclose(compiled(x), model(x), rtol=1e-4, atol=1e-4):
                failures.append(length)

    threads = [threading.Thread(target=work, args=(length,)) for length in (3, 5, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_staging_ring_fills_every_tensor_whatever_the_slot():
    types = [([3], "int64"), ([2, 2], "float32"), ([0], "int32"), ([], "bool")]
    ring = memory.StagingRing(types, torch.device("cpu"), slots=2)
    for seed in range(5):
        values = [torch.arange(3) + seed, torch.full((2, 2), float(seed)), torch.empty(0, dtype=torch.int32), torch.tensor(seed % 2 == 0)]
        ring.upload(values)
        for found, expected in zip(ring.tensors, values, strict=True):
            assert torch.equal(found, expected)
    starts = [tensor.data_ptr() for tensor in ring.tensors if tensor.numel()]
    assert all((start - starts[0]) % memory.ALIGNMENT == 0 for start in starts)


def test_arena_grows_and_keeps_what_programs_hold():
    arena = memory.Arena(torch.device("cpu"))
    small = arena.reserve(100)
    assert arena.reserve(64) is small and arena.nbytes == 128
    large = arena.reserve(1000)
    assert large.numel() == 1024 and small.numel() == 128 and arena.reserve(100) is large


def test_every_primitive_has_a_function():
    import yaml

    from pathlib import Path

    folder = Path(__file__).parents[4] / "schemas" / "primitives"
    assert {yaml.safe_load(path.read_text())["operation"] for path in folder.glob("*.yaml")} == set(PRIMITIVES)


def test_programs_of_removed_caches_are_dropped():
    """A graph that changes an input in place: each program refers to one tensor."""
    from layerzero._compile.device import DeviceGraph
    from layerzero._native import GraphBuilder

    build = GraphBuilder()
    x = build.input("x", [2, 8], "float32")
    residual = build.input("residual", [2, 8], "float32", True)
    build.output("y", build.call("norm.rms.add", [x, residual, None]))
    graph = DeviceGraph(build.finish(), Constants(torch.device("cpu")))
    kept = [torch.zeros(2, 8) for _ in range(7)]
    for residual in kept:
        x = torch.randn(2, 8)
        (y,) = graph.run([x, residual])
        torch.testing.assert_close(residual, x)
        torch.testing.assert_close(y, F.rms_norm(x, (8,), None, 1e-6))
    assert graph.cached_plans == 4
    graph.forget([kept[-1]])
    assert graph.cached_plans == 3
    with pytest.raises(lz.ValidationError, match="dense"):
        graph.run([torch.randn(2, 8), torch.zeros(8, 2).t()])


class Turned(nn.Module):
    """Its weight is dense in another order than that of its dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(8, 16).t())
        self.norm = nn.RMSNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x @ self.weight)


@pytest.mark.parametrize("model, shape", [(DecoderLayer(), (2, 7, 32)), (Turned(), (3, 16))])
def test_saved_models_run_by_torch_and_by_the_native_executor(model, shape, tmp_path):
    x = torch.randn(shape)
    compiled = lz.compile(model.eval(), (x,), executor="torch")
    expected = compiled(x)
    compiled.save(tmp_path / "model.lz")
    loaded = lz.load(tmp_path / "model.lz", device="cpu", verify=True)
    torch.testing.assert_close(loaded(x), expected)
    assert "device cpu" in loaded.explain(x)
    torch.testing.assert_close(lz.load(tmp_path / "model.lz")(x), expected, rtol=1e-4, atol=1e-4)
    # A model that was compiled for the host runs on a device as well.
    lz.compile(model, (x,)).save(tmp_path / "host.lz")
    torch.testing.assert_close(lz.load(tmp_path / "host.lz", device="cpu")(x), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="CUDA"):
        lz.load(tmp_path / "model.lz", device="meta")


@pytest.mark.parametrize("options", [{"weights": "int8"}, {"weights": "int4", "group": 16}, {"weights": "int8", "activations": "int8"}])
def test_quantized_weights_are_those_of_the_host(options):
    x = torch.randn(4, 16)
    native, by_torch = both(Mlp(), (x,), **options)
    torch.testing.assert_close(by_torch(x), native(x), rtol=1e-3, atol=1e-3)
    layers = by_torch.accuracy.layers
    assert [layer.error for layer in layers] == [layer.error for layer in native.accuracy.layers]
    assert any(layer.bytes_after < layer.bytes_before for layer in layers)


class Norms(nn.Module):
    """Operations for which the engine can select kernels that take tensors of torch on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(64) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm in self.norms:
            x = torch.tanh(norm(x))
        return x


def test_decisions_are_frozen_verified_and_measured(tmp_path):
    lz.load_backends("torch")
    x = torch.randn(5, 64)
    compiled = lz.compile(Norms().eval(), (x,), executor="torch")
    compiled._graph.selects = True
    compiled(x)
    kernels = {step["kernel"] for step in compiled.plan(x)["steps"]}
    selected = {kernel for kernel in kernels if not kernel.startswith("torch.primitive.")}
    assert selected and not any(kernel.startswith("torch.reference.") for kernel in selected), kernels
    text = compiled.freeze(tmp_path / "model.lock")
    assert all(kernel in text for kernel in selected)
    assert compiled.verify_lockfile(tmp_path / "model.lock").data["agrees"]
    # On the host native kernels come first, which a program of torch does not run: a lock changes the decision.
    lz.lock("norm.rms", next(iter(selected)))
    try:
        assert not compiled.verify_lockfile(tmp_path / "model.lock").data["agrees"]
    finally:
        lz.unlock("norm.rms")
    # The three norms are one step that occurs three times.
    (step,) = lz.tune(compiled, x, samples=2).data["steps"]
    assert (step["operation"], step["steps"]) == ("norm.rms", 3)
    assert step["selected"] in selected and any(state == "measured" for _, state, _ in step["kernels"])


def test_measuring_does_not_change_a_cache():
    from layerzero._compile.device import DeviceGraph
    from layerzero._native import GraphBuilder

    lz.load_backends("torch")
    build = GraphBuilder()
    x = build.input("x", [2, 64], "float32")
    residual = build.input("residual", [2, 64], "float32", True)
    build.output("y", build.call("norm.rms.add", [x, residual, None]))
    graph = DeviceGraph(build.finish(), Constants(torch.device("cpu")))
    cache = torch.ones(2, 64)
    graph.run([torch.ones(2, 64), cache])
    for prepared in graph._prepared.values():
        for step in prepared.program.steps:
            step.about["kernel"] = "torch.reference.norm.rms.add"
    graph.tune([[2, 64], [2, 64]], 2)
    torch.testing.assert_close(cache, torch.full((2, 64), 2.0))
