"""Calls that a reference must support and few other kernels do: every operation, every optional input,
unusual strides, empty tensors and non-finite values. Tensors are created on the host."""

import torch
from cases import DTYPES, Draw, small

INF, NAN = float("inf"), float("nan")
FLOATS = ("f32", "f16", "bf16")


def strided(draw, tensor):
    """The same values, sometimes not contiguous."""
    if tensor.dim() == 0 or draw.number(0, 2):
        return tensor
    wide = torch.empty((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1), dtype=tensor.dtype)
    view = wide[..., 1::2]
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    view.view(bits).copy_(tensor.view(bits)) if tensor.dtype != torch.bool else view.copy_(tensor)
    return view


def odd(draw, tensor, *values):
    """Replaces some elements with non-finite values."""
    if tensor.numel() and draw.number(0, 3) == 0:
        places = torch.randint(0, tensor.numel(), (2,), generator=draw.generator)
        tensor.view(-1)[places] = torch.tensor(draw.one(*values), dtype=torch.float32).to(tensor.dtype)
    return tensor


def _mask(draw, *shape):
    shape = [draw.one(size, size, 1) for size in shape]
    if draw.one(True, False):
        return torch.rand(shape, generator=draw.generator) > 0.3
    return odd(draw, draw.normal(*shape, dtype=draw.one(*FLOATS)), -INF, -INF, NAN)


SCORE_MODS = (
    "score",
    "score + p0 * (kv_idx - q_pos)",
    "score if q_pos - kv_idx < 3 else -inf",
    "tanh(score / 2) * 2 + b - h",
    "min(max(score, -0.5), p1, 2) * exp(-kv_idx / 8)",
    "score if kv_idx % 3 != 1 and not q_idx in [2, 4] or -kv_idx // 2 == ceil_div(q_pos, -3) else score - sqrt(abs(p0)) - log(1 + kv_idx)",
)


def _attention(draw, operation, dtype):
    """Prefill, decode and cross attention with any feature."""
    kv_heads = draw.one(1, 2)
    heads = kv_heads if ".standard." in operation else kv_heads * draw.one(1, 2, 3)
    batch, seq_k, head_dim, head_dim_v = draw.number(0, 3), draw.number(0, 9), draw.one(1, 4, 16), draw.one(1, 3, 16)
    seq_q = draw.number(0, 7)
    k = odd(draw, draw.normal(batch, seq_k, kv_heads, head_dim, dtype=dtype), INF, NAN)
    v = odd(draw, draw.normal(batch, seq_k, kv_heads, head_dim_v, dtype=dtype), INF, -INF, NAN)
    single, crossing = operation.endswith(".decode"), ".cross." in operation
    q = draw.normal(batch, heads, head_dim, dtype=dtype) if single else draw.normal(batch, seq_q, heads, head_dim, dtype=dtype)
    call = {"return_lse": draw.one(True, False)}
    if draw.one(True, False):
        call["sm_scale"] = 0.7
    if (single or crossing) and draw.one(True, False):
        call["kv_lens"] = torch.tensor([draw.number(0, seq_k) for _ in range(batch)], dtype=torch.int32)
    if (crossing or not single) and draw.one(True, False):
        call["mask"] = _mask(draw, batch, heads, *(() if single else (seq_q,)), seq_k)
    if not crossing:
        call["soft_cap"] = draw.one(0.0, 0.0, 3.0)
        call["sinks"] = draw.one(None, odd(draw, draw.normal(heads) * 3, INF, -INF, NAN))
        call["window_left"] = draw.one(-1, -1, 0, 2)
        if draw.one(True, False):
            call["alibi_slopes"] = draw.normal(*draw.one((heads,), (batch, heads), (1, heads)))
        if not single:
            call["causal"], call["window_right"] = draw.one(True, False), draw.one(-1, -1, 0, 2)
            if draw.one(True, False):
                call["causal_offset"] = draw.number(-3, 4)
        if draw.one(True, False, False):
            call["score_mod"], call["score_params"] = draw.one(*SCORE_MODS), draw.normal(batch, heads, 2)
    if draw.one(True, False):
        k, v, q = k.transpose(1, 2), v.transpose(1, 2), q if single else q.transpose(1, 2)
        call["layout"] = "BHSD"
    return {"q": q, "k": k, "v": v, **call}


def _extras(draw, operation, call):
    """Cases that `small` excludes, for requests of different lengths and pages."""
    if "alibi_slopes" not in call and draw.one(True, False) and ".mla." not in operation:
        batch = call["kv_indptr"].shape[0] - 1
        call["alibi_slopes"] = draw.normal(*draw.one((call["q"].shape[1],), (batch, call["q"].shape[1])))
    if "causal" in call and ".mla." not in operation:
        call["window_right"] = draw.one(-1, 3)
    if "kv_indices" in call and draw.one(True, False):
        # A buffer that is longer than what is used.
        call["kv_indices"] = torch.cat((call["kv_indices"], torch.zeros(draw.number(1, 5), dtype=torch.int32)))
    if ".mla." not in operation:
        call["sinks"] = draw.one(None, odd(draw, draw.normal(call["q"].shape[1]) * 3, INF, -INF, NAN))
    for name in ("v_cache", "ckv_cache", "v"):
        if name in call:
            call[name] = odd(draw, call[name], INF, NAN)
    if ".mla." not in operation and draw.one(True, False, False):
        call["score_mod"] = draw.one(*SCORE_MODS)
        call["score_params"] = draw.normal(call["kv_indptr"].shape[0] - 1, call["q"].shape[1], 2)
    return call


def _fp8_cache(draw, operation, dtype):
    """A call of the operation without FP8, with caches of codes and scales."""
    call = _with_few_features(_extras(draw, operation, small(operation.removesuffix(".fp8"), dtype, draw.number(0, 10**6))))
    kv_heads = call["k_cache"].shape[2 if call["layout"] == "NHD" else 1]
    stored = DTYPES[draw.one("f8_e4m3", "f8_e5m2")]
    for name in ("k_cache", "v_cache"):
        call[name] = call[name].float().to(stored)
    for name in ("k_scale", "v_scale"):
        call[name] = draw.one(None, draw.normal().abs(), draw.normal(1).abs(), draw.normal(kv_heads).abs() + 0.1)
    return call


def _with_few_features(call):
    """Real head sizes are slow in the host reference. The remaining tensors are not contiguous."""
    few = {"q_nope": 24, "ckv": 24, "ckv_cache": 24, "q_pe": 8, "kpe": 8, "kpe_cache": 8, "q": 16, "k": 16, "v": 16, "k_cache": 16, "v_cache": 16}
    call = {name: value[..., : few[name]] if name in few else value for name, value in call.items()}
    if "q_nope" in call:
        call["q_nope"], call["q_pe"] = call["q_nope"][:, :5], call["q_pe"][:, :5]
    return call


def _quantization(draw, operation, dtype):
    format = draw.one("int8", "int4", "fp8_e4m3", "fp8_e5m2", "mxfp4", "nvfp4", "uint8", "uint4", "int16", "uint16", "int2", "uint2")
    fixed = {"mxfp4": 32, "nvfp4": 16}.get(format)
    granularity = "block" if fixed else draw.one("tensor", "channel", "head", "block")
    block_size = fixed or draw.one(1, 16, 32, 2**31 - 1)
    outer, channels, inner = draw.one((), (2,), (0,)), draw.number(0, 4), draw.one(1, 2, 7, 33, 64)
    x = draw.normal(*outer, channels, inner, dtype=dtype) * draw.one(1, 300, 1e-3, 1e-38)
    x = odd(draw, odd(draw, x, 0.0, -0.0), INF, -INF, NAN)
    if draw.number(0, 3) == 0:
        # Ties between two values of every format.
        x = (torch.randint(-20, 20, x.shape, generator=draw.generator) / 4).to(x.dtype)
    call = {"format": format, "granularity": granularity, "block_size": block_size}
    if format == "nvfp4" and draw.one(True, False):
        call["global_scale"] = torch.tensor(draw.one(0.5, 17.0, 1e4))
    shape = {"tensor": (), "block": (*outer, channels, -(-inner // min(block_size, inner)))}.get(granularity, (channels,))
    scale = draw.normal(*shape).abs() + draw.one(0.01, 1.0)
    if format == "mxfp4":
        scale = torch.randint(110, 140, shape, generator=draw.generator, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    elif format == "nvfp4":
        scale = scale.to(torch.float8_e4m3fn)
    given = operation == "dequantize" or format.startswith("uint") or draw.one(True, False)
    if given:
        call["scale"] = scale
    if given and "int" in format and draw.one(True, False):
        bound = 40000 if format.endswith("16") else 140
        call["zero_point"] = torch.randint(-bound, bound, shape, generator=draw.generator, dtype=torch.int32)
    if operation == "quantize":
        return {"x": x, **call}
    wide = {"int16": 2, "uint16": 2}.get(format, 1)
    codes = {"int2": 4, "uint2": 4, "int4": 2, "uint4": 2, "mxfp4": 2, "nvfp4": 2}.get(format, 1)
    values = torch.randint(0, 256, (*outer, channels, -(-inner // codes) * wide), generator=draw.generator, dtype=torch.uint8)
    if inner % codes:
        values[..., -1] &= 2 ** (8 // codes * (inner % codes)) - 1
    names = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2", "mxfp4": "float4_e2m1fn_x2", "nvfp4": "float4_e2m1fn_x2"}
    view = getattr(torch, names.get(format, "uint8" if codes > 1 else format))
    return {"quantized": values.view(view), "inner": inner, **call, "output_dtype": dtype}


def _linear(draw, operation, dtype):
    rows, inner, outer = draw.one((3,), (2, 2), (0,), ()), draw.one(1, 3, 33, 70), draw.one(1, 4, 17)
    layout = draw.one("plain", "panels")
    activation = draw.one("none", "relu", "silu", "gelu", "gelu_tanh")
    weights = torch.randint(-128, 128, (outer, inner), generator=draw.generator, dtype=torch.int8)

    def laid_out(weight):
        import layerzero as lz

        return weight if layout == "plain" else lz.ops.mlp_linear_pack(weight)

    if operation == "mlp.linear.pack":
        kinds = {"i8": torch.int8, "u8": torch.uint8}
        return {"weight": weights.view(kinds.get(dtype, draw.one(*kinds.values())))}
    bias = draw.normal(outer, dtype=dtype) if draw.one(True, False) else None
    if operation == "mlp.linear.fp8":
        # Most of them with the sizes and scales that torch's scaled product takes.
        inner, outer = draw.one((1, 17), (33, 130), (300, 130), (128, 64), (256, 160), (64, 16), (512, 128), (512, 256), (1024, 128))
        by = "block" if inner >= 512 else draw.one("tensor", "row")
        # More than 256 rows have a kernel of their own.
        rows = (8,) if inner >= 512 else draw.one(rows, rows, (300,))
        x_by, weight_by = draw.one((by, by), (by, by), (draw.one("tensor", "row", "block"), draw.one("tensor", "row", "block")))
        blocks = -(-inner // 128)
        x_scales = {"tensor": (), "row": rows}.get(x_by, (*rows, blocks))
        weight_scales = {"tensor": (), "row": (outer,)}.get(weight_by, (-(-outer // 128), blocks))
        x_scale = draw.normal(*x_scales).abs()
        if x_by == "block" and rows and draw.one(True, False):
            # By column, as torch's scaled product reads them.
            x_scale = x_scale.mT.contiguous().mT
        return {
            "x": draw.normal(*rows, inner, dtype="f8_e4m3"), "weight": draw.normal(outer, inner, dtype="f8_e4m3"),
            "x_scale": x_scale, "weight_scale": draw.normal(*weight_scales).abs() / 10,
            "bias": draw.one(draw.normal(outer, dtype=dtype), None), "x_granularity": x_by, "weight_granularity": weight_by,
            "activation": activation, "output_dtype": dtype,
        }  # fmt: skip
    if operation == "mlp.linear.int8":
        groups = draw.one("row", "tensor")
        shape = rows if groups == "row" else ()
        x = torch.randint(-128, 128, (*rows, inner), generator=draw.generator, dtype=torch.int8)
        zero = torch.randint(-9, 9, shape, generator=draw.generator, dtype=torch.int32) if draw.one(True, False) else None
        return {
            "x": x, "weight": laid_out(weights), "x_scale": draw.normal(*shape).abs() / 100, "weight_scale": draw.normal(outer).abs() / 100,
            "x_zero_point": zero, "bias": bias, "x_granularity": groups, "weight_layout": layout, "activation": activation,
            "output_dtype": dtype,
        }  # fmt: skip
    format, granularity, block_size = draw.one("int8", "int4"), draw.one("channel", "block"), draw.one(16, 32, 2**31 - 1)
    if format == "int4":
        weights = torch.randint(0, 256, (outer, -(-inner // 2)), generator=draw.generator, dtype=torch.uint8)
    shape = (outer,) if granularity == "channel" else (outer, -(-inner // min(block_size, inner)))
    zero = torch.randint(-9, 9, shape, generator=draw.generator, dtype=torch.int32) if draw.one(True, False) else None
    return {
        "x": draw.normal(*rows, inner, dtype=dtype), "weight": laid_out(weights), "scale": draw.normal(*shape).abs() / 100,
        "zero_point": zero, "bias": bias, "format": format, "granularity": granularity, "block_size": block_size,
        "weight_layout": layout, "activation": activation,
    }  # fmt: skip


def _sampling(draw, operation, dtype):
    rows, vocab = draw.one((4,), (2, 3), (0,), ()), draw.one(1, 2, 17, 100)
    common = {"seed": draw.number(-(2**40), 2**40), "offset": draw.number(0, 2**40)}
    if draw.one(True, False):
        common["seed_tensor"] = torch.tensor(draw.number(-(2**62), 2**62))
    if draw.one(True, False):
        common["offset_tensor"] = torch.tensor(draw.number(-(2**62), 2**62))
    if operation == "sampling.speculative":
        batch, length = draw.number(0, 4), draw.number(0, 5)
        draft = torch.softmax(draw.normal(batch, length, vocab), -1)
        # Half of the targets are close to their drafts, so that chains are accepted.
        target = torch.cat((draft, torch.softmax(draw.normal(batch, 1, vocab), -1)), 1)
        target = draw.one(target, torch.softmax(draw.normal(batch, length + 1, vocab), -1))
        tokens = torch.randint(0, vocab, (batch, length), generator=draw.generator, dtype=torch.int32)
        target = odd(draw, target.contiguous(), 0.0, -1.0, NAN)
        return {"draft_probs": odd(draw, draft, 0.0, NAN), "draft_tokens": tokens, "target_probs": target, **common}
    logits = draw.normal(*rows, vocab, dtype=dtype) * draw.one(1, 4)
    logits = odd(draw, odd(draw, logits, -INF, NAN), INF, 0.0)
    if draw.number(0, 4) == 0:
        logits = logits.round()
    if operation == "sampling.mask":
        bits = torch.randint(-(2**31), 2**31, (*rows, -(-vocab // 32)), generator=draw.generator).to(torch.int32)
        return {"logits": logits, "bitmask": draw.one(bits, torch.full_like(bits, -1))}
    if operation == "sampling.penalties":
        return {"logits": logits, **_penalties(draw, rows, vocab)}
    call = {"logits": logits, "temperature": draw.one(1.0, 0.6, 3.0), **common}
    if operation == "sampling.topk":
        call["k"] = draw.one(1, 3, 50, 2**40)
        if draw.one(True, False):
            call["k_tensor"] = torch.randint(1, vocab + 3, rows, generator=draw.generator, dtype=torch.int32)
    elif operation == "sampling.minp":
        call["p"] = draw.one(0.0, 0.05, 0.5, 1.0)
        if draw.one(True, False):
            call["p_tensor"] = torch.rand(rows, generator=draw.generator)
    else:
        call["p"], call["top_k"] = draw.one(0.1, 0.5, 0.9, 1.0), draw.one(0, 0, 3, 1000)
        if draw.one(True, False):
            call["p_tensor"] = torch.rand(rows, generator=draw.generator)
    return call


def _penalties(draw, rows, vocab):
    def tokens():
        return torch.randint(-1, vocab, (*rows, draw.number(0, 12)), generator=draw.generator, dtype=torch.int32)

    params = {name: draw.one(low, high) for name, low, high in (("repetition", 1.0, 1.3), ("frequency", 0.0, 0.7), ("presence", 0.0, -0.5))}
    tensors = {f"{name}_tensor": torch.rand(rows, generator=draw.generator) + 0.5 for name in params if draw.one(True, False)}
    return {"output_tokens": tokens(), "prompt_tokens": draw.one(tokens(), None), **params, **tensors}


def _logprobs(draw, dtype):
    rows, vocab = draw.one((4,), (2, 3), (0,), ()), draw.one(1, 2, 17, 100)
    logits = odd(draw, draw.normal(*rows, vocab, dtype=dtype) * draw.one(1, 4), -INF, INF, NAN)
    tokens = torch.randint(0, vocab, rows, generator=draw.generator, dtype=torch.int32)
    return {"logits": draw.one(logits, logits.round()), "tokens": tokens, "top_k": draw.number(0, min(vocab, 5))}


def _experts(draw, operation, dtype):
    rows, experts = draw.one((4,), (2, 3), (0,), (), (40,)), draw.one(4, 8, 12)
    if operation == "moe.route":
        logits = odd(draw, draw.normal(*rows, experts, dtype=dtype), -INF, NAN)
        call = {"logits": draw.one(logits, logits.round()), "top_k": draw.number(1, 2), "scoring": draw.one("softmax", "sigmoid")}
        call |= {"renormalize": draw.one(True, False), "scale": draw.one(1.0, 2.5)}
        if draw.one(True, False):
            call["bias"] = draw.normal(experts)
        if draw.one(True, False):
            call |= {"groups": 4, "top_groups": draw.number(2, 4), "group_score": draw.one("top1", "top2_sum") if "bias" in call else "top1"}
        return call
    top_k, inner, middle, outer = draw.number(1, 3), draw.one(1, 8, 33), draw.one(4, 17), draw.one(3, 8, 32)
    if operation == "moe.experts.quantized":
        # Several groups and blocks.
        inner, middle, outer = draw.one(1, 33, 130), draw.one(4, 17, 70), draw.one(3, 32, 130)
    call = {
        "x": draw.normal(*rows, inner, dtype=dtype),
        "indices": torch.randint(-1, experts, (*rows, top_k), generator=draw.generator, dtype=torch.int32),
        "weights": torch.rand((*rows, top_k), generator=draw.generator),
        "gate_up_weight": draw.normal(experts, 2 * middle, inner, dtype=dtype) / inner**0.5,
        "down_weight": draw.normal(experts, outer, middle, dtype=dtype) / middle**0.5,
        "activation": draw.one("silu", "silu", "gelu", "gelu_tanh", "relu", "none"), "gate_up_layout": draw.one("halves", "interleaved"),
        "alpha": draw.one(1.0, 1.702), "limit": draw.one(0.0, 1.0), "up_offset": draw.one(0.0, 1.0),
    }  # fmt: skip
    if draw.one(True, False):
        call["gate_up_bias"], call["down_bias"] = draw.normal(experts, 2 * middle, dtype=dtype), draw.normal(experts, outer, dtype=dtype)
    return _with_quantized_experts(draw, call) if operation == "moe.experts.quantized" else call


#: Formats, granularities and groups of quantized experts, one per seed: the usual ones first.
_QUANTIZED = (
    ("fp8_e4m3", "block", 32), ("mxfp4", "group", 32), ("int4", "group", 128), ("int4", "group", 32), ("int8", "row", 32),
    ("fp8_e4m3", "tensor", 32), ("int8", "group", 16), ("int4", "group", 5), ("mxfp4", "group", 32), ("int8", "block", 32),
    ("fp8_e4m3", "row", 32), ("int4", "tensor", 32), ("fp8_e4m3", "group", 64), ("int4", "row", 32), ("int8", "tensor", 32),
    ("int4", "block", 32), ("int8", "group", 5), ("int4", "group", 16), ("fp8_e4m3", "group", 48),
)  # fmt: skip


def _with_quantized_experts(draw, call):
    """Random codes and scales instead of weights."""
    format, granularity, group = _QUANTIZED[draw.seed % len(_QUANTIZED)]
    for name in ("gate_up", "down"):
        experts, features, inputs = call[f"{name}_weight"].shape
        shape = {"tensor": (), "row": (features,), "group": (features, -(-inputs // group))}
        blocks = -(-features // 128), -(-inputs // 128)
        call[f"{name}_weight"], scale = _codes(draw, format, (experts, features, inputs), (experts, *shape.get(granularity, blocks)))
        # Weights about as large as those of `moe.experts`.
        if format == "mxfp4":
            call[f"{name}_scale"] = (scale.view(torch.uint8) - inputs.bit_length() // 2).view(scale.dtype)
        else:
            call[f"{name}_scale"] = scale / ((64 if format == "int8" else 8) * inputs**0.5)
    return {**call, "format": format, "granularity": granularity, "group_size": group, "intermediate": inputs}


def _codes(draw, format, shape, scales):
    """Random stored values of rows of this shape, and random scales."""
    *outer, inner = shape
    integers = {"generator": draw.generator, "dtype": torch.uint8}
    if format == "fp8_e4m3":
        codes = draw.normal(*shape, dtype="f8_e4m3")
    elif format in ("int8", "uint8"):
        codes = torch.randint(0, 256, shape, **integers).view(getattr(torch, format))
    else:
        codes = torch.randint(0, 256, (*outer, -(-inner // 2)), **integers)
    if format in ("mxfp4", "nvfp4"):
        codes = codes.view(torch.float4_e2m1fn_x2)
    if format == "mxfp4":
        return codes, torch.randint(120, 128, scales, **integers).view(torch.float8_e8m0fnu)
    return codes, draw.normal(*scales).abs().to(torch.float8_e4m3fn if format == "nvfp4" else torch.float32)


def _quantized_rows(draw, operation, dtype):
    """FP4 layers and quantized tables."""
    rows, inner, outer = draw.one((3,), (2, 2), (0,), (), (70,)), draw.one(2, 34, 70, 600, 1024), draw.one(1, 4, 17, 40, 128)
    if operation == "mlp.linear.fp4":
        format = draw.one("mxfp4", "nvfp4")
        blocks = -(-inner // (16 if format == "nvfp4" else 32))
        (x, x_scale), (weight, weight_scale) = (_codes(draw, format, (*of, inner), (*of, blocks)) for of in (rows, (outer,)))
        call = {"x": x, "weight": weight, "x_scale": x_scale, "weight_scale": weight_scale, "bias": draw.one(draw.normal(outer, dtype=dtype), None)}
        if format == "nvfp4":
            call["x_global_scale"] = draw.one(torch.tensor(7.0), None)
            call["weight_global_scale"] = draw.one(torch.tensor(0.3), None)
        return {**call, "format": format, "activation": draw.one("none", "relu", "silu", "gelu", "gelu_tanh"), "output_dtype": dtype}
    format = draw.one("int8", "uint8", "int4", "uint4", "fp8_e4m3", "mxfp4")
    granularity, block = ("block", 32) if format == "mxfp4" else (draw.one("channel", "block"), draw.one(3, 16, 32, 2**31 - 1))
    dim = inner - draw.one(0, 1)
    scales = (outer,) if granularity == "channel" else (outer, -(-dim // block))
    table, scale = _codes(draw, format, (outer, dim), scales)
    zero_point = torch.randint(-9, 9, scales, generator=draw.generator, dtype=torch.int32) if "int" in format and draw.one(True, False) else None
    ids = torch.randint(0, outer, rows, generator=draw.generator, dtype=draw.one(torch.int32, torch.int64))
    return {
        "table": table, "ids": ids, "scale": scale, "zero_point": zero_point, "format": format, "granularity": granularity, "block_size": block,
        "dim": dim, "output_dtype": dtype,
    }  # fmt: skip


def _convolution(draw, operation, dtype):
    batch, length, channels, width = draw.number(0, 3), draw.number(0, 9), draw.one(1, 5, 16), draw.number(1, 4)
    wide = draw.one(*FLOATS)
    state = draw.normal(batch, channels, width - 1, dtype=dtype)
    call = {"weight": draw.normal(channels, width, dtype=wide), "activation": draw.one("none", "silu")}
    call["bias"] = draw.one(draw.normal(channels, dtype=wide), None)
    if operation == "conv.causal1d.step":
        return {"x": odd(draw, draw.normal(batch, channels, dtype=dtype), NAN), "state": state, **call}
    x = odd(draw, draw.normal(batch, length, channels, dtype=dtype), INF, NAN)
    return {"x": x, **call, "initial_state": draw.one(state, None), "return_state": draw.one(True, False)}


def _linear_attention(draw, operation, dtype):
    batch, length, key_heads, key_dim, value_dim = draw.number(0, 2), draw.one(0, 1, 5, 70, 130), draw.one(1, 2), draw.one(1, 4, 16), draw.one(1, 3, 16)
    heads, gate = key_heads * draw.one(1, 2), draw.one("head", "channel")
    outer = (batch,) if operation.endswith("decode") else (batch, length)
    # Decays of at most 1 and normalized keys, as in models: others amplify rounding errors.
    g = -draw.normal(*outer, heads, *((key_dim,) if gate == "channel" else ())).abs()
    beta = torch.rand((*outer, heads), generator=draw.generator).to(DTYPES[draw.one("f32", dtype)])
    q, k = (draw.normal(*outer, key_heads, key_dim, dtype=dtype) for _ in range(2))
    call = {"q": q, "k": k, "v": draw.normal(*outer, heads, value_dim, dtype=dtype), "g": g, "beta": beta, "gate": gate, "qk_l2norm": True}
    state = draw.normal(batch, heads, key_dim, value_dim)
    if operation.endswith("decode"):
        return {**call, "state": state}
    return {**call, "initial_state": draw.one(state, None), "return_state": draw.one(True, False)}


def _state_space(draw, operation, dtype):
    batch, length, groups, features, state_dim = draw.number(0, 2), draw.one(0, 1, 5, 70, 130), draw.one(1, 2), draw.one(1, 3, 16), draw.one(1, 4, 16)
    heads, outer = groups * draw.one(1, 2), (batch,) if operation.endswith("step") else (batch, length)
    call = {
        "x": draw.normal(*outer, heads, features, dtype=dtype), "dt": draw.normal(*outer, heads, dtype=dtype), "a": -draw.normal(heads).abs(),
        "b": draw.normal(*outer, groups, state_dim, dtype=dtype), "c": draw.normal(*outer, groups, state_dim, dtype=dtype),
        "d": draw.one(draw.normal(heads), None), "dt_bias": draw.one(draw.normal(heads), None), "dt_softplus": draw.one(True, True, False),
        "dt_min": draw.one(0.0, 0.1), "dt_max": draw.one(0.0, 2.0),
    }  # fmt: skip
    state = draw.normal(batch, heads, features, state_dim)
    if operation.endswith("step"):
        return {**call, "state": state}
    return {**call, "initial_state": draw.one(state, None), "return_state": draw.one(True, False)}


def _quantized_norm(draw, operation, dtype):
    rows, hidden, wide = draw.one((3,), (2, 2), (0,), ()), draw.one(1, 8, 33, 130), draw.one(*FLOATS)
    granularity, block_size = draw.one("tensor", "row", "block"), draw.one(7, 32, 128, 2**31 - 1)
    call = {"format": draw.one("int8", "fp8_e4m3", "fp8_e5m2"), "granularity": granularity, "block_size": block_size}
    shape = {"tensor": (), "row": rows}.get(granularity, (*rows, -(-hidden // min(block_size, hidden))))
    if granularity == "tensor" or draw.one(True, False):
        call["scale"] = draw.normal(*shape).abs() / 50 + 0.01
    x = odd(draw, draw.normal(*rows, hidden, dtype=dtype) * draw.one(1, 1e-3, 100), 0.0, INF, NAN)
    if operation == "norm.rms.add.quantize":
        call["residual"] = draw.normal(*rows, hidden, dtype=dtype)
    return {"x": x, **call, "weight": draw.one(draw.normal(hidden, dtype=wide), None), "weight_offset": draw.one(0.0, 1.0)}


def _norm(draw, operation, dtype):
    batch, length, wide = draw.number(0, 3), draw.one(1, 3, 40), draw.one(*FLOATS)
    if operation == "norm.ada":
        hidden = draw.one(1, 8, 33)
        x = odd(draw, draw.normal(batch, length, hidden, dtype=dtype), INF, NAN)
        return {"x": x, "scale": draw.normal(batch, hidden, dtype=wide), "shift": draw.normal(batch, hidden, dtype=wide)}
    if operation == "norm.layer.add":
        hidden = draw.one(1, 8, 33)
        x = odd(draw, draw.normal(batch, length, hidden, dtype=dtype), INF, NAN)
        affine = {name: draw.one(draw.normal(hidden, dtype=wide), None) for name in ("weight", "bias")}
        return {"x": x, "residual": draw.normal(batch, length, hidden, dtype=dtype), **affine}
    groups = draw.one(1, 2, 3)
    channels = groups * draw.one(1, 4)
    affine = {name: draw.one(draw.normal(channels, dtype=wide), None) for name in ("weight", "bias")}
    x = odd(draw, draw.normal(batch, channels, length, dtype=dtype), NAN)
    return {"x": x, **affine, "groups": groups, "activation": draw.one("none", "silu")}


def _cache(draw, operation, dtype):
    if operation == "kv.append":
        call = small(operation, dtype, draw.number(0, 10**6))
        if draw.number(0, 3) == 0:
            call["slots"][:] = -1
        return call
    pages, page_size, heads, features, moves = draw.number(1, 6), draw.one(1, 4), draw.one(1, 3), draw.one(1, 8), draw.number(0, 8)
    cache = draw.one(*FLOATS, "f8_e4m3", "f8_e5m2")
    layout = draw.one("NHD", "HND")
    shape = (pages, page_size, heads, features) if layout == "NHD" else (pages, heads, page_size, features)
    source, target = (torch.randint(0, pages, (moves,), generator=draw.generator, dtype=torch.int32) for _ in range(2))
    return {
        "k_cache": draw.normal(*shape, dtype=cache), "v_cache": draw.normal(*shape, dtype=cache), "source": source, "target": target,
        "layout": layout,
    }  # fmt: skip


def _sparse_topk(draw, dtype):
    queries, kv_heads, keys, head_dim, features, count = draw.number(0, 5), draw.one(1, 2), draw.number(0, 9), draw.one(1, 4, 16), draw.one(1, 3, 16), draw.one(0, 1, 5, 12)
    heads = kv_heads * draw.one(1, 2, 3)
    return {
        "q": draw.normal(queries, heads, head_dim, dtype=dtype), "k": odd(draw, draw.normal(keys, kv_heads, head_dim, dtype=dtype), INF, NAN),
        "v": odd(draw, draw.normal(keys, kv_heads, features, dtype=dtype), INF, -INF, NAN),
        "indices": torch.randint(-1, keys, (queries, kv_heads, count), generator=draw.generator, dtype=torch.int32),
        "soft_cap": draw.one(0.0, 3.0), "return_lse": draw.one(True, False),
    }  # fmt: skip


def _rope_append(draw, dtype):
    tokens, heads, kv_heads, features, page_size, pages = draw.number(0, 7), draw.one(1, 4), draw.one(1, 2), draw.one(4, 9), draw.one(1, 4), draw.number(1, 5)
    cache, layout, half, wide = draw.one(*FLOATS, "f8_e4m3", "f8_e5m2"), draw.one("NHD", "HND"), draw.one(1, 2), draw.one(*FLOATS)
    shape = (pages, page_size, kv_heads, features) if layout == "NHD" else (pages, kv_heads, page_size, features)
    integers = {"generator": draw.generator, "dtype": torch.int64}
    return {
        "q": draw.normal(tokens, heads, features, dtype=dtype), "k": draw.normal(tokens, kv_heads, features, dtype=dtype),
        "v": odd(draw, draw.normal(tokens, kv_heads, features, dtype=dtype), INF, NAN), "cos": draw.normal(11, half, dtype=wide),
        "sin": draw.normal(11, half, dtype=wide), "positions": torch.randint(0, 11, (tokens,), **integers).to(DTYPES[draw.one("i32", "i64")]),
        "k_cache": draw.normal(*shape, dtype=cache), "v_cache": draw.normal(*shape, dtype=cache),
        "slots": torch.randint(-1, pages * page_size, (tokens,), **integers), "interleaved": draw.one(True, False), "layout": layout,
    }  # fmt: skip


def _elementwise(draw, operation, dtype):
    call = small(operation, dtype, draw.number(0, 10**6))
    if "x" in call:
        # torch's gelu is NaN at +inf on the host.
        values = (-INF, NAN) if operation == "activation.gelu" else (INF, -INF, NAN)
        call["x"] = odd(draw, call["x"], *values)
    if operation == "activation.silu":
        call["alpha"] = draw.one(1.0, 0.0, 1.7, -1.0)
    return call


def wide(operation, dtype, seed):
    """One random call of a tensor operation."""
    draw = Draw(seed)
    if operation.startswith("attention.linear."):
        call = _linear_attention(draw, operation, dtype)
    elif operation.startswith("ssm."):
        call = _state_space(draw, operation, dtype)
    elif operation in ("norm.group", "norm.ada", "norm.layer.add"):
        call = _norm(draw, operation, dtype)
    elif operation.startswith("conv."):
        call = _convolution(draw, operation, dtype)
    elif operation.startswith("attention.") and operation.endswith((".prefill", ".decode")) and ".mla." not in operation:
        call = _attention(draw, operation, dtype)
    elif operation in ("quantize", "dequantize"):
        call = _quantization(draw, operation, dtype)
    elif operation in ("norm.rms.quantize", "norm.rms.add.quantize"):
        call = _quantized_norm(draw, operation, dtype)
    elif operation in ("mlp.linear.fp8", "mlp.linear.int8", "mlp.linear.weight_only", "mlp.linear.pack"):
        call = _linear(draw, operation, dtype)
    elif operation in ("mlp.linear.fp4", "embedding.lookup.quantized"):
        call = _quantized_rows(draw, operation, dtype)
    elif operation.startswith("moe."):
        call = _experts(draw, operation, dtype)
    elif operation == "logits.logprobs":
        call = _logprobs(draw, dtype)
    elif operation.startswith("sampling."):
        call = _sampling(draw, operation, dtype)
    elif operation.endswith(".paged.fp8"):
        call = _fp8_cache(draw, operation, dtype)
    elif operation == "attention.sparse.topk":
        call = _sparse_topk(draw, dtype)
    elif operation == "rope.append":
        call = _rope_append(draw, dtype)
    elif operation.startswith("kv."):
        call = _cache(draw, operation, dtype)
    elif operation.startswith("activation."):
        call = _elementwise(draw, operation, dtype)
    elif operation == "posenc.alibi":
        scores = odd(draw, draw.normal(draw.number(0, 3), 3, draw.number(0, 7), draw.number(0, 9), dtype=dtype), INF, NAN)
        call = {"scores": scores, "slopes": draw.normal(3), "causal_offset": draw.number(-3, 5)}
    else:
        call = small(operation, dtype, seed)
        if operation.startswith("attention."):
            call = _with_few_features(_extras(draw, operation, call) if "kv_indptr" in call else call)
    call = {name: value for name, value in call.items() if value is not None}
    written = ("k_cache", "v_cache", "residual", "state")
    tensors = {name: strided(draw, value) for name, value in call.items() if isinstance(value, torch.Tensor) and name not in written}
    return {**call, **tensors}


__all__ = ["DTYPES", "FLOATS", "wide"]
