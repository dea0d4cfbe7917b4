"""The plugin registers LayerZero's operations with the IR operations of vLLM.

vLLM requires its own release of torch and a GPU, so that it is not installed: its Python files are enough for its registries.
"""

import importlib.metadata
import logging

import pytest

torch = pytest.importorskip("torch")
from layerzero.integrations import vllm as integration  # noqa: E402

ENABLE = "vLLM is not installed; `cargo xtask test python-models` downloads its Python files"


@pytest.fixture(scope="module")
def ir():
    pytest.importorskip("vllm.ir.op", reason=ENABLE, exc_type=ImportError)
    import vllm.ir

    assert set(integration.register().values()) <= {"registered", "layerzero has no operation for it"}
    return vllm.ir


def test_the_package_has_the_entry_point():
    [found] = [one for one in importlib.metadata.entry_points(group="vllm.general_plugins") if one.name == "layerzero"]
    assert found.load() is integration.register


def test_registering_twice(ir):
    assert integration.register()["rms_norm"] == "registered"
    assert "layerzero" in ir.ops.rms_norm.impls


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm(ir, dtype, weighted):
    operation = ir.ops.rms_norm
    x, weight, epsilon = operation.generate_inputs(num_tokens=7, hidden_size=64, dtype=dtype)
    weight = weight if weighted else None
    expected = operation.impls["native"].impl_fn(x, weight, epsilon)
    with operation.set_priority(["layerzero", "native"]):
        assert operation.dispatch(x, weight, epsilon).provider == "layerzero"
        torch.testing.assert_close(operation(x, weight, epsilon), expected, **operation.get_tolerance(dtype))


def test_fused_add_rms_norm_leaves_its_arguments(ir):
    operation = ir.ops.fused_add_rms_norm
    x, residual, weight, epsilon = operation.generate_inputs(num_tokens=7, hidden_size=64, dtype=torch.bfloat16)
    before = residual.clone()
    expected = operation.impls["native"].impl_fn(x, residual, weight, epsilon)
    with operation.set_priority(["layerzero", "native"]):
        found = operation(x, residual, weight, epsilon)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, **operation.get_tolerance(torch.bfloat16))
        assert torch.equal(residual, before)
        # This overload may write its arguments.
        _, written = operation.maybe_inplace(x, residual, weight, epsilon)
        torch.testing.assert_close(written, expected[1])


def test_calls_that_the_operation_does_not_know_go_to_vllm(ir):
    operation = ir.ops.rms_norm
    x, weight, epsilon = operation.generate_inputs(num_tokens=3, hidden_size=64, dtype=torch.float32)
    with operation.set_priority(["layerzero", "native"]):
        assert operation.dispatch(x, weight, epsilon, 32).provider == "native"
        assert operation.dispatch(x.double(), weight.double(), epsilon).provider == "native"
        expected = operation.impls["native"].impl_fn(x, weight, epsilon, 32)
        assert torch.equal(operation(x, weight, epsilon, 32), expected)


def test_compiled(ir):
    operation = ir.ops.rms_norm
    x, weight, epsilon = operation.generate_inputs(num_tokens=3, hidden_size=64, dtype=torch.float32)
    with operation.set_priority(["layerzero", "native"]):
        compiled = torch.compile(lambda x: operation(x, weight, epsilon) * 2, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), operation(x, weight, epsilon) * 2)


def test_another_formula_is_not_registered(ir, caplog):
    """A later vLLM may change an operation."""
    calls = []

    class Changed:
        impls = {"native": type("Native", (), {"impl_fn": staticmethod(lambda x, weight, epsilon: x)})}
        get_tolerance = staticmethod(lambda dtype: {"rtol": 1e-2, "atol": 1e-2})
        allow_inplace = False
        register_impl = staticmethod(lambda *arguments, **keywords: calls.append(arguments))

    result = integration._register(Changed, integration._IMPLEMENTATIONS["rms_norm"])
    assert result.startswith("it computes something else") and not calls


def test_a_vllm_without_the_registry(monkeypatch, caplog):
    monkeypatch.setitem(__import__("sys").modules, "vllm.ir.ops", None)
    with caplog.at_level(logging.WARNING):
        assert integration.register() == {}
    assert "registers nothing" in caplog.text
