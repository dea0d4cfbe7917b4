"""torch's functions as kernels: each is compared with the reference, on the host, for every call that it claims."""

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from samples import samples  # noqa: E402

import layerzero as lz  # noqa: E402
from layerzero import backends  # noqa: E402
from layerzero.backends import _verified  # noqa: E402

DESCRIPTOR = json.loads((Path(backends.__file__).parent / "torch.cpu.json").read_text())
KERNELS = [(kernel["kernel_id"], operation) for operation, all in DESCRIPTOR["ops"].items() for kernel in all]
ATTENTION = [(id, operation) for id, operation in KERNELS if ".sdpa." in id]
DTYPES = {
    kernel["kernel_id"]: kernel.get("dtypes_by_variable", {}).get("T", kernel["dtypes"])
    for all in DESCRIPTOR["ops"].values()
    for kernel in all
}
NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def flat(value):
    return value if isinstance(value, tuple) else () if value is None else (value,)


def check(operation, kernel, make):
    """Results of the kernel and of the reference; `make` creates fresh arguments each time."""
    function = getattr(lz.ops, operation.replace(".", "_"))
    found = []
    for chosen in (kernel, f"reference.{operation}"):
        arguments, keywords = make()
        lz.lock(operation, chosen)
        try:
            found.append([*flat(function(*arguments, **keywords)), *arguments])
        finally:
            lz.unlock(operation)
    for actual, expected in zip(*found, strict=True):
        if isinstance(actual, torch.Tensor) and actual.is_floating_point():
            tolerance = TOLERANCE[actual.dtype]
            torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_all_kernels_are_registered():
    ids = {kernel["id"] for kernel in lz.list_kernels(backend="torch") if kernel["platform"] == "cpu"}
    assert ids == {id for id, _ in KERNELS}
    assert all(kernel["hosted"] for kernel in lz.list_kernels(backend="torch"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("kernel", "operation"), KERNELS)
def test_sample_of_each_operation(kernel, operation, dtype):
    if "onednn" in kernel and dtype == torch.float16 and not torch.ops.mkldnn._is_mkldnn_fp16_supported():
        pytest.skip("oneDNN has no float16 on this processor, and the kernel declines")

    if NAMES[dtype] not in DTYPES[kernel]:
        pytest.skip("the kernel does not claim this dtype")

    def make():
        arguments, keywords = samples()[operation.replace(".", "_")]
        keywords = {key: value for key, value in keywords.items() if key not in ("return_lse",)}

        def tensor(value):
            if not isinstance(value, np.ndarray):
                return value
            value = torch.from_numpy(value.copy())
            return value.to(dtype) if value.dtype == torch.float32 and not single else value

        single = False
        made = []
        for at, value in enumerate(arguments):
            # The lse of partial results and the scales of weights are float32 whatever the dtype of the values.
            single = (operation, at) in (("attention.state.merge", 1), ("mlp.linear.weight_only", 2))
            made.append(tensor(value))
        single = False
        return made, {key: tensor(value) for key, value in keywords.items()}

    check(operation, kernel, make)


def prefill_cases():
    yield "plain", {}
    yield "causal", {"causal": True}
    yield "causal at the first key", {"causal": True, "causal_offset": 0}
    yield "causal with an offset", {"causal": True, "causal_offset": 2}
    yield "scale", {"sm_scale": 0.3}
    yield "bool mask", {"mask": "bool"}
    yield "bool mask and causal", {"mask": "bool", "causal": True}
    yield "float mask", {"mask": "float"}
    yield "a row that sees nothing", {"mask": "blind"}
    yield "window", {"window_left": 2, "window_right": 1}
    yield "slopes", {"alibi_slopes": "slopes", "causal": True}
    yield "heads first", {"layout": "BHSD"}
    yield "heads first and causal", {"layout": "BHSD", "causal": True}


def prefills():
    """Each kernel with each case of its operation; cross attention has no causal order."""
    for kernel, operation in ATTENTION:
        for name, case in prefill_cases():
            ordered = case.keys() - {"mask", "sm_scale", "layout"}
            if operation.endswith("prefill") and not (ordered and "cross" in operation):
                yield pytest.param(kernel, operation, case, id=f"{kernel}-{name}")


@pytest.mark.parametrize(("kernel", "operation", "chosen"), list(prefills()))
def test_attention_of_a_prefill(kernel, operation, chosen):
    kv_heads = 4 if "standard" in operation else 2

    def make():
        generator = torch.Generator().manual_seed(1)

        def draw(*shape):
            return torch.randn(*shape, generator=generator)

        q, k, v = draw(2, 5, 4, 8), draw(2, 7, kv_heads, 8), draw(2, 7, kv_heads, 8)
        keywords = dict(chosen)
        if keywords.get("layout") == "BHSD":
            q, k, v = (tensor.transpose(1, 2).contiguous() for tensor in (q, k, v))
        mask = keywords.pop("mask", None)
        if mask == "bool":
            keywords["mask"] = draw(2, 1, 5, 7) > -0.5
        elif mask == "float":
            keywords["mask"] = draw(5, 7)
        elif mask == "blind":
            keywords["mask"] = torch.ones(5, 7, dtype=torch.bool).tril(-1)
        if keywords.get("alibi_slopes"):
            keywords["alibi_slopes"] = torch.tensor([0.5, 0.25, 0.125, 0.0625])
        return (q, k, v), keywords

    check(operation, kernel, make)


@pytest.mark.parametrize(("kernel", "operation"), [one for one in ATTENTION if one[1].endswith("decode")])
def test_attention_of_a_decode_step_with_lengths(kernel, operation):
    kv_heads = 4 if "standard" in operation else 2

    def make():
        generator = torch.Generator().manual_seed(2)
        q = torch.randn(3, 4, 8, generator=generator)
        k, v = (torch.randn(3, 6, kv_heads, 8, generator=generator) for _ in range(2))
        return (q, k, v), {"kv_lens": torch.tensor([6, 1, 3], dtype=torch.int32)}

    check(operation, kernel, make)


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize(("kernel", "operation"), [one for one in ATTENTION if "cross" in one[1]])
def test_cross_attention_with_lengths_and_a_mask(kernel, operation, kind):
    queries = () if operation.endswith("decode") else (5,)

    def make():
        generator = torch.Generator().manual_seed(3)
        q = torch.randn(3, *queries, 4, 8, generator=generator)
        k, v = (torch.randn(3, 6, 2, 8, generator=generator) for _ in range(2))
        mask = torch.randn(3, 4, *queries, 6, generator=generator)
        mask = mask > -1 if kind == "bool" else mask
        return (q, k, v), {"kv_lens": torch.tensor([6, 0, 3], dtype=torch.int32), "mask": mask}

    check(operation, kernel, make)


def test_unsupported_calls_are_declined_with_reasons():
    q = torch.randn(1, 3, 2, 8)
    explanation = lz.explain("attention.standard.prefill", q, q, q, soft_cap=2.0, return_lse=True)
    candidates = {one["kernel"]: one for one in explanation.to_dict()["candidates"]}
    codes = {reason["code"] for reason in candidates["torch.sdpa.math.standard.prefill"]["reasons"]}
    assert {"SOFTCAP_UNSUPPORTED", "LSE_UNSUPPORTED"} <= codes


def test_callers_sdpa_kernel_is_respected():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.randn(1, 4, 2, 8)
    operation, flash = "attention.standard.prefill", "torch.sdpa.flash.standard.prefill"
    lz.lock(operation, flash)
    try:
        lz.ops.attention_standard_prefill(q, q, q)
        with sdpa_kernel(SDPBackend.MATH), pytest.raises(lz.LayerZeroError) as caught:
            lz.ops.attention_standard_prefill(q, q, q)
        assert "is disabled" in str(caught.value.__cause__)
    finally:
        lz.unlock(operation)
    assert torch.backends.cuda.flash_sdp_enabled()


@pytest.mark.parametrize("activation", ["none", "relu", "silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_onednn_applies_activations_itself(activation, dtype):
    def make():
        torch.manual_seed(0)
        x, weight, bias = torch.randn(2, 3, 16), torch.randn(8, 16), torch.randn(8)
        return [x.to(dtype), weight.to(dtype), bias.to(dtype)], {"activation": activation}

    check("mlp.linear", "torch.onednn.mlp.linear", make)


@pytest.mark.parametrize("activation", ["none", "relu", "silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("shape", [(1, 64, 32), (2, 3, 80, 17), (9, 16, 1), (33, 144, 48)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear_with_int8_weights(activation, shape, with_bias):
    *rows, depth, features = shape

    def make():
        torch.manual_seed(0)
        weight = torch.randint(-128, 128, (features, depth), dtype=torch.int8)
        scale = torch.rand(features) / (70 * depth**0.5)
        keywords = {"bias": torch.randn(features).bfloat16()} if with_bias else {}
        return [torch.randn(*rows, depth).bfloat16(), weight, scale], {"format": "int8", "activation": activation, **keywords}

    check("mlp.linear.weight_only", "torch.mlp.linear.weight_only", make)


def test_unsupported_weights_are_declined_with_the_reason():
    x, scale = torch.randn(2, 64).bfloat16(), torch.ones(16)
    weight, panels = torch.ones(16, 64, dtype=torch.int8), torch.ones(1, 16, 16, 4, dtype=torch.int8)
    halves, blocks = torch.ones(16, 32, dtype=torch.uint8), torch.ones(16, 2)
    refused = [
        ("QUANT_FORMAT_UNSUPPORTED", (x, halves, scale), {"format": "int4"}),
        ("QUANT_GRANULARITY_UNSUPPORTED", (x, weight, blocks), {"format": "int8", "granularity": "block"}),
        ("LAYOUT_UNSUPPORTED", (x, panels, scale), {"format": "int8", "weight_layout": "panels"}),
        ("AXIS_LIMIT", (x[:, :24].contiguous(), weight[:, :24].contiguous(), scale), {"format": "int8"}),
        ("DTYPE_UNSUPPORTED", (x.float(), weight, scale), {"format": "int8"}),
        ("OPTIONAL_INPUT_UNSUPPORTED", (x, weight, scale, torch.zeros(16, dtype=torch.int32)), {"format": "int8"}),
    ]
    for code, arguments, keywords in refused:
        explained = lz.explain("mlp.linear.weight_only", *arguments, **keywords).to_dict()["candidates"]
        reasons = {one["kernel"]: one["reasons"] for one in explained}["torch.mlp.linear.weight_only"]
        assert code in {reason["code"] for reason in reasons}, (code, reasons)


def test_disabled_onednn_declines_and_doctor_reports_it():
    def state():
        return {one["name"]: one["state"] for one in lz.doctor().to_dict()["libraries"]}

    x, weight = torch.randn(2, 16), torch.randn(8, 16)
    assert state() == {"oneDNN": "ok", "ZenDNN": "absent"}
    lz.lock("mlp.linear", "torch.onednn.mlp.linear")
    try:
        with torch.backends.mkldnn.flags(enabled=False):
            assert state()["oneDNN"] == "disabled"
            with pytest.raises(lz.LayerZeroError, match="is disabled"):
                lz.ops.mlp_linear(x, weight)
        # The caller's setting is not a failure of the kernel.
        torch.testing.assert_close(lz.ops.mlp_linear(x, weight), F.linear(x, weight))
    finally:
        lz.unlock("mlp.linear")


def test_out_is_filled_for_kernels_that_do_not_take_it():
    x, w = torch.randn(4, 16), torch.randn(16)
    out = torch.empty_like(x)
    lz.lock("norm.rms", "torch.norm.rms")
    try:
        assert lz.ops.norm_rms(x, w, out=out) is out
    finally:
        lz.unlock("norm.rms")
    torch.testing.assert_close(out, F.rms_norm(x, (16,), w, 1e-6))


def test_doctor_reports_verified_platforms():
    found = {one["name"]: one for one in lz.doctor().to_dict()["backends"]}
    assert found["torch"]["available"]
    on_gpu = _verified.verification("torch")
    assert found["torch"]["verified"] == (["cpu", "cuda"] if on_gpu.is_verified else ["cpu"])
    if not on_gpu.is_verified:
        assert found["torch"]["reason"] == f"unverified on cuda: {on_gpu.reason}"


def test_arrays_are_viewed_without_a_copy():
    x = np.random.default_rng(0).normal(size=(4, 16)).astype(np.float32)
    residual, before = np.ones_like(x), x.copy()
    lz.lock("norm.rms.add", "torch.norm.rms.add")
    try:
        y = lz.ops.norm_rms_add(x, residual)
    finally:
        lz.unlock("norm.rms.add")
    assert type(y) is np.ndarray
    np.testing.assert_allclose(residual, before + 1, rtol=1e-6)
