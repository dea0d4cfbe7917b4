"""Norms with a residual and norms with a quantized result: torch's functions and our separate operations, compared with every kernel."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from every_kernel import check_every_kernel  # noqa: E402

import layerzero as lz  # noqa: E402

#: The largest difference of a code where the value before rounding is close to a tie.
STEPS = {"int8": (0.0, 1.0), "fp8_e4m3": (0.126, 2e-3), "fp8_e5m2": (0.251, 2e-5)}


def inputs(seed: int, dtype: Any) -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    x, residual = (torch.randn(2, 5, 300, generator=generator).to(dtype) for _ in range(2))
    return x, residual, torch.randn(300, generator=generator).to(dtype)


def assert_quantized(who: str, results: list[Any], expected: tuple[Any, Any], format: str) -> None:
    relative, absolute = STEPS[format]
    torch.testing.assert_close(results[0].double(), expected[0].double(), rtol=relative, atol=absolute, msg=who)
    assert (results[0].double() == expected[0].double()).double().mean() > 0.99, who
    torch.testing.assert_close(results[1], expected[1], rtol=1e-2, atol=0, msg=who)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("format", STEPS)
@pytest.mark.parametrize("granularity", ["row", "block"])
def test_quantized_norms_match_a_norm_and_a_quantization(dtype: Any, format: str, granularity: str) -> None:
    x, residual, weight = inputs(3, dtype)
    params = {"format": format, "granularity": granularity, "block_size": 128}
    # A scale per row is one per channel of a matrix.
    separate = {**params, "granularity": "channel" if granularity == "row" else granularity}

    def expected_of(rows: Any) -> tuple[Any, Any]:
        normalized = F.rms_norm(rows.float(), (300,), weight.float(), 1e-6).to(dtype)
        codes, scale = lz.ops.quantize(normalized.view(10, 300), **separate)
        return codes.view(2, 5, 300), scale.view(2, 5, *scale.shape[1:])

    plain = expected_of(x)
    for_plain = {"x": x, "weight": weight, **params}
    assert check_every_kernel("norm.rms.quantize", lambda: for_plain, lambda who, found, _: assert_quantized(who, found, plain, format)) >= 2

    total = x + residual
    summed = expected_of(total)

    def check(who: str, found: list[Any], call: dict[str, Any]) -> None:
        assert_quantized(who, found, summed, format)
        torch.testing.assert_close(call["residual"], total, rtol=0, atol=0, msg=who)

    assert check_every_kernel("norm.rms.add.quantize", lambda: {**for_plain, "residual": residual.clone()}, check) >= 2


def test_quantized_norm_with_one_given_scale() -> None:
    x, _, weight = inputs(4, torch.bfloat16)
    scale = torch.tensor(0.03)
    call = {"x": x, "weight": weight, "scale": scale, "format": "fp8_e4m3", "granularity": "tensor"}
    normalized = F.rms_norm(x.float(), (300,), weight.float(), 1e-6).to(x.dtype)
    expected = (normalized.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)

    def check(who: str, found: list[Any], _: dict[str, Any]) -> None:
        assert len(found) == 1
        torch.testing.assert_close(found[0].double(), expected.double(), rtol=0.126, atol=2e-3, msg=who)

    assert check_every_kernel("norm.rms.quantize", lambda: call, check) >= 2
    with pytest.raises(lz.ValidationError, match="must be given"):
        lz.ops.norm_rms_quantize(x, format="int8", granularity="tensor")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_layer_norm_with_residual_matches_torch(dtype: Any) -> None:
    x, residual, weight = inputs(5, dtype)
    total = x + residual
    expected = F.layer_norm(total.float(), (300,), weight.float(), weight.float(), 1e-5).to(dtype)

    def check(who: str, found: list[Any], call: dict[str, Any]) -> None:
        close = 1e-5 if dtype is torch.float32 else 1e-3
        torch.testing.assert_close(found[0], expected, rtol=close, atol=close, msg=who)
        torch.testing.assert_close(call["residual"], total, rtol=0, atol=0, msg=who)

    make = lambda: {"x": x, "residual": residual.clone(), "weight": weight, "bias": weight}  # noqa: E731
    assert check_every_kernel("norm.layer.add", make, check) >= 2
