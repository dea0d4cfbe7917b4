"""FP8 products: torch's scaled product and a product of dequantized operands, compared with every kernel."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from every_kernel import check_every_kernel  # noqa: E402

FP8 = torch.float8_e4m3fn


def operands(rows: int, inner: int, outer: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, inner, generator=generator).to(FP8), torch.randn(outer, inner, generator=generator).to(FP8)


def expanded(scale: Any, shape: tuple[int, int], by_rows: int, by_columns: int) -> Any:
    """One scale per element."""
    rows, columns = torch.arange(shape[0]) // by_rows, torch.arange(shape[1]) // by_columns
    return scale[rows[:, None], columns]


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("x_by", ["tensor", "row", "block"])
@pytest.mark.parametrize("weight_by", ["tensor", "row", "block"])
def test_product_of_dequantized_operands(rows: int, x_by: str, weight_by: str) -> None:
    inner, outer = 300, 200
    x, weight = operands(rows, inner, outer)
    generator = torch.Generator().manual_seed(9)
    sides = {"tensor": (2**30, 2**30), "row": (1, 2**30), "block": (1, 128)}
    scales = []
    for (count, by), block in (((rows, x_by), 1), ((outer, weight_by), 128)):
        by_rows, by_columns = sides[by][0] if by != "block" else block, sides[by][1]
        scale = torch.rand(-(-count // by_rows), -(-inner // by_columns), generator=generator) + 0.1
        scales.append((scale, by_rows, by_columns))
    bias = torch.randn(outer, generator=generator)
    wide_x = x.double() * expanded(scales[0][0], (rows, inner), *scales[0][1:])
    wide_weight = weight.double() * expanded(scales[1][0], (outer, inner), *scales[1][1:])
    expected = torch.nn.functional.gelu(wide_x @ wide_weight.T + bias.double()).float()
    shapes = {"tensor": lambda scale: scale.reshape(()), "row": lambda scale: scale[:, 0].contiguous(), "block": lambda scale: scale}
    call = {
        "x": x, "weight": weight, "x_scale": shapes[x_by](scales[0][0]), "weight_scale": shapes[weight_by](scales[1][0]), "bias": bias,
        "x_granularity": x_by, "weight_granularity": weight_by, "activation": "gelu", "output_dtype": "f32",
    }  # fmt: skip

    def check(who: str, found: list[Any], _: dict[str, Any]) -> None:
        torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-3, msg=who)

    assert check_every_kernel("mlp.linear.fp8", lambda: call, check) >= 2


@pytest.mark.parametrize("rows", [4, 64])
def test_scaled_mm_of_torch(rows: int) -> None:
    x, weight = operands(rows, 64, 48)
    x_scale, weight_scale = torch.tensor(0.7), torch.tensor(0.02)
    try:
        expected = torch._scaled_mm(x, weight.t(), x_scale, weight_scale, out_dtype=torch.bfloat16)
    except (NotImplementedError, RuntimeError) as error:
        pytest.skip(f"torch has no scaled product on this processor: {error}")
    call = {"x": x, "weight": weight, "x_scale": x_scale, "weight_scale": weight_scale, "x_granularity": "tensor", "weight_granularity": "tensor"}

    def check(who: str, found: list[Any], _: dict[str, Any]) -> None:
        torch.testing.assert_close(found[0], expected, rtol=1.6e-2, atol=1.6e-2, msg=who)

    assert check_every_kernel("mlp.linear.fp8", lambda: call, check) >= 2
