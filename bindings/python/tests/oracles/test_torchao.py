"""torchao's small formats, bit for bit, compared with every kernel that claims the call.

Known differences, and why:

- blocks of zeros: it uses the smallest scale, we use 1; the stored values are compared nevertheless;
- mxfp4 scales below 2^-126: it divides by 2^-126 instead, so that compilers that flush denormals give the same;
- nvfp4 scales below 2^-6: it does not use the denormals of e4m3, the format does;
- scales of integers: it divides the range by 127.5 or 7.5, we divide the largest value by 127 or 7. With given scales both agree;
- nvfp4 scales with a global scale: it divides where we multiply by the inverse; no random scale shows the difference;
- it multiplies by a rounded reciprocal where we divide (integers, nvfp4), so a quotient that is a tie in the last bit may round to
  either side: such elements are excluded, and counted;
- NaN and infinities: it does not define their 4-bit codes; f16 in blocks: not supported.
"""

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("torchao")
    from torchao.prototype.mx_formats.mx_tensor import to_dtype, to_mx
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize
    from torchao.quantization import quant_primitives as affine
from every_kernel import check_every_kernel  # noqa: E402

SEEDS = range(4)
FOUR_BITS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
EIGHT_BITS = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
INTEGERS = {"int8": (-128, 127), "int4": (-8, 7)}


def drawn(seed: int, *shape: int, dtype: Any = torch.float32, exponents: tuple[int, int] = (-9, 9)) -> Any:
    """Numbers of many magnitudes, one magnitude per row."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(*exponents, (*shape[:-1], 1), generator=generator)
    return (torch.randn(*shape, generator=generator) * 10.0**sizes).to(dtype)


def bits(tensor: Any) -> Any:
    return tensor.view(torch.uint8)


def held(operation: str, check: Callable[[list[Any]], None], **arguments: Any) -> None:
    """`check` is called with the results of every kernel that claims the call."""

    def checked(who: str, results: list[Any], _: dict[str, Any]) -> None:
        try:
            check(results)
        except AssertionError as error:
            raise AssertionError(f"{operation} by {who}: {error}") from error

    check_every_kernel(operation, lambda: dict(arguments), checked)


def equal(found: Any, expected: Any) -> None:
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    torch.testing.assert_close(bits(found.flatten()), bits(expected.flatten()), rtol=0, atol=0)


def halves(codes: Any) -> Any:
    """The low nibble of each byte, then the high one."""
    codes = bits(codes)
    return torch.stack((codes & 15, codes >> 4), -1).flatten(-2)


def near_a_tie(quotients: Any, ties: Any) -> Any:
    """Elements whose rounding depends on the last bits of the quotient."""
    quotients = quotients.double().abs()[..., None]
    return ((quotients - ties.double()).abs() <= ties.double() * 2.0**-21).any(-1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_of_mxfp4(seed: int, dtype: Any) -> None:
    x = drawn(seed, 3, 7, 160, dtype=dtype, exponents=(-30, 30))
    x[0, 0, :32] = 0
    scale, codes = to_mx(x, torch.float4_e2m1fn_x2, 32)
    pairs = codes.view(torch.float4_e2m1fn_x2)
    full = x.reshape(3, 7, 5, 32).abs().amax(-1) > 0

    def check(results: list[Any]) -> None:
        equal(results[0], pairs)
        equal(results[1][full], scale[full])

    held("quantize", check, x=x, format="mxfp4", granularity="block")
    back = to_dtype(codes, scale, torch.float4_e2m1fn_x2, 32, torch.float32)
    held(
        "dequantize",
        lambda results: equal(results[0], back),
        quantized=pairs,
        scale=scale,
        format="mxfp4",
        granularity="block",
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("whole", [None, 2.0**-7, 0.0371])
def test_blocks_of_nvfp4(seed: int, dtype: Any, whole: float | None) -> None:
    x = drawn(seed, 11, 128, dtype=dtype, exponents=(0, 2))
    # They divide by the scales, we multiply.
    theirs = None if whole is None else torch.tensor(whole)
    extra = {} if theirs is None else {"global_scale": 1 / theirs}
    scale, codes = nvfp4_quantize(x, 16, theirs)
    largest = x.float().reshape(11, 8, 16).abs().amax(-1) / 6 / (whole or 1)
    steps = scale.float()
    usual = largest > 2.0**-6
    assert usual.float().mean() > 0.7

    def check_scales(results: list[Any]) -> None:
        equal(results[1][usual], scale[usual])

    held("quantize", check_scales, x=x, format="nvfp4", granularity="block", **extra)
    quotients = x.float() / (steps / extra.get("global_scale", 1)).repeat_interleave(16, -1)
    clear = ~near_a_tie(quotients, (FOUR_BITS[1:] + FOUR_BITS[:-1]) / 2)
    assert clear.float().mean() > 0.9

    def check_values(results: list[Any]) -> None:
        torch.testing.assert_close(halves(results[0])[clear], halves(codes)[clear], rtol=0, atol=0)

    held("quantize", check_values, x=x, scale=scale, format="nvfp4", granularity="block", **extra)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("format", EIGHT_BITS)
@pytest.mark.parametrize("granularity", ["tensor", "channel", "block"])
def test_eight_bit_floats(seed: int, format: str, granularity: str) -> None:
    x = drawn(seed, 6, 96, exponents=(-3, 3))
    dtype = EIGHT_BITS[format]
    block = {"tensor": (6, 96), "channel": (1, 96), "block": (1, 32)}[granularity]
    scale = affine._choose_scale_float8(x, list(block), dtype)
    codes = affine._quantize_affine_float8(x, scale, dtype)
    back = affine._dequantize_affine_float8(codes, scale)
    ours = scale.reshape({"tensor": (), "channel": (6,), "block": (6, 3)}[granularity])

    def check(results: list[Any]) -> None:
        equal(results[0], codes)
        equal(results[1], ours)

    held("quantize", check, x=x, format=format, granularity=granularity)
    held(
        "dequantize",
        lambda results: equal(results[0], back),
        quantized=codes,
        scale=ours,
        format=format,
        granularity=granularity,
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("format", INTEGERS)
@pytest.mark.parametrize("granularity", ["tensor", "channel", "block"])
@pytest.mark.parametrize("mapping", ["SYMMETRIC_NO_CLIPPING_ERR", "ASYMMETRIC"])
def test_integers_with_given_scales(seed: int, format: str, granularity: str, mapping: str) -> None:
    x = drawn(seed, 6, 96, exponents=(-3, 3))
    low, high = INTEGERS[format]
    block = {"tensor": (6, 96), "channel": (1, 96), "block": (1, 32)}[granularity]
    kind = getattr(affine.MappingType, mapping)
    scale, zero = affine.choose_qparams_affine(x, kind, block, torch.int8, low, high)
    codes = affine.quantize_affine(x, block, scale, zero, torch.int8, low, high)
    back = affine.dequantize_affine(codes, block, scale, zero, torch.int8, low, high)
    shape = {"tensor": (), "channel": (6,), "block": (6, 3)}[granularity]
    given = {"scale": scale.reshape(shape), "zero_point": zero.reshape(shape).to(torch.int32)}
    steps = scale.reshape(x.shape[0] // block[0], -1).repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    quotients = x / steps
    clear = ~near_a_tie(quotients - quotients.floor() + 1, torch.tensor([1.5]))
    assert clear.float().mean() > 0.99

    def check(results: list[Any]) -> None:
        found = results[0] if format == "int8" else (halves(results[0]).to(torch.int8) ^ 8) - 8
        torch.testing.assert_close(found[clear], codes[clear], rtol=0, atol=0)

    held("quantize", check, x=x, format=format, granularity=granularity, **given)
    stored = codes if format == "int8" else bits(codes)[..., ::2] & 15 | (bits(codes)[..., 1::2] & 15) << 4
    held(
        "dequantize",
        lambda results: equal(results[0], back),
        quantized=stored,
        format=format,
        granularity=granularity,
        **given,
    )
