"""Latency of the operations of mixture-of-experts and linear-attention models on the host, interleaved with torch.

    LAYERZERO_THREADS=2 python benches/models.py [--rounds 9] [--only TEXT]

torch is what Transformers runs without extensions: the loop over experts, the chunked gated delta rule and the chunked scan.
Prints the median of each and the ratio.
"""

import argparse
import os
import statistics
import time

# Both libraries get the same number of threads.
THREADS = int(os.environ.setdefault("LAYERZERO_THREADS", "2"))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan, mamba2_selective_state_update  # noqa: E402
from transformers.models.qwen3_next.modeling_qwen3_next import (  # noqa: E402
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

import layerzero as lz  # noqa: E402

HALF = torch.bfloat16


def experts_of_transformers(x, indices, weights, gate_up, down):
    """The loop of MixtralExperts and Qwen3MoeExperts."""
    output = torch.zeros_like(x)
    mask = F.one_hot(indices, num_classes=gate_up.shape[0]).permute(2, 1, 0)
    for expert in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
        expert = expert[0]
        slot, token = torch.where(mask[expert])
        gate, up = F.linear(x[token], gate_up[expert]).chunk(2, dim=-1)
        current = F.linear(F.silu(gate) * up, down[expert]) * weights[token, slot, None]
        output.index_add_(0, token, current.to(output.dtype))
    return output


def experts(tokens, count, top_k, hidden, intermediate, dtype=HALF):
    x = torch.randn(tokens, hidden).to(dtype)
    indices = torch.rand(tokens, count).argsort(-1)[:, :top_k]
    weights = torch.softmax(torch.randn(tokens, top_k), -1)
    gate_up, down = (torch.randn(count, *shape, dtype=dtype).mul_(0.02) for shape in ((2 * intermediate, hidden), (hidden, intermediate)))
    short = indices.to(torch.int32)
    given = weights.to(dtype)
    return lambda: lz.ops.moe_experts(x, short, weights, gate_up, down), lambda: experts_of_transformers(x, indices, given, gate_up, down)


def router(tokens, count, top_k):
    logits = torch.randn(tokens, count, dtype=HALF)

    def theirs():
        values, indices = torch.topk(torch.softmax(logits, -1, dtype=torch.float32), top_k, dim=-1)
        return values / values.sum(-1, keepdim=True), indices

    return lambda: lz.ops.moe_route(logits, top_k=top_k), theirs


def linear(batch, length, decode=False):
    outer = (batch,) if decode else (batch, length)
    q, k = (torch.randn(*outer, 16, 128, dtype=HALF) for _ in range(2))
    v, g, beta = torch.randn(*outer, 32, 128, dtype=HALF), -torch.rand(*outer, 32), torch.rand(*outer, 32).to(HALF)
    state = torch.zeros(batch, 32, 128, 128)
    if decode:
        wide = [tensor[:, None] for tensor in (q.repeat_interleave(2, 1), k.repeat_interleave(2, 1), v, g, beta)]
        options = {"initial_state": state, "output_final_state": True, "use_qk_l2norm_in_kernel": True}
        return (
            lambda: lz.ops.attention_linear_decode(q, k, v, g, beta, state, qk_l2norm=True),
            lambda: torch_recurrent_gated_delta_rule(*wide, **options),
        )
    options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    return (
        lambda: lz.ops.attention_linear_prefill(q, k, v, g, beta, qk_l2norm=True, return_state=True),
        lambda: torch_chunk_gated_delta_rule(q.repeat_interleave(2, 2), k.repeat_interleave(2, 2), v, g, beta, **options),
    )


def scan(batch, length, decode=False):
    outer = (batch,) if decode else (batch, length)
    x, dt = torch.randn(*outer, 64, 64, dtype=HALF), torch.randn(*outer, 64, dtype=HALF)
    a, d, bias = -torch.rand(64), torch.randn(64), torch.randn(64)
    b, c = (torch.randn(*outer, 1, 128, dtype=HALF) for _ in range(2))
    if decode:
        state = torch.zeros(batch, 64, 64, 128)
        wide = (dt[..., None].expand(batch, 64, 64), a[:, None, None].expand(64, 64, 128), b, c)
        options = {"D": d[:, None].expand(64, 64), "dt_bias": bias[:, None].expand(64, 64), "dt_softplus": True}
        return lambda: lz.ops.ssm_step(x, dt, a, b, c, state, d, bias), lambda: mamba2_selective_state_update(state, x, *wide, **options)
    options = {"D": d, "dt_bias": bias, "dt_softplus": True, "return_final_states": True}
    return (
        lambda: lz.ops.ssm_scan(x, dt, a, b, c, d, bias, return_state=True),
        lambda: mamba2_chunk_scan(x, dt, a, b, c, 256, **options),
    )


def convolution(batch, length, channels):
    x, weight = torch.randn(batch, length, channels, dtype=HALF), torch.randn(channels, 4, dtype=HALF)

    def theirs():
        return F.silu(F.conv1d(x.transpose(1, 2), weight[:, None], padding=3, groups=channels)[..., :length]).transpose(1, 2).contiguous()

    return lambda: lz.ops.conv_causal1d(x, weight, activation="silu"), theirs


CASES = {
    "moe.route, Qwen3-30B-A3B, 64 tokens": lambda: router(64, 128, 8),
    "moe.experts, Qwen3-30B-A3B, 1 token": lambda: experts(1, 128, 8, 2048, 768),
    "moe.experts, Qwen3-30B-A3B, 16 tokens": lambda: experts(16, 128, 8, 2048, 768),
    "moe.experts, Qwen3-30B-A3B, 256 tokens": lambda: experts(256, 128, 8, 2048, 768),
    "moe.experts, 32 experts of f32, 64 tokens": lambda: experts(64, 32, 4, 1024, 512, torch.float32),
    "moe.experts, 32 small experts of bf16, 16 tokens": lambda: experts(16, 32, 4, 512, 256),
    "attention.linear.prefill, Qwen3-Next, 256 positions": lambda: linear(1, 256),
    "attention.linear.prefill, Qwen3-Next, 1024 positions": lambda: linear(1, 1024),
    "attention.linear.decode, Qwen3-Next, 8 rows": lambda: linear(8, 1, decode=True),
    "ssm.scan, Mamba-2 1.3B, 512 positions": lambda: scan(1, 512),
    "ssm.step, Mamba-2 1.3B, 8 rows": lambda: scan(8, 1, decode=True),
    "conv.causal1d, Mamba-2 1.3B, 1024 positions": lambda: convolution(1, 1024, 4352),
}


def per_call(function, seconds):
    calls = max(1, int(0.05 / max(seconds, 1e-6)))
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - start) / calls


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    print(f"{'case':56}{'LayerZero ms':>14}{'torch ms':>12}{'ratio':>8}")
    with torch.no_grad():
        for name, make in CASES.items():
            if options.only not in name:
                continue
            torch.manual_seed(0)
            ours, theirs = make()
            first = [per_call(function, 1.0) for function in (ours, theirs, ours, theirs)][2:]
            times = [[per_call(function, seconds) for function, seconds in zip((ours, theirs), first, strict=True)] for _ in range(options.rounds)]
            own, other = (statistics.median(column) * 1e3 for column in zip(*times, strict=True))
            print(f"{name:56}{own:14.3f}{other:12.3f}{other / own:8.2f}", flush=True)


if __name__ == "__main__":
    main()
