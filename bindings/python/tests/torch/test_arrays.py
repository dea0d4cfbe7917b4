"""numpy arrays and buffers with torch's host kernels: every kernel computes what its descriptor claims, for any memory layout."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from samples import samples  # noqa: E402
from test_backend import KERNELS, flat  # noqa: E402

import layerzero as lz  # noqa: E402


@pytest.fixture(autouse=True)
def nothing_is_remembered():
    lz.reset_kernel()


def reversed_along(axis):
    def change(array):
        return None if axis >= array.ndim else np.flip(np.flip(array, axis).copy(), axis)

    return change


def spread(array):
    """Every second element of a larger array."""
    large = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    large[..., ::2] = array
    return large[..., ::2]


def repeated(array):
    """One row broadcast to all, with stride 0."""
    return np.broadcast_to(array[:1], array.shape)


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


VARIANTS = {
    "reversed along the first axis": reversed_along(0),
    "reversed along the second axis": reversed_along(1),
    "reversed along the last axis": reversed_along(-1),
    "every second element": spread,
    "stride 0": repeated,
    "read-only": read_only,
    "a transposed copy": lambda array: np.asfortranarray(array),
    "empty": lambda array: array[:0],
    "a buffer": memoryview,
}


def result(operation, kernel, arguments):
    """The results of a kernel; None if the call is invalid or the kernel declines it."""
    lz.lock(operation, kernel)
    try:
        assert lz.which(operation, **arguments).kernel_id == kernel
        results = getattr(lz.ops, operation.replace(".", "_"))(**arguments)
    except (lz.ValidationError, lz.NoKernelFoundError):
        return None
    finally:
        lz.unlock(operation)
    written = [one for one in arguments.values() if isinstance(one, (np.ndarray, memoryview))]
    return [np.array(one) for one in (*flat(results), *written)]


def sample(operation):
    """The arguments of an operation's sample by name."""
    arguments, keywords = samples()[operation.replace(".", "_")]
    names = lz._native.kernel_signature(operation)[0]
    return {**dict(zip(names, arguments, strict=False)), **{key: keywords[key] for key in keywords if key != "return_lse"}}


def same(value):
    return np.array(value) if isinstance(value, (np.ndarray, memoryview)) else value


@pytest.mark.parametrize(("kernel", "operation"), KERNELS)
def test_kernels_compute_what_their_descriptors_claim(kernel, operation):
    arguments = sample(operation)
    arrays = [name for name, value in arguments.items() if isinstance(value, np.ndarray)]
    tried = 0
    for variant, change in VARIANTS.items():
        for chosen in (arrays, *([name] for name in arrays)):
            if variant == "a buffer" and chosen is not arrays:
                continue  # All tensors of a call are of one kind.
            made = dict(arguments)
            for name in arrays:
                value = arguments[name].copy()
                changed = change(value) if name in chosen else value
                made[name] = value if changed is None else changed
            expected = result(operation, f"reference.{operation}", {name: same(value) for name, value in made.items()})
            found = result(operation, kernel, made)
            if found is None or expected is None:
                continue
            tried += 1
            for actual, wanted in zip(found, expected, strict=True):
                np.testing.assert_allclose(actual, wanted, rtol=2e-4, atol=2e-4, err_msg=f"{variant}: {chosen}")
    assert tried or kernel == "torch.mlp.linear.weight_only", "the sample has weights of another dtype"
    assert lz.list_circuits() == []


def test_a_reversed_weight_and_residual_are_added_and_written():
    x, weight = np.ones((2, 4), np.float32), np.arange(4, dtype=np.float32)[::-1]
    for residual in (np.ones((2, 4), np.float32), np.ones((4, 2), np.float32)[::-1].T):
        y = lz.ops.norm_rms_add(x, residual, weight)
        np.testing.assert_allclose(y, np.broadcast_to(weight, (2, 4)), rtol=1e-4)
        np.testing.assert_array_equal(residual, 2)
    lz.lock("norm.rms.add", "torch.norm.rms.add")
    try:
        residual = np.ones((4, 2), np.float32)[::-1].T
        lz.ops.norm_rms_add(x, residual, weight)
        np.testing.assert_array_equal(residual, 2)
    finally:
        lz.unlock("norm.rms.add")
    assert lz.list_circuits() == []


@pytest.mark.parametrize("operation", ["attention.standard.prefill", "attention.standard.decode"])
def test_flash_attention_declines_head_dim_1(operation):
    arguments = sample(operation)
    arguments |= {name: arguments[name][..., :1] for name in ("q", "k", "v")}
    kernel = operation.replace("attention.", "torch.sdpa.flash.")
    lz.lock(operation, kernel)
    try:
        with pytest.raises(lz.NoKernelFoundError, match="head_dim >= 2"):
            getattr(lz.ops, operation.replace(".", "_"))(**arguments)
    finally:
        lz.unlock(operation)
    assert getattr(lz.ops, operation.replace(".", "_"))(**arguments).shape[-1] == 1
    assert lz.list_circuits() == []


def test_failed_torch_allocation_counts_as_no_failure():
    huge = torch.ones(1).expand(1 << 23, 1 << 23)
    for _ in range(6):
        with pytest.raises(lz.KernelExecutionError) as raised:
            lz.ops.norm_rms(huge)
        assert {reason.code for reason in raised.value.reasons} == {"OUT_OF_MEMORY"}, raised.value
    assert lz.list_circuits() == []


def test_result_of_another_kind_or_device_is_a_kernel_failure():
    wrong = {"numpy": lambda x: x.numpy(), "meta": lambda x: x.to("meta"), "half": lambda x: x.half()}
    for name, convert in wrong.items():

        @lz.register_kernel(operation="norm.rms", id=f"test.{name}", backend="test", version="1", priority=100)
        def rms(x, weight, *, eps, weight_offset, convert=convert):
            return convert(x)

        x = torch.ones(2, 4)
        lz.lock("norm.rms", f"test.{name}")
        try:
            with pytest.raises(lz.KernelExecutionError, match="requires a torch tensor of float32"):
                lz.ops.norm_rms(x)
        finally:
            lz.unlock("norm.rms")
            lz.unregister_backend("test")
            lz.reset_kernel()
