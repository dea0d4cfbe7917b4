"""Split execution: calls that are too large for every kernel run in parts."""

import numpy as np
import pytest

import layerzero as lz

OPERATION = """
operation: test.rows
version: 1
summary: Rows times a number and a weight, and each row is counted.
doc: "output = factor x weight"
axes:
  batch: { role: batch,   select: { bucket: [1, 16] }, fuzz: 1..9 }
  width: { role: feature, select: exact,               fuzz: [1, 2] }
types:
  T: [f32]
inputs:
  x:      { shape: [batch, width], dtype: T, doc: "Rows." }
  weight: { shape: [width], dtype: T, doc: "Factors." }
  seen:   { shape: [batch], dtype: i32, access: read_write, doc: "How often each row was seen." }
params:
  factor: { type: f32, default: 2, doc: "A factor." }
outputs:
  output: { shape: [batch, width], dtype: T, doc: "The product." }
equivalence: { exact: true }
workloads:
  small: { batch: 4, width: 2, T: f32 }
"""


@pytest.fixture(scope="module")
def rows():
    """An operation whose only kernel takes at most four rows, and the number of rows of each kernel call."""
    operation, sizes = lz.register_operation(OPERATION), []

    @lz.register_kernel(
        operation="test.rows", id="parts.rows", backend="parts", limits={"batch <= 4": "CUDA_GRID_DIM_EXCEEDED"}
    )
    def kernel(x, weight, seen, *, factor, out=None):
        sizes.append(len(x))
        seen += 1
        if out is None:
            return x * weight * np.float32(factor)
        np.multiply(x * weight, np.float32(factor), out=out[0] if isinstance(out, tuple) else out)
        return out

    yield operation, sizes
    lz.unregister_backend("parts")


def arguments(batch):
    return np.arange(batch * 2, dtype=np.float32).reshape(batch, 2), np.array([1, 3], np.float32), np.zeros(batch, np.int32)


def test_split_call_gives_the_whole_result_and_warns_once(rows):
    operation, sizes = rows
    x, weight, seen = arguments(10)
    with pytest.warns(RuntimeWarning, match=r"test\.rows: .*batch 10 is split into 4 parts of up to 3, run by parts\.rows"):
        y = operation(x, weight, seen, factor=5.0)
    np.testing.assert_array_equal(y, x * weight * np.float32(5))
    assert sizes == [3, 3, 3, 1] and seen.tolist() == [1] * 10
    assert type(y) is np.ndarray and y.flags.c_contiguous
    out = np.zeros_like(x)
    assert operation(x, weight, seen, factor=5.0, out=out) is out
    np.testing.assert_array_equal(out, y)
    assert seen.tolist() == [2] * 10


def test_locked_operation_is_not_split(rows):
    operation, _ = rows
    lz.lock("test.rows", "parts.rows")
    try:
        with pytest.raises(lz.NoKernelFoundError, match="CUDA_GRID_DIM_EXCEEDED"):
            operation(*arguments(10))
    finally:
        lz.unlock("test.rows")


def test_catalog_operation_is_split_too():
    sizes = []

    @lz.register_kernel(operation="norm.rms", id="parts.norm", backend="parts.norm", limits={"rows <= 8": "CUDA_GRID_DIM_EXCEEDED"})
    def rms(x, weight, *, eps, weight_offset):
        sizes.append(x.shape)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)

    x = np.random.default_rng(0).normal(size=(5, 4, 8)).astype(np.float32)
    whole = lz.ops.norm_rms(x)
    assert sizes == []
    lz.configure(allow=["parts.norm"])
    try:
        with pytest.warns(RuntimeWarning, match="rows 5 is split into 5 parts of up to 1"):
            parts = lz.ops.norm_rms(x)
        np.testing.assert_allclose(parts, whole, rtol=1e-5)
        assert sizes == [(1, 4, 8)] * 5
        # Buffers cannot be sliced without a copy, so the call cannot be split.
        with pytest.raises(lz.NoKernelFoundError):
            lz.ops.norm_rms(memoryview(x))
    finally:
        lz.configure(allow=[])
        lz.unregister_backend("parts.norm")
