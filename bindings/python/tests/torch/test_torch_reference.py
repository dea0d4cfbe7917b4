"""The torch reference, compared on the host with the host reference: the same functions and the same
descriptor, so that on a GPU only the device differs."""

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[1] / "cuda"))
from reference_cases import FLOATS, wide  # noqa: E402
from reference_checks import differences, flat, same_bits  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import layerzero as lz  # noqa: E402
from layerzero import _native, backends  # noqa: E402
from layerzero.backends import torch_reference  # noqa: E402

OPERATIONS = sorted(id.removeprefix("torch.reference.") for id in torch_reference.KERNELS)
ROUNDS = 18


@pytest.fixture(scope="module", autouse=True)
def on_the_host():
    """The descriptor with another platform and other names."""
    path = Path(backends.__file__).parent / "torch_reference.cuda.json"
    description = json.loads(path.read_text())
    description["backend"], description["platform"] = "composed_on_host", "cpu"
    functions = {}
    for operation, (kernel,) in description["ops"].items():
        functions[f"composed_on_host.{operation}"] = torch_reference.KERNELS[kernel["kernel_id"]]
        kernel.update(kernel_id=f"composed_on_host.{operation}", min_sm=None)
    _native.register_descriptor("composed_on_host", json.dumps(description), functions)
    yield
    lz.unregister_backend("composed_on_host")


def made(operation, kernel, call):
    """The results of a kernel for a copy of a call, and its in-place changes."""
    own = {name: value.clone() if isinstance(value, torch.Tensor) and name in WRITTEN else value for name, value in call.items()}
    lz.lock(operation, kernel)
    try:
        results = flat(getattr(lz.ops, operation.replace(".", "_"))(**own))
    finally:
        lz.unlock(operation)
    return [*results, *(own[name] for name in WRITTEN if name in own)]


WRITTEN = ("residual", "k_cache", "v_cache", "state")


def test_every_tensor_operation_has_a_torch_reference():
    ours = {name for name in lz.list_operations() if not name.startswith(("tokenize.", "test."))}
    assert ours == set(OPERATIONS)
    described = json.loads((Path(backends.__file__).parent / "torch_reference.cuda.json").read_text())["ops"]
    assert set(described) == set(OPERATIONS)
    assert all(kernel["deterministic"] for (kernel,) in described.values())


@pytest.mark.parametrize("operation", OPERATIONS)
def test_torch_reference_agrees_with_the_host_reference(operation):
    for seed in range(ROUNDS):
        dtype = FLOATS[seed % 3]
        call = wide(operation, dtype, seed)
        reasons = {one["kernel"]: one["reasons"] for one in lz.explain(operation, **call).to_dict()["candidates"]}
        assert reasons[f"composed_on_host.{operation}"] == [], (seed, reasons[f"composed_on_host.{operation}"])
        expected = made(operation, f"reference.{operation}", call)
        found = made(operation, f"composed_on_host.{operation}", call)
        assert differences(operation, dtype, found, expected) == [], f"case {seed} of {dtype}"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_torch_reference_is_deterministic(operation):
    call = wide(operation, "f32", 7)
    first, second = (made(operation, f"composed_on_host.{operation}", call) for _ in range(2))
    assert all(same_bits(one, other) for one, other in zip(first, second, strict=True))


def test_long_attention_is_computed_in_parts(monkeypatch):
    """Scores that exceed the memory bound give the same results in parts."""
    from layerzero.backends.torch_reference import _attention

    call = wide("attention.gqa.prefill", "f32", 3) | {"q": torch.randn(2, 7, 4, 16), "k": torch.randn(2, 9, 2, 16), "v": torch.randn(2, 9, 2, 16)}
    call = {name: call[name] for name in ("q", "k", "v")} | {"causal": True, "alibi_slopes": torch.randn(2, 4), "return_lse": True}
    together = made("attention.gqa.prefill", "composed_on_host.attention.gqa.prefill", call)
    monkeypatch.setattr(_attention, "_MAX_SCORES", 2 * 4 * 9 * 2)
    in_parts = made("attention.gqa.prefill", "composed_on_host.attention.gqa.prefill", call)
    for one, other in zip(together, in_parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name.endswith((".ragged", "prefill.paged"))])
def test_captured_results_match_uncaptured_ones(monkeypatch, operation):
    """During capture nothing may synchronize the device, so all requests are computed at once."""
    from layerzero.backends.torch_reference import _attention, _requests

    for seed in range(ROUNDS):
        call = wide(operation, "f32", seed)
        expected = made(operation, f"composed_on_host.{operation}", call)
        with monkeypatch.context() as patch:
            patch.setattr(_requests, "is_capturing", lambda _: True)
            patch.setattr(_attention, "is_capturing", lambda _: True)
            found = made(operation, f"composed_on_host.{operation}", call)
        assert differences(operation, "f32", found, expected) == [], f"case {seed}"


def test_torch_reference_works_with_deterministic_algorithms():
    """A program that forbids nondeterministic torch algorithms can call every reference kernel."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        for operation in OPERATIONS:
            made(operation, f"composed_on_host.{operation}", wide(operation, "f32", 1))
    finally:
        torch.use_deterministic_algorithms(before)


class _SeesF64(TorchDispatchMode):
    """Whether a function of torch makes a tensor of f64."""

    def __init__(self):
        super().__init__()
        self.found = False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        several = result if isinstance(result, tuple | list) else [result]
        self.found |= any(isinstance(one, torch.Tensor) and one.dtype == torch.float64 for one in several)
        return result


def test_apple_gpus_get_the_compositions_without_f64():
    """Metal has no f64."""
    uses = set()
    for operation in OPERATIONS:
        for seed in range(ROUNDS):
            call = wide(operation, FLOATS[seed % 3], seed)
            call = {name: value for name, value in call.items() if name not in backends._SCORE_MOD}
            with _SeesF64() as mode:
                made(operation, f"composed_on_host.{operation}", call)
            if mode.found:
                uses.add(operation)
                break
    assert uses == backends._NEEDS_F64


def test_score_expressions_are_texts_or_bytes():
    call = wide("attention.gqa.prefill", "f32", 3) | {"score_mod": "score * 0.5 + kv_idx"}
    call.pop("score_params", None)
    (as_text, *_) = made("attention.gqa.prefill", "composed_on_host.attention.gqa.prefill", call)
    as_bytes = torch.tensor(list(call["score_mod"].encode()), dtype=torch.uint8)
    (found, *_) = made("attention.gqa.prefill", "composed_on_host.attention.gqa.prefill", {**call, "score_mod": as_bytes})
    assert same_bits(as_text, found)
    with pytest.raises(ValueError, match="score_mod must be .*`scor`"):
        _native.score_mod_steps(b"scor + 1", 0)
    assert _native.score_mod_steps(b"score + 1 if b > 0 else -inf", 0)[-1] == ("select", 0.0)
