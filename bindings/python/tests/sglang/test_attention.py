"""The attention backend gives the results of SGLang's own backend, `torch_native`, over the same cache."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
registry = pytest.importorskip(
    "sglang.srt.layers.attention.attention_registry",
    reason="SGLang is not installed; `cargo xtask test python-models` downloads it",
    exc_type=ImportError,
)
from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES  # noqa: E402
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend  # noqa: E402
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention  # noqa: E402
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool  # noqa: E402
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode  # noqa: E402
from sglang.srt.plugins import GENERAL_PLUGINS_GROUP, load_plugins_by_group  # noqa: E402

from layerzero.integrations import sglang as plugin  # noqa: E402
from layerzero.integrations import sglang_attention as ours  # noqa: E402

HEADS, KV_HEADS, SIZE, SLOTS = 4, 2, 8, 64


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def runner(dtype=torch.float32):
    """The parts of a model runner that a backend reads, with keys and values of earlier tokens."""
    cache = MHATokenToKVPool(
        size=SLOTS, page_size=1, dtype=dtype, head_num=KV_HEADS, head_dim=SIZE, layer_num=1, device="cpu", enable_memory_saver=False
    )  # fmt: skip
    for buffer in (cache.get_key_buffer(0), cache.get_value_buffer(0)):
        buffer.copy_(torch.randn(buffer.shape))
    requests = ReqToTokenPool(size=4, max_context_len=32, device="cpu", enable_memory_saver=False)
    return SimpleNamespace(device="cpu", token_to_kv_pool=cache, req_to_token_pool=requests)


def layer(**more):
    return RadixAttention(HEADS, SIZE, 0.3, KV_HEADS, layer_id=0, **more)


def batch(runner, mode, lengths, new):
    """Requests whose last `new` tokens have queries, at random slots of the cache."""
    free = (torch.randperm(SLOTS - 1) + 1).to(torch.int32)
    written, at = [], 0
    for request, (length, queries) in enumerate(zip(lengths, new, strict=True), start=1):
        own = free[at : at + length]
        at += length
        runner.req_to_token_pool.req_to_token[request, :length] = own
        written.append(own[length - queries :])
    lengths, new = torch.tensor(lengths), torch.tensor(new)
    more = {} if mode == ForwardMode.DECODE else {"extend_seq_lens": new, "extend_prefix_lens": lengths - new}
    return ForwardBatch(
        forward_mode=mode, batch_size=len(lengths), input_ids=torch.zeros(int(new.sum()), dtype=torch.int64),
        req_pool_indices=torch.arange(1, len(lengths) + 1), seq_lens=lengths, out_cache_loc=torch.cat(written).long(),
        seq_lens_sum=int(lengths.sum()), **more,
    )  # fmt: skip


BATCHES = [
    (ForwardMode.EXTEND, [5, 9, 3], [5, 4, 1]),
    (ForwardMode.EXTEND, [7], [7]),
    (ForwardMode.MIXED, [6, 8], [1, 5]),
    (ForwardMode.DECODE, [4, 1, 11], [1, 1, 1]),
]


def both(one, mode, lengths, new, dtype=torch.float32, **keywords):
    """The outputs of our backend and of SGLang's, which write into equal caches."""
    runners = [runner(dtype), runner(dtype)]
    for mine, other in zip(
        (runners[0].token_to_kv_pool.get_key_buffer(0), runners[0].token_to_kv_pool.get_value_buffer(0)),
        (runners[1].token_to_kv_pool.get_key_buffer(0), runners[1].token_to_kv_pool.get_value_buffer(0)),
        strict=True,
    ):
        other.copy_(mine)
    state = torch.get_rng_state()
    tokens = sum(new)
    query = torch.randn(tokens, HEADS * SIZE).to(dtype)
    key, value = (torch.randn(tokens, KV_HEADS, SIZE).to(dtype) for _ in range(2))
    outputs = []
    for kind, of in zip((ours.LayerZeroAttnBackend, TorchNativeAttnBackend), runners, strict=True):
        torch.set_rng_state(state)
        prepared = batch(of, mode, lengths, new)
        backend = kind(of)
        backend.init_forward_metadata(prepared)
        outputs.append(backend.forward(query.clone(), key, value, one, prepared, **keywords))
    for name in ("get_key_buffer", "get_value_buffer"):
        assert torch.equal(*(getattr(of.token_to_kv_pool, name)(0) for of in runners)), "both write the same cache"
    return outputs


@pytest.mark.parametrize(("mode", "lengths", "new"), BATCHES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [-1, 2])
def test_results_of_the_native_backend(mode, lengths, new, dtype, window):
    found, expected = both(layer(sliding_window_size=window), mode, lengths, new, dtype)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_encoders_see_all_tokens():
    found, expected = both(layer(attn_type=AttentionType.ENCODER_ONLY), ForwardMode.EXTEND, [5, 3], [5, 3])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_capped_scores_and_sinks_are_those_of_the_formula():
    """The native backend ignores both."""
    of = runner()
    prepared = batch(of, ForwardMode.EXTEND, [6], [6])
    backend = ours.LayerZeroAttnBackend(of)
    backend.init_forward_metadata(prepared)
    query, sinks = torch.randn(6, HEADS * SIZE) * 3, torch.randn(HEADS, dtype=torch.bfloat16)
    key, value = torch.randn(6, KV_HEADS, SIZE), torch.randn(6, KV_HEADS, SIZE)
    found = backend.forward(query, key, value, layer(logit_cap=2.0), prepared, sinks=sinks)
    q, k, v = query.view(6, HEADS, SIZE), key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
    scores = 2.0 * torch.tanh(torch.einsum("qhd,khd->hqk", q, k) * 0.3 / 2.0)
    scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), float("-inf"))
    weights = torch.softmax(torch.cat((scores, sinks.float()[:, None, None].expand(-1, 6, -1)), -1), -1)[..., :-1]
    torch.testing.assert_close(found, torch.einsum("hqk,khd->qhd", weights, v).flatten(1), rtol=1e-5, atol=1e-5)


def test_idle_batches():
    of = runner()
    prepared = batch(of, ForwardMode.EXTEND, [2], [2])
    prepared.forward_mode = ForwardMode.IDLE
    backend = ours.LayerZeroAttnBackend(of)
    backend.init_forward_metadata(prepared)
    assert backend.forward(torch.randn(0, HEADS * SIZE), None, None, layer(), prepared).shape == (0, HEADS * SIZE)


@pytest.mark.parametrize(
    ("one", "keywords", "message"),
    [
        ({"is_cross_attention": True}, {}, "cross attention"),
        ({"v_head_dim": 4}, {}, "values with another size"),
        ({"attn_type": AttentionType.DECODER_BIDIRECTIONAL}, {}, "decoder_bidirectional"),
        ({"logit_cap": 2.0, "logit_capping_method": "sigmoid"}, {}, "sigmoid"),
        ({"pos_encoding_mode": "ALIBI"}, {}, "ALIBI"),
        ({}, {"q_rope": torch.ones(1)}, "`q_rope`"),
    ],
)
def test_refused_features(one, keywords, message):
    of = runner()
    prepared = batch(of, ForwardMode.EXTEND, [2], [2])
    backend = ours.LayerZeroAttnBackend(of)
    backend.init_forward_metadata(prepared)
    before = of.token_to_kv_pool.get_key_buffer(0).clone()
    with pytest.raises(NotImplementedError, match=message):
        backend.forward(torch.randn(2, HEADS * SIZE), torch.randn(2, KV_HEADS, SIZE), torch.randn(2, KV_HEADS, SIZE), layer(**one), prepared, **keywords)
    assert torch.equal(of.token_to_kv_pool.get_key_buffer(0), before)


def test_refused_batches_and_caches():
    of = runner()
    backend = ours.LayerZeroAttnBackend(of)
    prepared = batch(of, ForwardMode.EXTEND, [2], [2])
    prepared.forward_mode = ForwardMode.TARGET_VERIFY
    with pytest.raises(NotImplementedError, match="TARGET_VERIFY"):
        backend.init_forward_metadata(prepared)
    of.token_to_kv_pool = object()
    with pytest.raises(NotImplementedError, match="caches of the type object"):
        ours.LayerZeroAttnBackend(of)


def test_the_plugin_registers_it(monkeypatch):
    monkeypatch.delitem(registry.ATTENTION_BACKENDS, plugin.NAME, raising=False)
    found, distribution = load_plugins_by_group(GENERAL_PLUGINS_GROUP)["layerzero"]
    assert distribution == "layerzero"
    found()
    found()
    assert ATTENTION_BACKEND_CHOICES.count(plugin.NAME) == 1
    backend = registry.ATTENTION_BACKENDS[plugin.NAME](runner())
    assert isinstance(backend, ours.LayerZeroAttnBackend)
