"""Operations from Python: results, out=, validation errors, other array types."""

from pathlib import Path

import numpy as np
import pytest

import layerzero as lz


def rms(x, w, eps):
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def test_result_is_numpy_and_correct():
    x = np.random.default_rng(0).normal(size=(2, 3, 8)).astype(np.float32)
    w = np.linspace(0.5, 1.5, 8, dtype=np.float32)
    y = lz.ops.norm_rms(x, w, eps=1e-5)
    assert isinstance(y, np.ndarray) and y.shape == x.shape and y.dtype == x.dtype
    np.testing.assert_allclose(y, rms(x, w, 1e-5), rtol=1e-5)


def test_strided_and_transposed_inputs():
    base = np.random.default_rng(1).normal(size=(8, 6, 4)).astype(np.float32)
    for x in (base[::2], base[:, ::-1], base.transpose(2, 1, 0), base[..., 1:3]):
        np.testing.assert_allclose(lz.ops.norm_rms(x), rms(x, 1.0, 1e-6), rtol=1e-5)


def test_out_is_written_and_returned():
    x = np.ones((2, 4), np.float32)
    out = np.zeros_like(x)
    assert lz.ops.norm_rms(x, out=out) is out
    np.testing.assert_allclose(out, 1.0, rtol=1e-5)


def test_out_may_be_an_input():
    for base in (np.arange(24, dtype=np.float32).reshape(6, 4), np.ones((6, 8), np.float32)[:, ::2]):
        expected = lz.ops.norm_rms(base.copy())
        assert lz.ops.norm_rms(base, out=base) is base
        np.testing.assert_array_equal(base, expected)
    x, y = (np.random.default_rng(seed).normal(size=(3, 8)).astype(np.float32) for seed in (1, 2))
    expected = lz.ops.activation_silu_mul(x, y)
    # The second input, which is written last, and a view of it.
    assert lz.ops.activation_silu_mul(x, y, out=(y[:],))[0, 0] == expected[0, 0]
    np.testing.assert_array_equal(y, expected)
    # An error leaves the input as it is.
    before = x.copy()
    with pytest.raises(lz.ValidationError):
        lz.ops.activation_silu_mul(x, y[:2], out=x)
    np.testing.assert_array_equal(x, before)


def test_overlapping_and_read_only_out_are_refused():
    x = np.ones((4, 4), np.float32)
    with pytest.raises(lz.ValidationError, match="OUTPUT_OVERLAP"):
        lz.ops.norm_rms(x[1:], out=x[:3])
    with pytest.raises(lz.ValidationError, match="OUTPUT_OVERLAP"):
        lz.ops.norm_rms(x, out=x.T)
    residual = x.copy()
    with pytest.raises(lz.ValidationError, match="OUTPUT_OVERLAP"):
        lz.ops.norm_rms_add(x, residual, out=residual)
    np.testing.assert_array_equal(residual, x)
    out = np.zeros_like(x)
    out.flags.writeable = False
    with pytest.raises(lz.ValidationError, match="READ_ONLY_OUTPUT"):
        lz.ops.norm_rms(x, out=out)
    x.flags.writeable = False
    lz.ops.norm_rms(x)


def test_validation_error_lists_all_reasons():
    with pytest.raises(lz.ValidationError) as caught:
        lz.ops.attention_mla_decode(
            np.zeros((4, 2, 8), np.float32),
            np.zeros((4, 2, 4), np.float16),
            np.zeros((6, 1, 8), np.float32),
            np.zeros((5, 1, 4), np.float32),
            sm_scale=0.1,
        )
    error = caught.value
    assert isinstance(error, ValueError) and isinstance(error, lz.LayerZeroError)
    codes = {reason.code: reason for reason in error.reasons}
    assert set(codes) == {"AXIS_MISMATCH", "DTYPE_MISMATCH"}
    axis = codes["AXIS_MISMATCH"]
    assert (axis.argument, axis.axis, axis.required, axis.found) == ("kpe", "kv_len", "6", "5")
    assert "kpe.shape[0] (kv_len) is 5, but ckv.shape[0] bound kv_len to 6" in str(error)


def test_wrong_kinds_are_refused():
    with pytest.raises(lz.ValidationError, match="ARGUMENT_KIND"):
        lz.ops.norm_rms("text")
    zeros = np.zeros((1, 2, 2, 4), np.float32)
    with pytest.raises(lz.ValidationError, match="one of BSHD, BHSD"):
        lz.ops.attention_standard_prefill(zeros, zeros, zeros, layout="SBHD")


def test_bfloat16_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.arange(1, 9, dtype=np.float32).reshape(2, 4).astype(ml_dtypes.bfloat16)
    y = lz.ops.norm_rms(x)
    assert y.dtype == x.dtype
    np.testing.assert_allclose(y.astype(np.float32), rms(x, 1.0, 1e-6), rtol=1e-2)


def test_every_operation_is_exported():
    assert {name.replace(".", "_") for name in lz.list_operations()} == set(dir(lz.ops))
    assert "Root-mean-square" in lz.ops.norm_rms.__doc__


def test_token_roundtrip():
    path = Path(__file__).parents[4] / "lz-ops/tests/data/byte_level_bpe.json"
    tokenizer = lz.Tokenizer.from_file(path)
    assert len(tokenizer.digest) == 64
    texts = ["hello world", "", "héllo"]
    tokens, indptr, offsets = lz.ops.tokenize_encode(texts, tokenizer, return_offsets=True)
    assert indptr.tolist()[0] == 0 and indptr.tolist()[-1] == len(tokens) == len(offsets)
    assert lz.ops.tokenize_decode(tokens, indptr, tokenizer) == texts


def test_in_place_update_of_a_cache():
    cache = np.zeros((2, 4, 1, 2), np.float32)
    values = np.ones((3, 1, 2), np.float32)
    result = lz.ops.kv_append(values, values * 2, cache, other := cache.copy(), np.array([0, 5, -1]))
    assert result is None
    assert cache.reshape(8, 2).tolist()[0] == [1, 1] and other.reshape(8, 2).tolist()[5] == [2, 2]
    assert cache.sum() == 4


def test_strided_tensors_are_copied_for_a_native_kernel():
    x = np.random.default_rng(1).normal(size=(6, 8)).astype(np.float32)
    explanation = lz.explain("norm.rms", x[:, ::2], eps=1e-3)
    plan = explanation.to_dict()["plan"]
    assert plan["kernel"].startswith("cpu.norm.rms.") and plan["transforms"] == ["contiguous"] and plan["transform_cost"] > 0
    assert "strided tensors are copied first" in str(explanation)
    np.testing.assert_array_equal(lz.ops.norm_rms(x[:, ::2]), lz.ops.norm_rms(x[:, ::2].copy()))
    out = np.zeros((6, 8), np.float32)
    lz.ops.norm_rms(x[:, 1::2], out=out[:, ::2])
    np.testing.assert_array_equal(out[:, ::2], lz.ops.norm_rms(x[:, 1::2].copy()))
    assert not out[:, 1::2].any()
    # Of a table a call reads a few rows, so it is not copied.
    table = np.ones((5, 8), np.float32)
    explanation = lz.explain("embedding.lookup", table[:, ::2], np.array([1, 2]))
    ours = [one for one in explanation.to_dict()["candidates"] if one["backend"] == "cpu"]
    assert ours and all(one["reasons"] for one in ours)
    assert "STRIDE_LAST_DIM" in str(explanation)


def test_which_and_explain_name_the_kernel():
    x = np.ones((2, 4), np.float32)
    assert lz.which("norm.rms", x).kernel_id.startswith("cpu.norm.rms.")
    assert lz.which("norm.rms", x.astype(np.float16)).kernel_id
    with pytest.raises(KeyError, match='did you mean `norm.rms`'):
        lz.which("norm.rm", x)
    with pytest.raises(lz.ValidationError, match="UNKNOWN_ARGUMENT"):
        lz.which("norm.rms", x, epsilon=1.0)


@pytest.mark.parametrize("format", ["int8", "int4", "fp8_e4m3", "fp8_e5m2", "mxfp4", "nvfp4", "int16"])
def test_quantize_roundtrip_of_every_format(format):
    pytest.importorskip("ml_dtypes")
    x = np.random.default_rng(3).normal(size=(3, 64)).astype(np.float32)
    keywords = {"format": format, "granularity": "block"}
    values, scale = lz.ops.quantize(x, **keywords)
    y = lz.ops.dequantize(values, scale, **keywords)
    assert y.shape == x.shape and y.dtype == x.dtype
    # Half a step of the coarsest format at the largest value of a block.
    assert np.abs(x - y).max() <= np.abs(x).max() / 4
    # Values that the format represents exactly are unchanged.
    again, same = lz.ops.quantize(y, scale, **keywords), values
    assert np.array_equal(again, same) or np.array_equal(lz.ops.dequantize(again, scale, **keywords), y)
    outputs = np.zeros_like(values), np.zeros_like(scale)
    assert lz.ops.quantize(x, **keywords, out=outputs)[0] is outputs[0]
    assert np.array_equal(outputs[0].view(np.uint8), values.view(np.uint8))
    assert lz.which("dequantize", values, scale, **keywords).kernel_id


@pytest.mark.parametrize(("format", "bits"), [("uint8", 8), ("uint4", 4), ("uint16", 16), ("uint2", 2)])
def test_unsigned_codes_have_given_scales_and_zero_points(format, bits):
    x = np.random.default_rng(6).normal(size=(3, 33)).astype(np.float32)
    highest = 2**bits - 1
    scale = np.array((x.max() - x.min()) / highest, np.float32)
    zero_point = np.array(np.round(-x.min() / scale), np.int32)
    keywords = {"format": format, "granularity": "tensor"}
    codes = lz.ops.quantize(x, scale, zero_point, **keywords)
    per_byte = max(8 // bits, 1)
    assert codes.dtype == (np.uint16 if bits == 16 else np.uint8) and codes.shape == (3, -(-33 // per_byte))
    plain = np.clip(np.round(x / scale) + zero_point, 0, highest).astype(codes.dtype)
    shifts = np.arange(per_byte, dtype=codes.dtype) * codes.dtype.type(bits)
    unpacked = ((codes[..., None] >> shifts) & highest).reshape(3, -1)[:, :33]
    np.testing.assert_array_equal(unpacked, plain)
    y = lz.ops.dequantize(codes, scale, zero_point, inner=33, **keywords)
    np.testing.assert_array_equal(y, (plain.astype(np.int32) - zero_point).astype(np.float32) * scale)
    np.testing.assert_array_equal(lz.quantize(x, format, scale=scale, zero_point=zero_point), codes)
    with pytest.raises(lz.ValidationError, match="QUANT_SCALE_MISSING"):
        lz.ops.quantize(x, **keywords)


@pytest.mark.parametrize(("format", "largest"), [("fp8_e4m3", 448.0), ("fp8_e5m2", 57344.0)])
def test_small_floats_are_rounded_as_ml_dtypes_does(format, largest):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = {"fp8_e4m3": ml_dtypes.float8_e4m3fn, "fp8_e5m2": ml_dtypes.float8_e5m2}[format]
    rng = np.random.default_rng(4)
    x = (rng.normal(size=(16, 256)) * np.exp2(rng.integers(-12, 12, size=(16, 256)))).astype(np.float32)
    one = np.array(1, np.float32)
    ours = lz.ops.quantize(x, one, format=format, granularity="tensor")
    theirs = np.clip(x, -largest, largest).astype(dtype)
    assert np.array_equal(ours.view(np.uint8), theirs.view(np.uint8))
    back = lz.ops.dequantize(ours, one, format=format, granularity="tensor")
    assert np.array_equal(back, theirs.astype(np.float32))


@pytest.mark.parametrize("format", ["mxfp4", "nvfp4"])
def test_packed_4_bit_floats_match_ml_dtypes(format):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    scales = {"mxfp4": ml_dtypes.float8_e8m0fnu, "nvfp4": ml_dtypes.float8_e4m3fn}
    x = np.random.default_rng(5).normal(size=(4, 64)).astype(np.float32) * 3
    blocks = 64 // {"mxfp4": 32, "nvfp4": 16}[format]
    scale = np.ones((4, blocks), scales[format])
    ours = lz.ops.quantize(x, scale, format=format, granularity="block")
    theirs = np.clip(x, -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    packed = (theirs[:, 0::2] & 15) | (theirs[:, 1::2] << 4)
    assert np.array_equal(ours, packed)
