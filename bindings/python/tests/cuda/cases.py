"""Random calls of operations that have GPU kernels: small, so that the host reference is fast.

Tensors are created on the host, so that the host reference and the GPU kernel get the same values.
"""

import random

import torch

DTYPES = {
    "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i32": torch.int32, "i64": torch.int64,
    "f8_e4m3": torch.float8_e4m3fn, "f8_e5m2": torch.float8_e5m2,
}  # fmt: skip


class Draw:
    """Random numbers and tensors from one seed."""

    def __init__(self, seed):
        self.seed = seed
        self.rng = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)

    def number(self, first, last):
        return self.rng.randint(first, last)

    def one(self, *values):
        return self.rng.choice(values)

    def normal(self, *shape, dtype="f32"):
        return torch.randn(shape, generator=self.generator).to(DTYPES[dtype])

    def cut(self, total, parts, least=0):
        """Random sizes with a given total."""
        sizes = [least] * parts
        for _ in range(total - least * parts):
            sizes[self.number(0, parts - 1)] += 1
        return sizes


def indptr(sizes):
    return torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()] if sizes else [0], dtype=torch.int32)


def pages(draw, lengths, page_size, spare=3):
    """A page table for requests of these lengths, with shuffled pages."""
    counts = [-(-length // page_size) for length in lengths]
    total = sum(counts)
    order = list(range(total + spare))
    draw.rng.shuffle(order)
    last = [length - (count - 1) * page_size if count else 0 for length, count in zip(lengths, counts, strict=True)]
    return {
        "kv_indptr": indptr(counts),
        "kv_indices": torch.tensor(order[:total], dtype=torch.int32),
        "kv_last_page_len": torch.tensor(last, dtype=torch.int32),
    }, total + spare


def group_of(operation, draw):
    return 1 if ".standard." in operation else draw.one(2, 4, 8)


def attention_params(draw, causal=True, window=True):
    params = {"causal": draw.one(True, False)} if causal else {}
    # Half of the calls are plain, because few kernels support everything.
    if draw.one(True, False):
        return params
    params["return_lse"] = draw.one(True, False)
    if draw.number(0, 3) == 0:
        params["sm_scale"] = 0.2
    if window and draw.number(0, 3) == 0:
        params["window_left"] = draw.number(0, 20)
    if draw.number(0, 5) == 0:
        params["soft_cap"] = 5.0
    return params


_WIDE = (
    "attention.gqa.decode.paged.fp8", "attention.gqa.prefill.paged.fp8", "attention.sparse.topk", "mlp.linear.fp8", "norm.ada", "norm.group", "norm.layer.add", "norm.rms.add.quantize", "norm.rms.quantize",
    "rope.append",
)  # fmt: skip


#: Seeds from here on are for calls with an expression, of operations that have one.
SCORED = 1000
HAVE_EXPRESSIONS = (
    *(f"attention.{kind}.{form}" for kind in ("gqa", "standard") for form in ("prefill", "decode", "prefill.ragged", "prefill.paged", "decode.paged")),
    "attention.gqa.prefill.paged.fp8", "attention.gqa.decode.paged.fp8",
)  # fmt: skip
#: Expressions that kernels may compute with rounded scores, and ones that they have to decline.
EXPRESSIONS = (
    "score", "score + p0 * (kv_idx - q_pos)", "score if q_pos - kv_idx < 13 else -inf", "tanh(score / 2) * 2 + b - h / 4",
    "min(max(score, -0.5), p1, 2) * exp(-kv_idx / 8)", "score if kv_idx < 5 or kv_idx <= q_pos else -inf",
    "score if (q_pos + 64) // 7 == (kv_idx + 64) // 7 and not kv_idx % 3 == 1 else score - log(1 + abs(q_pos - kv_idx)) * abs(p0)",
    "score if -kv_idx // 2 != ceil_div(q_pos, -3) and q_idx in [2, 4, 7, 50] or h % 2 == 0 else -1.5 * score - sqrt(abs(p1))",
    "score / (1 + kv_idx % 4) if kv_idx * kv_idx * 100 > q_pos * 10000 else max(score, b)",
)  # fmt: skip
DECLINED = ("score if score > 0 else -inf", "score * kv_idx", "exp(score)", "score + kv_idx // p0", "score + 1 / -kv_idx")


def _scoring(draw, batch, heads):
    """An expression, and what else affects scores."""
    call = {"return_lse": draw.one(True, False), "score_mod": EXPRESSIONS[draw.seed % len(EXPRESSIONS)], "score_params": draw.normal(batch, heads, 2)}
    for name, value in (("sm_scale", 0.1), ("soft_cap", 5.0), ("window_left", draw.number(0, 90))):
        if draw.number(0, 3) == 0:
            call[name] = value
    if draw.number(0, 2) == 0:
        call["sinks"] = draw.normal(heads) * 3
        call["sinks"][0] = draw.one(0.0, -float("inf"))
    if draw.number(0, 2) == 0:
        call["alibi_slopes"] = draw.normal(*draw.one((heads,), (batch, heads), (1, heads))) / 8
    return call


def _scored_requests(operation, dtype, seed):
    """A call with an expression of requests of different lengths."""
    draw = Draw(seed)
    kv_heads, batch = draw.one(1, 2, 3), draw.number(1, 5)
    heads = kv_heads * (1 if ".standard." in operation else draw.one(1, 3, 4))
    head_dim = draw.one(16, 64, 64, 80, 128, 256)
    queries = [1] * batch if ".decode" in operation else [draw.one(0, 1, draw.number(1, 40), draw.number(1, 150)) for _ in range(batch)]
    queries[-1] = max(queries[-1], 1)
    keys = [draw.one(0, queries[number], draw.number(1, 40), draw.number(1, 300)) for number in range(batch)]
    keys[-1] = max(keys[-1], 1)
    call = _scoring(draw, batch, heads)
    if ".prefill" in operation:
        call["causal"], call["qo_indptr"] = draw.one(True, False), indptr(queries)
        if draw.number(0, 3) == 0:
            call["window_right"] = draw.number(0, 90)
    q = draw.normal(sum(queries), heads, head_dim, dtype=dtype)
    if operation.endswith(".ragged"):
        head_dim_v = draw.one(head_dim, head_dim, 24, 128)
        k, v = (draw.normal(sum(keys), kv_heads, size, dtype=dtype) for size in (head_dim, head_dim_v))
        return {"q": q, "k": k, "v": v, "kv_indptr": indptr(keys), **call}
    page_size, layout = draw.one(1, 4, 16), draw.one("NHD", "HND")
    table, count = pages(draw, keys, page_size)
    if draw.one(True, False):
        table["kv_indices"] = torch.cat((table["kv_indices"], torch.zeros(draw.number(1, 5), dtype=torch.int32)))
    shape = (count, page_size, kv_heads, head_dim) if layout == "NHD" else (count, kv_heads, page_size, head_dim)
    stored = draw.one("f8_e4m3", "f8_e5m2") if operation.endswith(".fp8") else dtype
    caches = {name: draw.normal(*shape, dtype=stored) for name in ("k_cache", "v_cache")}
    for name in ("k_scale", "v_scale"):
        if stored != dtype and draw.one(True, False):
            call[name] = draw.normal(draw.one(1, kv_heads)).abs() + 0.1
    return {"q": q, **caches, **table, "layout": layout, **call}


def _scored(operation, dtype, seed):
    """A call with an expression."""
    if operation.endswith((".ragged", ".paged", ".fp8")):
        return _scored_requests(operation, dtype, seed)
    draw = Draw(seed)
    kv_heads, single = draw.one(1, 2, 3), operation.endswith(".decode")
    heads = kv_heads * (1 if ".standard." in operation else draw.one(1, 3, 4))
    head_dim = draw.one(16, 64, 64, 80, 128, 256)
    head_dim_v = draw.one(head_dim, head_dim, 24, 128)
    batch, seq_q, seq_k = draw.number(1, 3), draw.one(1, draw.number(1, 40), draw.number(1, 150)), draw.one(draw.number(1, 40), draw.number(1, 300))
    k, v = draw.normal(batch, seq_k, kv_heads, head_dim, dtype=dtype), draw.normal(batch, seq_k, kv_heads, head_dim_v, dtype=dtype)
    q = draw.normal(batch, heads, head_dim, dtype=dtype) if single else draw.normal(batch, seq_q, heads, head_dim, dtype=dtype)
    call = _scoring(draw, batch, heads)
    if single:
        if draw.one(True, False):
            call["kv_lens"] = torch.tensor([draw.number(0, seq_k) for _ in range(batch)], dtype=torch.int32)
    else:
        call["causal"] = draw.one(True, False)
        if draw.number(0, 3) == 0:
            call["causal_offset"] = draw.number(-20, 20)
        if draw.number(0, 3) == 0:
            call["window_right"] = draw.number(0, 90)
        if draw.number(0, 2) == 0:
            shape = [draw.one(size, size, 1) for size in (batch, heads, seq_q)]
            mask = torch.rand([*shape, seq_k], generator=draw.generator) > 0.3
            call["mask"] = mask if draw.one(True, False) else torch.where(mask, draw.normal(*shape, seq_k), -float("inf")).to(DTYPES[draw.one("f32", dtype)])
    if draw.one(True, False):
        q, k, v = (one if one.dim() == 3 else one.transpose(1, 2).contiguous() for one in (q, k, v))
        call["layout"] = "BHSD"
    return {"q": q, "k": k, "v": v, **call}


def small(operation, dtype, seed):
    """One random call; None for operations that few kernels serve, which `reference_cases` covers."""
    if seed >= SCORED and operation in HAVE_EXPRESSIONS:
        return _scored(operation, dtype, seed)
    if ".cross." in operation or operation.startswith("attention.linear.") or operation in _WIDE:
        return None
    draw = Draw(seed)
    kv_heads, head_dim = draw.one(1, 2), draw.one(64, 128, 128, 256)
    heads = kv_heads * group_of(operation, draw)
    if operation.endswith((".prefill", ".decode")) and ".mla." not in operation:
        batch, seq_k = draw.one(1, 1, 3), draw.number(1, 70)
        k, v = (draw.normal(batch, seq_k, kv_heads, head_dim, dtype=dtype) for _ in range(2))
        if operation.endswith(".decode"):
            params = attention_params(draw, causal=False)
            if draw.number(0, 2) == 0:
                params["kv_lens"] = torch.tensor([draw.number(0, seq_k) for _ in range(batch)], dtype=torch.int32)
            return {"q": draw.normal(batch, heads, head_dim, dtype=dtype), "k": k, "v": v, **params}
        params = attention_params(draw)
        seq_q = draw.one(seq_k, draw.number(1, 70))
        q = draw.normal(batch, seq_q, heads, head_dim, dtype=dtype)
        if draw.number(0, 3) == 0:
            q, k, v = (tensor.transpose(1, 2).contiguous() for tensor in (q, k, v))
            params["layout"] = "BHSD"
        return {"q": q, "k": k, "v": v, **params}
    if operation.endswith("prefill.ragged"):
        batch = draw.number(1, 4)
        queries, keys = draw.cut(draw.number(1, 60), batch), draw.cut(draw.number(1, 60), batch)
        if draw.one(True, False):
            keys = [one + two for one, two in zip(queries, keys, strict=True)]
        q = draw.normal(sum(queries), heads, head_dim, dtype=dtype)
        k, v = (draw.normal(sum(keys), kv_heads, head_dim, dtype=dtype) for _ in range(2))
        return {"q": q, "k": k, "v": v, "qo_indptr": indptr(queries), "kv_indptr": indptr(keys), **attention_params(draw)}
    if operation.endswith(".paged"):
        batch, page_size = draw.number(1, 5), draw.one(1, 4, 16)
        lengths = [draw.one(0, draw.number(1, 60), draw.number(1, 60)) for _ in range(batch)]
        lengths[0] = max(lengths[0], 1)
        table, count = pages(draw, lengths, page_size)
        if ".mla." in operation:
            heads = draw.one(16, 16, 32, 128)
            return {
                "q_nope": draw.normal(batch, heads, 512, dtype=dtype), "q_pe": draw.normal(batch, heads, 64, dtype=dtype),
                "ckv_cache": draw.normal(count, page_size, 512, dtype=dtype),
                "kpe_cache": draw.normal(count, page_size, 64, dtype=dtype), **table,
                "sm_scale": 0.05, "return_lse": draw.one(True, False),
            }  # fmt: skip
        layout = draw.one("NHD", "HND")
        shape = (count, page_size, kv_heads, head_dim) if layout == "NHD" else (count, kv_heads, page_size, head_dim)
        caches = {"k_cache": draw.normal(*shape, dtype=dtype), "v_cache": draw.normal(*shape, dtype=dtype)}
        if operation.endswith("decode.paged"):
            q = draw.normal(batch, heads, head_dim, dtype=dtype)
            return {"q": q, **caches, **table, "layout": layout, **attention_params(draw, causal=False)}
        queries = [draw.number(0, 20) for _ in range(batch)]
        queries[0] = max(queries[0], 1)
        q = draw.normal(sum(queries), heads, head_dim, dtype=dtype)
        return {"q": q, **caches, "qo_indptr": indptr(queries), **table, "layout": layout, **attention_params(draw)}
    if ".mla." in operation:
        tokens, kv_len, heads = draw.number(1, 12), draw.number(12, 60), draw.one(16, 16, 32)
        params = {"sm_scale": 0.05, "return_lse": draw.one(True, False)}
        if operation.endswith("prefill"):
            params["causal"] = draw.one(True, False)
        return {
            "q_nope": draw.normal(tokens, heads, 512, dtype=dtype), "q_pe": draw.normal(tokens, heads, 64, dtype=dtype),
            "ckv": draw.normal(kv_len, 1, 512, dtype=dtype), "kpe": draw.normal(kv_len, 1, 64, dtype=dtype), **params,
        }  # fmt: skip
    if operation == "attention.sparse.block":
        kv_heads, heads = draw.one((1, 4), (2, 2), (2, 8))
        rows, columns, block_rows, block_cols = draw.number(1, 4), draw.number(1, 4), draw.one(1, 8, 16), draw.one(4, 16)
        m, n = rows * block_rows - draw.one(0, draw.number(0, block_rows - 1)), columns * block_cols
        listed = [sorted(draw.rng.sample(range(columns), draw.number(0, columns))) for _ in range(rows)]
        listed[0] = listed[0] or [0]
        return {
            "q": draw.normal(m, heads, head_dim, dtype=dtype), "k": draw.normal(n, kv_heads, head_dim, dtype=dtype),
            "v": draw.normal(n, kv_heads, head_dim, dtype=dtype), "indptr": indptr([len(one) for one in listed]),
            "indices": torch.tensor([block for one in listed for block in one], dtype=torch.int32),
            "block_rows": block_rows, "block_cols": block_cols, "return_lse": draw.one(True, False),
        }  # fmt: skip
    if operation == "attention.sparse.variable_block":
        kv_heads, heads = draw.one((1, 4), (2, 2), (2, 8))
        m, n, rows, columns = draw.number(4, 60), draw.number(4, 60), draw.number(1, 4), draw.number(1, 4)
        mask = torch.rand(kv_heads, rows, columns, generator=draw.generator) > 0.4
        mask[0, 0, 0] = True
        return {
            "q": draw.normal(heads, m, head_dim, dtype=dtype), "k": draw.normal(kv_heads, n, head_dim, dtype=dtype),
            "v": draw.normal(kv_heads, n, head_dim, dtype=dtype), "block_mask": mask,
            "block_row_sizes": torch.tensor([draw.cut(m, rows, 1) for _ in range(kv_heads)], dtype=torch.int32),
            "block_col_sizes": torch.tensor([draw.cut(n, columns, 1) for _ in range(kv_heads)], dtype=torch.int32),
            "return_lse": draw.one(True, False),
        }  # fmt: skip
    if operation == "attention.state.merge":
        rows, states, heads = draw.number(1, 5), draw.number(1, 5), draw.number(1, 4)
        s = draw.normal(rows, states, heads)
        s[torch.rand(s.shape, generator=draw.generator) > 0.7] = float("-inf")
        return {"v": draw.normal(rows, states, heads, head_dim, dtype=dtype), "s": s}
    if operation.startswith("norm."):
        hidden = draw.one(8, 64, 576, 1024, 4096) if draw.number(0, 3) else draw.number(1, 300)
        shape = draw.one((draw.number(1, 9), hidden), (2, draw.number(1, 4), hidden))
        wide = draw.one(dtype, "f32")
        call = {"x": draw.normal(*shape, dtype=dtype)}
        if operation == "norm.rms.add":
            call["residual"] = draw.normal(*shape, dtype=dtype)
        if draw.number(0, 4):
            call["weight"] = draw.normal(hidden, dtype=wide)
        if operation == "norm.layer":
            if "weight" in call and draw.number(0, 4):
                call["bias"] = draw.normal(hidden, dtype=wide)
            call["return_stats"] = draw.number(0, 3) == 0
        else:
            call["weight_offset"] = draw.one(0.0, 0.0, 1.0)
        return call
    if operation == "posenc.rope":
        batch, seq, heads = draw.number(1, 3), draw.number(1, 12), draw.number(1, 5)
        half = draw.one(head_dim // 2, head_dim // 4)
        angles = draw.normal(20, half)
        call = {"x": draw.normal(batch, seq, heads, head_dim, dtype=dtype), "interleaved": draw.one(True, False)}
        table = draw.one("f32", dtype)
        call["cos"], call["sin"] = angles.cos().to(DTYPES[table]), angles.sin().to(DTYPES[table])
        if draw.one(True, False):
            call["positions"] = torch.randint(0, 20, (batch, seq), generator=draw.generator, dtype=draw.one(torch.int32, torch.int64))
        if draw.number(0, 3) == 0:
            call["x"], call["layout"] = call["x"].transpose(1, 2).contiguous(), "BHSD"
        return call
    if operation.startswith("activation."):
        shape = draw.one((draw.number(1, 3000),), (draw.number(1, 5), draw.number(1, 700)))
        call = {"gate": draw.normal(*shape, dtype=dtype), "up": draw.normal(*shape, dtype=dtype)}
        if not operation.endswith("_mul"):
            call = {"x": call["gate"]}
        if "gelu" in operation:
            call["approximate"] = draw.one("none", "tanh")
        return call
    if operation == "kv.append":
        tokens, page_size, count = draw.number(1, 30), draw.one(1, 4, 16), draw.number(3, 8)
        cache = draw.one(dtype, dtype, "f8_e4m3", "f8_e5m2")
        layout = draw.one("NHD", "HND")
        shape = (count, page_size, kv_heads, head_dim) if layout == "NHD" else (count, kv_heads, page_size, head_dim)
        slots = torch.randint(-1, count * page_size, (tokens,), generator=draw.generator)
        k, v = (draw.normal(tokens, kv_heads, head_dim, dtype=dtype) * draw.one(1, 300) for _ in range(2))
        return {
            "k": k, "v": v, "k_cache": draw.normal(*shape, dtype=cache), "v_cache": draw.normal(*shape, dtype=cache),
            "slots": slots, "layout": layout,
        }  # fmt: skip
    if operation in ("quantize", "dequantize"):
        format, granularity = draw.one("int8", "fp8_e4m3", "fp8_e5m2"), draw.one("tensor", "channel", "head", "block")
        channels, inner, block_size = draw.number(1, 6), draw.number(1, 80), draw.one(16, 32)
        x = draw.normal(draw.number(1, 3), channels, inner, dtype=dtype) * draw.one(1, 1000, 1e-3)
        common = {"format": format, "granularity": granularity, "block_size": block_size}
        if draw.number(0, 4) == 0:
            # Longer than what one program of a kernel reads.
            x = draw.normal(draw.number(1, 20), channels, draw.number(3000, 9000), dtype=dtype)
            inner = x.shape[-1]
        stored = {"int8": torch.int8, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}[format]
        scales = {"tensor": (), "block": (x.shape[0], channels, -(-inner // block_size))}.get(granularity, (channels,))
        scale = draw.normal(*scales).abs() + 0.1
        zero_point = torch.randint(-140, 140, scales, generator=draw.generator, dtype=torch.int32)
        extra = {"zero_point": zero_point} if format == "int8" and draw.number(0, 2) == 0 else {}
        if operation == "quantize":
            if draw.number(0, 3) == 0:
                odd = torch.tensor(draw.one((0.0, -0.0), (torch.nan,), (torch.inf, -torch.inf), (1e-38, -1e-40)))
                places = torch.randint(0, x.numel(), (draw.one(1, x.numel() // 2 + 1),), generator=draw.generator)
                x.view(-1)[places] = odd[torch.randint(0, len(odd), places.shape, generator=draw.generator)].to(x.dtype)
            return {"x": x, **({"scale": scale, **extra} if draw.number(0, 2) == 0 else {}), **common}
        return {
            "quantized": (x / x.abs().max() * 100).float().to(stored), "scale": scale, **extra, **common, "output_dtype": dtype,
        }  # fmt: skip
    if operation in ("embedding.lookup",):
        return {"table": draw.normal(30, 16, dtype=dtype), "ids": torch.randint(0, 30, (7,), generator=draw.generator)}
    if operation in ("mlp.linear", "mlp.fused"):
        # One row and several ones are different kernels; sizes need not be multiples of their blocks.
        rows, inner, outer = draw.one(1, 5, 40), draw.one(64, 72, 1100), draw.one(48, 33)
        x, activation = draw.normal(rows, inner, dtype=dtype), draw.one("none", "relu", "silu", "gelu", "gelu_tanh")

        def weight(*shape):
            return (draw.normal(*shape) / shape[-1] ** 0.5).to(DTYPES[dtype])

        if operation == "mlp.fused":
            down = weight(64, outer)
            return {"x": x, "gate_weight": weight(outer, inner), "up_weight": weight(outer, inner), "down_weight": down, "activation": activation}
        call = {"x": x, "weight": weight(outer, inner), "activation": activation}
        return {**call, "bias": draw.normal(outer, dtype=dtype)} if draw.one(True, False) else call
    return None
