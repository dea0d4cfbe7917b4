"""`torch.ops.layerzero`: torch's opcheck of each operation, and graphs that contain operations."""

import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from samples import samples  # noqa: E402

import layerzero as lz  # noqa: E402
from layerzero._torch_ops import OVERLOADS  # noqa: E402

SAMPLES = samples()
OPERATIONS = sorted(SAMPLES)


def as_torch(value):
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.name == "float8_e4m3fn":
        return torch.from_numpy(value.copy().view(np.uint8)).view(torch.float8_e4m3fn)
    return torch.from_numpy(value.copy())


def sample(name):
    arguments, keywords = SAMPLES[name]
    # In the order of the signature, so that tensors passed by keyword become positional.
    return tuple(map(as_torch, arguments)), {key: as_torch(value) for key, value in keywords.items()}


def results(value):
    return value if isinstance(value, tuple) else () if value is None else (value,)


def overload(name, *, writes):
    """The overload for the sample, and its arguments."""
    arguments, keywords = sample(name)
    made = results(getattr(lz.ops, name)(*arguments, **keywords))
    arguments, keywords = sample(name)
    for one in OVERLOADS:
        if one.operation == name and one.results == len(made) and bool(one.places) == writes:
            keywords = {key: value for key, value in keywords.items() if key not in one.fixed}
            keywords.update({place: torch.empty_like(tensor) for place, tensor in zip(one.places, made)})
            label = one.schema.split("(")[0].removeprefix(name).removeprefix(".") or "default"
            return getattr(getattr(torch.ops.layerzero, name), label), arguments, keywords
    raise AssertionError(f"{name} has no overload with {len(made)} results")


def test_every_tensor_operation_is_registered():
    text = {"tokenize_encode", "tokenize_decode"}
    assert {one.operation for one in OVERLOADS} == set(dir(lz.ops)) - text == set(SAMPLES)


#: torch's check that inputs are unchanged compares them with functions that it lacks for 8-bit floats.
WITHOUT_SCHEMA = ("attention_gqa_decode_paged_fp8", "attention_gqa_prefill_paged_fp8", "mlp_linear_fp4", "mlp_linear_fp8")


@pytest.mark.parametrize("name", OPERATIONS)
def test_opcheck(name):
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(*overload(name, writes=False), test_utils=checks[1:] if name in WITHOUT_SCHEMA else checks)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if not name.startswith("kv_")])
def test_out_overload_writes_out_and_returns_none(name):
    function, arguments, keywords = overload(name, writes=True)
    checks = ("test_faketensor",) if name in WITHOUT_SCHEMA else ("test_schema", "test_faketensor")
    torch.library.opcheck(function, arguments, keywords, test_utils=checks)
    assert function(*arguments, **keywords) is None
    arguments, direct = sample(name)
    expected = results(getattr(lz.ops, name)(*arguments, **direct))
    places = [value for key, value in keywords.items() if key.startswith("out") and isinstance(value, torch.Tensor)]
    for place, tensor in zip(places, expected):
        torch.testing.assert_close(place, tensor)


@pytest.mark.parametrize("name", OPERATIONS)
def test_compiled_call_gives_the_same_result(name):
    torch._dynamo.reset()
    function = getattr(lz.ops, name)
    compiled = torch.compile(lambda *a, **k: function(*a, **k), fullgraph=True, backend="aot_eager")
    arguments, keywords = sample(name)
    expected = results(function(*arguments, **keywords))
    again, keywords_again = sample(name)
    actual = results(compiled(*again, **keywords_again))
    assert len(actual) == len(expected)
    # In-place changes must happen here too.
    for one, other in zip([*expected, *arguments], [*actual, *again]):
        torch.testing.assert_close(one, other)


class Block(torch.nn.Module):
    """A transformer block: norm, grouped-query attention, residual stream, gated MLP."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def parameter(*shape):
            return torch.nn.Parameter(torch.randn(*shape, generator=generator) * 0.2, requires_grad=False)

        self.norm, self.qkv, self.out = parameter(16), parameter(32, 16), parameter(16, 16)
        self.second, self.gate, self.up, self.down = parameter(16), parameter(24, 16), parameter(24, 16), parameter(16, 24)

    def forward(self, x):
        batch, length, _ = x.shape
        y = lz.rms_norm(x, self.norm)
        q, k, v = torch.nn.functional.linear(y, self.qkv).split([16, 8, 8], -1)
        q, k, v = (t.view(batch, length, -1, 4) for t in (q, k, v))
        y, lse = lz.attention(q, k, v, causal=True, return_lse=True)
        residual = x.clone()
        y = lz.ops.norm_rms_add(y.reshape(batch, length, -1) @ self.out, residual, self.second)
        return lz.ops.mlp_fused(y, self.gate, self.up, self.down) + residual, lse


def test_block_compiles_without_breaks_and_with_dynamic_shapes():
    block = Block()
    compiled = torch.compile(block, fullgraph=True, dynamic=True)
    for batch, length in ((2, 5), (3, 7), (2, 9)):
        x = torch.randn(batch, length, 16)
        for actual, expected in zip(compiled(x), block(x)):
            torch.testing.assert_close(actual, expected)
    counters = torch._dynamo.utils.counters
    assert not counters["graph_break"]


def test_out_in_a_compiled_function():
    x, w = torch.randn(4, 16), torch.randn(16)

    def function(x, w, out):
        lz.ops.norm_rms(x * 2, w, out=out)
        return out + 1

    out = torch.empty(4, 16)
    result = torch.compile(function, fullgraph=True)(x, w, out)
    torch.testing.assert_close(out, lz.ops.norm_rms(x * 2, w))
    torch.testing.assert_close(result, out + 1)


def test_exported_program_contains_custom_operators():
    block, x = Block(), torch.randn(2, 5, 16)
    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(block, (x,), dynamic_shapes=({1: length},))
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert {"layerzero.norm_rms.default", "layerzero.attention_gqa_prefill.lse", "layerzero.norm_rms_add.default"} <= names
    other = torch.randn(2, 11, 16)
    for actual, expected in zip(program.module()(other), block(other)):
        torch.testing.assert_close(actual, expected)


def test_gradients_are_refused_in_graphs():
    x = torch.randn(4, 16, requires_grad=True)
    with pytest.raises(Exception, match="no backward"):
        torch.compile(lambda x: lz.ops.norm_rms(x), fullgraph=True, backend="eager")(x)
    with torch.no_grad():
        torch.compile(lambda x: lz.ops.norm_rms(x), fullgraph=True, backend="eager")(x)


def test_wrong_overload_names_the_right_one():
    # torch raises its own exceptions for kernels that are not written in Python.
    with pytest.raises((ValueError, RuntimeError), match="scale_out"):
        torch.ops.layerzero.quantize.default(torch.randn(2, 4), format="int8", granularity="tensor")


def test_failure_reports_its_cause():
    x, w = torch.randn(2, 4), torch.randn(3)
    with pytest.raises(RuntimeError, match="AXIS_MISMATCH"):
        torch.ops.layerzero.norm_rms.default(x, w)
    # No exception stays set.
    right = torch.ops.layerzero.norm_rms.default(x, torch.ones(4))
    assert torch.equal(right, lz.ops.norm_rms(x, torch.ones(4)))


def test_tensors_are_released():
    x, w, out = torch.randn(2, 4), torch.randn(4), torch.empty(2, 4)
    before = [sys.getrefcount(one) for one in (x, w, out)]
    uses = [torch._C._storage_Use_Count(one.untyped_storage()._cdata) for one in (x, w, out)]
    for _ in range(100):
        torch.ops.layerzero.norm_rms.default(x, w, eps=1e-5)
        torch.ops.layerzero.norm_rms.out(x, w, out=out)
        with pytest.raises(RuntimeError):
            torch.ops.layerzero.norm_rms.default(x, out)
    assert [sys.getrefcount(one) for one in (x, w, out)] == before
    assert [torch._C._storage_Use_Count(one.untyped_storage()._cdata) for one in (x, w, out)] == uses


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
def test_threads_without_the_gil_can_call():
    """TorchScript runs forks on its own threads, which Python does not know."""

    def norm(x: torch.Tensor, weight: torch.Tensor):
        return torch.ops.layerzero.norm_rms(x, weight)

    one = torch.jit.script(norm)

    def forked(x: torch.Tensor, weight: torch.Tensor):
        waiting = [torch.jit.fork(one, x, weight) for _ in range(32)]
        return [torch.jit.wait(future) for future in waiting]

    many = torch.jit.script(forked)
    x, weight = torch.randn(4, 64), torch.randn(64)
    expected = lz.ops.norm_rms(x, weight)
    for _ in range(20):
        assert all(torch.equal(found, expected) for found in many(x, weight))
    with pytest.raises(Exception, match="AXIS_MISMATCH"):
        many(x, torch.randn(3))
