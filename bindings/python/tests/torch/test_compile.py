"""`lz.compile`: models as graphs, equal to torch for every size."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

import layerzero as lz


def _close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8), nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class RmsNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6)).to(x.dtype)


def _rotate_half(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class DecoderLayer(nn.Module):
    """A decoder layer written out as Hugging Face does: RMS norm, rotary embedding, GQA, gated MLP."""

    def __init__(self, hidden: int = 32, heads: int = 4, kv_heads: int = 2, ffn: int = 48) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, hidden // heads
        self.norm1, self.norm2 = RmsNorm(hidden), RmsNorm(hidden)
        self.q = nn.Linear(hidden, hidden, bias=False)
        self.k = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.v = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.o = nn.Linear(hidden, hidden, bias=False)
        self.gate = nn.Linear(hidden, ffn, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)
        frequencies = 1.0 / (10000 ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim))
        self.register_buffer("frequencies", frequencies)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        positions = torch.arange(length, dtype=torch.float32)
        angles = torch.outer(positions, self.frequencies)
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos(), angles.sin()
        h = self.norm1(x)
        q = self.q(h).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        k = self.k(h).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v(h).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = q * cos + _rotate_half(q) * sin, k * cos + _rotate_half(k) * sin
        k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
        v = v.repeat_interleave(self.heads // self.kv_heads, dim=1)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(batch, length, -1))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class NaiveAttention(nn.Module):
    """Attention as eleven operations, with a mask."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        length = scores.shape[-1]
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        scores = scores.masked_fill(~mask, float("-inf"))
        return torch.softmax(scores, dim=-1) @ v


class ResidualBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 6, 3, padding=1, stride=2, bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(6)
        self.down = nn.Conv2d(4, 6, 1, stride=2)
        for norm in (self.bn1, self.bn2):
            norm.running_mean.uniform_(-1, 1)
            norm.running_var.uniform_(0.5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)) + self.down(x))
        return F.adaptive_avg_pool2d(F.max_pool2d(y, 2), 1).flatten(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_mlp_runs_for_every_number_of_rows() -> None:
    model = Mlp().eval()
    compiled = lz.compile(model, (torch.randn(4, 16),), dynamic_shapes=({0: Dim("rows")},))
    for rows in (4, 1, 7, 0, 33, 4):
        x = torch.randn(rows, 16)
        _close(compiled(x), model(x).detach())
    assert compiled.cached_plans == 5


def test_decoder_layer_equals_torch_for_every_length() -> None:
    model = DecoderLayer().eval()
    shapes = ({0: Dim("batch"), 1: Dim("length")},)
    compiled = lz.compile(model, (torch.randn(2, 8, 32),), dynamic_shapes=shapes, validation="strict")
    for batch, length in ((2, 8), (1, 1), (3, 17), (1, 64)):
        x = torch.randn(batch, length, 32)
        _close(compiled(x), model(x).detach())


def test_without_passes_the_result_is_the_same() -> None:
    model = DecoderLayer().eval()
    x = torch.randn(2, 8, 32)
    _close(lz.compile(model, (x,), optimize=False)(x), model(x).detach())


def test_naive_attention() -> None:
    model = NaiveAttention().eval()
    q, k, v = torch.randn(3, 2, 4, 9, 16)
    _close(lz.compile(model, (q, k, v))(q, k, v), model(q, k, v))


def test_residual_block_of_a_convolutional_network() -> None:
    model = ResidualBlock().eval()
    compiled = lz.compile(model, (torch.randn(2, 4, 16, 16),), dynamic_shapes=({0: Dim("batch")},))
    for batch in (2, 1, 5):
        x = torch.randn(batch, 4, 16, 16)
        _close(compiled(x), model(x).detach())


def test_results_keep_their_structure() -> None:
    class Structured(nn.Module):
        def forward(self, x: torch.Tensor, *, scale: float = 2.0) -> dict[str, object]:
            first, second = x.split([1, 3], dim=1)
            return {"sum": x.sum(1), "parts": (first, second * scale), "name": None}

    model = Structured().eval()
    x = torch.randn(5, 4)
    compiled = lz.compile(model, (x,))
    found, expected = compiled(x), model(x)
    _close(found["sum"], expected["sum"])
    _close(found["parts"][0], expected["parts"][0])
    _close(found["parts"][1], expected["parts"][1])
    assert found["name"] is None


def test_explain_names_kernels_and_memory() -> None:
    model = Mlp().eval()
    x = torch.randn(4, 16)
    compiled = lz.compile(model, (x,))
    plan = compiled.plan(x)
    assert plan["steps"] and all(step["kernel"] for step in plan["steps"])
    assert plan["arena_bytes"] >= plan["live_bytes"]
    assert "mlp.linear" in compiled.explain(x)


def test_explain_and_plan_take_the_sample_inputs_by_default(tmp_path: Path) -> None:
    x = torch.randn(4, 16)
    compiled = lz.compile(Mlp().eval(), (x,), dynamic_shapes=({0: Dim("rows")},))
    assert compiled.plan() == compiled.plan(x) != compiled.plan(torch.randn(9, 16))
    assert "mlp.linear" in compiled.explain()
    compiled.save(tmp_path / "model.lz")
    loaded = lz.load(tmp_path / "model.lz")
    (smallest,) = loaded.sample_shapes()
    assert loaded.plan() == loaded.plan(np.zeros(smallest, np.float32))


def test_arguments_that_differ_from_the_samples_are_described() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None, parts: tuple[torch.Tensor, ...] = ()) -> torch.Tensor:
            x = x if scale is None else x * scale
            return x + parts[0] if parts else x

    x = torch.randn(4, 16)
    compiled = lz.compile(Two().eval(), (x,), {"scale": x})
    with pytest.raises(TypeError, match="the call has 1 positional argument, but the model was compiled for 1 positional argument, `scale`"):
        compiled(x)
    with pytest.raises(TypeError, match="the call has 0 positional arguments, `x`, `scale`, but"):
        compiled(x=x, scale=x)
    nested = lz.compile(Two().eval(), (x, None, (x,)))
    with pytest.raises(TypeError, match="arguments of the structure TreeSpec"):
        nested(x, None, (x, x))


def test_bad_inputs_are_refused_before_anything_runs() -> None:
    model = Mlp().eval()
    compiled = lz.compile(model, (torch.randn(4, 16),), dynamic_shapes=({0: Dim("rows")},))
    with pytest.raises(lz.ValidationError, match="size 1 is 15, expected 16"):
        compiled(torch.randn(4, 15))
    with pytest.raises(lz.ValidationError, match="dtype is float64, expected float32"):
        compiled(torch.randn(4, 16, dtype=torch.float64))
    with pytest.raises(TypeError):
        compiled(torch.randn(4, 16), torch.randn(4, 16))


def test_unsupported_operator_is_named_with_its_source_line() -> None:
    class Special(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.i0(x)

    with pytest.raises(lz.GraphImportError, match=r"i0.*test_compile\.py"):
        lz.compile(Special().eval(), (torch.randn(3),))


class OwnOperations(nn.Module):
    """Calls operations of LayerZero, with one result and with several."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        normal = torch.ops.layerzero.norm_rms(x, self.weight, eps=1e-5)
        q = normal[None, :, None]
        output, lse = torch.ops.layerzero.attention_gqa_prefill.lse(q, q, q, causal=True)
        return torch.ops.layerzero.activation_silu(output[0, :, 0]), lse


def test_calls_of_own_operations_are_single_nodes() -> None:
    lz.ops.norm_rms(torch.ones(2, 4))
    model = OwnOperations().eval()
    compiled = lz.compile(model, (torch.randn(5, 8),), dynamic_shapes=({0: Dim("rows", min=2, max=9)},))
    assert all(f"{name}(" in compiled.graph for name in ("norm.rms", "attention.gqa.prefill", "activation.silu"))
    with torch.no_grad():
        for rows in (5, 2, 9):
            x = torch.randn(rows, 8)
            for found, expected in zip(compiled(x), model(x), strict=True):
                _close(found, expected)


class ChangesInPlace(nn.Module):
    """Changes that later uses see: of a tensor, through a view of it, and of a part."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        z = y + 1
        y.add_(z)
        flat = y.view(-1)
        flat.mul_(3)
        y[0] = 5
        y[1:, 2] = z[1:, 0]
        return y, z, flat.relu_(), x.exp().relu_()


def test_changes_in_place_are_seen_by_later_uses() -> None:
    model, sample = ChangesInPlace().eval(), torch.randn(3, 4)
    compiled = lz.compile(model, (sample,), dynamic_shapes=({0: Dim("rows", min=3, max=9)},))
    for rows in (3, 4, 7):
        x = torch.randn(rows, 4)
        for found, expected in zip(compiled(x), model(x.clone()), strict=True):
            _close(found, expected)


def test_a_model_that_changes_its_input_is_refused() -> None:
    class ChangesInput(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1)

    with pytest.raises(lz.GraphImportError, match="changes"):
        lz.compile(ChangesInput().eval(), (torch.randn(3),))


def test_training_mode_is_refused() -> None:
    with pytest.raises(lz.GraphImportError, match="training mode"):
        lz.compile(Mlp(), (torch.randn(4, 16),))


def test_threads_share_a_compiled_model() -> None:
    model = Mlp().eval()
    compiled = lz.compile(model, (torch.randn(4, 16),), dynamic_shapes=({0: Dim("rows")},))

    def run(rows: int) -> None:
        x = torch.randn(rows, 16)
        _close(compiled(x), model(x).detach())

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(run, [1, 2, 3, 4, 5] * 8))


def test_session_runs_sample_inputs() -> None:
    model = Mlp().eval()
    x = torch.randn(4, 16)
    _close(lz.Session(model, (x,)).run([x]), model(x).detach())
