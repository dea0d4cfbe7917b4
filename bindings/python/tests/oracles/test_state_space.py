"""Mamba-2 of Transformers and norms of torch, compared with every kernel that claims the call."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
import torch.nn.functional as F  # noqa: E402
from every_kernel import check_every_kernel  # noqa: E402
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan, mamba2_selective_state_update  # noqa: E402


def inputs(seed: int, *outer: int) -> dict[str, Any]:
    """Four heads in two groups, as a model computes them."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator)

    return {
        "x": normal(*outer, 4, 24), "dt": normal(*outer, 4), "a": -normal(4).exp(), "b": normal(*outer, 2, 40), "c": normal(*outer, 2, 40),
        "d": normal(4), "dt_bias": normal(4),
    }  # fmt: skip


@pytest.mark.parametrize("length", [1, 64, 150])
@pytest.mark.parametrize("limit", [(0.0, float("inf")), (0.01, 0.5)])
def test_scan_matches_mamba2(length: int, limit: tuple[float, float]) -> None:
    call = inputs(length, 2, length)
    state = torch.randn(2, 4, 24, 40, generator=torch.Generator().manual_seed(9))
    for initial in (None, state):
        expected, last = mamba2_chunk_scan(
            call["x"], call["dt"], call["a"], call["b"], call["c"], 64, D=call["d"], dt_bias=call["dt_bias"], initial_states=initial,
            dt_softplus=True, dt_limit=limit, return_final_states=True,
        )  # fmt: skip

        def check(who: str, results: list[Any], _: dict[str, Any], expected: Any = expected, last: Any = last) -> None:
            torch.testing.assert_close(results[0], expected.float(), rtol=1e-4, atol=1e-3, msg=who)
            torch.testing.assert_close(results[1], last.float(), rtol=1e-4, atol=1e-3, msg=who)

        given = {} if initial is None else {"initial_state": initial}
        bounds = {"dt_min": limit[0], "dt_max": 0.0 if limit[1] == float("inf") else limit[1]}
        arguments = {**call, **given, **bounds, "return_state": True}
        assert check_every_kernel("ssm.scan", lambda arguments=arguments: arguments, check) >= 2


def test_step_matches_mamba2() -> None:
    call = inputs(5, 3)
    before = torch.randn(3, 4, 24, 40, generator=torch.Generator().manual_seed(9))
    state = before.clone()
    wide = {name: call[name][:, None].expand(4, 24) for name in ("d", "dt_bias")}
    rate = call["a"][:, None, None].expand(4, 24, 40)
    dt = call["dt"][..., None].expand(3, 4, 24)
    expected = mamba2_selective_state_update(
        state, call["x"], dt, rate, call["b"], call["c"], D=wide["d"], dt_bias=wide["dt_bias"], dt_softplus=True
    )  # fmt: skip

    def check(who: str, results: list[Any], arguments: dict[str, Any]) -> None:
        torch.testing.assert_close(results[0], expected, rtol=1e-4, atol=1e-4, msg=who)
        torch.testing.assert_close(arguments["state"], state, rtol=1e-5, atol=1e-5, msg=who)

    assert check_every_kernel("ssm.step", lambda: {**call, "state": before.clone()}, check) >= 2


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("groups", [1, 4, 12])
def test_group_norm_matches_torch(activation: str, groups: int) -> None:
    generator = torch.Generator().manual_seed(groups)
    x = torch.randn(2, 12, 7, 9, generator=generator) * 3 + 20
    weight, bias = torch.randn(12, generator=generator), torch.randn(12, generator=generator)
    expected = F.group_norm(x.double(), groups, weight.double(), bias.double(), 1e-6)
    expected = (F.silu(expected) if activation == "silu" else expected).float().flatten(2)

    def check(who: str, results: list[Any], _: dict[str, Any]) -> None:
        torch.testing.assert_close(results[0], expected, rtol=1e-5, atol=1e-5, msg=who)

    call = {"x": x.flatten(2), "weight": weight, "bias": bias, "groups": groups, "eps": 1e-6, "activation": activation}
    assert check_every_kernel("norm.group", lambda: call, check) >= 2


def test_modulated_norm_matches_torch() -> None:
    generator = torch.Generator().manual_seed(1)
    x, (scale, shift) = torch.randn(3, 5, 70, generator=generator), torch.randn(2, 3, 70, generator=generator)
    expected = F.layer_norm(x, (70,), eps=1e-6) * (1 + scale[:, None]) + shift[:, None]

    def check(who: str, results: list[Any], _: dict[str, Any]) -> None:
        torch.testing.assert_close(results[0], expected, rtol=1e-5, atol=1e-5, msg=who)

    assert check_every_kernel("norm.ada", lambda: {"x": x, "scale": scale, "shift": shift}, check) >= 2
