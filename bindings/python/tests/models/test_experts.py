"""Tiny mixture-of-experts models: LayerZero's experts give the same logits as Transformers' own."""

import warnings

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")

import layerzero as lz  # noqa: E402
from layerzero.integrations import transformers as integration  # noqa: E402

integration.register()
SMALL = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
CONFIGS = {
    "mixtral": lambda: transformers.MixtralConfig(**SMALL, num_local_experts=4),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**SMALL, head_dim=8, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=24),
    "deepseek_v3": lambda: transformers.DeepseekV3Config(
        **{**SMALL, "num_key_value_heads": 4}, n_routed_experts=8, num_experts_per_tok=2, n_group=4, topk_group=2, moe_intermediate_size=24,
        first_k_dense_replace=1, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
    ),
    "glm4_moe": lambda: transformers.Glm4MoeConfig(
        **SMALL, head_dim=8, n_routed_experts=8, num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=24, first_k_dense_replace=1
    ),
}  # fmt: skip


def model(config, implementation):
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", experts_implementation=implementation)
    return made.eval()


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_logits_with_experts_of_layerzero(name, monkeypatch):
    calls = []
    run = lz.ops.moe_experts
    monkeypatch.setattr(lz.ops, "moe_experts", lambda *arguments, **keywords: calls.append(1) or run(*arguments, **keywords))
    theirs, ours = (model(CONFIGS[name](), implementation) for implementation in ("eager", "layerzero"))
    for length in (1, 20):
        ids = torch.randint(2, 96, (2, length), generator=torch.Generator().manual_seed(length))
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=1e-4, atol=1e-4)
    assert calls


@torch.no_grad()
def test_experts_that_the_operation_cannot_express_keep_their_own_implementation():
    """GPT-OSS stores its weights with inputs first."""
    config = transformers.GptOssConfig(**SMALL, head_dim=8, num_local_experts=4, num_experts_per_tok=2)
    theirs, ours = (model(config, implementation) for implementation in ("eager", "layerzero"))
    ids = torch.randint(2, 96, (2, 9), generator=torch.Generator().manual_seed(1))
    with pytest.warns(UserWarning, match="inputs first"):
        found = ours(ids).logits
    torch.testing.assert_close(found, theirs(ids).logits, rtol=1e-4, atol=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours(ids)
