"""FP4 products, compared with values that `ml_dtypes` decodes."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
ml_dtypes = pytest.importorskip("ml_dtypes")
from every_kernel import check_every_kernel  # noqa: E402


def decoded(codes: np.ndarray) -> np.ndarray:
    """The e2m1 values of bytes, low nibble first."""
    nibbles = np.stack((codes & 15, codes >> 4), -1).reshape(*codes.shape[:-1], -1)
    return nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float64)


def operand(random: np.random.Generator, rows: int, inner: int, format: str, scale_of: float) -> tuple[Any, Any, np.ndarray]:
    """Packed values, scales, and the exact values."""
    codes = random.integers(0, 256, (rows, inner // 2), dtype=np.uint8)
    block = 16 if format == "nvfp4" else 32
    scales = random.uniform(0.1, 2, (rows, -(-inner // block))) if format == "nvfp4" else 2.0 ** random.integers(-4, 3, (rows, -(-inner // block)))
    stored = scales.astype(ml_dtypes.float8_e4m3fn if format == "nvfp4" else ml_dtypes.float8_e8m0fnu)
    exact = decoded(codes) * stored.astype(np.float64)[:, np.arange(inner) // block] / scale_of
    dtype = torch.float8_e4m3fn if format == "nvfp4" else torch.float8_e8m0fnu
    return torch.from_numpy(codes).view(torch.float4_e2m1fn_x2), torch.from_numpy(stored.view(np.uint8)).view(dtype), exact


@pytest.mark.parametrize("format", ["mxfp4", "nvfp4"])
@pytest.mark.parametrize("rows", [1, 5, 70])
@pytest.mark.parametrize("inner", [32, 90, 1100])
def test_product_of_decoded_operands(rows: int, inner: int, format: str) -> None:
    random = np.random.default_rng(rows + inner)
    outer = 37
    globals_ = (3.0, 0.25) if format == "nvfp4" else (1.0, 1.0)
    x, x_scale, exact_x = operand(random, rows, inner, format, globals_[0])
    weight, weight_scale, exact_weight = operand(random, outer, inner, format, globals_[1])
    bias = random.standard_normal(outer).astype(np.float32)
    expected = torch.from_numpy(np.maximum(exact_x @ exact_weight.T + bias, 0)).float()
    call = {
        "x": x, "weight": weight, "x_scale": x_scale, "weight_scale": weight_scale, "bias": torch.from_numpy(bias), "format": format,
        "activation": "relu", "output_dtype": "f32",
    }  # fmt: skip
    if format == "nvfp4":
        call["x_global_scale"], call["weight_global_scale"] = (torch.tensor(one) for one in globals_)

    def check(who: str, found: list[Any], _: dict[str, Any]) -> None:
        torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-3, msg=who)

    assert check_every_kernel("mlp.linear.fp4", lambda: call, check) >= 2


def test_quantized_operands_give_about_the_product_of_the_originals() -> None:
    import layerzero as lz

    x, weight = torch.randn(6, 256), torch.randn(40, 256)
    for format in ("mxfp4", "nvfp4"):
        (x_codes, x_scale), (codes, scale) = (lz.ops.quantize(one, format=format, granularity="block") for one in (x, weight))
        found = lz.ops.mlp_linear_fp4(x_codes, codes, x_scale, scale, format=format, output_dtype="f32")
        error = (found - x @ weight.T).norm() / (x @ weight.T).norm()
        assert error < 0.25, (format, error)
