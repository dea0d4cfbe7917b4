"""Plans over torch tensors with torch kernels, and compiled graphs of operations that can be planned."""

import copy

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import layerzero as lz  # noqa: E402


def test_plan_runs_a_torch_kernel():
    q = torch.randn(1, 4, 2, 8)
    lz.lock("attention.standard.prefill", "torch.sdpa.math.standard.prefill")
    try:
        plan = lz.ops.attention_standard_prefill.plan(q, q, q, causal=True)
        assert plan.kernel == "torch.sdpa.math.standard.prefill"
        expected = F.scaled_dot_product_attention(*[q.transpose(1, 2)] * 3, is_causal=True).transpose(1, 2)
        torch.testing.assert_close(plan.run(q, q, q, causal=True), expected)
    finally:
        lz.unlock("attention.standard.prefill")
    torch.testing.assert_close(plan.run(q, q, q, causal=True), expected)


def test_plan_validates_tensors_like_a_call():
    x = torch.randn(4, 16)
    plan = lz.ops.norm_rms.plan(x)
    torch.testing.assert_close(plan.run(x), F.rms_norm(x, (16,), eps=1e-6))
    out = torch.empty_like(x)
    assert plan.run(x, out=out) is out
    with pytest.raises(lz.ValidationError, match="requires grad"):
        plan.run(torch.randn(4, 16, requires_grad=True))
    with pytest.raises(lz.ValidationError, match="OUTPUT_OVERLAP"):
        rows = torch.randn(5, 16)
        plan.run(rows[1:], out=rows[:4])
    same = x.clone()
    assert plan.run(same, out=same) is same
    torch.testing.assert_close(same, plan.run(x))
    with pytest.raises(lz.ValidationError, match="PLAN_MISMATCH"):
        plan.run(x.bfloat16())


def test_fake_tensors_have_no_plans():
    from torch._subclasses.fake_tensor import FakeTensorMode

    plan = lz.ops.norm_rms.plan(torch.randn(4, 16))
    with FakeTensorMode():
        fake = torch.empty(4, 16)
    with pytest.raises(lz.LayerZeroError):
        lz.ops.norm_rms.plan(fake)
    with pytest.raises(lz.LayerZeroError):
        plan.run(fake)
    assert lz.ops.norm_rms(fake).shape == (4, 16)


def test_call_that_is_too_large_is_split():
    sizes = []

    @lz.register_kernel(operation="norm.rms", id="torchparts.norm", backend="torchparts", limits={"rows <= 4": "CUDA_GRID_DIM_EXCEEDED"})
    def rms(x, weight, *, eps, weight_offset):
        sizes.append(len(x))
        return F.rms_norm(x, x.shape[-1:], weight, eps)

    x, weight = torch.randn(10, 16), torch.randn(16)
    lz.configure(deny=["cpu", "reference", "torch"])
    try:
        with pytest.warns(RuntimeWarning, match="rows 10 is split into 4 parts of up to 3"):
            y = lz.ops.norm_rms(x, weight)
        torch.testing.assert_close(y, F.rms_norm(x, (16,), weight, 1e-6))
        assert sizes == [3, 3, 3, 1]
    finally:
        lz.configure(deny=[])
        lz.unregister_backend("torchparts")


def test_dynamo_treats_operations_as_builtin_functions():
    @torch.compile(fullgraph=True, backend="eager")
    def block(x, w):
        norm = lz.ops.norm_rms
        return norm(x, w, eps=1e-5) + 1

    x, w = torch.randn(4, 16), torch.randn(16)
    torch.testing.assert_close(block(x, w), F.rms_norm(x, (16,), w, 1e-5) + 1)
    assert copy.deepcopy(lz.ops.norm_rms) is lz.ops.norm_rms
