"""Blocks of operations, quantization formats, and pairs of draft and target models."""

import contextlib
import json

import subprocess
import sys

import numpy as np
import pytest

import layerzero as lz

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(4, 32)).astype(np.float32)
WEIGHT = RANDOM.normal(size=32).astype(np.float32)
MATRIX = RANDOM.normal(size=(16, 32)).astype(np.float32)
BLOCK = [("norm.rms", {"x": X, "weight": WEIGHT}), ("mlp.linear", {"weight": MATRIX}), ("activation.silu", {})]


@contextlib.contextmanager
def settings(**values):
    """Changes settings for a block; dots are written as two underscores."""
    before = {}
    for name, value in values.items():
        key = name.replace("__", ".")
        before[key] = lz.config()[key].value
        lz.configure({key: value})
    try:
        yield
    finally:
        for key, value in before.items():
            with contextlib.suppress(json.JSONDecodeError):
                value = json.loads(value)
            lz.configure({key: value})


def codes(error):
    return {reason.code for reason in error.value.reasons}


def each():
    """The result of calling each operation."""
    return lz.ops.activation_silu(lz.ops.mlp_linear(lz.ops.norm_rms(X, WEIGHT), MATRIX))


def test_a_block_is_planned_jointly():
    plan = lz.plan_block(BLOCK)
    steps = plan.data["joint"]["steps"]
    assert [name for step in steps for name in step["operations"]] == [name for name, _ in BLOCK]
    assert plan.data["joint"]["total"] <= plan.data["greedy"]["total"]
    assert steps[0]["kernel"] in str(plan) and "3 operations" in str(plan)
    with lz.disabled():
        kernels = [step["kernel"] for step in lz.plan_block(BLOCK).data["joint"]["steps"]]
    assert kernels == [f"reference.{name}" for name, _ in BLOCK]


def test_a_block_returns_what_the_calls_return():
    run = lz.run_block(BLOCK)
    np.testing.assert_allclose(run.outputs, each(), rtol=1e-5, atol=1e-6)
    assert run.plan is None and run.kernels == (None, None, None)
    with settings(plan_mode=True):
        planned = lz.run_block(BLOCK)
    np.testing.assert_allclose(planned.outputs, each(), rtol=1e-5, atol=1e-6)
    kernels = [step["kernel"] for step in planned.plan.data["joint"]["steps"] for _ in step["operations"]]
    assert list(planned.kernels) == kernels


def test_kernels_written_in_python_do_not_run_in_a_block():
    @lz.register_kernel(operation="activation.silu", id="mine.silu", backend="mine", priority=100)
    def silu(x, *, alpha):
        raise AssertionError("this kernel needs objects that a block does not have")

    try:
        assert lz.which("activation.silu", X).kernel_id == "mine.silu"
        with settings(plan_mode=True):
            run = lz.run_block(BLOCK)
        assert None not in run.kernels and "mine.silu" not in run.kernels
    finally:
        lz.unregister_backend("mine")
    np.testing.assert_allclose(run.outputs, each(), rtol=1e-5, atol=1e-6)


def test_other_dtypes_between_operations_must_be_allowed():
    takes = {step["takes"] for step in lz.plan_block(BLOCK).data["joint"]["steps"]}
    assert takes == {"f32"}
    assert lz.plan_block(BLOCK, dtypes=["bfloat16"]).data["joint"]["steps"]
    with pytest.raises(ValueError, match="unknown dtype `float7`"):
        lz.plan_block(BLOCK, dtypes=["float7"])


def test_the_policy_allows_wider_dtypes():
    """A kernel that has f32 only serves a block in f16 if the policy allows it, and if that is worth the conversions."""
    block = [("activation.silu", {"x": X.astype(np.float16)}), ("activation.relu", {})]
    stated = {"dtypes": ["f32"], "requires_layouts": ["any"], "min_sm": None, "priority": 99, "params": ["alpha"]}

    @lz.register_kernel(operation="activation.silu", id="wide.activation.silu", backend="wide", platform="cuda", capabilities=stated)
    def silu(x, *, alpha):
        raise AssertionError("only planned")

    def steps():
        return lz.plan_block(block, device="h100").data["joint"]["steps"]

    # Without faster kernels for f16.
    lz.configure(deny=["torch", "triton", "liger", "flashinfer"])
    try:
        assert [step["takes"] for step in steps()] == ["f16", "f16"]
        with settings(plan_wider_dtypes=True):
            first, second = steps()
            assert str(lz.plan_block(block, device="h100")).count("f16 \N{RIGHTWARDS ARROW} f32 in wide.activation.silu") == 1
        assert (first["kernel"], first["takes"], second["takes"]) == ("wide.activation.silu", "f32", "f32")
        assert (first["conversion"]["by"], first["conversion"]["cost"]) == ("wide.activation.silu", 30.0)
    finally:
        lz.configure(deny=[])
        lz.unregister_backend("wide")


def test_the_policy_allows_dequantization():
    """A kernel for dense weights serves a quantized layer that otherwise only a reference could run."""
    rng = np.random.default_rng(0)
    weight, scale = lz.ops.quantize(rng.standard_normal((8, 32), np.float32), format="int4", granularity="block", block_size=16)
    given = {"x": X, "weight": weight, "scale": scale, "format": "int4", "granularity": "block", "block_size": 16}
    block = [("mlp.linear.weight_only", given), ("activation.silu", {})]
    stated = {"dtypes": ["f32"], "requires_layouts": ["any"], "min_sm": None, "priority": 90, "params": ["activation"]}

    @lz.register_kernel(operation="mlp.linear", id="dense.mlp.linear", backend="dense", platform="cuda", capabilities=stated)
    def linear(x, weight, bias, *, activation):
        raise AssertionError("only planned")

    def first():
        return lz.plan_block(block, device="h100").data["joint"]["steps"][0]

    lz.configure(deny=["torch", "triton", "liger", "flashinfer"])
    try:
        assert first()["kernel"] != "dense.mlp.linear" and "dequantization" not in first()
        with settings(plan_dequantization=True):
            step = first()
            assert "dequantize weight for mlp.linear, cost 30.0" in str(lz.plan_block(block, device="h100"))
            with settings(allow_adaptation=False):
                assert first()["kernel"] != "dense.mlp.linear"
        assert step["kernel"] == "dense.mlp.linear" and step["operations"] == ["mlp.linear.weight_only"]
        assert step["dequantization"] == {"inputs": ["weight"], "operation": "mlp.linear", "cost": 30.0}
    finally:
        lz.configure(deny=[])
        lz.unregister_backend("dense")


def test_a_block_is_planned_for_another_device():
    # In this process other tests may have disabled backends.
    code = """
import numpy as np
import layerzero as lz
from layerzero import backends

backends._version = lambda distribution: "2.15.0" if distribution == "torch" else None
backends._exists = lambda module: True
x, weight = np.ones((4, 64), np.float32), np.ones(64, np.float32)
block = [("norm.rms", {"x": x, "weight": weight}), ("activation.silu", {})]
kernels = [step["kernel"] for step in lz.plan_block(block, device="h100").data["joint"]["steps"]]
assert kernels and all(kernel.startswith("torch.") for kernel in kernels), kernels
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_invalid_blocks_are_refused():
    with pytest.raises(ValueError, match="at least one call"):
        lz.run_block([])
    with pytest.raises(ValueError, match="remove out="):
        lz.run_block([("activation.silu", {"x": X, "out": X})])
    with pytest.raises(KeyError, match="unknown operation"):
        lz.plan_block([("activation.silo", {"x": X})])
    with pytest.raises(lz.ValidationError) as error:
        lz.run_block([("norm.rms", {"x": X, "weight": WEIGHT[:3]})])
    assert codes(error) == {"AXIS_MISMATCH"}
    read_only = X.copy()
    read_only.flags.writeable = False
    assert lz.run_block([("activation.silu", {"x": read_only})]).outputs.shape == X.shape


def formats(*names):
    return {name: ("quantize", {"x": X, "format": name, "granularity": "block"}) for name in names}


def test_formats_are_selected_by_accuracy_and_speed():
    choice = lz.choose_format(formats("mxfp4", "int8"))
    assert choice.format == "int8" and not choice.requantize
    assert choice.kernel_id == lz.which("quantize", X, format="int8", granularity="block").kernel_id
    with settings(quant_formats__allow_format_fallback=False):
        assert lz.choose_format(formats("mxfp4", "int8")).format == "mxfp4"
    with settings(quant_formats__max_accuracy_drop_percent=1.0), pytest.raises(lz.NoKernelFoundError) as error:
        lz.choose_format(formats("mxfp4"))
    assert codes(error) == {"QUANT_ACCURACY_THRESHOLD_EXCEEDED"}
    with pytest.raises(lz.NoKernelFoundError) as error:
        lz.choose_format(formats("int8"), stored="int4")
    assert codes(error) == {"REQUANTIZATION_REQUIRED"}
    with settings(quant_formats__requantization_enabled=True):
        assert lz.choose_format(formats("int8"), stored="int4").requantize


def decode(heads):
    q = np.zeros((1, heads, 16), np.float32)
    cache = np.zeros((1, 8, heads, 16), np.float32)
    return ("attention.standard.decode", {"q": q, "k": cache, "v": cache})


def test_draft_and_target_are_selected_together():
    pair = lz.speculative_pair(decode(2), decode(4))
    assert pair.draft == lz.which(decode(2)[0], **decode(2)[1]).kernel_id
    assert pair.target == lz.which(decode(4)[0], **decode(4)[1]).kernel_id
    assert lz.speculative_pair(decode(2), decode(4)) == pair, "from the cache"
    with pytest.raises(lz.ValidationError) as error:
        lz.speculative_pair(decode(2), decode(4), pipeline_stages=(1, 2))
    assert codes(error) == {"SPEC_DECODE_PP_INCOMPATIBLE"}
    with settings(speculative_decoding__algorithm="eagle"), pytest.raises(lz.NoKernelFoundError) as error:
        lz.speculative_pair(decode(2), decode(4))
    assert "SPEC_DECODE_ALGORITHM_UNSUPPORTED" in codes(error)
    with settings(speculative_decoding__draft_tp_size=4), pytest.raises(lz.ValidationError) as error:
        lz.speculative_pair(decode(2), decode(4))
    assert codes(error) == {"SPEC_DECODE_DRAFT_TP_CONSTRAINT"}


def test_the_number_of_drafted_tokens_depends_on_the_batch():
    assert [lz.speculative_tokens(batch) for batch in (1, 16, 1000)] == [5, 2, 1]
    with settings(speculative_decoding__num_speculative_tokens=8, speculative_decoding__adaptive_speculation=False):
        assert lz.speculative_tokens(1000) == 8


FORMATS = {"int8": ("channel", "block"), "int4": ("channel", "block"), "fp8_e4m3": ("channel", "block"), "mxfp4": ("block",), "nvfp4": ("block",)}


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(("format", "granularity"), [(format, one) for format, several in FORMATS.items() for one in several])
def test_a_norm_fuses_the_quantization_of_its_result(format, granularity, adds):
    """One native kernel runs both operations, with the codes and scales of the separate calls."""
    pytest.importorskip("ml_dtypes")
    generator = np.random.default_rng(1)
    x, before = (generator.normal(size=(5, 96)).astype(np.float32) for _ in range(2))
    results = {}
    for plan_mode in (False, True):
        residual = before.copy()
        norm = ("norm.rms.add", {"x": x, "residual": residual}) if adds else ("norm.rms", {"x": x})
        with settings(plan_mode=plan_mode):
            ran = lz.run_block([norm, ("quantize", {"format": format, "granularity": granularity})])
        results[plan_mode] = [np.asarray(one).view(np.uint8) for one in (*ran.outputs, residual)]
        if plan_mode:
            assert ran.kernels[0] == ran.kernels[1] and ran.kernels[0].startswith("cpu.norm.rms"), ran.kernels
    for found, expected in zip(results[True], results[False], strict=True):
        np.testing.assert_array_equal(found, expected)
