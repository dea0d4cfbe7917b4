"""A decode step of whole models with random weights: torch alone, libraries called directly, and through selection. Writes the results as
JSON. Nothing else should run at the same time.

    python stacks.py --output FOLDER [--only llama3_8b qwen3_30b_a3b deepseek_v3]
"""

import argparse
import gc
import inspect
import json
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
from captures import captured  # noqa: E402

import layerzero as lz  # noqa: E402
from layerzero import _native  # noqa: E402

BF16 = torch.bfloat16


def weight(*shape):
    return torch.empty(shape, device="cuda", dtype=BF16).normal_(std=0.02)


class Recorder:
    """Stands for `lz.ops`, and keeps the first call of each operation and shape."""

    def __init__(self):
        self.calls = {}

    def __getattr__(self, name):
        function = getattr(lz.ops, name)
        operation = next(one for one in lz.list_operations() if one.replace(".", "_") == name)
        names = list(inspect.signature(function).parameters)

        def call(*arguments, **keywords):
            given = {**dict(zip(names, arguments, strict=False)), **keywords}
            shapes = tuple((key, tuple(value.shape) if isinstance(value, torch.Tensor) else value) for key, value in given.items())
            # Clones, because some operations write into their arguments.
            self.calls.setdefault((operation, shapes), {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in given.items()})
            return function(*arguments, **keywords)

        return call


def tune(step):
    """Tunes all operations of a step."""
    recorder = Recorder()
    step(recorder)
    for (operation, _), arguments in recorder.calls.items():
        _native.compile_cold([(operation, (), arguments)], 8)
        lz.tune(operation, **arguments)
    return sorted({f"{operation}: {lz.which(operation, **arguments).kernel_id}" for (operation, _), arguments in recorder.calls.items()})


def measure(variants, batch):
    """Milliseconds and tokens per second of each variant, eager and as a CUDA graph, interleaved."""
    found, results, graphs = {}, {}, {}
    for name, step in variants.items():
        found[name] = {}
        try:
            results[name] = step().float()
            graphs[name], _ = captured(step, calls=1)
        except Exception as error:
            found[name]["error"] = f"{type(error).__name__}: {error} {error.__cause__}"[:300]
            torch.cuda.synchronize()
    samples = {(name, "eager"): [] for name in results} | {(name, "graph"): [] for name in graphs}
    for _ in range(7):
        for name, how in samples:
            call = variants[name] if how == "eager" else graphs[name].replay
            call()
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(5):
                call()
            torch.cuda.synchronize()
            samples[name, how].append((time.perf_counter() - began) / 5)
    for (name, how), taken in samples.items():
        took = statistics.median(taken)
        found[name][how] = {"ms": round(took * 1e3, 3), "tokens_per_s": round(batch / took, 1)}
    for name, result in results.items():
        found[name]["off"] = float((result - results["torch"]).abs().max() / results["torch"].abs().max())
    return found


class Cache:
    """Page tables of requests of one length, and the tables of rotary positions."""

    def __init__(self, batch, context, page_size, rotary):
        whole = {"dtype": torch.int32, "device": "cuda"}
        pages = context // page_size
        self.batch, self.context, self.page_size, self.count = batch, context, page_size, batch * pages
        self.indptr = torch.arange(0, batch * pages + 1, pages, **whole)
        self.indices = torch.arange(batch * pages, **whole)
        self.last = torch.full((batch,), page_size, **whole)
        self.positions = torch.full((batch,), context - 1, dtype=torch.int64, device="cuda")
        self.slots = torch.arange(batch, device="cuda") * context + context - 1
        angles = torch.rand(8192, rotary // 2, device="cuda")
        self.cos, self.sin = angles.cos(), angles.sin()

    def rotated(self, x):
        """By torch, `[tokens, heads, features]`."""
        c, s = self.cos[self.positions][:, None], self.sin[self.positions][:, None]
        a, b = x.float().chunk(2, -1)
        return torch.cat((a * c - b * s, b * c + a * s), -1).to(x.dtype)


def llama3_8b():
    """Also with FlashInfer called directly."""
    layers, batch, context, page_size = 32, 16, 1024, 16
    hidden, heads, kv_heads, head_dim, inner = 4096, 32, 8, 128, 14336
    cache = Cache(batch, context, page_size, head_dim)
    model = [
        {
            "qkv": weight((heads + 2 * kv_heads) * head_dim, hidden), "o": weight(hidden, heads * head_dim),
            "gate": weight(inner, hidden), "up": weight(inner, hidden), "down": weight(hidden, inner),
            "first": weight(hidden), "second": weight(hidden),
            "k": weight(cache.count, page_size, kv_heads, head_dim), "v": weight(cache.count, page_size, kv_heads, head_dim),
        }
        for _ in range(layers)
    ]  # fmt: skip
    start = weight(batch, hidden)
    sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
    positions = cache.positions[:, None]

    def following(number):
        return model[number + 1]["first"] if number + 1 < layers else model[number]["second"]

    def by_torch():
        x = start
        for layer in model:
            y = F.rms_norm(x, (hidden,), layer["first"], 1e-5)
            q, k, v = (one.unflatten(-1, (-1, head_dim)) for one in F.linear(y, layer["qkv"]).split(sizes, -1))
            q, k = cache.rotated(q), cache.rotated(k)
            layer["k"].view(-1, kv_heads, head_dim)[cache.slots], layer["v"].view(-1, kv_heads, head_dim)[cache.slots] = k, v
            keys, values = (layer[name].view(batch, context, kv_heads, head_dim).transpose(1, 2) for name in ("k", "v"))
            attended = F.scaled_dot_product_attention(q[:, :, None], keys, values, enable_gqa=True)[:, :, 0]
            x = x + F.linear(attended.flatten(1), layer["o"])
            y = F.rms_norm(x, (hidden,), layer["second"], 1e-5)
            x = x + F.linear(F.silu(F.linear(y, layer["gate"])) * F.linear(y, layer["up"]), layer["down"])
        return x

    def separate(ops=lz.ops):
        """One operation for each function of the library."""
        residual = start.clone()
        y = ops.norm_rms(residual, model[0]["first"], eps=1e-5)
        for number, layer in enumerate(model):
            q, k, v = (one.unflatten(-1, (-1, head_dim)).contiguous() for one in F.linear(y, layer["qkv"]).split(sizes, -1))
            q = ops.posenc_rope(q[:, None], cache.cos, cache.sin, positions)[:, 0]
            k = ops.posenc_rope(k[:, None], cache.cos, cache.sin, positions)[:, 0]
            ops.kv_append(k, v, layer["k"], layer["v"], cache.slots)
            attended = ops.attention_gqa_decode_paged(q, layer["k"], layer["v"], cache.indptr, cache.indices, cache.last)
            y = ops.norm_rms_add(F.linear(attended.flatten(1), layer["o"]), residual, layer["second"], eps=1e-5)
            y = F.linear(ops.activation_silu_mul(F.linear(y, layer["gate"]), F.linear(y, layer["up"])), layer["down"])
            y = ops.norm_rms_add(y, residual, following(number), eps=1e-5)
        return residual

    def fused(ops=lz.ops):
        """With `rope.append` and `mlp.fused`."""
        residual = start.clone()
        y = ops.norm_rms(residual, model[0]["first"], eps=1e-5)
        for number, layer in enumerate(model):
            q, k, v = (one.unflatten(-1, (-1, head_dim)) for one in F.linear(y, layer["qkv"]).split(sizes, -1))
            q = ops.rope_append(q, k, v, cache.cos, cache.sin, cache.positions, layer["k"], layer["v"], cache.slots)
            attended = ops.attention_gqa_decode_paged(q, layer["k"], layer["v"], cache.indptr, cache.indices, cache.last)
            y = ops.norm_rms_add(F.linear(attended.flatten(1), layer["o"]), residual, layer["second"], eps=1e-5)
            y = ops.mlp_fused(y, layer["gate"], layer["up"], layer["down"], activation="silu")
            y = ops.norm_rms_add(y, residual, following(number), eps=1e-5)
        return residual

    variants = {"torch": by_torch, "LayerZero": separate, "LayerZero fused": fused}
    try:
        import flashinfer
        from flashinfer.page import append_paged_kv_cache

        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(torch.empty(128 << 20, dtype=torch.uint8, device="cuda"), "NHD", use_tensor_cores=True)
        wrapper.plan(cache.indptr, cache.indices, cache.last, heads, kv_heads, head_dim, page_size, q_data_type=BF16)
        requests = torch.arange(batch, dtype=torch.int32, device="cuda")
        places = torch.full((batch,), context - 1, dtype=torch.int32, device="cuda")
        table = torch.cat((cache.cos, cache.sin), -1)

        def by_hand():
            residual = start.clone()
            y = flashinfer.rmsnorm(residual, model[0]["first"], 1e-5)
            for number, layer in enumerate(model):
                q, k, v = (one.contiguous() for one in F.linear(y, layer["qkv"]).split(sizes, -1))
                flashinfer.apply_rope_with_cos_sin_cache_inplace(cache.positions, q, k, head_dim, table)
                k, v = k.unflatten(-1, (-1, head_dim)), v.unflatten(-1, (-1, head_dim))
                append_paged_kv_cache(k, v, requests, places, (layer["k"], layer["v"]), cache.indices, cache.indptr, cache.last)
                attended = wrapper.run(q.unflatten(-1, (-1, head_dim)), (layer["k"], layer["v"]))
                y = F.linear(attended.flatten(1), layer["o"])
                flashinfer.fused_add_rmsnorm(y, residual, layer["second"], 1e-5)
                y = F.linear(F.silu(F.linear(y, layer["gate"])) * F.linear(y, layer["up"]), layer["down"])
                flashinfer.fused_add_rmsnorm(y, residual, following(number), 1e-5)
            return residual

        variants["FlashInfer by hand"] = by_hand
    except (ImportError, RuntimeError):
        # Not installed, or not compiled for this.
        pass
    kernels = [tune(separate), tune(fused)]
    shape = {"layers": layers, "batch": batch, "context": context}
    return {**measure(variants, batch), "kernels": kernels, "shape": shape}


def experts_by_torch(x, indices, weights, gate_up, down):
    """With torch's grouped product, which can be captured."""
    top_k = indices.shape[1]
    order = torch.argsort(indices.flatten(), stable=True)
    ends = torch.histc(indices.float(), bins=gate_up.shape[0], min=0, max=gate_up.shape[0] - 1).cumsum(0).int()
    gate, up = torch._grouped_mm(x[order // top_k], gate_up.transpose(1, 2), offs=ends).chunk(2, -1)
    made = torch._grouped_mm(F.silu(gate) * up, down.transpose(1, 2), offs=ends) * weights.flatten()[order][:, None].to(x.dtype)
    return torch.zeros_like(x).index_add_(0, order // top_k, made)


def qwen3_30b_a3b():
    layers, batch, context, page_size = 16, 16, 1024, 16
    hidden, heads, kv_heads, head_dim, inner, experts, top_k = 2048, 32, 4, 128, 768, 128, 8
    cache = Cache(batch, context, page_size, head_dim)
    model = [
        {
            "qkv": weight((heads + 2 * kv_heads) * head_dim, hidden), "o": weight(hidden, heads * head_dim), "router": weight(experts, hidden),
            "gate_up": weight(experts, 2 * inner, hidden), "down": weight(experts, hidden, inner),
            "first": weight(hidden), "second": weight(hidden), "q_norm": weight(head_dim), "k_norm": weight(head_dim),
            "k": weight(cache.count, page_size, kv_heads, head_dim), "v": weight(cache.count, page_size, kv_heads, head_dim),
        }
        for _ in range(layers)
    ]  # fmt: skip
    start = weight(batch, hidden) * 50
    sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]

    def by_torch():
        x = start
        for layer in model:
            y = F.rms_norm(x, (hidden,), layer["first"], 1e-6)
            q, k, v = (one.unflatten(-1, (-1, head_dim)) for one in F.linear(y, layer["qkv"]).split(sizes, -1))
            q = cache.rotated(F.rms_norm(q, (head_dim,), layer["q_norm"], 1e-6))
            k = cache.rotated(F.rms_norm(k, (head_dim,), layer["k_norm"], 1e-6))
            layer["k"].view(-1, kv_heads, head_dim)[cache.slots], layer["v"].view(-1, kv_heads, head_dim)[cache.slots] = k, v
            keys, values = (layer[name].view(batch, context, kv_heads, head_dim).transpose(1, 2) for name in ("k", "v"))
            attended = F.scaled_dot_product_attention(q[:, :, None], keys, values, enable_gqa=True)[:, :, 0]
            x = x + F.linear(attended.flatten(1), layer["o"])
            y = F.rms_norm(x, (hidden,), layer["second"], 1e-6)
            weights, indices = torch.softmax(F.linear(y, layer["router"]).float(), -1).topk(top_k, -1)
            weights = weights / weights.sum(-1, keepdim=True)
            x = x + experts_by_torch(y, indices, weights, layer["gate_up"], layer["down"])
        return x

    def through_selection(ops=lz.ops):
        residual = start.clone()
        y = ops.norm_rms(residual, model[0]["first"], eps=1e-6)
        for number, layer in enumerate(model):
            q, k, v = (one.unflatten(-1, (-1, head_dim)) for one in F.linear(y, layer["qkv"]).split(sizes, -1))
            q = ops.norm_rms(q.contiguous(), layer["q_norm"], eps=1e-6)
            k = ops.norm_rms(k.contiguous(), layer["k_norm"], eps=1e-6)
            q = ops.rope_append(q, k, v, cache.cos, cache.sin, cache.positions, layer["k"], layer["v"], cache.slots)
            attended = ops.attention_gqa_decode_paged(q, layer["k"], layer["v"], cache.indptr, cache.indices, cache.last)
            y = ops.norm_rms_add(F.linear(attended.flatten(1), layer["o"]), residual, layer["second"], eps=1e-6)
            weights, indices = ops.moe_route(F.linear(y, layer["router"]), top_k=top_k)
            y = ops.moe_experts(y, indices, weights, layer["gate_up"], layer["down"])
            following = model[number + 1]["first"] if number + 1 < layers else layer["second"]
            y = ops.norm_rms_add(y, residual, following, eps=1e-6)
        return residual

    kernels = tune(through_selection)
    shape = {"layers": layers, "batch": batch, "context": context}
    return {**measure({"torch": by_torch, "LayerZero": through_selection}, batch), "kernels": kernels, "shape": shape}


def deepseek_v3():
    """Latent attention in its absorbed form, grouped routing, routed and shared experts."""
    layers, batch, context, page_size = 3, 16, 1024, 64
    hidden, heads, q_rank, latent, rotary, nope, value_dim = 7168, 128, 1536, 512, 64, 128, 128
    inner, experts, top_k, groups, top_groups, factor = 2048, 256, 8, 8, 4, 2.5
    cache = Cache(batch, context, page_size, rotary)
    model = [
        {
            "q_a": weight(q_rank, hidden), "q_norm": weight(q_rank), "q_b": weight(heads * (nope + rotary), q_rank),
            "kv_a": weight(latent + rotary, hidden), "kv_norm": weight(latent), "k_up": weight(heads, nope, latent), "v_up": weight(heads, latent, value_dim),
            "o": weight(hidden, heads * value_dim), "router": weight(experts, hidden), "bias": torch.rand(experts, device="cuda"),
            "gate_up": weight(experts, 2 * inner, hidden), "down": weight(experts, hidden, inner),
            "shared_gate": weight(inner, hidden), "shared_up": weight(inner, hidden), "shared_down": weight(hidden, inner),
            "first": weight(hidden), "second": weight(hidden),
            "ckv": weight(cache.count, page_size, latent), "kpe": weight(cache.count, page_size, rotary),
        }
        for _ in range(layers)
    ]  # fmt: skip
    start = weight(batch, hidden) * 50
    scale = (nope + rotary) ** -0.5

    def projected(layer, y, norm):
        """Absorbed queries, their rotary part, latents and the rotary part of the keys."""
        q = F.linear(norm(F.linear(y, layer["q_a"]), layer["q_norm"]), layer["q_b"]).unflatten(-1, (heads, -1))
        latents, key = F.linear(y, layer["kv_a"]).split([latent, rotary], -1)
        absorbed = torch.bmm(q[..., :nope].transpose(0, 1), layer["k_up"]).transpose(0, 1).contiguous()
        return absorbed, q[..., nope:], norm(latents.contiguous(), layer["kv_norm"]), key

    def written(layer, latents, key):
        layer["ckv"].view(-1, latent)[cache.slots], layer["kpe"].view(-1, rotary)[cache.slots] = latents, key

    def output(layer, attended):
        return F.linear(torch.bmm(attended.transpose(0, 1), layer["v_up"]).transpose(0, 1).flatten(1), layer["o"])

    def routed_by_torch(layer, y):
        scores = F.linear(y, layer["router"]).float().sigmoid()
        choice = scores + layer["bias"]
        of_groups = choice.view(batch, groups, -1).topk(2, -1)[0].sum(-1)
        kept = torch.zeros_like(of_groups).scatter_(1, of_groups.topk(top_groups, -1)[1], 1)
        choice = choice.masked_fill(kept.repeat_interleave(experts // groups, 1) == 0, 0.0)
        indices = choice.topk(top_k, -1)[1]
        weights = scores.gather(1, indices)
        return weights / weights.sum(-1, keepdim=True) * factor, indices

    def by_torch():
        x = start
        for layer in model:

            def norm(x, weight):
                return F.rms_norm(x, weight.shape, weight, 1e-6)

            q, q_pe, latents, key = projected(layer, norm(x, layer["first"]), norm)
            written(layer, latents, cache.rotated(key[:, None])[:, 0])
            ckv, kpe = layer["ckv"].view(batch, context, latent), layer["kpe"].view(batch, context, rotary)
            scores = (q @ ckv.transpose(1, 2) + cache.rotated(q_pe) @ kpe.transpose(1, 2)) * scale
            x = x + output(layer, torch.softmax(scores.float(), -1).to(BF16) @ ckv)
            y = norm(x, layer["second"])
            weights, indices = routed_by_torch(layer, y)
            shared = F.linear(F.silu(F.linear(y, layer["shared_gate"])) * F.linear(y, layer["shared_up"]), layer["shared_down"])
            x = x + experts_by_torch(y, indices, weights, layer["gate_up"], layer["down"]) + shared
        return x

    def through_selection(ops=lz.ops):
        def norm(x, weight):
            return ops.norm_rms(x, weight, eps=1e-6)

        residual = start.clone()
        y = norm(residual, model[0]["first"])
        for number, layer in enumerate(model):
            q, q_pe, latents, key = projected(layer, y, norm)
            positions = cache.positions[:, None]
            q_pe = ops.posenc_rope(q_pe[:, None].contiguous(), cache.cos, cache.sin, positions)[:, 0]
            key = ops.posenc_rope(key[:, None, None].contiguous(), cache.cos, cache.sin, positions)[:, 0, 0]
            written(layer, latents, key)
            attended = ops.attention_mla_decode_paged(q, q_pe, layer["ckv"], layer["kpe"], cache.indptr, cache.indices, cache.last, sm_scale=scale)
            y = ops.norm_rms_add(output(layer, attended), residual, layer["second"], eps=1e-6)
            weights, indices = ops.moe_route(
                F.linear(y, layer["router"]), layer["bias"], top_k=top_k, scoring="sigmoid", scale=factor, groups=groups, top_groups=top_groups,
                group_score="top2_sum",
            )  # fmt: skip
            shared = ops.mlp_fused(y, layer["shared_gate"], layer["shared_up"], layer["shared_down"], activation="silu")
            y = ops.moe_experts(y, indices, weights, layer["gate_up"], layer["down"]) + shared
            following = model[number + 1]["first"] if number + 1 < layers else layer["second"]
            y = ops.norm_rms_add(y, residual, following, eps=1e-6)
        return residual

    kernels = tune(through_selection)
    shape = {"layers": layers, "batch": batch, "context": context}
    return {**measure({"torch": by_torch, "LayerZero": through_selection}, batch), "kernels": kernels, "shape": shape}


STACKS = {"llama3_8b": llama3_8b, "qwen3_30b_a3b": qwen3_30b_a3b, "deepseek_v3": deepseek_v3}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default=".")
    parser.add_argument("--only", nargs="*", default=list(STACKS))
    options = parser.parse_args()
    lz.load_backends("torch", "triton", "flashinfer")
    torch.manual_seed(0)
    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
    for name in options.only:
        began = time.monotonic()
        try:
            found[name] = STACKS[name]()
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error} ({error.__cause__})"[:600]}
        print(name, round(time.monotonic() - began, 1), "s", json.dumps(found[name])[:2500], flush=True)
        Path(options.output, "stacks.json").write_text(json.dumps(found, indent=1) + "\n")
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
