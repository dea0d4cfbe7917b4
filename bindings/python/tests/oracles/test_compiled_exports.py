"""Models that torch exported to ONNX, compiled from the file, compared with torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

import layerzero as lz

pytest.importorskip("onnxscript")


class Layer(nn.Module):
    """A decoder layer as Hugging Face writes it: positions as floats, RMS norm, rotary embedding, causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(32) + 0.5)
        self.qkv = nn.Linear(32, 96, bias=False)
        self.gate, self.up, self.down = nn.Linear(32, 48), nn.Linear(32, 48), nn.Linear(48, 32)
        self.register_buffer("frequencies", 1.0 / (10000 ** (torch.arange(0, 8, 2).float() / 8)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        normed = self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        q, k, v = (part.view(batch, length, 4, 8).transpose(1, 2) for part in self.qkv(normed).chunk(3, -1))
        angles = torch.arange(length, dtype=torch.float32)[:, None] * self.frequencies
        angles = torch.cat((angles, angles), -1)
        rotate = lambda t: torch.cat((-t[..., 4:], t[..., :4]), -1)  # noqa: E731
        q, k = (t * angles.cos() + rotate(t) * angles.sin() for t in (q, k))
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, 32)
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.last = nn.Linear(8, 5)
        self.norm.running_mean.uniform_(-1, 1)
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        return F.softmax(self.last(F.adaptive_avg_pool2d(x, 1).flatten(1)), -1)


CASES = [
    (Layer, (2, 8, 32), {0: Dim("batch"), 1: Dim("length")}, [(2, 8, 32), (1, 1, 32), (3, 17, 32)]),
    (Network, (2, 3, 12, 12), {0: Dim("batch")}, [(2, 3, 12, 12), (1, 3, 12, 12), (5, 3, 12, 12)]),
]


@pytest.mark.parametrize("external_data", [False, True])
@pytest.mark.parametrize(("make", "sample", "sizes", "shapes"), CASES)
@torch.no_grad()
def test_exported_model_equals_torch(make, sample, sizes, shapes, external_data: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = make().eval()
    path = tmp_path / "model.onnx"
    torch.onnx.export(
        model, (torch.randn(sample),), path, dynamic_shapes=(sizes,), dynamo=True, external_data=external_data, verbose=False
    )
    compiled = lz.compile(path)
    compiled.save(tmp_path / "model.lz")
    loaded = lz.load(tmp_path / "model.lz", verify=True)
    for shape in shapes:
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(loaded(x), compiled(x), rtol=0, atol=0)
