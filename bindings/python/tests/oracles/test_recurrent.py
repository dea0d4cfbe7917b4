"""Linear attention of Transformers and convolutions of torch, compared with every kernel that claims the call."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
import torch.nn.functional as F  # noqa: E402
from every_kernel import check_every_kernel  # noqa: E402
from transformers.models.qwen3_next.modeling_qwen3_next import (  # noqa: E402
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

CLOSE = {torch.float32: (1e-4, 1e-4), torch.bfloat16: (2e-2, 2e-2)}


def positions(seed: int, *outer: int, dtype: Any = torch.float32) -> dict[str, Any]:
    """Queries, keys, values, decays and factors as a model computes them."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Any:
        return torch.randn(*outer, *shape, generator=generator)

    q, k, v = normal(2, 24).to(dtype), normal(2, 24).to(dtype), normal(4, 40).to(dtype)
    return {"q": q, "k": k, "v": v, "g": -F.softplus(normal(4)), "beta": normal(4).sigmoid().to(dtype)}


def theirs(rule: Any, call: dict[str, Any], state: Any) -> tuple[Any, Any]:
    heads = {name: call[name].repeat_interleave(2, 2) for name in ("q", "k")}
    return rule(
        heads["q"], heads["k"], call["v"], g=call["g"], beta=call["beta"], initial_state=state, output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("length", [1, 64, 150])
@pytest.mark.parametrize("rule", [torch_chunk_gated_delta_rule, torch_recurrent_gated_delta_rule])
def test_prefill_matches_the_gated_delta_rule_of_qwen3_next(rule: Any, length: int, dtype: Any) -> None:
    call = positions(length, 2, length, dtype=dtype)
    state = torch.randn(2, 4, 24, 40, generator=torch.Generator().manual_seed(9))
    relative, absolute = CLOSE[dtype]
    for initial in (None, state):
        expected, last = theirs(rule, call, initial)

        def check(who: str, results: list[Any], _: dict[str, Any], expected: Any = expected, last: Any = last) -> None:
            torch.testing.assert_close(results[0], expected, rtol=relative, atol=absolute, msg=who)
            torch.testing.assert_close(results[1], last, rtol=1e-4, atol=1e-4, msg=who)

        given = {} if initial is None else {"initial_state": initial}
        arguments = {**call, **given, "qk_l2norm": True, "return_state": True}
        assert check_every_kernel("attention.linear.prefill", lambda arguments=arguments: arguments, check) >= 2


@pytest.mark.parametrize("gate", ["head", "channel"])
def test_decode_steps_equal_a_prefill(gate: str) -> None:
    import layerzero as lz

    call = positions(3, 2, 7)
    if gate == "channel":
        call["g"] = -F.softplus(torch.randn(2, 7, 4, 24, generator=torch.Generator().manual_seed(4)))
    params = {"gate": gate, "qk_l2norm": True}
    expected, last = lz.ops.attention_linear_prefill(**call, **params, return_state=True)
    states: dict[str, Any] = {}
    for t in range(7):
        step = {name: value[:, t].contiguous() for name, value in call.items()}

        def check(who: str, results: list[Any], arguments: dict[str, Any], t: int = t) -> None:
            torch.testing.assert_close(results[0], expected[:, t], rtol=1e-4, atol=1e-4, msg=who)
            states[who] = arguments["state"]

        # Each kernel continues with its own state: kernels are called in the same order.
        before = iter(list(states.values()))

        def arguments(step: dict[str, Any] = step, before: Any = before) -> dict[str, Any]:
            state = next(before, None)
            return {**step, **params, "state": torch.zeros(2, 4, 24, 40) if state is None else state.clone()}

        check_every_kernel("attention.linear.decode", arguments, check)
    for who, state in states.items():
        torch.testing.assert_close(state, last, rtol=1e-4, atol=1e-4, msg=who)


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize(("length", "width"), [(1, 4), (2, 4), (3, 1), (50, 3)])
def test_convolution_matches_conv1d(activation: str, length: int, width: int) -> None:
    generator = torch.Generator().manual_seed(length)
    x, state = torch.randn(2, length, 70, generator=generator), torch.randn(2, 70, width - 1, generator=generator)
    weight, bias = torch.randn(70, width, generator=generator), torch.randn(70, generator=generator)
    inputs = torch.cat((state, x.transpose(1, 2)), -1)
    expected = F.conv1d(inputs, weight[:, None], bias, groups=70).transpose(1, 2)
    expected = F.silu(expected) if activation == "silu" else expected
    last = inputs[..., length:]

    def check(who: str, results: list[Any], _: dict[str, Any]) -> None:
        torch.testing.assert_close(results[0], expected, rtol=1e-5, atol=1e-5, msg=who)
        assert torch.equal(results[1], last), who

    call = {"x": x, "weight": weight, "bias": bias, "initial_state": state, "activation": activation, "return_state": True}
    assert check_every_kernel("conv.causal1d", lambda: call, check) >= 2

    def check_step(who: str, results: list[Any], arguments: dict[str, Any]) -> None:
        torch.testing.assert_close(results[0], expected[:, 0], rtol=1e-5, atol=1e-5, msg=who)
        assert torch.equal(arguments["state"], inputs[..., 1:width]), who

    step = {"x": x[:, 0].contiguous(), "weight": weight, "bias": bias, "activation": activation}
    assert check_every_kernel("conv.causal1d.step", lambda: {**step, "state": state.clone()}, check_step) >= 2
