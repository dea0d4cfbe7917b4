"""The attention backend gives the results of plain attention over the tokens of each request."""

import pytest

torch = pytest.importorskip("torch")
backend = pytest.importorskip(
    "vllm.v1.attention.backend", reason="vLLM is not installed; `cargo xtask test python-models` downloads its Python files", exc_type=ImportError
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum  # noqa: E402

from layerzero.integrations import vllm as plugin  # noqa: E402
from layerzero.integrations import vllm_attention as ours  # noqa: E402

HEADS, KV_HEADS, SIZE, PAGE, PAGES = 4, 2, 8, 16, 9


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def batch(lengths, queries, **more):
    """Requests with random pages; the last `queries` tokens of each are new."""
    pages, table, free = [], torch.zeros(len(lengths), 4, dtype=torch.int32), iter(torch.randperm(PAGES).tolist())
    slots = []
    for request, length in enumerate(lengths):
        own = [next(free) for _ in range(-(-length // PAGE))]
        pages.append(own)
        table[request, : len(own)] = torch.tensor(own)
        new = range(length - queries[request], length)
        slots += [own[at // PAGE] * PAGE + at % PAGE for at in new]
    starts = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()], dtype=torch.int32)
    metadata = backend.CommonAttentionMetadata(
        query_start_loc=starts, query_start_loc_cpu=starts, seq_lens=torch.tensor(lengths, dtype=torch.int32), num_reqs=len(lengths),
        num_actual_tokens=sum(queries), max_query_len=max(queries), max_seq_len=max(lengths), block_table_tensor=table,
        slot_mapping=torch.tensor(slots), **more,
    )  # fmt: skip
    return metadata, pages


def built(metadata):
    builder = ours.LayerZeroMetadataBuilder(None, ["layer"], None, torch.device("cpu"))
    return builder.build(0, metadata)


def run(lengths, queries, dtype=torch.float32, soft_cap=None, window=None, slopes=None, **more):
    """The output of the backend, and of plain attention."""
    metadata, pages = batch(lengths, queries, **more)
    keys = [torch.randn(length, KV_HEADS, SIZE).to(dtype) for length in lengths]
    values = [torch.randn(length, KV_HEADS, SIZE).to(dtype) for length in lengths]
    query = torch.randn(sum(queries), HEADS, SIZE).to(dtype)
    cache = torch.full((PAGES, KV_HEADS, PAGE, 2 * SIZE), float("nan"), dtype=dtype)
    for own, key, value, new in zip(pages, keys, values, queries, strict=True):
        for at in range(len(key) - new):
            cache[own[at // PAGE], :, at % PAGE] = torch.cat((key[at], value[at]), -1)
    impl = ours.LayerZeroBackend.get_impl_cls()(HEADS, SIZE, 0.3, KV_HEADS, slopes, window, "auto", soft_cap)
    new_keys, new_values = (torch.cat([one[len(one) - new :] for one, new in zip(all, queries, strict=True)]) for all in (keys, values))
    impl.do_kv_cache_update(None, new_keys, new_values, cache, metadata.slot_mapping)
    output = torch.full_like(query, float("nan"))
    impl.forward(None, query, new_keys, new_values, cache, built(metadata), output)
    expected = []
    for number, (key, value, new) in enumerate(zip(keys, values, queries, strict=True)):
        start = sum(queries[:number])
        expected.append(plain(query[start : start + new], key, value, metadata.causal, soft_cap, window, slopes))
    return output, torch.cat(expected)


def plain(query, key, value, causal, soft_cap, window, slopes):
    query, key, value = (one.double() for one in (query, key, value))
    key, value = (one.repeat_interleave(HEADS // KV_HEADS, 1) for one in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * 0.3
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    distance = torch.arange(len(key))[None] - (torch.arange(len(query)) + len(key) - len(query))[:, None]
    if slopes is not None:
        scores = scores + torch.tensor(slopes).double()[:, None, None] * distance
    if causal:
        scores = scores.masked_fill(distance > 0, float("-inf"))
    if window is not None:
        scores = scores.masked_fill(distance <= -window, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value)


@pytest.mark.parametrize(
    "more",
    [{}, {"soft_cap": 5.0}, {"window": 4}, {"slopes": [0.5, 0.25, 0.1, 0.0]}, {"causal": False}],
    ids=["causal", "soft cap", "window", "slopes", "not causal"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_prefill_and_decode_in_one_batch(more, dtype):
    found, expected = run([5, 33, 17, 16], [5, 1, 3, 1], dtype, **more)
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


def test_padding_of_a_batch_is_left_alone():
    metadata, _ = batch([3], [3])
    cache = torch.zeros(PAGES, KV_HEADS, PAGE, 2 * SIZE)
    impl = ours.LayerZeroImpl(HEADS, SIZE, 0.3, KV_HEADS)
    key = torch.randn(5, KV_HEADS, SIZE)
    slots = torch.cat((metadata.slot_mapping, torch.full((2,), -1)))
    impl.do_kv_cache_update(None, key, key, cache, slots)
    output = torch.full((5, HEADS, SIZE), 7.0)
    impl.forward(None, torch.randn(5, HEADS, SIZE), key, key, cache, built(metadata), output)
    assert (output[3:] == 7).all() and (output[:3] != 7).any()
    assert cache.count_nonzero() == 3 * KV_HEADS * SIZE * 2
    # Before the first batch, vLLM runs layers without metadata.
    assert not impl.forward(None, output, key, key, cache, None, output).any()


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"sinks": torch.ones(4)}, "`sinks`"),
        ({"attn_type": "encoder_only"}, "type `encoder_only`"),
        ({"kv_cache_dtype": "fp8"}, "a cache of fp8"),
    ],
)
def test_layers_that_it_does_not_know_are_refused(keywords, message):
    with pytest.raises(NotImplementedError, match=f"{message}; select another one"):
        ours.LayerZeroImpl(HEADS, SIZE, 0.3, KV_HEADS, **keywords)


def test_batches_that_it_does_not_know_are_refused():
    with pytest.raises(NotImplementedError, match="some requests are causal"):
        built(batch([3], [3], causal=torch.tensor([True]))[0])
    with pytest.raises(NotImplementedError, match="mm_req_doc_ranges"):
        built(batch([3], [3], mm_req_doc_ranges={0: [(0, 1)]})[0])
    impl = ours.LayerZeroImpl(HEADS, SIZE, 0.3, KV_HEADS)
    with pytest.raises(NotImplementedError, match="a cache of the shape"):
        impl.do_kv_cache_update(None, torch.ones(1, 2, 8), torch.ones(1, 2, 8), torch.ones(2, 9, 16, 2, 8), torch.tensor([0]))


def test_the_plugin_registers_it():
    plugin.register()
    registered = AttentionBackendEnum[ours.NAME]
    assert registered.get_class() is ours.LayerZeroBackend
    assert registered.get_class().supports_dtype(torch.bfloat16) and not registered.get_class().supports_sink()
