"""`torch.compile(model, backend="layerzero")`: partitions, fallbacks, symbolic sizes, changed weights."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import layerzero as lz
from layerzero.integrations import torch_compile


def _close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(attended.transpose(1, 2).flatten(2))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    torch_compile.reset()
    yield
    torch._dynamo.reset()


def test_backend_is_registered_by_import_and_by_entry_point() -> None:
    assert "layerzero" in torch._dynamo.list_backends()
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    entry = settings["project"]["entry-points"]["torch_dynamo_backends"]["layerzero"]
    module, _, name = entry.partition(":")
    assert getattr(__import__(module, fromlist=[name]), name) is torch_compile.backend


@torch.no_grad()
def test_model_runs_as_one_graph_for_every_length() -> None:
    model = Block().eval()
    compiled = torch.compile(model, backend="layerzero", dynamic=True, fullgraph=True)
    for batch, length in ((2, 5), (3, 9), (2, 33), (5, 4)):
        ids = torch.randint(0, 20, (batch, length))
        _close(compiled(ids), model(ids))
    (graph,) = torch_compile.graphs()
    assert graph.fallbacks == []
    assert "constants 0 bytes" not in graph.explain()
    assert [partition.compilations for partition in graph.partitions] == [1]
    text = graph.explain()
    assert "attention.gqa.prefill" in text and "norm.layer" in text and "mlp.linear" in text, text


@torch.no_grad()
def test_unsupported_nodes_run_in_torch_around_compiled_graphs() -> None:
    class Special(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.special.i0(self.first(x)).relu())

    model = Special().eval()
    compiled = torch.compile(model, backend="layerzero")
    x = torch.randn(3, 8)
    _close(compiled(x), model(x))
    (graph,) = torch_compile.graphs()
    assert len(graph.partitions) == 2
    (fallback,) = graph.fallbacks
    assert "i0" in fallback.operator and "test_torch_backend.py" in fallback.source
    assert "the operator is not supported" in graph.explain()


def test_training_falls_back_visibly(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(4, 2)
    compiled = torch.compile(model, backend="layerzero")
    x = torch.randn(3, 4)
    compiled(x).sum().backward()
    assert model.weight.grad is not None
    fallbacks = [fallback for graph in torch_compile.graphs() for fallback in graph.fallbacks]
    assert fallbacks and all("gradients" in fallback.reason for fallback in fallbacks)
    assert "runs in torch" in caplog.text
    assert not any(graph.partitions for graph in torch_compile.graphs())


@torch.no_grad()
def test_changed_weights_are_used_in_the_next_call() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    compiled = torch.compile(model, backend="layerzero")
    x = torch.randn(3, 4)
    _close(compiled(x), model(x))
    model[0].weight.mul_(2)
    _close(compiled(x), model(x))
    model.load_state_dict({name: torch.randn_like(value) for name, value in model.state_dict().items()})
    _close(compiled(x), model(x))
    model[2].weight.data = torch.randn(2, 8)
    _close(compiled(x), model(x))


@torch.no_grad()
def test_buffers_that_the_model_changes_are_changed() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total += x.sum(0)
            return x * self.total

    eager, model = Counter().eval(), Counter().eval()
    compiled = torch.compile(model, backend="layerzero")
    for _ in range(3):
        x = torch.randn(3, 4)
        _close(compiled(x), eager(x))
    _close(model.total, eager.total)


@torch.no_grad()
def test_graphs_of_weights_alone_return_tensors() -> None:
    class Weights(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 4))

        def forward(self) -> torch.Tensor:
            return self.weight.exp().sum(1)

    model = Weights().eval()
    _close(torch.compile(model, backend="layerzero")(), model())


@torch.no_grad()
def test_sizes_that_no_tensor_has_are_passed() -> None:
    class Sized(nn.Module):
        def forward(self, x: torch.Tensor, count: int) -> torch.Tensor:
            return x.unsqueeze(0).expand(count, -1) * 2

    model = Sized().eval()
    compiled = torch.compile(model, backend="layerzero", dynamic=True)
    for count in (3, 5, 8):
        _close(compiled(torch.ones(4), count), model(torch.ones(4), count))


@torch.no_grad()
def test_unknown_options_are_refused() -> None:
    compiled = torch.compile(nn.Linear(2, 2), backend="layerzero", options={"speed": 9})
    with pytest.raises(Exception, match="unknown option 'speed'"):
        compiled(torch.randn(1, 2))


def test_own_operations_arrive_as_single_nodes() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(16))

        def forward(self, x: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            normed = torch.ops.layerzero.norm_rms(x, self.weight, eps=1e-5)
            return normed, lz.attention(q, q, q, causal=True)

    model = Own().eval()
    x, q = torch.randn(3, 16), torch.randn(1, 5, 2, 8)
    with torch.no_grad():
        compiled = lz.compile(model, (x, q))
        found, expected = compiled(x, q), model(x, q)
    _close(found[0], expected[0])
    _close(found[1], expected[1])
    calls = [step["operation"] for step in compiled.plan(x, q)["steps"] if not step["copy"]]
    assert len(calls) == 2 and calls[0] == "norm.rms" and calls[1].startswith("attention."), calls


def test_indices_outside_a_dimension_are_refused() -> None:
    class Pick(nn.Module):
        def forward(self, x: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
            return x[i, j]

    x = torch.arange(6.0).view(2, 3)
    i, j = torch.tensor([0, 1]), torch.tensor([-1, 1])
    compiled = lz.compile(Pick().eval(), (x, i, j))
    assert compiled(x, i, j).tolist() == [2.0, 4.0]
    with pytest.raises(lz.LayerZeroError, match="VALUE_OUT_OF_RANGE"):
        compiled(x, i, torch.tensor([3, 0]))
    with pytest.raises(lz.LayerZeroError, match="VALUE_OUT_OF_RANGE"):
        compiled(x, torch.tensor([0, -3]), j)
