"""torch as a peer of the CPU kernels: reads one workload or sample request per line, and writes one answer per line."""

import json
import math
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    print(json.dumps({"error": str(error)}), flush=True)
    sys.exit(0)

DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f8_e4m3": torch.float8_e4m3fn,
    "f8_e5m2": torch.float8_e5m2,
}


# Runs that take longer are not repeated three times.
SLOW = 0.3


def fill(shape, dtype):
    """Repeats a block of random values: drawing every element of a large tensor would take longer than the benchmark."""
    count = math.prod(shape)
    drawn = torch.randn(min(count, 1 << 20)).to(dtype)
    return drawn.repeat(-(-count // max(len(drawn), 1)))[:count].clone().view(shape)


def norm_rms(a, t, p):
    x, w = fill((*a["rows"], a["hidden"]), t["T"]), fill((a["hidden"],), t["W"])
    return lambda: F.rms_norm(x, (a["hidden"],), w, p.get("eps", 1e-6))


def norm_rms_add(a, t, p):
    shape = (*a["rows"], a["hidden"])
    x, residual, w = fill(shape, t["T"]), fill(shape, t["T"]), fill((a["hidden"],), t["W"])

    def run():
        residual.add_(x)
        return F.rms_norm(residual, (a["hidden"],), w, p.get("eps", 1e-6))

    x.mul_(0)
    return run


def norm_layer(a, t, p):
    x = fill((*a["rows"], a["hidden"]), t["T"])
    w, b = fill((a["hidden"],), t["W"]), fill((a["hidden"],), t["W"])
    return lambda: F.layer_norm(x, (a["hidden"],), w, b, p.get("eps", 1e-5))


def activation(function):
    def make(a, t, p):
        x = fill(tuple(a["dims"]), t["T"])
        return lambda: function(x, p)

    return make


def gated(function):
    def make(a, t, p):
        gate, up = fill(tuple(a["dims"]), t["T"]), fill(tuple(a["dims"]), t["T"])
        return lambda: function(gate, p) * up

    return make


def gelu(x, p):
    return F.gelu(x, approximate=p.get("approximate", "none"))


def embedding(a, t, p):
    table = torch.empty((a["vocab"], a["dim"]), dtype=t["T"]).fill_(0.5)
    ids = torch.randint(0, a["vocab"], tuple(a["tokens"]), dtype=t["I"])
    return lambda: F.embedding(ids, table)


def rope(a, t, p):
    batch, seq, heads, dim, half = (a[name] for name in ("batch", "seq", "heads", "head_dim", "half_rotary"))
    x = fill((batch, seq, heads, dim), t["T"])
    cos, sin = fill((a["max_positions"], half), t["C"]), fill((a["max_positions"], half), t["C"])
    positions = torch.arange(seq).expand(batch, seq)

    def halves():
        c, s = cos[positions].unsqueeze(2), sin[positions].unsqueeze(2)
        one, two = x[..., :half], x[..., half : 2 * half]
        return torch.cat((one * c - two * s, two * c + one * s), dim=-1).to(x.dtype)

    def interleaved():
        c, s = cos[positions].unsqueeze(2), sin[positions].unsqueeze(2)
        one, two = x[..., 0::2], x[..., 1::2]
        return torch.stack((one * c - two * s, two * c + one * s), dim=-1).flatten(-2).to(x.dtype)

    return interleaved if p.get("interleaved") else halves


def alibi(a, t, p):
    scores = fill((a["batch"], a["heads"], a["seq_q"], a["seq_k"]), t["T"])
    slopes = torch.rand(a["heads"])
    distance = torch.arange(a["seq_k"])[None, :] - torch.arange(a["seq_q"])[:, None] - (a["seq_k"] - a["seq_q"])
    return lambda: scores + (slopes[:, None, None] * distance).to(scores.dtype)


def merge(a, t, p):
    v = fill((*a["rows"], a["states"], a["heads"], a["head_dim"]), t["T"])
    s = torch.randn((*a["rows"], a["states"], a["heads"]))

    def run():
        lse = torch.logsumexp(s, dim=-2)
        weights = torch.exp(s - lse.unsqueeze(-2)).unsqueeze(-1).to(v.dtype)
        return (v * weights).sum(dim=-3), lse

    return run


def append(a, t, p):
    tokens, heads, dim, pages, size = (
        a[name] for name in ("tokens", "kv_heads", "head_dim", "num_pages", "page_size")
    )
    if p.get("layout") == "HND":
        return None
    k, v = fill((tokens, heads, dim), t["T"]), fill((tokens, heads, dim), t["T"])
    caches = [torch.zeros((pages * size, heads, dim)).to(t["C"]) for _ in range(2)]
    slots = torch.arange(tokens) * 5 % max(tokens, 1)

    def run():
        for cache, new in zip(caches, (k, v)):
            # float8 does not support index_put, so the bytes are used.
            as_bytes = cache.view(torch.uint8) if cache.element_size() == 1 else cache
            new = new.to(cache.dtype)
            as_bytes[slots] = new.view(torch.uint8) if cache.element_size() == 1 else new

    return run


def compact(a, t, p):
    shape = (a["num_pages"], a["page_size"] * a["kv_heads"] * a["head_dim"])
    byte = t["C"].itemsize == 1
    caches = [torch.zeros(shape, dtype=torch.uint8 if byte else t["C"]) for _ in range(2)]
    source = torch.randint(0, a["num_pages"], (a["moves"],))
    target = torch.randperm(a["num_pages"])[: a["moves"]]

    def run():
        for cache in caches:
            cache[target] = cache[source]

    return run


def groups(x, p):
    """Reshapes x so that the last dimension holds the elements of a group, where the granularity allows it."""
    granularity = p["granularity"]
    if granularity == "block":
        size = p.get("block_size", 32)
        return x.view(*x.shape[:-1], -1, size), -1
    if granularity == "tensor":
        return x, None
    return x, (*range(x.dim() - 2), -1)


QUANTIZED = {"int8": (127.0, torch.int8), "fp8_e4m3": (448.0, torch.float8_e4m3fn), "fp8_e5m2": (57344.0, torch.float8_e5m2)}


def quantize(a, t, p):
    if p["format"] not in QUANTIZED:
        return None
    largest, dtype = QUANTIZED[p["format"]]
    x = fill((*a["outer"], a["channels"], a["inner"]), t["T"])
    x, dims = groups(x, p)

    def run():
        amax = x.abs().amax(dim=dims, keepdim=True) if dims is not None else x.abs().amax()
        scale = amax.float() / largest
        quotient = x.float() / scale
        if dtype == torch.int8:
            quotient = quotient.round_().clamp_(-128, 127)
        return quotient.to(dtype), scale

    return run


def dequantize(a, t, p):
    if p["format"] not in QUANTIZED:
        return None
    _, dtype = QUANTIZED[p["format"]]
    x = (torch.randn((*a["outer"], a["channels"], a["stored"])) * 20).to(dtype)
    out = DTYPES[p.get("output_dtype", "f32")]
    if p["granularity"] == "tensor":
        scale = torch.rand(())
    elif p["granularity"] == "block":
        return None
    else:
        scale = torch.rand((a["channels"], 1))
    return lambda: (x.float() * scale).to(out)


def attention(a, t, p):
    batch, queries, keys, heads = a["batch"], a.get("seq_q", 1), a["seq_k"], a["heads"]
    kv_heads, window = a.get("kv_heads", heads), p.get("window_left", -1)
    if p.get("soft_cap") or 0 <= window < keys - 1:
        return None

    def tensor(length, count, dim):
        if p.get("layout") == "BHSD":
            return fill((batch, count, length, dim), t["T"])
        return fill((batch, length, count, dim), t["T"]).transpose(1, 2)

    q, k = tensor(queries, heads, a["head_dim"]), tensor(keys, kv_heads, a["head_dim"])
    v = tensor(keys, kv_heads, a["head_dim_v"])
    causal, mask = p.get("causal", False), None
    if causal and queries != keys:
        # torch aligns its causal mask at the first key, so an explicit mask is needed.
        causal, mask = False, torch.ones((queries, keys), dtype=torch.bool).tril(keys - queries)
    return lambda: F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=p.get("sm_scale"), enable_gqa=heads != kv_heads
    )


def paged(a, t, p):
    """torch has no paged attention: gathers the pages and runs dense attention."""
    batch, heads, kv_heads, dim = a["batch"], a["heads"], a.get("kv_heads", a["heads"]), a["head_dim"]
    pages = a["num_indices"] // batch
    window = p.get("window_left", -1)
    if p.get("soft_cap") or pages == 0 or 0 <= window < pages * a["page_size"] - 1 or p.get("layout") == "HND":
        return None
    caches = [fill((a["num_pages"], a["page_size"], kv_heads, dim), t["T"]) for _ in range(2)]
    q, indices = fill((batch, heads, 1, dim), t["T"]), torch.randint(0, a["num_pages"], (batch * pages,))

    def run():
        k, v = (cache[indices].view(batch, -1, kv_heads, dim).transpose(1, 2) for cache in caches)
        return F.scaled_dot_product_attention(q, k, v, scale=p.get("sm_scale"), enable_gqa=heads != kv_heads)

    return run


ACTIVATIONS = {
    "none": lambda x: x,
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def linear(a, t, p):
    x, w = fill((*a["rows"], a["in_features"]), t["T"]), fill((a["out_features"], a["in_features"]), t["T"])
    bias, act = fill((a["out_features"],), t["T"]), ACTIVATIONS[p.get("activation", "none")]
    return lambda: act(F.linear(x, w, bias))


def weight_only(a, t, p):
    """torch's kernels for packed weights: int8 per channel, int4 per block."""
    rows, inputs, outputs = math.prod(a["rows"]), a["in_features"], a["out_features"]
    act, x = ACTIVATIONS[p.get("activation", "none")], fill((rows, inputs), t["T"])
    if p["format"] == "int8":
        if p.get("granularity") == "block":
            return None
        w, scale = torch.randint(-9, 9, (outputs, inputs), dtype=torch.int8), torch.rand(outputs).to(t["T"])
        return lambda: act(torch.ops.aten._weight_int8pack_mm(x, w, scale))
    block = p.get("block_size", 32)
    w = torch.randint(0, 15, (outputs, inputs), dtype=torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(w, 2)
    scales = torch.rand(inputs // block, outputs, 2).to(t["T"])
    return lambda: act(torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, block, scales))


def linear_int8(a, t, p):
    rows, inputs, outputs = math.prod(a["rows"]), a["in_features"], a["out_features"]
    x = torch.randint(-9, 9, (rows, inputs), dtype=torch.int8)
    w = torch.randint(-9, 9, (outputs, inputs), dtype=torch.int8).t()
    scale = torch.rand(rows, 1) * torch.rand(outputs)
    act, out = ACTIVATIONS[p.get("activation", "none")], DTYPES[p.get("output_dtype", "f32")]
    return lambda: act((torch._int_mm(x, w) * scale).to(out))


def fused(a, t, p):
    x = fill((*a["rows"], a["in_features"]), t["T"])
    gate, up = (fill((a["intermediate"], a["in_features"]), t["T"]) for _ in range(2))
    down, act = fill((a["out_features"], a["intermediate"]), t["T"]), ACTIVATIONS[p.get("activation", "silu")]
    return lambda: F.linear(act(F.linear(x, gate)) * F.linear(x, up), down)


def sample_topk(a, t, p):
    logits, temperature = fill((math.prod(a["rows"]), a["vocab"]), t["T"]), p.get("temperature", 1.0)

    def run():
        values, indices = logits.topk(p["k"])
        drawn = torch.softmax(values.float() / temperature, -1).multinomial(1)
        return indices.gather(-1, drawn)

    return run


def sample_topp(a, t, p):
    logits, temperature = fill((math.prod(a["rows"]), a["vocab"]), t["T"]), p.get("temperature", 1.0)

    def run():
        values, indices = logits.sort(descending=True)
        if p.get("top_k"):
            values = values[:, : p["top_k"]]
        chances = torch.softmax(values.float() / temperature, -1)
        # The cumulative probability before a token decides, so that at least one is kept.
        chances = chances.masked_fill(chances.cumsum(-1) - chances > p["p"], 0)
        return indices.gather(-1, chances.multinomial(1))

    return run


MAKERS = {
    "sampling.topk": sample_topk,
    "sampling.topp": sample_topp,
    "norm.rms": norm_rms,
    "norm.rms.add": norm_rms_add,
    "norm.layer": norm_layer,
    "activation.relu": activation(lambda x, p: F.relu(x)),
    "activation.relu_squared": activation(lambda x, p: F.relu(x).square()),
    "activation.silu": activation(lambda x, p: F.silu(x)),
    "activation.gelu": activation(gelu),
    "activation.silu_mul": gated(lambda x, p: F.silu(x)),
    "activation.gelu_mul": gated(gelu),
    "embedding.lookup": embedding,
    "posenc.rope": rope,
    "posenc.alibi": alibi,
    "attention.state.merge": merge,
    "kv.append": append,
    "kv.compact": compact,
    "quantize": quantize,
    "dequantize": dequantize,
    "attention.standard.prefill": attention,
    "attention.standard.decode": attention,
    "attention.gqa.prefill": attention,
    "attention.gqa.decode": attention,
    "attention.standard.decode.paged": paged,
    "attention.gqa.decode.paged": paged,
    "attention.cross.prefill": attention,
    "attention.cross.decode": attention,
    "mlp.linear": linear,
    "mlp.linear.int8": linear_int8,
    "mlp.linear.weight_only": weight_only,
    "mlp.fused": fused,
}


def prepare(message):
    torch.set_num_threads(message["threads"])
    make = MAKERS.get(message["operation"])
    if make is None:
        return None
    types = {name: DTYPES[dtype] for name, dtype in message["types"].items() if dtype in DTYPES}
    return make(message["axes"], types, message["params"])


def sample(run, seconds, threads):
    # Like ours: CPU time for one thread.
    now = time.thread_time_ns if threads == 1 else time.perf_counter_ns
    times, begin = [], time.perf_counter()
    while (spent := time.perf_counter() - begin) < seconds or (len(times) < 3 and spent < SLOW):
        start = now()
        run()
        times.append(now() - start)
    return sorted(times)[len(times) // 10]


def main():
    torch.set_grad_enabled(False)
    print(json.dumps(torch.__version__), flush=True)
    run, threads = None, 1
    for line in sys.stdin:
        message = json.loads(line)
        if "sample" in message:
            print(json.dumps(sample(run, message["sample"], threads)), flush=True)
            continue
        run, threads = None, message["threads"]
        try:
            run = prepare(message)
            if run is not None:
                run()
        except (RuntimeError, KeyError, TypeError, NotImplementedError) as error:
            print(f"torch does not support {message['operation']}: {error}", file=sys.stderr)
            run = None
        print(json.dumps(run is not None), flush=True)


main()
