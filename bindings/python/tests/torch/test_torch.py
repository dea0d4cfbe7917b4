"""torch tensors: outputs of the same kind, `out=`, and tensors that must not reach a kernel."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import layerzero as lz  # noqa: E402


def reference(x, weight=None, eps=1e-6):
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def tensors():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, 64, generator=generator), torch.randn(64, generator=generator)


def refused(code, *arguments, **keywords):
    with pytest.raises(lz.ValidationError, match=code) as caught:
        lz.ops.norm_rms(*arguments, **keywords)
    return caught.value


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_results_are_torch_tensors_of_the_same_dtype(dtype):
    x, w = (tensor.to(dtype) for tensor in tensors())
    y = lz.ops.norm_rms(x, w)
    assert type(y) is torch.Tensor and y.dtype == dtype and y.shape == x.shape and y.is_contiguous()
    torch.testing.assert_close(y.float(), reference(x.float(), w.float()), rtol=1e-2, atol=1e-2)


def test_torch_without_the_stable_abi_allocates_with_new_empty():
    """torch before 2.14 is not installed, so its library is hidden from a fresh process while layerzero looks it up."""
    program = """
import torch
import layerzero as lz

made, new_empty = [], torch.Tensor.new_empty

def counted(self, *arguments, **keywords):
    made.append(keywords.get("dtype", self.dtype))
    return new_empty(self, *arguments, **keywords)

torch.Tensor.new_empty = counted
path, torch.__path__ = torch.__path__, ["nowhere"]
x = torch.randn(4, 64)
y = lz.ops.norm_rms(x)
torch.__path__ = path
assert type(y) is torch.Tensor and made == [torch.float32]
assert torch.allclose(y, torch.nn.functional.rms_norm(x, (64,), None, 1e-6), atol=1e-6)
values, scale = lz.quantize(x, "int8")
assert values.dtype == torch.int8 and torch.allclose(values * scale, x, atol=float(scale))
assert made == [torch.float32, torch.int8, torch.float32]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_result_can_be_resized_and_outlives_its_inputs():
    x, w = tensors()
    y = lz.ops.norm_rms(x, w)
    expected = reference(x, w)
    del x, w
    torch.testing.assert_close(y, expected)
    y.resize_(8, 64)


def test_out_is_written_and_returned():
    x, w = tensors()
    out = torch.zeros_like(x)
    assert lz.ops.norm_rms(x, w, out=out) is out
    torch.testing.assert_close(out, reference(x, w))
    assert lz.ops.norm_rms(x, w, out=(out,)) is out


def test_strided_views_are_read_in_place():
    base = torch.randn(8, 6, 4)
    for x in (base[::2], base.permute(2, 1, 0), base[..., 1:3], base[:1].expand(8, 6, 4)):
        torch.testing.assert_close(lz.ops.norm_rms(x), reference(x))


def test_out_may_be_an_input_but_not_overlap_a_part_of_it():
    x, w = tensors()
    refused("OUTPUT_OVERLAP", x[1:], w, out=x[:3])
    expected = reference(x, w)
    view = x.view(x.shape)
    assert lz.ops.norm_rms(x, w, out=view) is view
    torch.testing.assert_close(x, expected)


def test_parameters_and_inference():
    x, w = tensors()
    parameter = torch.nn.Parameter(w)
    expected = reference(x, w)
    error = refused("weight: it requires grad", x, parameter)
    assert error.reasons[0].argument == "weight" and error.reasons[0].code == "ARGUMENT_KIND"
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(lz.ops.norm_rms(x, parameter), expected)
    frozen = torch.nn.Parameter(w, requires_grad=False)
    torch.testing.assert_close(lz.ops.norm_rms(x, frozen), expected)


def test_requires_grad_is_refused_only_while_autograd_is_enabled():
    x, w = tensors()
    x.requires_grad_()
    assert refused("requires grad", x, w).reasons[0].argument == "x"
    assert refused("requires grad", x[:2] * 2, w).reasons[0].argument == "x"
    torch.testing.assert_close(lz.ops.norm_rms(x.detach(), w), reference(x, w).detach())
    with torch.no_grad():
        torch.testing.assert_close(lz.ops.norm_rms(x, w), reference(x, w))
        torch.testing.assert_close(lz.ops.norm_rms(x[:2], w), reference(x[:2], w))


def test_fake_tensors_never_reach_a_kernel():
    from torch._subclasses.fake_tensor import FakeTensorMode

    x, w = tensors()
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        # No kernel runs: torch infers the output.
        promised = lz.ops.norm_rms(fake, mode.from_tensor(w))
        assert type(promised) is type(fake) and promised.shape == x.shape and promised.dtype == x.dtype
        y = lz.ops.norm_rms(x, w)
    # Real tensors give real results in any mode.
    assert type(y) is torch.Tensor
    torch.testing.assert_close(y, reference(x, w))
    assert refused("ARGUMENT_KIND", x, w, out=fake).reasons[0].argument == "output"


def test_negated_and_conjugated_views_are_refused():
    z = torch.complex(torch.randn(4, 64), torch.randn(4, 64))
    negated = z.conj().imag
    assert negated.is_neg()
    assert "x: it is a view" in str(refused("resolve_neg", negated))
    torch.testing.assert_close(lz.ops.norm_rms(negated.resolve_neg()), reference(negated.resolve_neg()))
    refused("DTYPE_UNSUPPORTED", z)
    refused("DTYPE_UNSUPPORTED", z.conj())
    refused("DTYPE_UNSUPPORTED", torch.zeros(4, dtype=torch.complex64))


def test_tensors_without_plain_memory_are_refused():
    refused("ARGUMENT_KIND", torch.zeros(2, 4, device="meta"))
    refused("ARGUMENT_KIND", torch.eye(4).to_sparse())
    with pytest.raises(lz.ValidationError, match="NESTED_TENSOR_UNSUPPORTED|ARGUMENT_KIND"):
        lz.ops.norm_rms(torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)]))
    refused("NULL_DATA", torch._efficientzerotensor((2, 4)))


def test_subclasses_are_tensors_unless_they_implement_torch_dispatch():
    class Named(torch.Tensor):
        pass

    x, w = tensors()
    torch.testing.assert_close(lz.ops.norm_rms(x.as_subclass(Named), w), reference(x, w))

    class Wrapping(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            functions.append(function)
            return torch.zeros(4, 64)

    functions = []
    wrapping = torch.Tensor._make_wrapper_subclass(Wrapping, (4, 64))
    assert not lz.ops.norm_rms(wrapping, w).any()
    assert functions == [torch.ops.layerzero.norm_rms.default]
    with pytest.raises(lz.ValidationError, match="__torch_dispatch__"):
        lz.which("norm.rms", wrapping, w)


def test_mixed_kinds_are_refused_by_name():
    x, w = tensors()
    assert refused("numpy array", x, w.numpy()).reasons[0].argument == "weight"
    assert refused("torch tensor", x.numpy(), w).reasons[0].argument == "weight"
    assert refused("numpy array", x, w, out=x.numpy().copy()).reasons[0].argument == "output"


def test_small_float_formats_roundtrip():
    x = torch.randn(4, 64)
    values, *scales = lz.ops.quantize(x, format="fp8_e4m3", granularity="tensor")
    assert values.dtype == torch.float8_e4m3fn and all(type(scale) is torch.Tensor for scale in scales)


def test_attention_agrees_with_sdpa():
    q, k, v = (torch.randn(2, 5, 4, 16) for _ in range(3))
    y = lz.ops.attention_standard_prefill(q, k, v, causal=True)
    expected = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
    torch.testing.assert_close(y, expected.transpose(1, 2), rtol=1e-4, atol=1e-5)


def test_several_outputs_and_out():
    q, k, v = (torch.randn(2, 5, 4, 16) for _ in range(3))
    y, lse = lz.ops.attention_standard_prefill(q, k, v, return_lse=True)
    places = (torch.empty_like(y), torch.empty_like(lse))
    result = lz.ops.attention_standard_prefill(q, k, v, return_lse=True, out=places)
    assert result[0] is places[0] and result[1] is places[1]
    torch.testing.assert_close(places, (y, lse))
    with pytest.raises(lz.ValidationError, match="OUTPUT_MISSING"):
        lz.ops.attention_standard_prefill(q, k, v, return_lse=True, out=places[0])
    with pytest.raises(lz.ValidationError, match="OUTPUT_UNEXPECTED"):
        lz.ops.attention_standard_prefill(q, k, v, out=places)


def test_in_place_update_of_a_cache():
    cache = torch.zeros(2, 4, 1, 2)
    values = torch.ones(3, 1, 2)
    other = cache.clone()
    assert lz.ops.kv_append(values, values * 2, cache, other, torch.tensor([0, 5, -1])) is None
    assert cache.sum() == 4 and other.sum() == 8


def test_a_lazy_copy_is_copied_before_it_is_written():
    x = torch.randn(2, 4)
    kept, lazy = x.clone(), torch._lazy_clone(x)
    result = lz.ops.norm_rms(kept, out=lazy)
    assert result is lazy and torch.equal(x, kept)
    assert torch.equal(lazy, lz.ops.norm_rms(kept))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tensors_of_every_layout_are_read_correctly(dtype):
    base = torch.randn(3, 8, 6, dtype=torch.float32)
    forms = [
        base,
        base[1:],
        base[:, 2:5],
        base.transpose(0, 1),
        base[:, :, ::2],
        base[0, 0],
        base.expand(2, 3, 8, 6),
        base.reshape(3, 2, 2, 2, 2, 3),
        base[:0],
        torch.nn.Parameter(base[1]),
    ]
    with torch.inference_mode():
        forms.append(torch.randn(4, 6))
    with torch.no_grad():
        for form in forms:
            x = form.to(dtype) if form.is_contiguous() else form
            wanted = torch.nn.functional.rms_norm(x.float(), x.shape[-1:], eps=1e-6)
            torch.testing.assert_close(lz.ops.norm_rms(x).float(), wanted, rtol=2e-2, atol=2e-2)
