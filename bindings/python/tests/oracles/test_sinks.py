"""Attention sinks: the attention of GPT-OSS in Transformers, compared with every kernel that claims the call."""

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
gpt_oss = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
from every_kernel import check_every_kernel  # noqa: E402

import layerzero as lz  # noqa: E402

HEADS, KV_HEADS, DIM, SCALE = 8, 2, 16, 0.3


def inputs(seed: int, queries: int, keys: int) -> tuple[Any, Any, Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(2, queries, HEADS, DIM, generator=generator)
    k, v = (torch.randn(2, keys, KV_HEADS, DIM, generator=generator) for _ in range(2))
    return q, k, v, torch.randn(HEADS, generator=generator) * 2


def expected_of(q: Any, k: Any, v: Any, sinks: Any, window: int | None) -> Any:
    """`[batch, queries, heads, features]`, as the model computes it."""
    module = SimpleNamespace(sinks=sinks, num_key_value_groups=HEADS // KV_HEADS, training=False)
    queries, keys = q.shape[1], k.shape[1]
    distance = torch.arange(keys) - (torch.arange(queries)[:, None] + keys - queries)
    hidden = distance > 0 if window is None else (distance > 0) | (distance < -window)
    mask = torch.zeros(queries, keys).masked_fill(hidden, float("-inf"))[None, None]
    return gpt_oss.eager_attention_forward(module, q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, SCALE)[0]


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (7, 7), (9, 40), (60, 60)])
def test_prefill_matches_gpt_oss(queries: int, keys: int, window: int | None) -> None:
    q, k, v, sinks = inputs(keys, queries, keys)
    expected = expected_of(q, k, v, sinks, window)

    def check(who: str, found: list[Any], _: dict[str, Any]) -> None:
        torch.testing.assert_close(found[0], expected, rtol=1e-5, atol=1e-5, msg=who)

    call = {"q": q, "k": k, "v": v, "sinks": sinks, "causal": True, "sm_scale": SCALE, "window_left": -1 if window is None else window}
    assert check_every_kernel("attention.gqa.prefill", lambda: call, check) >= 2


@pytest.mark.parametrize("keys", [1, 12, 300, 700])
def test_decode_matches_gpt_oss_also_over_pages(keys: int) -> None:
    q, k, v, sinks = inputs(keys, 1, keys)
    expected = expected_of(q, k, v, sinks, None)[:, 0]

    def check(who: str, found: list[Any], _: dict[str, Any]) -> None:
        torch.testing.assert_close(found[0], expected, rtol=1e-5, atol=1e-5, msg=who)

    call = {"q": q[:, 0], "k": k, "v": v, "sinks": sinks, "sm_scale": SCALE}
    assert check_every_kernel("attention.gqa.decode", lambda: call, check) >= 2
    size = 4
    count = -(-keys // size)
    pages = [torch.nn.functional.pad(cache, (0, 0, 0, 0, 0, count * size - keys)).reshape(2 * count, size, KV_HEADS, DIM) for cache in (k, v)]
    table = {
        "kv_indptr": torch.tensor([0, count, 2 * count], dtype=torch.int32), "kv_indices": torch.arange(2 * count, dtype=torch.int32),
        "kv_last_page_len": torch.full((2,), keys - (count - 1) * size, dtype=torch.int32),
    }  # fmt: skip
    paged = {"q": q[:, 0], "k_cache": pages[0], "v_cache": pages[1], **table, "sinks": sinks, "sm_scale": SCALE}
    assert check_every_kernel("attention.gqa.decode.paged", lambda: paged, check) >= 2


def test_lse_includes_the_sink_and_other_kernels_decline() -> None:
    q, k, v, sinks = inputs(3, 4, 6)
    _, plain = lz.ops.attention_gqa_prefill(q, k, v, return_lse=True)
    _, lse = lz.ops.attention_gqa_prefill(q, k, v, sinks=sinks, return_lse=True)
    torch.testing.assert_close(lse, torch.logaddexp(plain, sinks.expand_as(plain)), rtol=1e-5, atol=1e-5)
    candidates = lz.explain("attention.gqa.prefill", q, k, v, sinks=sinks).to_dict()["candidates"]
    declined = {one["kernel"]: [reason["code"] for reason in one["reasons"]] for one in candidates if "sdpa" in one["kernel"]}
    assert declined and all("OPTIONAL_INPUT_UNSUPPORTED" in codes for codes in declined.values())


def test_lists_of_pages_may_be_longer_than_what_is_used() -> None:
    """The buffer of a CUDA graph has a fixed size."""
    generator = torch.Generator().manual_seed(5)
    q = torch.randn(2, HEADS, DIM, generator=generator)
    k, v = (torch.randn(6, 4, KV_HEADS, DIM, generator=generator) for _ in range(2))
    table = {"kv_indptr": torch.tensor([0, 2, 3], dtype=torch.int32), "kv_last_page_len": torch.tensor([3, 4], dtype=torch.int32)}
    exact = {"q": q, "k_cache": k, "v_cache": v, **table, "kv_indices": torch.tensor([4, 1, 5], dtype=torch.int32)}
    expected = lz.ops.attention_gqa_decode_paged(**exact)
    longer = {**exact, "kv_indices": torch.tensor([4, 1, 5, 0, 3, 0], dtype=torch.int32)}

    def check(who: str, found: list[Any], _: dict[str, Any]) -> None:
        torch.testing.assert_close(found[0], expected, rtol=1e-5, atol=1e-5, msg=who)

    assert check_every_kernel("attention.gqa.decode.paged", lambda: longer, check) >= 2
    with pytest.raises(lz.ValidationError, match="at most 2"):
        lz.ops.attention_gqa_decode_paged(**{**exact, "kv_indices": torch.tensor([4, 1], dtype=torch.int32)})


def test_short_names_take_sinks() -> None:
    q, k, v, sinks = inputs(6, 3, 5)
    expected = lz.ops.attention_gqa_prefill(q, k, v, sinks=sinks, causal=True)
    torch.testing.assert_close(lz.attention(q, k, v, sinks=sinks, causal=True), expected)
    one = lz.ops.attention_gqa_decode(q[:, 0], k, v, sinks=sinks)
    torch.testing.assert_close(lz.attention(q[:, 0], k, v, sinks=sinks), one)
    pages = {"block_tables": torch.tensor([[0], [1]], dtype=torch.int32), "context_lens": torch.tensor([5, 5], dtype=torch.int32)}
    torch.testing.assert_close(lz.paged_attention(q[:, 0], k, v, **pages, sinks=sinks), one, rtol=1e-5, atol=1e-5)
