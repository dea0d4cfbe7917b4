"""One small call of every operation, for tests of all operations."""

import numpy as np

import layerzero as lz


def f32(*shape):
    values = np.random.default_rng(sum(shape)).uniform(-1, 1, size=shape)
    return values.astype(np.float32)


def i32(*values):
    return np.array(values, np.int32)


def f8(*shape):
    import ml_dtypes

    return f32(*shape).astype(ml_dtypes.float8_e4m3fn)


def u8(*shape):
    return np.random.default_rng(sum(shape)).integers(0, 256, size=shape, dtype=np.uint8)


def samples():
    """Operation by its flat name → positional arguments, keywords. All except text operations."""
    pages = (i32(0, 1), i32(0), i32(2))
    ragged = (i32(0, 2), i32(0, 3))
    attention = {"q": f32(1, 2, 2, 4), "k": f32(1, 3, 2, 4), "v": f32(1, 3, 2, 4)}
    grouped = {"q": f32(1, 2, 4, 4), "k": f32(1, 3, 2, 4), "v": f32(1, 3, 2, 4)}
    latent = (f32(2, 2, 8), f32(2, 2, 4))
    return {
        "activation_gelu": ((f32(2, 4),), {}),
        "activation_gelu_mul": ((f32(2, 4), f32(2, 4)), {}),
        "activation_relu": ((f32(2, 4),), {}),
        "activation_relu_squared": ((f32(2, 4),), {}),
        "activation_silu": ((f32(2, 4),), {}),
        "activation_silu_mul": ((f32(2, 4), f32(2, 4)), {}),
        "attention_standard_prefill": ((), {**attention, "causal": True}),
        "attention_gqa_prefill": ((), grouped),
        "attention_cross_prefill": ((), attention),
        "attention_standard_decode": ((f32(1, 2, 4), f32(1, 3, 2, 4), f32(1, 3, 2, 4)), {"return_lse": True}),
        "attention_gqa_decode": ((f32(1, 4, 4), f32(1, 3, 2, 4), f32(1, 3, 2, 4)), {}),
        "attention_cross_decode": ((f32(1, 2, 4), f32(1, 3, 2, 4), f32(1, 3, 2, 4)), {}),
        "attention_standard_decode_paged": ((f32(1, 2, 4), f32(2, 2, 2, 4), f32(2, 2, 2, 4), *pages), {}),
        "attention_gqa_decode_paged": ((f32(1, 4, 4), f32(2, 2, 2, 4), f32(2, 2, 2, 4), *pages), {}),
        "attention_gqa_decode_paged_fp8": ((f32(1, 4, 4), f8(2, 2, 2, 4), f8(2, 2, 2, 4), *pages), {"k_scale": np.abs(f32(2))}),
        "attention_standard_prefill_paged": (
            (f32(2, 2, 4), f32(2, 2, 2, 4), f32(2, 2, 2, 4), i32(0, 2), *pages),
            {},
        ),
        "attention_gqa_prefill_paged": ((f32(2, 4, 4), f32(2, 2, 2, 4), f32(2, 2, 2, 4), i32(0, 2), *pages), {}),
        "attention_gqa_prefill_paged_fp8": ((f32(2, 4, 4), f8(2, 2, 2, 4), f8(2, 2, 2, 4), i32(0, 2), *pages), {}),
        "attention_standard_prefill_ragged": ((f32(2, 2, 4), f32(3, 2, 4), f32(3, 2, 4), *ragged), {}),
        "attention_gqa_prefill_ragged": ((f32(2, 4, 4), f32(3, 2, 4), f32(3, 2, 4), *ragged), {}),
        "attention_mla_prefill": ((*latent, f32(3, 1, 8), f32(3, 1, 4)), {"sm_scale": 0.5, "causal": True}),
        "attention_mla_decode": ((*latent, f32(3, 1, 8), f32(3, 1, 4)), {"sm_scale": 0.5}),
        "attention_mla_decode_paged": (
            (f32(1, 2, 8), f32(1, 2, 4), f32(2, 2, 8), f32(2, 2, 4), *pages),
            {"sm_scale": 0.5, "return_lse": True},
        ),
        "attention_sparse_block": (
            (f32(4, 2, 4), f32(4, 1, 4), f32(4, 1, 4), i32(0, 1, 3), i32(0, 0, 1)),
            {"block_rows": 2, "block_cols": 2},
        ),
        "attention_sparse_variable_block": (
            (f32(2, 4, 4), f32(1, 4, 4), f32(1, 4, 4), np.array([[[True, False], [True, True]]]), i32(1, 3)[None], i32(2, 2)[None]),
            {},
        ),
        "attention_linear_prefill": ((f32(1, 3, 1, 4), f32(1, 3, 1, 4), f32(1, 3, 2, 4), f32(1, 3, 2), f32(1, 3, 2)), {"return_state": True}),
        "attention_linear_decode": ((f32(1, 1, 4), f32(1, 1, 4), f32(1, 2, 4), f32(1, 2), f32(1, 2), f32(1, 2, 4, 4)), {}),
        "attention_sparse_topk": ((f32(2, 2, 4), f32(3, 1, 4), f32(3, 1, 4), np.array([[[0, 2]], [[1, -1]]], np.int32)), {}),
        "attention_state_merge": ((f32(3, 2, 2, 4), f32(3, 2, 2)), {}),
        "conv_causal1d": ((f32(1, 3, 4), f32(4, 2)), {"return_state": True}),
        "conv_causal1d_step": ((f32(1, 4), f32(1, 4, 1), f32(4, 2)), {}),
        "embedding_lookup": ((f32(5, 4), np.array([1, 2])), {}),
        "embedding_lookup_quantized": ((np.array([[1, -2, 3, 4], [5, 6, -7, 8]], np.int8), np.array([1, 0]), f32(2)), {"format": "int8", "granularity": "channel"}),
        "kv_append": ((f32(1, 1, 2), f32(1, 1, 2), f32(2, 4, 1, 2), f32(2, 4, 1, 2), np.array([0])), {}),
        "kv_compact": ((f32(3, 4, 1, 2), f32(3, 4, 1, 2), i32(2), i32(0)), {}),
        "logits_logprobs": ((f32(2, 8), i32(1, 2)), {"top_k": 2}),
        "mlp_linear": ((f32(2, 4), f32(3, 4)), {}),
        "mlp_linear_fp4": ((u8(2, 8), u8(3, 8), f8(2, 1), f8(3, 1)), {"format": "nvfp4", "output_dtype": "f32"}),
        "mlp_linear_fp8": ((f8(2, 4), f8(3, 4), f32(2), f32(3)), {"output_dtype": "f32"}),
        "mlp_linear_int8": (
            (np.array([[1, -2, 3, 4]], np.int8), np.array([[5, 6, -7, 8]], np.int8), f32(1), f32(1)),
            {},
        ),
        "mlp_linear_pack": ((np.array([[1, -2, 3, 4]], np.int8),), {}),
        "mlp_linear_weight_only": (
            (f32(2, 16), np.array([4 * [5, 6, -7, 8]], np.int8), f32(1)),
            {"format": "int8"},
        ),
        "mlp_fused": ((f32(2, 4), f32(6, 4), f32(6, 4), f32(4, 6)), {}),
        "moe_experts": ((f32(2, 4), i32(0, 1)[:, None], f32(2, 1), f32(2, 6, 4), f32(2, 4, 3)), {}),
        "moe_experts_quantized": (
            (f32(2, 4), i32(0, 1)[:, None], f32(2, 1), u8(2, 6, 2), f32(2, 6), u8(2, 4, 2), f32(2, 4)),
            {"format": "int4", "granularity": "row", "intermediate": 3},
        ),
        "moe_route": ((f32(2, 8),), {"top_k": 2}),
        "norm_ada": ((f32(1, 3, 4), f32(1, 4), f32(1, 4)), {}),
        "norm_group": ((f32(1, 4, 3), f32(4), f32(4)), {"groups": 2}),
        "norm_layer": ((f32(2, 4), f32(4), f32(4)), {"return_stats": True}),
        "norm_layer_add": ((f32(2, 4), f32(2, 4), f32(4), f32(4)), {}),
        "norm_rms": ((f32(2, 4), f32(4)), {}),
        "norm_rms_add": ((f32(2, 4), f32(2, 4), f32(4)), {}),
        "norm_rms_add_quantize": ((f32(2, 4), f32(2, 4), f32(4)), {"format": "int8"}),
        "norm_rms_quantize": ((f32(2, 4), f32(4)), {"format": "int8"}),
        "posenc_alibi": ((f32(1, 2, 2, 3), f32(2)), {}),
        "posenc_rope": ((f32(1, 2, 2, 4), f32(2, 2), f32(2, 2)), {}),
        "rope_append": (
            (f32(1, 2, 4), f32(1, 1, 4), f32(1, 1, 4), f32(3, 2), f32(3, 2), i32(2), f32(2, 4, 1, 4), f32(2, 4, 1, 4), np.array([0])),
            {},
        ),
        "quantize": ((f32(2, 4),), {"format": "int8", "granularity": "tensor"}),
        "dequantize": (
            (np.array([[1, -2, 3, 4]], np.int8), np.array(0.5, np.float32)),
            {"format": "int8", "granularity": "tensor"},
        ),
        "sampling_speculative": (
            (np.full((1, 2, 4), 0.25, np.float32), i32(1, 2)[None], np.full((1, 3, 4), 0.25, np.float32)),
            {"seed": 3},
        ),
        "sampling_mask": ((f32(2, 8), i32(7, -1)[:, None]), {}),
        "sampling_minp": ((f32(2, 8),), {"p": 0.1}),
        "sampling_penalties": ((f32(2, 8), i32(1, 2)[:, None]), {"repetition": 1.1}),
        "sampling_topk": ((f32(2, 8),), {"k": 2}),
        "ssm_scan": ((f32(1, 3, 2, 4), f32(1, 3, 2), f32(2), f32(1, 3, 1, 4), f32(1, 3, 1, 4)), {"return_state": True}),
        "ssm_step": ((f32(1, 2, 4), f32(1, 2), f32(2), f32(1, 1, 4), f32(1, 1, 4), f32(1, 2, 4, 4)), {}),
        "sampling_topp": ((f32(2, 8),), {"p": 0.5}),
    }


def text_samples(tokenizer_path):
    """The text operations."""
    tokenizer = lz.Tokenizer.from_file(tokenizer_path)
    return {
        "tokenize_encode": ((["hello"], tokenizer), {"return_offsets": True}),
        "tokenize_decode": ((i32(1, 2), np.array([0, 2]), tokenizer), {}),
    }
