"""Every kind of torch tensor is read correctly or refused, through each of torch's interfaces."""

import os
import pathlib
import subprocess
import sys
import threading
import warnings

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402

HIDE_THE_STABLE_INTERFACE = "torch.__path__, path = ['nowhere'], torch.__path__"
HIDE_THE_EXCHANGE_FUNCTIONS = "del torch.Tensor.__dlpack_c_exchange_api__"


def x_and_weight():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, 64, generator=generator), torch.randn(64, generator=generator)


def reference(x, weight=None):
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, 1e-6)


def refused(code, *arguments, **keywords):
    with pytest.raises(lz.ValidationError, match=code) as caught:
        lz.ops.norm_rms(*arguments, **keywords)
    return caught.value.reasons[0].argument


def negated_views():
    x, _ = x_and_weight()
    z = torch.complex(x, x + 1)
    return {
        "imaginary part of a conjugate": z.conj().imag,
        "dense": torch._neg_view(x),
        "detached": torch._neg_view(x).detach(),
        "one row": torch._neg_view(x)[1:2],
        "strided": torch._neg_view(x).as_strided((4, 32), (64, 2)),
        "parameter": torch.nn.Parameter(torch._neg_view(x), requires_grad=False),
    }


@pytest.mark.parametrize("name", negated_views())
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_negated_views_are_refused(name, mode):
    with mode():
        view = negated_views()[name]
        assert view.is_neg()
        assert refused("resolve_neg", view) == "x"
        torch.testing.assert_close(lz.ops.norm_rms(view.resolve_neg()), reference(view))


def test_negated_views_are_refused_in_every_position():
    x, weight = x_and_weight()
    assert refused("resolve_neg", x, torch._neg_view(weight)) == "weight"
    out = torch.zeros_like(x)
    assert refused("resolve_neg", x, weight, out=torch._neg_view(out)) == "output"
    assert not out.any()


def test_tensor_that_becomes_a_negated_view_is_refused():
    x, weight = x_and_weight()
    torch.testing.assert_close(lz.ops.norm_rms(x, weight), reference(x, weight))
    x.data = torch._neg_view(x)
    assert refused("resolve_neg", x, weight) == "x"


def test_conjugated_views_and_complex_numbers_are_refused():
    z = torch.complex(*(tensor[None, :] for tensor in (x_and_weight()[1],) * 2))
    for tensor in (z, z.conj(), z.mH, torch._neg_view(z)):
        assert refused("DTYPE_UNSUPPORTED|resolve_neg|conjugate bit", tensor) == "x"


@pytest.mark.parametrize("position", ["x", "weight", "output"])
@pytest.mark.parametrize("kind", ["leaf", "result", "parameter"])
def test_tensors_that_require_grad_are_refused_while_gradients_are_enabled(position, kind):
    x, weight = x_and_weight()
    arguments = {"x": x, "weight": weight, "output": torch.zeros_like(x)}
    wanting = arguments[position].clone().requires_grad_()
    arguments[position] = {"leaf": wanting, "result": wanting * 1, "parameter": torch.nn.Parameter(wanting)}[kind]

    def call():
        return lz.ops.norm_rms(arguments["x"], arguments["weight"], out=arguments["output"])

    def check_refused():
        with pytest.raises(lz.ValidationError, match="requires grad") as caught:
            call()
        assert caught.value.reasons[0].argument == position

    check_refused()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(call().detach(), reference(x, weight))
    with torch.no_grad(), torch.enable_grad():
        check_refused()
    if position != "output":
        arguments[position] = arguments[position].detach()
        torch.testing.assert_close(call(), reference(x, weight))


def test_autograd_mode_is_read_from_the_calling_thread():
    x, weight = x_and_weight()
    x.requires_grad_()
    found = []

    def call():
        try:
            found.append(lz.ops.norm_rms(x, weight))
        except lz.ValidationError as error:
            found.append(error)

    with torch.no_grad():
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        call()
    assert isinstance(found[0], lz.ValidationError) and torch.is_tensor(found[1])


def test_tensors_of_inference_mode_are_read():
    with torch.inference_mode():
        x, weight = x_and_weight()
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(lz.ops.norm_rms(x, weight), reference(x, weight))


def without_memory():
    x, _ = x_and_weight()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "meta": torch.empty(4, 64, device="meta"),
            "sparse": x.to_sparse(),
            "compressed rows": x.to_sparse_csr(),
            "mkldnn": x.to_mkldnn() if torch.backends.mkldnn.is_available() else x.to_sparse(),
            "quantized": torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
            "quantized by channel": torch.quantize_per_channel(x, torch.ones(4), torch.zeros(4), 0, torch.qint8),
            "bits": torch.empty(4, 64, dtype=torch.bits8),
            "nested": torch.nested.nested_tensor([x[:1], x[1:]]),
            "jagged": torch.nested.nested_tensor([x[:1], x[1:]], layout=torch.jagged),
            "zeros without memory": torch._efficientzerotensor((4, 64)),
            "functional": torch._to_functional_tensor(x),
        }


@pytest.mark.parametrize("name", without_memory())
def test_tensors_without_plain_memory_are_refused_in_every_position(name):
    x, weight = x_and_weight()
    tensor = without_memory()[name]
    codes = "ARGUMENT_KIND|NULL_DATA|DTYPE|NESTED_TENSOR_UNSUPPORTED"
    if name == "jagged":
        # It implements __torch_dispatch__, which raises for this.
        with pytest.raises((lz.ValidationError, RuntimeError, NotImplementedError)):
            lz.ops.norm_rms(tensor)
    else:
        assert refused(codes, tensor) == "x"
    assert refused(codes, x, weight, out=tensor) == "output"


def test_a_tensor_whose_memory_was_freed_is_refused():
    x, weight = x_and_weight()
    freed = x.clone()
    freed.untyped_storage().resize_(0)
    assert refused("NULL_DATA", freed, weight) == "x"
    assert refused("NULL_DATA", x, weight, out=freed) == "output"


def test_wrappers_of_function_transforms_are_refused():
    x, weight = x_and_weight()
    seen = []

    def function(tensor):
        assert type(tensor) is torch.Tensor
        seen.append(refused("ARGUMENT_KIND|NULL_DATA", tensor, weight))
        return tensor.sum()

    torch.func.vmap(function)(x)
    torch.func.grad(function)(x)
    torch.func.jvp(function, (x,), (x,))
    torch.func.functionalize(function)(x)
    assert seen == ["x"] * 4


def test_fake_tensors_are_refused_as_out_and_traced_as_inputs():
    from torch._subclasses.fake_tensor import FakeTensorMode

    x, weight = x_and_weight()
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        assert type(lz.ops.norm_rms(fake, mode.from_tensor(weight))) is type(fake)
        assert refused("ARGUMENT_KIND", x, weight, out=fake) == "output"


def test_subclass_may_override_requires_grad():
    class Wanting(torch.Tensor):
        requires_grad = True

    x, weight = x_and_weight()
    assert refused("requires grad", x.as_subclass(Wanting), weight) == "x"


def test_torch_function_mode_changes_nothing():
    x, weight = x_and_weight()
    wanting = x.clone().requires_grad_()
    with torch.device("cpu"):
        torch.testing.assert_close(lz.ops.norm_rms(x, weight), reference(x, weight))
        assert refused("resolve_neg", torch._neg_view(x), weight) == "x"
        assert refused("requires grad", wanting, weight) == "x"


def test_a_lazy_copy_is_copied_before_it_is_written():
    x, _ = x_and_weight()
    kept, lazy = x.clone(), torch._lazy_clone(x)
    lz.ops.norm_rms(kept, out=lazy)
    assert torch.equal(x, kept) and torch.equal(lazy, lz.ops.norm_rms(kept))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_shapes_strides_and_offsets_are_read(dtype):
    base = torch.randn(3, 8, 6).to(dtype)
    forms = [base, base[1:], base[:, 2:5], base.permute(2, 1, 0), base[..., ::2], base[0, 0], base[:1].expand(4, 8, 6), base[:0]]
    forms += [base.reshape(3, 2, 2, 2, 2, 3), base.reshape(3, 2, 2, 2, 1, 1, 2, 3), base[:, :1, :1]]
    for form in forms:
        expected = reference(form.double()).to(dtype)
        torch.testing.assert_close(lz.ops.norm_rms(form), expected, rtol=1e-2, atol=1e-2)


def test_reading_keeps_no_reference():
    x, weight = x_and_weight()
    out = torch.empty_like(x)
    tensors = (x, weight, out)

    def references():
        return [(sys.getrefcount(one), torch._C._storage_Use_Count(one.untyped_storage()._cdata)) for one in tensors]

    lz.ops.norm_rms(x, weight, out=out)
    before = references()
    for _ in range(100):
        lz.ops.norm_rms(x, weight, out=out)
    assert references() == before


@pytest.mark.parametrize(
    ("hidden", "expected"),
    [
        ("", {"exchange", "stable"}),
        (HIDE_THE_STABLE_INTERFACE, {"exchange"}),
        (f"{HIDE_THE_EXCHANGE_FUNCTIONS}; {HIDE_THE_STABLE_INTERFACE}", set()),
    ],
    ids=["published", "exchange functions alone", "capsules"],
)
def test_published_interfaces_alone_pass_this_file(hidden, expected, tmp_path):
    """Hides interfaces that older releases of torch lack from a fresh process while layerzero looks them up."""
    program = f"""
import sys
import pytest
import torch
import layerzero as lz
path = torch.__path__
{hidden}
lz.ops.norm_rms(torch.zeros(1, 8))
torch.__path__ = path
assert set(lz._native.torch_interfaces()) == {expected!r}, lz._native.torch_interfaces()
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-k", "not published", {str(pathlib.Path(__file__))!r}]))
"""
    # A folder without the torch extension.
    environment = {**os.environ, "LAYERZERO_PRIVATE_INTERFACES": "0", "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
