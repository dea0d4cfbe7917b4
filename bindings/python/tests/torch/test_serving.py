"""Calls of a serving framework: a paged cache that grows token by token, requests of different lengths."""

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402

PAGE, HEADS, KV_HEADS, DIM = 4, 4, 2, 8


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_prefill_and_paged_decode_equal_attention_over_everything():
    prompts, steps = [5, 1, 9], 6
    total = [length + steps for length in prompts]
    q, k, v = ([draw(length + at, heads, DIM) for at, length in enumerate(total)] for heads in (HEADS, KV_HEADS, KV_HEADS))
    q, k, v = ([one[: total[at]] for at, one in enumerate(all)] for all in (q, k, v))
    expected = [lz.attention(a[None], b[None], c[None], causal=True)[0] for a, b, c in zip(q, k, v)]

    # Pages are allocated in an arbitrary order.
    pages = iter(torch.randperm(32, generator=torch.Generator().manual_seed(1)).tolist())
    tables = torch.zeros(3, 8, dtype=torch.int32)
    lengths = torch.zeros(3, dtype=torch.int32)
    k_cache, v_cache = torch.zeros(32, PAGE, KV_HEADS, DIM), torch.zeros(32, PAGE, KV_HEADS, DIM)

    def append(request, first, last):
        slots = []
        for position in range(first, last):
            if position % PAGE == 0:
                tables[request, position // PAGE] = next(pages)
            slots.append(int(tables[request, position // PAGE]) * PAGE + position % PAGE)
        lz.ops.kv_append(k[request][first:last], v[request][first:last], k_cache, v_cache, torch.tensor(slots))
        lengths[request] = last

    for request, length in enumerate(prompts):
        append(request, 0, length)
    bounds = torch.tensor([0, *torch.tensor(prompts).cumsum(0).tolist()], dtype=torch.int32)
    filled = lz.paged_attention(
        torch.cat([one[:length] for one, length in zip(q, prompts)]),
        k_cache, v_cache, block_tables=tables, context_lens=lengths, qo_indptr=bounds, causal=True,
    )  # fmt: skip
    torch.testing.assert_close(filled, torch.cat([one[:length] for one, length in zip(expected, prompts)]))

    for step in range(steps):
        for request, length in enumerate(prompts):
            append(request, length + step, length + step + 1)
        queries = torch.stack([one[length + step] for one, length in zip(q, prompts)])
        output = lz.paged_attention(queries, k_cache, v_cache, block_tables=tables, context_lens=lengths)
        wanted = torch.stack([one[length + step] for one, length in zip(expected, prompts)])
        torch.testing.assert_close(output, wanted)
