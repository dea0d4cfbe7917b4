"""Routers and experts of Transformers' own modules, compared with every kernel that claims the call."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from every_kernel import check_every_kernel  # noqa: E402
from transformers import DeepseekV3Config, GptOssConfig, MixtralConfig, Qwen3MoeConfig  # noqa: E402
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Experts, DeepseekV3TopkRouter  # noqa: E402
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts, GptOssTopKRouter  # noqa: E402
from transformers.models.mixtral.modeling_mixtral import MixtralExperts, MixtralTopKRouter  # noqa: E402
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts, Qwen3MoeTopKRouter  # noqa: E402

TOKENS = 37
SMALL = {"hidden_size": 48, "num_hidden_layers": 1, "vocab_size": 64}
DEEPSEEK = DeepseekV3Config(
    **SMALL, n_routed_experts=32, num_experts_per_tok=4, n_group=8, topk_group=3, moe_intermediate_size=40, routed_scaling_factor=2.5
)
GPT_OSS = GptOssConfig(**SMALL, num_local_experts=8, num_experts_per_tok=3, intermediate_size=40)
MIXTRAL = MixtralConfig(**SMALL, num_local_experts=8, num_experts_per_tok=2, intermediate_size=40)


def qwen(normalized: bool) -> Any:
    return Qwen3MoeConfig(**SMALL, num_experts=16, num_experts_per_tok=4, moe_intermediate_size=40, norm_topk_prob=normalized)


SIGMOID = {"scoring": "sigmoid", "scale": 2.5, "groups": 8, "top_groups": 3, "group_score": "top2_sum"}
ROUTERS = {
    "mixtral": (MixtralTopKRouter, MIXTRAL, {"top_k": 2}),
    "qwen3": (Qwen3MoeTopKRouter, qwen(True), {"top_k": 4}),
    "qwen3, not normalized": (Qwen3MoeTopKRouter, qwen(False), {"top_k": 4, "renormalize": False}),
    "gpt_oss": (GptOssTopKRouter, GPT_OSS, {"top_k": 3}),
    "deepseek_v3": (DeepseekV3TopkRouter, DEEPSEEK, {"top_k": 4, **SIGMOID}),
}
EXPERTS = {
    "mixtral": (MixtralExperts, MIXTRAL, {}),
    "qwen3": (Qwen3MoeExperts, qwen(True), {}),
    "deepseek_v3": (DeepseekV3Experts, DEEPSEEK, {}),
    "gpt_oss": (GptOssExperts, GPT_OSS, {"gate_up_layout": "interleaved", "alpha": 1.702, "limit": 7.0, "up_offset": 1.0}),
}


def made(kind: Any, config: Any, seed: int) -> Any:
    """A module with random weights."""
    torch.manual_seed(seed)
    module = kind(config)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.normal_(std=0.4)
    return module


@pytest.mark.parametrize("model", ROUTERS)
def test_route_matches_the_router_of(model: str) -> None:
    kind, config, params = ROUTERS[model]
    for seed in range(4):
        router = made(kind, config, seed)
        logits, expected, chosen = router(torch.randn(TOKENS, 48))
        call = {"logits": logits.detach(), **params}
        if hasattr(router, "e_score_correction_bias"):
            call["bias"] = router.e_score_correction_bias

        def check(who: str, results: list[Any], _: dict[str, Any], expected: Any = expected, chosen: Any = chosen) -> None:
            weights, indices = results
            # A router may list its choice in any order.
            order, own = chosen.argsort(-1), indices.long().argsort(-1)
            assert torch.equal(indices.long().gather(-1, own), chosen.gather(-1, order)), who
            torch.testing.assert_close(weights.gather(-1, own), expected.gather(-1, order).float(), rtol=1e-5, atol=1e-6, msg=who)

        assert check_every_kernel("moe.route", lambda call=call: call, check) >= 2


@pytest.mark.parametrize("model", EXPERTS)
@pytest.mark.parametrize("tokens", [1, 5, TOKENS, 150])
def test_experts_match_the_experts_of(model: str, tokens: int) -> None:
    kind, config, params = EXPERTS[model]
    experts = made(kind, config, tokens)
    count = experts.num_experts
    x, weights = torch.randn(tokens, 48), torch.rand(tokens, 3)
    indices = torch.rand(tokens, count).argsort(-1)[:, :3]
    expected = experts(x, indices, weights).detach()
    gate_up, down = experts.gate_up_proj.detach(), experts.down_proj.detach()
    call = {"x": x, "indices": indices.to(torch.int32), "weights": weights, "gate_up_weight": gate_up, "down_weight": down, **params}
    if model == "gpt_oss":
        # Stored with inputs first.
        call["gate_up_weight"], call["down_weight"] = gate_up.transpose(1, 2).contiguous(), down.transpose(1, 2).contiguous()
        call["gate_up_bias"], call["down_bias"] = experts.gate_up_proj_bias.detach(), experts.down_proj_bias.detach()

    def check(who: str, results: list[Any], _: dict[str, Any]) -> None:
        torch.testing.assert_close(results[0], expected, rtol=1e-4, atol=1e-4, msg=who)

    assert check_every_kernel("moe.experts", lambda: call, check) >= 2


def test_experts_of_bf16_are_at_least_as_accurate_as_those_of_transformers() -> None:
    experts = made(MixtralExperts, MIXTRAL, 1).to(torch.bfloat16)
    x, weights = torch.randn(64, 48, dtype=torch.bfloat16), torch.rand(64, 2)
    indices = torch.randint(0, 8, (64, 2))
    theirs = experts(x, indices, weights).double()
    exact = experts.double()(x.double(), indices, weights.double())
    gate_up, down = (tensor.detach().to(torch.bfloat16) for tensor in (experts.gate_up_proj, experts.down_proj))
    call = {"x": x, "indices": indices.to(torch.int32), "weights": weights, "gate_up_weight": gate_up, "down_weight": down}

    def check(who: str, results: list[Any], _: dict[str, Any]) -> None:
        error, bound = (results[0].double() - exact).abs().max(), (theirs - exact).abs().max()
        assert error <= bound, f"{who}: {error} > {bound}"

    check_every_kernel("moe.experts", lambda: call, check)


def expanded(scale: Any, features: int, inputs: int, by: str, group: int) -> Any:
    """A scale for each weight."""
    if by == "tensor":
        return scale[:, None, None]
    if by == "row":
        return scale[:, :, None]
    column = torch.arange(inputs) // (group if by == "group" else 128)
    return scale[:, :, column] if by == "group" else scale[:, torch.arange(features)[:, None] // 128, column]


def scale_shape(experts: int, features: int, inputs: int, by: str, group: int) -> tuple[int, ...]:
    rest = {"tensor": (), "row": (features,), "group": (features, -(-inputs // group))}
    return (experts, *rest.get(by, (-(-features // 128), -(-inputs // 128))))


@pytest.mark.parametrize("tokens", [1, 5, 150])
@pytest.mark.parametrize("format", ["fp8_e4m3", "int8", "int4"])
@pytest.mark.parametrize("by", ["tensor", "row", "group", "block"])
def test_quantized_experts_match_those_of_mixtral_with_dequantized_weights(format: str, by: str, tokens: int) -> None:
    hidden, middle, count, group = 160, 136, 8, 24
    config = MixtralConfig(hidden_size=hidden, intermediate_size=middle, num_local_experts=count, num_experts_per_tok=2, num_hidden_layers=1)
    experts = made(MixtralExperts, config, tokens)
    x, weights = torch.randn(tokens, hidden), torch.rand(tokens, 3)
    indices = torch.rand(tokens, count).argsort(-1)[:, :3]
    call = {
        "x": x, "indices": indices.to(torch.int32), "weights": weights, "format": format, "granularity": by, "group_size": group,
    }  # fmt: skip
    for name, parameter in (("gate_up", experts.gate_up_proj), ("down", experts.down_proj)):
        shape = parameter.shape
        if format == "fp8_e4m3":
            codes = torch.randn(shape).to(torch.float8_e4m3fn)
            values = codes.float()
        elif format == "int8":
            codes = torch.randint(-128, 128, shape, dtype=torch.int8)
            values = codes.float() / 64
        else:
            values = torch.randint(-8, 8, shape)
            codes = (values[..., ::2] & 15 | (values[..., 1::2] & 15) << 4).to(torch.uint8)
            values = values.float() / 4
        scale = torch.rand(scale_shape(*shape, by, group)) * 0.1 + 0.01
        with torch.no_grad():
            parameter.copy_(values * expanded(scale, *shape[1:], by, group))
        call[f"{name}_weight"], call[f"{name}_scale"] = codes, scale / {"fp8_e4m3": 1, "int8": 64, "int4": 4}[format]
    expected = experts(x, indices, weights).detach()

    def check(who: str, results: list[Any], _: dict[str, Any]) -> None:
        torch.testing.assert_close(results[0], expected, rtol=1e-4, atol=1e-4, msg=who)

    assert check_every_kernel("moe.experts.quantized", lambda: call, check) >= 2


@pytest.mark.parametrize("tokens", [1, 5, 70])
def test_mxfp4_experts_match_those_of_gpt_oss(tokens: int) -> None:
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    hidden, middle, count = 96, 64, 4
    config = GptOssConfig(hidden_size=hidden, intermediate_size=middle, num_local_experts=count, num_experts_per_tok=2, num_hidden_layers=1)
    experts = made(GptOssExperts, config, tokens)
    x, weights = torch.randn(tokens, hidden), torch.rand(tokens, 2)
    indices = torch.rand(tokens, count).argsort(-1)[:, :2]
    call = {"x": x, "indices": indices.to(torch.int32), "weights": weights, "format": "mxfp4", "granularity": "group", **EXPERTS["gpt_oss"][2]}
    for name, features, inputs in (("gate_up", 2 * middle, hidden), ("down", hidden, middle)):
        blocks = torch.randint(0, 256, (count, features, inputs // 32, 16), dtype=torch.uint8)
        scales = torch.randint(120, 127, (count, features, inputs // 32), dtype=torch.uint8)
        with torch.no_grad():
            dequantized = mxfp4.convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            getattr(experts, f"{name}_proj").copy_(dequantized)
        call[f"{name}_weight"] = blocks.flatten(-2).view(torch.float4_e2m1fn_x2)
        call[f"{name}_scale"] = scales.view(torch.float8_e8m0fnu)
    call["gate_up_bias"], call["down_bias"] = experts.gate_up_proj_bias.detach(), experts.down_proj_bias.detach()
    expected = experts(x, indices, weights).detach()

    def check(who: str, results: list[Any], _: dict[str, Any]) -> None:
        torch.testing.assert_close(results[0], expected, rtol=1e-4, atol=1e-4, msg=who)

    assert check_every_kernel("moe.experts.quantized", lambda: call, check) >= 2
