"""Decode steps of a Llama-3-8B-shaped model on a GPU: compiled by LayerZero, by `torch.compile` with CUDA graphs, and eager.

Weights are random. All contestants decode one token per sequence with caches of the same contents, interleaved; logits of one step are
compared first. The share of the memory limit counts weights and cached keys and values, each read once per step.

    python graph_gpu.py [--layers 32] [--batch 1 32] [--cached 960] [--steps 32] [--rounds 7] [--output FILE.json]
"""

import argparse
import json
import statistics
import sys
import time
import traceback
from pathlib import Path

import torch

import layerzero as lz

DEVICE = torch.device("cuda", 0)
#: Capacity of the caches.
CAPACITY = 1024


def build(layers):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=8192, rope_theta=500000.0, rms_norm_eps=1e-5, tie_word_embeddings=False,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(DEVICE):
            model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(previous)
    return model.to(torch.bfloat16).eval()


class Ours:
    """`lz.Generator` with its contiguous cache."""

    def __init__(self, generator, batch, cached):
        self.session = generator.session()
        self.session.reserve(dict.fromkeys(range(batch), CAPACITY))
        for tensor in self.session._memory.tensors:
            tensor.normal_(0, 0.5)
        self.batch, self.cached = batch, cached
        self.graph = generator._graph
        self.reset()

    def reset(self):
        self.session._lengths = dict.fromkeys(range(self.batch), self.cached)

    def step(self, token):
        return self.session.step({row: [token] for row in range(self.batch)})

    def caches(self, layer):
        """Keys and values of a layer, `[batch, kv_heads, capacity, head_dim]`."""
        pages = [self.session._memory.pages_of(row, 1)[0] for row in range(self.batch)]
        return [self.session._memory.tensors[2 * layer + which][pages].transpose(1, 2) for which in (0, 1)]


class Peer:
    """The model itself with a static cache; `compiled` or eager."""

    def __init__(self, model, batch, cached, compiled):
        from transformers import StaticCache

        config = model.config
        try:
            self.cache = StaticCache(config=config, max_cache_len=CAPACITY)
            self.cache.early_initialization(batch, config.num_key_value_heads, config.head_dim, torch.bfloat16, DEVICE)
        except (TypeError, AttributeError):
            self.cache = StaticCache(config=config, max_batch_size=batch, max_cache_len=CAPACITY, device=DEVICE, dtype=torch.bfloat16)
        self.position = torch.tensor([cached], device=DEVICE)
        self.cached, self.batch = cached, batch
        self.ids = torch.zeros((batch, 1), dtype=torch.int64, device=DEVICE)
        cache = self.cache

        def forward(ids, position):
            positions = position[None].expand(ids.shape[0], 1)
            return model(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True, **extra(model, position)).logits[:, -1]

        self.forward = torch.compile(forward, mode="reduce-overhead", fullgraph=False) if compiled else forward

    def fill(self, ours):
        for index, layer in enumerate(self.cache.layers):
            keys, values = ours.caches(index)
            layer.keys.copy_(keys)
            layer.values.copy_(values)

    def reset(self):
        self.position.fill_(self.cached)
        for layer in self.cache.layers:
            # Newer releases count tokens in the layer.
            for name in ("cumulative_length", "_seen_tokens"):
                if isinstance(getattr(layer, name, None), int):
                    setattr(layer, name, self.cached)
                elif isinstance(getattr(layer, name, None), torch.Tensor):
                    getattr(layer, name).fill_(self.cached)

    def step(self, token):
        torch.compiler.cudagraph_mark_step_begin()
        logits = self.forward(self.ids.fill_(token), self.position)
        self.position.add_(1)
        return logits


def extra(model, position):
    import inspect

    return {"cache_position": position} if "cache_position" in inspect.signature(type(model).forward).parameters else {}


def timed(contestant, steps):
    """Milliseconds per step: device time from the first to the last, and time of the host to enqueue them."""
    contestant.reset()
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    host = time.perf_counter()
    begin.record()
    for index in range(steps):
        contestant.step(17 + index)
    end.record()
    host = time.perf_counter() - host
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / steps, host * 1e3 / steps


def copy_bandwidth():
    source = torch.randn(1 << 30, device=DEVICE, dtype=torch.bfloat16)
    target = torch.empty_like(source)
    times = []
    for _ in range(12):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return 2 * source.nbytes / (statistics.median(times) * 1e-3)


def measure(model, generator, batch, options, bandwidth):
    torch.compiler.reset()
    contestants = {"layerzero": Ours(generator, batch, options.cached)}
    ours = contestants["layerzero"]
    for name, compiled in (("eager", False), ("torch.compile", True)):
        if name in options.skip:
            continue
        contestants[name] = Peer(model, batch, options.cached, compiled)
        contestants[name].fill(ours)
    logits = {}
    for name, contestant in contestants.items():
        began = time.monotonic()
        with torch.no_grad():
            contestant.reset()
            logits[name] = contestant.step(17).float().clone()
            for _ in range(4):
                contestant.reset()
                contestant.step(17)
        torch.cuda.synchronize()
        print(f"batch {batch}: {name} ready after {time.monotonic() - began:.1f} s", flush=True)
    pairs = [(a, b) for a in logits for b in logits if a < b]
    difference = {f"{a} and {b}": round(float((logits[a] - logits[b]).norm() / logits[b].norm()), 4) for a, b in pairs}
    times = {name: [] for name in contestants}
    with torch.no_grad():
        for _ in range(options.rounds):
            for name, contestant in contestants.items():
                times[name].append(timed(contestant, options.steps))
    weights = sum(one.numel() * one.element_size() for one in model.parameters()) - model.get_input_embeddings().weight.nbytes
    length = options.cached + options.steps / 2
    config = model.config
    read = weights + batch * length * config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_dim * 2
    row = {"batch": batch, "layers": config.num_hidden_layers, "cached": options.cached, "bytes_per_step": read, "relative_difference": difference}
    prepared = list(ours.graph._prepared.values())[-1]
    row["captured"], row["not_captured"], row["fallbacks"] = prepared.graph is not None, prepared.not_captured, ours.graph.fallbacks
    if prepared.graph is not None:
        row["replay_ms"] = replay(prepared)
    for name, found in times.items():
        device, host = statistics.median(one for one, _ in found), statistics.median(two for _, two in found)
        row[name] = {
            "ms": round(device, 4), "host_ms": round(host, 4), "all_ms": [round(one, 4) for one, _ in found],
            "tokens_per_second": round(batch * 1e3 / device, 1), "share_of_copy": round(read / (device * 1e-3) / bandwidth, 3),
            "share_of_4.8_TB/s": round(read / (device * 1e-3) / 4.8e12, 3),
        }  # fmt: skip
    for name in ("eager", "torch.compile"):
        if name in row:
            row[f"times_{name}"] = round(row[name]["ms"] / row["layerzero"]["ms"], 3)
    return row


def replay(prepared, count=30):
    """Milliseconds of the CUDA graph alone."""
    times = []
    for _ in range(5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(count):
            prepared.graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / count)
    return round(statistics.median(times), 4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 32])
    parser.add_argument("--cached", type=int, default=960)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--skip", nargs="*", default=[], choices=["eager", "torch.compile"])
    parser.add_argument("--output")
    parser.add_argument("--explain", help="file for the explanation of the decode step")
    options = parser.parse_args()
    print("backends", lz.load_backends(), flush=True)
    began = time.monotonic()
    model = build(options.layers)
    torch.cuda.synchronize()
    print(f"model after {time.monotonic() - began:.1f} s", flush=True)
    began = time.monotonic()
    generator = lz.Generator(model, validation="none")
    print(f"compiled after {time.monotonic() - began:.1f} s", flush=True)
    bandwidth = copy_bandwidth()
    print(f"copy {bandwidth / 1e12:.2f} TB/s", flush=True)
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), "copy_TB/s": bandwidth / 1e12}
    rows, failed = [], 0
    for batch in options.batch:
        try:
            rows.append(measure(model, generator, batch, options, bandwidth))
            print(json.dumps(rows[-1]), flush=True)
        except Exception:
            traceback.print_exc(limit=12)
            failed = 1
        if options.output:
            Path(options.output).write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    if options.explain and generator._graph._prepared:
        from layerzero._compile.device import report

        Path(options.explain).write_text(report.as_text(generator._graph, list(generator._graph._prepared.values())[-1]))
    return failed


if __name__ == "__main__":
    sys.exit(main())
