"""FlashInfer's torch references, with their own cases, compared with every kernel that claims the call.

Only that part of its wheel is used (`cargo xtask test python-oracles` unpacks it): it needs no GPU.
"""

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("flashinfer.trace.template")
from every_kernel import check_every_kernel  # noqa: E402
from flashinfer.trace.templates import activation, attention, cascade, norm, page, quantize, rope, sampling  # noqa: E402

import layerzero as lz  # noqa: E402

TOLERANCE = {torch.float32: (1e-4, 1e-5), torch.float16: (4e-3, 4e-3), torch.bfloat16: (1.6e-2, 1e-2)}
SEEDS = range(3)


def held(operation: str, expected: list[Any], at_least: int = 2, **arguments: Any) -> None:
    """Every kernel that claims the call gives the expected results; None is not compared."""

    def make() -> dict[str, Any]:
        return {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in arguments.items()
            if value is not None
        }

    def check(who: str, results: list[Any], made: dict[str, Any]) -> None:
        for found, wanted in zip(results, expected, strict=True):
            if wanted is None:
                continue
            relative, absolute = TOLERANCE[wanted.dtype]
            torch.testing.assert_close(
                found.to(wanted.dtype), wanted, rtol=relative, atol=absolute,
                msg=lambda text: f"{operation} by {who}: {text}",
            )  # fmt: skip

    assert check_every_kernel(operation, make, check) >= at_least, "no kernel but the reference claims it"


def drawn(seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape, dtype=torch.bfloat16: torch.randn(*shape, generator=generator).to(dtype)


def pages(seed: int, page_size: int, lengths: list[int]) -> tuple[Any, Any, int]:
    """Scattered pages for requests with these numbers of full pages: CSR form and the number of pages."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    ids = torch.randperm(total + 3, generator=generator)[:total].to(torch.int32)
    indptr = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    return indptr, ids, total + 3


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("page_size", "heads", "kv_heads", "size"), [(1, 8, 2, 64), (16, 4, 4, 128), (5, 6, 1, 32)])
def test_paged_decode(seed: int, page_size: int, heads: int, kv_heads: int, size: int) -> None:
    draw = drawn(seed)
    lengths = [3, 0, 1, 5]
    indptr, ids, count = pages(seed, page_size, lengths)
    q = draw(len(lengths), heads, size)
    k, v = draw(count, page_size, kv_heads, size), draw(count, page_size, kv_heads, size)
    scale = 1 / math.sqrt(size)
    output, lse = attention._gqa_paged_decode_reference(q, k, v, indptr, ids, scale)
    last = torch.tensor([page_size if length else 0 for length in lengths], dtype=torch.int32)
    held(
        "attention.gqa.decode.paged", [output, lse * math.log(2)],
        q=q, k_cache=k, v_cache=v, kv_indptr=indptr, kv_indices=ids, kv_last_page_len=last,
        sm_scale=scale, return_lse=True,
    )  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_paged_prefill(seed: int) -> None:
    draw, page_size = drawn(10 + seed), 4
    lengths, queries = [3, 1, 2], [5, 4, 1]
    indptr, ids, count = pages(seed, page_size, lengths)
    qo_indptr = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()], dtype=torch.int32)
    q = draw(sum(queries), 4, 64)
    k, v = draw(count, page_size, 2, 64), draw(count, page_size, 2, 64)
    output, lse = attention._gqa_paged_prefill_reference(q, k, v, qo_indptr, indptr, ids, 0.125)
    last = torch.full((3,), page_size, dtype=torch.int32)
    held(
        "attention.gqa.prefill.paged", [output, lse * math.log(2)],
        q=q, k_cache=k, v_cache=v, qo_indptr=qo_indptr, kv_indptr=indptr, kv_indices=ids, kv_last_page_len=last,
        causal=True, sm_scale=0.125, return_lse=True,
    )  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_ragged_prefill(seed: int) -> None:
    draw = drawn(20 + seed)
    queries, keys = [5, 0, 9, 3], [7, 2, 9, 1]
    qo, kv = (torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()], dtype=torch.int32) for sizes in (queries, keys))
    q, k, v = draw(sum(queries), 6, 64), draw(sum(keys), 2, 64), draw(sum(keys), 2, 64)
    output, lse = attention._gqa_ragged_prefill_reference(q, k, v, qo, kv, 0.125)
    held(
        "attention.gqa.prefill.ragged", [output, lse * math.log(2)],
        q=q, k=k, v=v, qo_indptr=qo, kv_indptr=kv, causal=True, sm_scale=0.125, return_lse=True,
    )  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("page_size", [1, 8])
def test_paged_mla_decode(seed: int, page_size: int) -> None:
    draw = drawn(30 + seed)
    lengths = [2, 0, 4]
    indptr, ids, count = pages(seed, page_size, lengths)
    q_nope, q_pe = draw(3, 4, 512), draw(3, 4, 64)
    ckv, kpe = draw(count, page_size, 512), draw(count, page_size, 64)
    output, lse = attention._mla_paged_decode_reference(q_nope, q_pe, ckv, kpe, indptr, ids, 0.07)
    last = torch.tensor([page_size if length else 0 for length in lengths], dtype=torch.int32)
    held(
        "attention.mla.decode.paged", [output, lse * math.log(2)],
        q_nope=q_nope, q_pe=q_pe, ckv_cache=ckv, kpe_cache=kpe,
        kv_indptr=indptr, kv_indices=ids, kv_last_page_len=last, sm_scale=0.07, return_lse=True,
    )  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_merging_states(seed: int) -> None:
    draw = drawn(40 + seed)
    v, s = draw(5, 3, 4, 64, dtype=torch.float32), 8 * draw(5, 3, 4, dtype=torch.float32)
    merged, lse = cascade._merge_states_reference(v, s)
    held("attention.state.merge", [merged, lse * math.log(2)], v=v, s=s * math.log(2))
    merged, lse = cascade._merge_state_reference(v[:, 0], s[:, 0], v[:, 1], s[:, 1])
    held("attention.state.merge", [merged, lse * math.log(2)], v=v[:, :2], s=s[:, :2] * math.log(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_norms(dtype: Any) -> None:
    draw = drawn(50)
    x, residual, weight, bias = draw(7, 384, dtype=dtype), draw(7, 384, dtype=dtype), draw(384, dtype=dtype), draw(384, dtype=dtype)
    held("norm.rms", [norm._rmsnorm_reference(x, weight)], x=x, weight=weight, eps=1e-6)
    held("norm.rms", [norm._gemma_rmsnorm_reference(x, weight)], x=x, weight=weight, eps=1e-6, weight_offset=1.0)
    held("norm.layer", [norm._layernorm_reference(x, weight, bias)], x=x, weight=weight, bias=bias, eps=1e-6)
    # Their sum is not rounded; ours is, as the residual stream that is passed on.
    expected = norm._fused_add_rmsnorm_reference(x, residual, weight)
    held("norm.rms.add", [expected], x=x, residual=residual, weight=weight, eps=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_with_llama_31_frequencies(interleaved: bool) -> None:
    draw, size, tokens = drawn(60), 64, 11
    q, k = draw(tokens, 4, size, dtype=torch.float32), draw(tokens, 2, size, dtype=torch.float32)
    indptr, offsets = torch.tensor([0, 6, tokens], dtype=torch.int32), torch.tensor([9000, 3], dtype=torch.int32)
    expected = rope._apply_llama31_rope_reference(q, k, indptr, offsets, interleave=interleaved)
    positions = torch.tensor([*range(9000, 9006), *range(3, 8)])
    angles = positions[:, None] * rope._llama31_freqs(size, 5e5, 8.0, 1.0, 4.0, 8192.0, q.device)
    for x, wanted in zip((q, k), expected, strict=True):
        held(
            "posenc.rope", [wanted[None]],
            x=x[None], cos=angles.cos(), sin=angles.sin(),
            positions=torch.arange(tokens)[None], interleaved=interleaved, layout="BSHD",
        )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gated_activations(dtype: Any) -> None:
    both = drawn(70)(5, 256, dtype=dtype)
    halves = {"gate": both[:, :128].contiguous(), "up": both[:, 128:].contiguous()}
    held("activation.silu_mul", [activation._silu_and_mul_reference(both)], **halves)
    held("activation.gelu_mul", [activation._gelu_and_mul_reference(both)], **halves)
    held("activation.gelu_mul", [activation._gelu_tanh_and_mul_reference(both)], approximate="tanh", **halves)


@pytest.mark.parametrize("seed", SEEDS)
def test_appending_to_pages(seed: int) -> None:
    draw, page_size = drawn(80 + seed), 4
    indptr, ids, count = pages(seed, page_size, [3, 2])
    k, v = draw(5, 2, 32), draw(5, 2, 32)
    rows, positions = torch.tensor([0, 0, 0, 1, 1], dtype=torch.int32), torch.tensor([9, 10, 11, 3, 4], dtype=torch.int32)
    caches = [draw(count, page_size, 2, 32) for _ in range(2)]
    expected = tuple(cache.clone() for cache in caches)
    last = torch.tensor([4, 1], dtype=torch.int32)
    page._append_paged_kv_cache_reference(k, v, rows, positions, expected, ids, indptr, last)
    slots = ids[indptr[rows.long()] + positions // page_size].long() * page_size + positions % page_size
    arguments = {"k": k, "v": v, "k_cache": caches[0], "v_cache": caches[1], "slots": slots}

    def make() -> dict[str, Any]:
        return {name: value.clone() for name, value in arguments.items()}

    def check(who: str, _: list[Any], made: dict[str, Any]) -> None:
        assert torch.equal(made["k_cache"], expected[0]) and torch.equal(made["v_cache"], expected[1]), who

    check_every_kernel("kv.append", make, check)


@pytest.mark.parametrize("seed", SEEDS)
def test_nvfp4(seed: int) -> None:
    x = drawn(90 + seed)(6, 128, dtype=torch.float32)
    largest = 448 * 6 / x.abs().max()
    packed, scales = quantize._nvfp4_quantize_reference(x, largest.reshape(1))
    codes, scale = lz.ops.quantize(x, global_scale=largest, format="nvfp4", granularity="block")
    assert torch.equal(scale.view(torch.uint8).reshape(scales.shape), scales.view(torch.uint8))
    assert torch.equal(codes.view(torch.uint8).reshape(packed.shape), packed)


@pytest.mark.parametrize("seed", SEEDS)
def test_sampling_stays_within_the_kept_tokens(seed: int) -> None:
    logits = 3 * drawn(100 + seed)(4, 200, dtype=torch.float32)
    probabilities = logits.softmax(-1)
    for operation, renormed, more in (
        ("sampling.topp", sampling._top_p_renorm_probs_reference(probabilities, 0.6), {"p": 0.6}),
        ("sampling.topk", sampling._top_k_renorm_probs_reference(probabilities, 7), {"k": 7}),
    ):
        counts = torch.zeros_like(probabilities)
        draws = 2000
        function = getattr(lz.ops, operation.replace(".", "_"))
        many = logits.repeat(draws, 1)
        tokens = function(many, seed=seed, **more).view(draws, 4).long()
        counts.scatter_add_(1, tokens.T, torch.ones(4, draws))
        assert not counts[renormed == 0].any(), f"{operation} drew what is not kept"
        # Five standard deviations of a share, and one draw.
        slack = 5 * (renormed * (1 - renormed) / draws).sqrt() + 1 / draws
        assert ((counts / draws - renormed).abs() <= slack).all(), operation


@pytest.mark.parametrize("seed", SEEDS)
def test_deterministic_speculative_sampling(seed: int) -> None:
    """Their reference is deterministic; both agree where the result does not depend on the random numbers."""
    generator = torch.Generator().manual_seed(110 + seed)
    batch, length, vocab = 16, 4, 50
    tokens = torch.randint(vocab, (batch, length), generator=generator, dtype=torch.int32)
    draft = torch.rand(batch, length, vocab, generator=generator)
    draft /= draft.sum(-1, keepdim=True)
    # The target has all its probability on one token: the draft's, which is accepted, or another, which is emitted.
    wanted = torch.randint(vocab, (batch, length + 1), generator=generator)
    agrees = torch.rand(batch, length, generator=generator) < 0.6
    wanted[:, :length] = torch.where(agrees, tokens.long(), wanted[:, :length])
    target = torch.nn.functional.one_hot(wanted, vocab).float()
    expected = sampling._chain_speculative_sampling_reference(draft, tokens, target)

    def check(who: str, results: list[Any], _: dict[str, Any]) -> None:
        assert torch.equal(results[0], expected), who

    check_every_kernel(
        "sampling.speculative",
        lambda: {"draft_probs": draft, "draft_tokens": tokens, "target_probs": target, "seed": seed},
        check,
    )
