"""torch's attention called through its C ABI, and views created natively, compared with torch on the host."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

import layerzero as lz  # noqa: E402
from layerzero import _native  # noqa: E402

PARAMS = {"window_left": -1, "soft_cap": 0.0, "return_lse": False}
# torch's interfaces are looked up when its first tensor is read.
lz.ops.norm_rms(torch.ones(1, 8), torch.ones(8))


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", ["BSHD", "BHSD"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel, kv_heads", [("host", 4), ("own", 4), ("own_grouped", 2)])
def test_a_prefill_in_either_layout(kernel, kv_heads, layout, causal, dtype):
    q, k, v = (draw(2, 7, heads, 16, seed=seed, dtype=dtype) for seed, heads in enumerate((4, kv_heads, kv_heads)))
    expected = F.scaled_dot_product_attention(
        *(one.transpose(1, 2) for one in (q, k, v)), is_causal=causal, scale=0.3, enable_gqa=kv_heads < 4
    )
    if layout == "BHSD":
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    else:
        expected = expected.transpose(1, 2)
    params = {**PARAMS, "causal_offset": 0, "window_right": -1, "layout": layout}
    result = getattr(_native, f"torch_{kernel}_prefill")(q, k, v, None, causal=causal, sm_scale=0.3, **params)
    assert type(result) is torch.Tensor and not result.requires_grad
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


@pytest.mark.parametrize("layout", ["BSHD", "BHSD"])
@pytest.mark.parametrize("kernel, kv_heads", [("host", 4), ("own", 4), ("own_grouped", 2)])
def test_a_decode_step_in_either_layout(kernel, kv_heads, layout):
    q, k, v = draw(2, 4, 16), draw(2, 9, kv_heads, 16, seed=1), draw(2, 9, kv_heads, 16, seed=2)
    expected = F.scaled_dot_product_attention(
        q[:, :, None], k.transpose(1, 2), v.transpose(1, 2), enable_gqa=kv_heads < 4
    )[:, :, 0]
    if layout == "BHSD":
        k, v = k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()
    result = getattr(_native, f"torch_{kernel}_decode")(q, k, v, None, sm_scale=0.25, **PARAMS, layout=layout)
    assert result.shape == q.shape
    torch.testing.assert_close(result, expected)


def test_a_norm_with_any_weight():
    x, weight = draw(3, 5, 16), draw(16, seed=1)
    for x, weight, offset in (
        (x, weight, 0.0),
        (x, weight, 1.0),
        (x, None, 0.0),
        (x.bfloat16(), weight.bfloat16(), 0.0),
        (x.bfloat16(), weight, 0.0),
    ):
        result = _native.torch_rms_norm(x, weight, eps=1e-5, weight_offset=offset)
        factor = None if weight is None else weight.float() + offset
        expected = F.rms_norm(x.float(), (16,), factor, 1e-5).to(x.dtype)
        torch.testing.assert_close(result, expected)


def test_callers_sdpa_kernel_is_respected():
    q = draw(1, 4, 2, 8)
    params = {**PARAMS, "causal": False, "causal_offset": 0, "window_right": -1, "sm_scale": 1.0, "layout": "BSHD"}
    with sdpa_kernel(SDPBackend.MATH), pytest.raises(NotImplementedError, match="FLASH_ATTENTION is disabled"):
        _native.torch_host_prefill(q, q, q, None, **params)


def test_torch_errors_are_raised_unchanged():
    q, k = draw(1, 4, 2, 8), draw(1, 4, 2, 16)
    params = {**PARAMS, "causal": False, "causal_offset": 0, "window_right": -1, "sm_scale": 1.0, "layout": "BSHD"}
    for kernel in (_native.torch_host_prefill, _native.torch_own_prefill):
        with pytest.raises(RuntimeError):
            kernel(q, k, k, None, **params)


def test_leading_dimensions_are_reshaped_as_views():
    x = draw(2, 12, 3, 4)
    for sizes in ((24,), (6, 4), (24, 1), (1, 24)):
        made = _native.reshape_leading(x, *sizes)
        assert made.data_ptr() == x.data_ptr() and torch.equal(made, x.view(*sizes, 3, 4))
    one = draw(1, 24, 3, 4)[:, :12]
    assert torch.equal(_native.reshape_leading(one, 12), one[0]) and _native.reshape_leading(one, 12).data_ptr() == one.data_ptr()
    made = _native.reshape_leading(x[:, :1], 2)
    assert torch.equal(made, x[:, 0]) and made.data_ptr() == x.data_ptr()
    del x
    assert made.shape == (2, 3, 4) and bool(torch.isfinite(made).all()), "a view keeps its memory"


def test_dimensions_that_are_not_dense_are_copied():
    x = draw(2, 12, 3, 4)
    part = x[:, :8]
    assert torch.equal(_native.reshape_leading(part, 16), part.reshape(16, 3, 4))
    with pytest.raises(RuntimeError):
        _native.reshape_leading(x, 7)
