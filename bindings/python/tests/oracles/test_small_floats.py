"""The small float formats, bit for bit: ml_dtypes for single values, gguf for blocks of MXFP4."""

import ml_dtypes
import numpy as np
import pytest

import layerzero as lz

gguf = pytest.importorskip("gguf")

SMALL = {
    "fp8_e4m3": (ml_dtypes.float8_e4m3fn, 448.0),
    "fp8_e5m2": (ml_dtypes.float8_e5m2, 57344.0),
}


def hard_values() -> np.ndarray:
    """Every finite bfloat16: all exponents, both signs, and every tie of a format with fewer bits."""
    every = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    return every[np.isfinite(every)]


@pytest.mark.parametrize("format", SMALL)
def test_rounding_to_8_bits(format: str) -> None:
    dtype, largest = SMALL[format]
    x = hard_values()[None]
    codes = lz.ops.quantize(x, np.array(1, np.float32), format=format, granularity="tensor")
    expected = np.clip(x, -largest, largest).astype(dtype)
    np.testing.assert_array_equal(np.asarray(codes).view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("format", SMALL)
def test_decoding_of_8_bit_codes(format: str) -> None:
    dtype, _ = SMALL[format]
    codes = np.arange(256, dtype=np.uint8).view(dtype)[None]
    back = lz.ops.dequantize(codes, np.array(1, np.float32), format=format, granularity="tensor")
    np.testing.assert_array_equal(back, codes.astype(np.float32))


def test_rounding_to_4_bits() -> None:
    x = hard_values()
    x = x[np.abs(x) < 1e30]
    x = np.resize(x, (x.size + 15) // 16 * 16)[None]
    # A scale of 1 per block, so that the values themselves are rounded.
    scale = np.ones((1, x.size // 16), ml_dtypes.float8_e4m3fn)
    codes = lz.ops.quantize(x, scale, format="nvfp4", granularity="block")
    expected = np.clip(x, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    back = lz.ops.dequantize(codes, scale, format="nvfp4", granularity="block")
    np.testing.assert_array_equal(back, expected)


@pytest.mark.parametrize("seed", range(4))
def test_blocks_of_mxfp4(seed: int) -> None:
    random = np.random.default_rng(seed)
    x = (random.standard_normal((7, 160)) * 10.0 ** random.integers(-9, 9, (7, 1))).astype(np.float32)
    x[0, :32] = 0
    codes, scale = lz.ops.quantize(x, format="mxfp4", granularity="block")
    back = lz.ops.dequantize(codes, scale, format="mxfp4", granularity="block")
    kind = gguf.GGMLQuantizationType.MXFP4
    theirs = gguf.quantize(x, kind)
    restored = gguf.dequantize(theirs, kind)
    # An empty block may have any scale; all others have theirs, which is the first of each seventeen bytes.
    ours = np.asarray(scale).view(np.uint8)
    full = np.abs(x.reshape(7, 5, 32)).max(-1) > 0
    np.testing.assert_array_equal(ours[full], theirs.reshape(7, 5, 17)[..., 0][full])
    # They round ties away from zero, we to the even mantissa: no random value is a tie.
    np.testing.assert_array_equal(back, restored)
