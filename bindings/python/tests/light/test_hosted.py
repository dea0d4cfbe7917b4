"""Python kernels, and operations loaded at run time."""

import gc
import sys

import numpy as np
import pytest

import layerzero as lz

SCALE = """
operation: test.scale
version: 1
summary: Multiplies by a number.
doc: |
  output = factor x
axes:
  dims: { role: batch, pack: true, select: ignored, fuzz: 0..4 }
types: { T: [f32, f64] }
inputs:
  x: { shape: [dims...], dtype: T, doc: "What is multiplied." }
params:
  factor: { type: f32, default: 2, doc: "The factor." }
outputs:
  output: { shape: [dims...], dtype: T, doc: "The product." }
equivalence: { close: { f32: [1e-6, 1e-6], f64: [1e-6, 1e-6] } }
workloads:
  small: { dims: [2, 3], T: f32 }
"""


@pytest.fixture
def kernels():
    """Registers kernels of a backend that is unregistered after the test."""
    yield lambda **about: lz.register_kernel(backend="test", **{"priority": 100, **about})
    lz.unregister_backend("test")


def norm(x, weight, eps):
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return y if weight is None else y * weight


def test_the_function_gets_the_callers_own_objects(kernels):
    seen = []

    @kernels(operation="norm.rms", id="test.norm.rms")
    def rms(x, weight, *, eps, weight_offset):
        seen.append((x, weight, eps, weight_offset))
        return norm(x, weight, eps)

    x, w = np.ones((2, 4), np.float32), np.full(4, 3, np.float32)
    assert lz.which("norm.rms", x, w).kernel_id == "test.norm.rms"
    y = lz.ops.norm_rms(x, w)
    assert seen[0][0] is x and seen[0][1] is w
    assert seen[0][2] == pytest.approx(1e-6) and seen[0][3] == 0.0
    np.testing.assert_allclose(y, 3, rtol=1e-5)
    lz.ops.norm_rms(x, eps=0.5)
    assert seen[1][1] is None and seen[1][2] == 0.5


def test_result_is_returned_unchanged(kernels):
    result = np.zeros((2, 4), np.float32)

    @kernels(operation="norm.rms", id="test.norm.rms")
    def rms(x, weight, *, eps, weight_offset):
        return result

    assert lz.ops.norm_rms(np.ones((2, 4), np.float32)) is result


def test_out_is_passed_on_or_copied_into(kernels):
    x, out = np.ones((2, 4), np.float32), np.zeros((2, 4), np.float32)

    @kernels(operation="norm.rms", id="test.copied", priority=99)
    def copied(x, weight, *, eps, weight_offset):
        return x * 5

    assert lz.ops.norm_rms(x, out=out) is out and out[0, 0] == 5

    @kernels(operation="norm.rms", id="test.handed")
    def handed(x, weight, *, eps, weight_offset, out=None):
        if out is None:
            return x * 7
        out[...] = x * 7
        return out

    assert lz.ops.norm_rms(x, out=out) is out and out[0, 0] == 7
    assert lz.ops.norm_rms(x)[0, 0] == 7


def test_limits_and_dtypes_restrict_a_kernel(kernels):
    @kernels(operation="norm.rms", id="test.norm.rms", dtypes=["float32"], limits=["hidden % 8 == 0"])
    def rms(x, weight, *, eps, weight_offset):
        return norm(x, weight, eps)

    assert lz.which("norm.rms", np.ones((2, 8), np.float32)).kernel_id == "test.norm.rms"
    assert lz.which("norm.rms", np.ones((2, 4), np.float32)).kernel_id != "test.norm.rms"
    assert lz.which("norm.rms", np.ones((2, 8), np.float16)).kernel_id != "test.norm.rms"
    assert "AXIS_LIMIT" in str(lz.explain("norm.rms", np.ones((2, 4), np.float32)).to_dict())


def test_function_with_a_wrong_signature_is_refused():
    with pytest.raises(lz.ConfigurationError, match="norm.rms is called with"):
        lz.register_kernel(operation="norm.rms", id="test.wrong")(lambda x: x)
    with pytest.raises(KeyError, match="did you mean"):
        lz.register_kernel(operation="norm.rm", id="test.wrong")(lambda x: x)


@pytest.mark.parametrize("form", ["keyword", "positional"])
def test_function_with_fewer_inputs_declines_calls_with_the_others(kernels, form):
    """Written before the operation had an optional input; params may also be taken by position."""
    if form == "keyword":

        def rms(x, *, eps, weight_offset):
            return x * 7
    else:

        def rms(x, eps, weight_offset):
            return x * 7

    kernels(operation="norm.rms", id="test.norm.rms")(rms)
    x, w = np.ones((2, 4), np.float32), np.full(4, 3, np.float32)
    np.testing.assert_array_equal(lz.ops.norm_rms(x), 7)
    np.testing.assert_allclose(lz.ops.norm_rms(x, w), 3, rtol=1e-5)
    candidates = {one["kernel"]: one for one in lz.explain("norm.rms", x, w).to_dict()["candidates"]}
    assert [reason["code"] for reason in candidates["test.norm.rms"]["reasons"]] == ["OPTIONAL_INPUT_UNSUPPORTED"]


def test_failing_kernel_falls_back(kernels):
    @kernels(operation="norm.rms", id="test.failing")
    def failing(x, weight, *, eps, weight_offset):
        raise RuntimeError("out of paper")

    x = np.full((2, 4), 2, np.float32)
    np.testing.assert_allclose(lz.ops.norm_rms(x), 1, rtol=1e-5)


def test_interrupts_are_not_swallowed(kernels):
    @kernels(operation="norm.rms", id="test.interrupted")
    def interrupted(x, weight, *, eps, weight_offset):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lz.ops.norm_rms(np.ones((3, 4), np.float32))


def test_kernel_may_call_operations(kernels):
    @kernels(operation="norm.rms", id="test.nested")
    def nested(x, weight, *, eps, weight_offset):
        return lz.ops.activation_relu(x)

    x = np.array([[-1.0, 2.0]], np.float32)
    assert lz.ops.norm_rms(x).tolist() == [[0.0, 2.0]]


def test_registered_operation(tmp_path, kernels):
    path = tmp_path / "scale.yaml"
    path.write_text(SCALE)
    scale = lz.register_operation(path)
    assert lz.ops.test_scale is scale and "test_scale" in dir(lz.ops)
    assert "test.scale" in lz.list_operations() and "Multiplies" in scale.__doc__
    x = np.ones((2, 3), np.float32)
    with pytest.raises(lz.NoKernelFoundError):
        scale(x)

    @kernels(operation="test.scale", id="test.scale.numpy")
    def kernel(x, *, factor):
        return x * np.float32(factor)

    assert lz.ops.test_scale(x).tolist() == (x * 2).tolist()
    out = np.empty_like(x)
    assert lz.ops.test_scale(x=x, factor=4, out=out) is out and out[0, 0] == 4
    with pytest.raises(lz.ValidationError, match="OUTPUT_OVERLAP"):
        rows = np.ones((3, 3), np.float32)
        scale(rows[1:], out=rows[:2])
    same = x.copy()
    assert scale(same, out=same) is same and same.tolist() == (x * 2).tolist()
    with pytest.raises(lz.ValidationError, match="UNKNOWN_ARGUMENT"):
        scale(x, factors=4)
    with pytest.raises(lz.ValidationError, match="DTYPE"):
        scale(x.astype(np.float16))


def test_exception_of_the_only_kernel_is_the_cause(kernels):
    if "test.scale" not in lz.list_operations():
        lz.register_operation(SCALE)

    @kernels(operation="test.scale", id="test.scale.failing")
    def failing(x, *, factor):
        raise RuntimeError("out of paper")

    with pytest.raises(lz.KernelExecutionError, match="out of paper") as caught:
        lz.ops.test_scale(np.ones(3, np.float32))
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_invalid_schema_is_reported_with_its_location():
    with pytest.raises(lz.ConfigurationError, match="shape"):
        lz.register_operation(SCALE.replace("[dims...]", "[dim...]").replace("test.scale", "test.wrong"))


def test_python_kernel_does_not_leak(kernels):
    @kernels(operation="norm.rms", id="test.norm.rms")
    def rms(x, weight, *, eps, weight_offset):
        return norm(x, weight, eps)

    x = np.ones((2, 4), np.float32)
    lz.ops.norm_rms(x)
    gc.collect()
    before = sys.getrefcount(x)
    for _ in range(1000):
        lz.ops.norm_rms(x, eps=1e-3)
    assert sys.getrefcount(x) == before


def test_lazy_kernel_is_resolved_once(kernels):
    class Lazy:
        found = 0

        def find_kernel(self):
            Lazy.found += 1
            return lambda x: x * 0 + 3

        def __call__(self, x):
            raise AssertionError("the resolved function is called instead")

    lazy = Lazy()
    kernels(operation="activation.relu", id="test.later")(lazy)
    assert Lazy.found == 0
    for _ in range(3):
        assert lz.ops.activation_relu(np.ones(2, np.float32)).tolist() == [3, 3]
    assert Lazy.found == 1


def test_lazy_kernel_that_fails_to_resolve_falls_back(kernels):
    class Lost:
        def find_kernel(self):
            raise ImportError("its library is gone")

        def __call__(self, x):
            raise AssertionError

    kernels(operation="activation.relu", id="test.lost")(Lost())
    assert lz.ops.activation_relu(np.array([-1, 2], np.float32)).tolist() == [0, 2]
