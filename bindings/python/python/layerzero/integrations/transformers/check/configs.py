"""Tiny configurations with random weights for the architectures of Transformers.

The default configuration of an architecture is shrunk by the names of its fields, sub-configurations included. Nothing is
downloaded.
"""

from __future__ import annotations

import re
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

HIDDEN = 64
VOCABULARY = 160
# Text tokens are below this; special tokens of an architecture are moved above it.
FIRST_SPECIAL = 100

_SIZES: dict[str, int] = {
    **dict.fromkeys(
        (
            "hidden_size", "d_model", "n_embd", "embed_dim", "encoder_hidden_size", "decoder_hidden_size", "out_hidden_size",
            "hidden_dim", "dim", "d_embed", "embedding_size", "encoder_hidden_dim", "text_hidden_size", "projection_dim",
            "output_hidden_size", "fpn_hidden_size", "audio_hidden_size", "vision_hidden_size", "text_embed_dim",
            "qformer_hidden_size", "adapter_hidden_size", "emb_dim", "lru_width", "word_embed_proj_dim",
            "memory_attention_hidden_size", "memory_encoder_hidden_size", "mask_downsampler_embed_dim", "memory_fuser_embed_dim",
            "entity_emb_size", "moe_latent_size", "pooler_output_size", "projector_hidden_size", "decoder_embed_dim",
            "language_model_hidden_size", "text_dim", "cross_hidden_size", "vision_output_dim", "embedding_dim", "n_embed",
            "backbone_hidden_size", "output_dim", "encoder_dim", "decoder_dim", "d_text", "proj_dim", "hidden_proj_dim",
        ),
        HIDDEN,
    ),
    **dict.fromkeys(
        (
            "intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "d_ff", "mlp_dim", "n_inner", "ffn_hidden_size",
            "moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size", "intermediate_size_mlp",
            "expert_ffn_hidden_size", "decoder_intermediate_size", "moe_shared_expert_intermediate_size", "dense_intermediate_size",
            "memory_attention_feed_forward_hidden_size", "memory_fuser_intermediate_dim", "feedforward_size",
            "conditional_ffn_dim", "d_inner", "dim_feedforward", "encoder_intermediate_size", "block_ff_dim", "moe_shared_intermediate_size",
            "dff", "filter_size", "hidden_dim_feedforward", "ffn_size", "shared_expert_hidden_size",
        ),
        96,
    ),
    **dict.fromkeys(
        (
            "num_attention_heads", "encoder_attention_heads", "decoder_attention_heads", "num_heads", "n_head", "n_heads",
            "attention_heads", "decoder_num_attention_heads", "encoder_num_attention_heads", "num_head",
            "memory_attention_num_attention_heads", "n_attention_heads", "attn_heads", "resampler_heads", "num_query_heads",
            "query_projection_heads",
        ),
        4,
    ),
    **dict.fromkeys(
        ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "resampler_n_heads", "num_key_value_groups_heads", "multi_query_group_num"), 2
    ),
    **dict.fromkeys(
        (
            "num_hidden_layers", "encoder_layers", "decoder_layers", "num_layers", "n_layer", "n_layers", "depth",
            "num_decoder_layers", "num_encoder_layers", "decoder_num_layers", "encoder_num_layers", "decoder_num_hidden_layers",
            "encoder_num_hidden_layers", "memory_attention_num_layers", "resampler_depth", "qformer_num_hidden_layers",
            "num_blocks_per_group", "l_layers", "r_layers", "x_layers", "n_blocks", "num_stage_layers",
        ),
        2,
    ),
    **dict.fromkeys(
        ("vocab_size", "text_vocab_size", "audio_vocab_size", "codebook_vocab_size", "decoder_vocab_size", "src_vocab_size",
         "tgt_vocab_size", "n_vocab", "unpadded_vocab_size"), VOCABULARY
    ),
    **dict.fromkeys(
        (
            "max_position_embeddings", "n_positions", "max_source_positions", "max_target_positions", "context_length", "n_ctx",
            "max_sequence_length", "max_seq_len", "seq_len", "seq_length",
            "max_encoder_position_embeddings", "max_decoder_position_embeddings", "max_text_len",
        ),
        256,
    ),
    "head_dim": 16, "d_kv": 16, "dim_head": 16, "global_head_dim": 16, "attention_head_dim": 16, "kv_channels": 16, "attention_head_size": 16,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "qk_head_dim": 24, "kv_lora_rank": 32, "q_lora_rank": 48,
    "index_head_dim": 16, "index_n_heads": 2, "index_topk": 4, "rotary_dim": 8, "query_pre_attn_scalar": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "linear_head_dim": 16, "linear_num_heads": 4, "swa_head_dim": 16, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_v_head_dim": 16,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2, "moe_k": 2,
    "moe_topk": 2, "moe_top_k": 2, "top_k_experts": 2, "top_k": 2, "num_selected_experts": 2, "topk_group": 1, "n_group": 1, "first_k_dense_replace": 1,
    "n_shared_experts": 1, "num_shared_experts": 1, "zero_expert_num": 1, "expert_num": 4, "expert_capacity": 64, "router_capacity": 64,
    "sliding_window": 6, "local_attention": 6, "attention_chunk_size": 6, "max_window_layers": 1, "sliding_window_size": 6, "local_attention_window_size": 6,
    "mamba_d_state": 16, "mamba_d_head": 16, "mamba_n_heads": 8, "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16,
    "mamba_headdim": 16, "mamba_d_ssm": 128, "n_mamba_heads": 2, "mamba_ngroups": 1, "n_groups": 1, "mamba_chunk_size": 8, "chunk_size": 8,
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY, "laurel_rank": 8, "altup_num_inputs": 2,
    "num_kv_shared_layers": 0, "image_size": 32, "patch_size": 8, "num_position_embeddings": 16, "pos_emb_height": 4, "pos_emb_width": 4,
    "pretrain_image_size": 32, "mm_tokens_per_image": 4, "num_queries": 6, "num_query_tokens": 4, "vision_soft_tokens_per_image": 4,
    "codebook_size": 64, "num_codebooks": 2, "num_codevectors_per_group": 8, "codevector_dim": 16, "proj_codevector_dim": 16,
    "classifier_proj_size": 16, "num_mel_bins": 16, "feature_size": 16, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16, "num_frames": 4, "max_2d_position_embeddings": 128,
    "num_register_tokens": 2, "num_local_hidden_layers": 2, "hash_byte_group_vocab": 64, "encoder_hash_byte_group_vocab": 64,
    "num_nextn_predict_layers": 0, "num_upscale_blocks": 2, "num_buckets": 16, "num_hashes": 2, "num_codebooks_layers": 2,
    "extra_vocab_size": 16, "block_size": 4, "num_random_blocks": 1, "attention_window": 4, "state_size": 16, "time_step_rank": 8,
    "num_patches": 4, "patch_length": 4, "conv_bias_channels": 4, "num_memory_blocks": 4, "max_relative_position": 16,
    "num_channels_latents": 16, "num_latents": 8, "d_latents": 64, "num_denoising": 0, "max_num_patches": 16, "num_image_tokens": 4,
}  # fmt: skip
_TOKEN = re.compile(r"(token_id|token_index)$")
_FIRST_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
# Fields without a default value that some architectures require.
_FILLED = ("head_dim", "num_key_value_heads", "n_routed_experts", "n_shared_experts", "num_experts_per_tok", "vocab_size", "num_local_experts")
_SWITCHES: dict[str, Any] = {"use_sliding_window": True, "_attn_implementation": None}


def _rope(**more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 10000.0, **more}


# Values that an architecture needs in addition to the table of names; a dotted name sets a field of a
# sub-configuration, and `...` keeps the default.
SPECIAL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        ("qwen2_vl_text", "qwen2_5_vl_text", "glm4v_text", "glm_ocr_text", "glm_image_text"),
        {"rope_parameters": _rope(mrope_section=[2, 3, 3])},
    ),
    **dict.fromkeys(
        ("qwen2_vl", "qwen2_5_vl", "paddleocr_vl", "glm46v", "glm4v", "glmga", "glm_image", "glm_ocr"),
        {"text_config.rope_parameters": _rope(mrope_section=[2, 3, 3])},
    ),
    "qwen2_5_omni_thinker": {"text_config.rope_parameters": _rope(mrope_section=[2, 3, 3])},
    "colqwen2": {"vlm_config.text_config.rope_parameters": _rope(mrope_section=[2, 3, 3])},
    "glm4v_moe": {"text_config.rope_parameters": _rope(mrope_section=[2, 1, 1], partial_rotary_factor=0.5)},
    "glm4v_moe_text": {"rope_parameters": _rope(mrope_section=[2, 1, 1], partial_rotary_factor=0.5)},
    "bamba": {"attn_layer_indices": [1]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _rope(), "sliding_attention": _rope()}, "layer_types": ["sliding_attention", "full_attention"]},
    "cohere_compass": {"text_config.rope_parameters": {"full_attention": _rope(), "sliding_attention": _rope()}, "text_config.layer_types": ["sliding_attention", "full_attention"]},
    "dbrx": {"attn_config.rope_theta": 10000.0, "attn_config.clip_qkv": 8.0},
    "esm": {"pad_token_id": 1, "mask_token_id": 4, "vocab_size": VOCABULARY, "position_embedding_type": "rotary"},
    "esmc": {"num_key_value_heads": 4},
    "glm5_next_text": {"index_topk": 4, "index_kpool": 2},
    "glm5_next": {"text_config.index_topk": 4, "text_config.index_kpool": 2},
    "hunyuan_vl_text": {"rope_parameters": _rope(mrope_section=[2, 2, 2, 2], xdrope_section=[2, 2, 2, 2])},
    "gemma4_text": {"per_layer_config": {1: {"head_dim": 32}}},
    "gemma3n_text": {"activation_sparsity_pattern": [0.5, 0.0]},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "audio-spectrogram-transformer": {"max_length": 64, "num_mel_bins": 32},
    "zaya": {"num_experts_per_tok": 1},
    "bailing_hybrid": {"n_group": 1, "topk_group": 1, "num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_routed_experts": 4},
    "kimi_linear": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "mistral4": {"rope_parameters": _rope(llama_4_scaling_beta=0.1, original_max_position_embeddings=64)},
    "mpnet": {"pad_token_id": 1, "relative_attention_num_buckets": 32},
    "zamba": {"layers_block_type": ["hybrid", "mamba", "hybrid"], "num_hidden_layers": 3, "attention_hidden_size": 128, "attention_head_dim": 32, "num_key_value_heads": 4},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"], "num_key_value_heads": 4, "intermediate_size": 96, "n_mamba_heads": 2, "mamba_headdim": 64},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "lilt": {"channel_shrink_ratio": 4, "hidden_size": 48, "max_2d_position_embeddings": 128},
    "udop": {"max_2d_position_embeddings": 1024},
    "sam": {"vision_config.output_channels": 64},
    "sam_hq": {"vision_config.output_channels": 64},
    "mobilevitv2": {"patch_size": 2},
    "moonshine_streaming": {"num_attention_heads": 4, "num_key_value_heads": 4},
    "reformer": {"is_decoder": True, "attn_layers": ["local", "local"], "axial_pos_shape": [4, 4], "axial_pos_embds_dim": [32, 32], "local_attn_chunk_length": 4},
    "xmod": {"default_language": "en_XX"},
    "time_series_transformer": {"prediction_length": 4, "feature_size": ...},
    "informer": {"prediction_length": 4, "feature_size": ...},
    "autoformer": {"prediction_length": 4, "feature_size": ...},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "step3p7": {"text_config.sliding_window": 6},
    "ernie4_5_vl_moe": {"text_config.rope_parameters": _rope(mrope_section=[2, 2, 4])},
    "gemma4_unified_text": {"per_layer_config": {1: {"head_dim": 32}}},
    "swinv2": {"embed_dim": 24, "depths": [1, 1], "num_heads": [3, 6], "window_size": 4, "patch_size": 4},
    "swin": {"embed_dim": 24, "depths": [1, 1], "num_heads": [3, 6], "window_size": 4, "patch_size": 4},
    "donut-swin": {"embed_dim": 24, "depths": [1, 1], "num_heads": [3, 6], "window_size": 4, "patch_size": 4},
    "chameleon": {"vocabulary_map": {"<image>": 101, **{f"IMGIMG{'A' * 2}{chr(65 + index)}Z": 110 + index for index in range(4)}}, "vq_config.num_embeddings": 4},
    "emu3": {"vocabulary_map": {"<image>": 101}},
}  # fmt: skip


class NotBuilt(Exception):
    """An architecture without a tiny configuration."""


def model_types() -> list[str]:
    return sorted(CONFIG_MAPPING.keys())


def model_class(model_type: str) -> Any:
    """The class that represents an architecture: with a language-model head if there is one."""
    import transformers

    for name in ("MULTIMODAL_LM", "IMAGE_TEXT_TO_TEXT", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "CAUSAL_LM", "", *_others()):
        names = getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES" if name else "MODEL_MAPPING_NAMES").get(model_type)
        if names:
            return getattr(transformers, names if isinstance(names, str) else names[0])
    raise NotBuilt("no auto class has a model for it")


def _others() -> list[str]:
    pattern = re.compile(r"^MODEL_FOR_(\w+)_MAPPING_NAMES$")
    return [match[1] for name in dir(modeling_auto) if (match := pattern.match(name))]


def tiny_config(model_type: str, fill: bool = False) -> PreTrainedConfig:
    """A configuration with a few thousand weights."""
    special = SPECIAL.get(model_type, {})
    default = CONFIG_MAPPING[model_type](**special.get("default", {}))
    special = {name: value for name, value in special.items() if name != "default"}
    return _shrunk(default, {}, special, fill)


def _shrunk(config: PreTrainedConfig, tokens: dict[str, int], special: dict[str, Any], fill: bool) -> PreTrainedConfig:
    values: dict[str, Any] = {}
    fields = {name: _field(config, name, value) for name, value in config.to_dict().items() if name != "per_layer_config"}
    layers = next((fields[name] for name in ("num_hidden_layers", "num_layers", "n_layer") if isinstance(fields.get(name), int)), None)
    kinds = {name: list(dict.fromkeys(value)) for name, value in fields.items() if layers and _is_per_layer(value, layers)}
    tiny_layers = max([2, *(len(one) for one in kinds.values() if isinstance(one[0], str))])
    for name, value in fields.items():
        if isinstance(value, PreTrainedConfig):
            inner = {key.partition(".")[2]: one for key, one in special.items() if key.startswith(f"{name}.")}
            values[name] = _shrunk(value, tokens, inner, fill)
        elif name in kinds:
            values[name] = [kinds[name][index % len(kinds[name])] for index in range(tiny_layers)]
        elif name in ("num_hidden_layers", "num_layers", "n_layer") and isinstance(value, int):
            values[name] = tiny_layers
        elif _TOKEN.search(name) and isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            values[name] = _FIRST_TOKENS.get(name, tokens.setdefault(name, FIRST_SPECIAL + len(tokens)))
        elif _TOKEN.search(name) and isinstance(value, list):
            values[name] = [_FIRST_TOKENS.get(name, FIRST_SPECIAL)]
        elif name in ("rope_parameters", "rope_scaling") and isinstance(value, dict):
            values[name] = _tiny_rope(value)
        elif name in _SWITCHES and isinstance(value, bool):
            values[name] = _SWITCHES[name]
        elif name in _SIZES:
            if isinstance(value, bool):
                continue
            if (isinstance(value, int) and value > 0) or (value is None and fill and name in _FILLED):
                values[name] = _SIZES[name]
            elif isinstance(value, (list, tuple)) and value and name in ("image_size", "patch_size"):
                values[name] = [_SIZES[name]] * len(value)
    if "qk_rope_head_dim" in values and "head_dim" in values:
        # Models with latent attention compute their rotary angles from it.
        values["head_dim"] = values["qk_rope_head_dim"]
    if "kv_lora_rank" in values and "num_key_value_heads" in values:
        values["num_key_value_heads"] = values["num_attention_heads"]
    values.update({name: value for name, value in special.items() if "." not in name})
    values = {name: value for name, value in values.items() if value is not ...}
    return type(config)(**values)


def _field(config: PreTrainedConfig, name: str, value: Any) -> Any:
    try:
        return getattr(config, name, None)
    except Exception:
        # Fields that differ between layers cannot be read from the whole configuration.
        return value


def _is_per_layer(value: Any, layers: int) -> bool:
    return isinstance(value, list) and len(value) == layers and isinstance(value[0], (str, int, float))


def _tiny_rope(value: dict[str, Any]) -> dict[str, Any]:
    """The same type of rotation; sections are shrunk to a tiny head."""
    tiny: dict[str, Any] = {}
    for name, one in value.items():
        if isinstance(one, dict):
            tiny[name] = _tiny_rope(one)
        elif name == "mrope_section" and one:
            tiny[name] = [2, 3, 3] if len(one) == 3 else [2] * len(one)
        elif name == "original_max_position_embeddings":
            tiny[name] = 64
        elif name in ("long_factor", "short_factor") and isinstance(one, list):
            tiny[name] = one[:8]
        else:
            tiny[name] = one
    return tiny
