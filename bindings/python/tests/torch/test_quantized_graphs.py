"""`lz.compile` with quantized weights, and its accuracy report."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402


class Model(torch.nn.Module):
    """An embedding whose table is the last layer's weight as well, and two layers of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(50, 96)
        self.up = torch.nn.Linear(96, 256)
        self.down = torch.nn.Linear(256, 96, bias=False)
        self.head = torch.nn.Linear(96, 50, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        x = self.table(ids)
        return self.head(x + self.down(torch.nn.functional.silu(self.up(x))))


TOKENS = torch.arange(24).reshape(2, 12)


@pytest.mark.parametrize(
    ("options", "factor", "error"),
    [
        ({"weights": "int8"}, 3.8, 0.02),
        ({"weights": "int8", "group": 32}, 3.3, 0.02),
        ({"weights": "int4"}, 7.0, 0.2),
        ({"weights": "int4", "group": 32}, 6.0, 0.2),
        ({"weights": "int8", "activations": "int8"}, 3.8, 0.03),
    ],
)
def test_results_stay_close_and_the_report_has_every_layer(options, factor, error):
    model = Model().eval()
    sizes = {0: torch.export.Dim("batch", max=16), 1: torch.export.Dim("length", max=64)}
    compiled = lz.compile(model, (TOKENS,), dynamic_shapes=(sizes,), **options)
    report = compiled.accuracy
    quantized = [layer for layer in report.layers if layer.error is not None]
    assert [layer.name for layer in quantized] == ["up.weight", "down.weight"]
    assert all(0 < layer.error < 0.2 and layer.bytes_before > factor * layer.bytes_after for layer in quantized)
    (kept,) = (layer for layer in report.layers if layer.error is None)
    assert kept.shape == (50, 96) and "another operation" in kept.kept
    assert len(report.outputs) == 1 and 0 < report.outputs[0] < error
    with torch.no_grad():
        for batch, length in ((2, 12), (1, 1), (3, 40)):
            tokens = torch.randint(50, (batch, length))
            expected, found = model(tokens), compiled(tokens)
            assert (expected - found).norm() < 2 * error * expected.norm()
    assert "quantized up.weight [256, 96]" in compiled.explain(TOKENS)


def test_tied_weights_are_quantized_on_request():
    compiled = lz.compile(Model().eval(), (TOKENS,), weights="int8", quantize_tied=True)
    assert all(layer.error is not None for layer in compiled.accuracy.layers) and len(compiled.accuracy.layers) == 3


def test_nothing_is_reported_without_quantization():
    assert lz.compile(Model().eval(), (TOKENS,)).accuracy is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "fp8"}, "expected one of int8, int4"),
        ({"group": 32}, "need weights"),
        ({"weights": "int8", "activations": "int4"}, "expected 'int8' or None"),
        ({"weights": "int4", "activations": "int8"}, "int8 activations need int8 weights"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        lz.compile(Model().eval(), (TOKENS,), **options)
