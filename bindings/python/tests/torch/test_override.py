"""`lz.override_torch`: the same results through selection, and torch's own results, bit for bit, for everything else."""

import os
import subprocess
import sys
import threading

import layerzero as lz
import pytest
import torch
import torch.nn.functional as F

TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
DTYPES = list(TOLERANCE)


def random(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float32).to(dtype)


@pytest.fixture(autouse=True)
def inference():
    with torch.no_grad():
        yield


def heads(dtype, batch=2, count=4, rows=6, dim=16):
    """Queries as a model makes them: a view of [batch, rows, heads, dim]."""
    return random(batch, rows, count, dim, dtype=dtype).transpose(1, 2)


CALLS = {
    "linear": lambda dtype: F.linear(random(3, 5, 8, dtype=dtype), random(7, 8, dtype=dtype), random(7, dtype=dtype)),
    "linear without bias": lambda dtype: F.linear(random(8, dtype=dtype), weight=random(7, 8, dtype=dtype)),
    "layer norm": lambda dtype: F.layer_norm(random(3, 8, dtype=dtype), [8], random(8, dtype=dtype), random(8, dtype=dtype), 1e-6),
    "layer norm, plain": lambda dtype: F.layer_norm(random(3, 8, dtype=dtype), (8,)),
    "rms norm": lambda dtype: F.rms_norm(random(3, 8, dtype=dtype), [8], random(8, dtype=dtype), eps=1e-6),
    "attention": lambda dtype: F.scaled_dot_product_attention(heads(dtype), heads(dtype), heads(dtype)),
    "attention, contiguous": lambda dtype: F.scaled_dot_product_attention(*(heads(dtype).contiguous() for _ in range(3))),
    "causal": lambda dtype: F.scaled_dot_product_attention(heads(dtype, rows=5), heads(dtype, rows=7), heads(dtype, rows=7), is_causal=True),
    "causal, more queries": lambda dtype: F.scaled_dot_product_attention(heads(dtype, rows=7), heads(dtype, rows=5), heads(dtype, rows=5), is_causal=True),
    "bool mask": lambda dtype: F.scaled_dot_product_attention(heads(dtype), heads(dtype), heads(dtype), random(6, 6) > 0),
    "float mask": lambda dtype: F.scaled_dot_product_attention(heads(dtype), heads(dtype), heads(dtype), attn_mask=random(2, 1, 6, 6, dtype=dtype), scale=0.3),
    "grouped queries": lambda dtype: F.scaled_dot_product_attention(heads(dtype), heads(dtype, count=2), heads(dtype, count=2), enable_gqa=True),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_torch(name, dtype):
    call = CALLS[name]
    expected = call(dtype)
    with lz.override_torch() as overridden:
        result = call(dtype)
    assert sum(overridden.calls.values()) == 1 and not overridden.fallbacks, overridden
    assert result.shape == expected.shape and result.dtype == expected.dtype
    torch.testing.assert_close(result, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert call(dtype).equal(expected), "torch runs again after the block"


class Subclass(torch.Tensor):
    pass


FALLBACKS = {
    "gradients": lambda: F.linear(random(2, 8), random(7, 8).requires_grad_()),
    "gradients of a mask": lambda: F.scaled_dot_product_attention(*(heads(torch.float32) for _ in range(3)), random(6, 6).requires_grad_()),
    "float64": lambda: F.linear(random(2, 8).double(), random(7, 8).double()),
    "integers": lambda: F.linear(torch.ones(2, 8, dtype=torch.int64), torch.ones(7, 8, dtype=torch.int64)),
    "several dtypes": lambda: F.layer_norm(random(2, 8, dtype=torch.bfloat16), [8], random(8), random(8)),
    "a subclass": lambda: F.linear(random(2, 8).as_subclass(Subclass), random(7, 8)),
    "meta": lambda: F.linear(random(2, 8).to("meta"), random(7, 8).to("meta")).shape,
    "empty": lambda: F.linear(random(2, 8)[:0], random(7, 8)),
    "a vector weight": lambda: F.linear(random(2, 8), random(8)),
    "two normalized dimensions": lambda: F.layer_norm(random(2, 3, 8), [3, 8]),
    "default eps of half precision": lambda: F.rms_norm(random(2, 8, dtype=torch.float16), [8]),
    "two normalized dimensions of rms": lambda: F.rms_norm(random(2, 3, 8), [3, 8], eps=1e-5),
    "three dimensions": lambda: F.scaled_dot_product_attention(random(2, 4, 8), random(2, 4, 8), random(2, 4, 8)),
    "broadcast batch": lambda: F.scaled_dot_product_attention(heads(torch.float32), heads(torch.float32, batch=1), heads(torch.float32, batch=1)),
    "a scale that is no float": lambda: F.scaled_dot_product_attention(*(heads(torch.float32) for _ in range(3)), scale=1),
    "sparse": lambda: F.linear(random(2, 8).to_sparse(), random(7, 8)).to_dense(),
    "negative view": lambda: F.linear(torch.complex(random(2, 8), random(2, 8)).conj().imag, random(7, 8)),
}


@pytest.mark.parametrize("name", FALLBACKS)
def test_other_calls_go_to_torch_unchanged(name):
    call = FALLBACKS[name]
    with torch.enable_grad() if "gradients" in name else torch.no_grad():
        expected = call()
        with lz.override_torch() as overridden:
            result = call()
    assert not overridden.calls and len(overridden.fallbacks) == 1, overridden
    assert type(result) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert result.equal(expected) and result.requires_grad == expected.requires_grad
        assert (result.grad_fn is None) == (expected.grad_fn is None)


def test_dropout_goes_to_torch_with_its_random_numbers():
    def call():
        torch.manual_seed(3)
        return F.scaled_dot_product_attention(*(heads(torch.float32) for _ in range(3)), dropout_p=0.5)

    with lz.override_torch() as overridden:
        result = call()
    assert result.equal(call()) and dict(overridden.fallbacks) == {("scaled_dot_product_attention", "dropout"): 1}


@pytest.mark.parametrize(
    "call",
    [
        lambda: F.linear(random(2, 8), random(7, 9)),
        lambda: F.linear(random(2, 8)),
        lambda: F.layer_norm(random(2, 8), [9]),
        lambda: F.layer_norm(random(2, 8), [8], unknown=1),
        lambda: F.rms_norm(random(2, 8), [9]),
        lambda: F.scaled_dot_product_attention(random(1, 2, 3, 4), random(1, 2, 3, 5), random(1, 2, 3, 4)),
        lambda: F.scaled_dot_product_attention(*(heads(torch.float32) for _ in range(3)), attn_mask=random(6, 6), is_causal=True),
        lambda: F.scaled_dot_product_attention(*(heads(torch.float32) for _ in range(3)), attn_mask=random(5, 6)),
    ],
)
def test_errors_are_those_of_torch(call):
    with pytest.raises(Exception) as expected:  # noqa: PT011 -- whatever torch raises
        call()
    with pytest.raises(type(expected.value)) as found, lz.override_torch():
        call()
    assert str(found.value) == str(expected.value)


def test_states_in_which_a_call_means_more_go_to_torch():
    weight, x = random(7, 8), random(2, 8)

    def reasons(run):
        with lz.override_torch() as overridden:
            run()
        assert not overridden.calls, overridden
        return {why for _, why in overridden.fallbacks}

    def autocast():
        with torch.autocast("cpu", torch.bfloat16):
            assert F.linear(x, weight).dtype is torch.bfloat16

    def deterministic():
        torch.use_deterministic_algorithms(True)
        try:
            F.linear(x, weight)
        finally:
            torch.use_deterministic_algorithms(False)

    def mode():
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            F.linear(x, weight)
        assert counter.get_total_flops() > 0

    def forward_mode():
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            assert torch.autograd.forward_ad.unpack_dual(F.linear(dual, weight)).tangent is not None

    assert reasons(autocast) == {"autocast"}
    assert reasons(deterministic) == {"deterministic algorithms"}
    assert reasons(mode) == {"a dispatch mode"}
    assert reasons(lambda: torch.vmap(lambda row: F.linear(row, weight))(x)) == {"torch.func"}
    with torch.enable_grad():
        assert reasons(forward_mode) == {"forward-mode differentiation"}
    assert "tracing" in reasons(lambda: torch.jit.trace(lambda x: F.linear(x, weight), x, check_trace=False))


def test_modules_and_nested_blocks():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.RMSNorm(16, eps=1e-5), torch.nn.Linear(16, 4))
    x = random(5, 8)
    expected = model(x)
    with lz.override_torch() as outer:
        with lz.override_torch(["linear"]) as inner:
            torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
    assert dict(inner.calls) == {"linear": 2} and not inner.fallbacks
    assert dict(outer.calls) == {"linear": 2, "layer_norm": 2, "rms_norm": 2} and "2 by layerzero" in repr(outer)
    with pytest.raises(ValueError, match="unknown function 'conv2d'"):
        lz.override_torch(["conv2d"])


def test_other_threads_and_training_are_not_affected():
    layer = torch.nn.Linear(8, 4)
    x = random(2, 8)
    found = []
    with lz.override_torch() as overridden:
        thread = threading.Thread(target=lambda: found.append(layer(x)))
        thread.start()
        thread.join()
        assert not overridden.calls and not overridden.fallbacks
        with torch.enable_grad():
            layer(x).sum().backward()
    assert layer.weight.grad is not None and found
    assert dict(overridden.fallbacks) == {("linear", "gradients"): 1}


def test_a_call_that_no_kernel_can_run_goes_to_torch():
    x, weight = random(2, 8), random(7, 8)
    lz.lock("mlp.linear", "no.such.kernel")
    try:
        with lz.override_torch() as overridden:
            result = F.linear(x, weight)
        assert result.equal(F.linear(x, weight))
        assert not overridden.calls and ("linear", "NoKernelFoundError") in overridden.fallbacks
    finally:
        lz.unlock("mlp.linear")


def test_every_call_goes_to_torch_without_private_interfaces():
    code = """
import torch, layerzero as lz
x, weight = torch.ones(2, 8), torch.ones(7, 8)
with torch.no_grad(), lz.override_torch() as overridden:
    torch.nn.functional.linear(x, weight)
assert not overridden.calls and dict(overridden.fallbacks) == {("linear", "private interfaces are disabled"): 1}, overridden
"""
    environment = {**os.environ, "LAYERZERO_PRIVATE_INTERFACES": "0"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=120)
