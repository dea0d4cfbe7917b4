"""Attention over FP8 caches, compared with decoding the caches first: torch's conversion, and the attention of torch."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from every_kernel import check_every_kernel  # noqa: E402

import layerzero as lz  # noqa: E402

HEADS, KV_HEADS, DIM, SIZE = 8, 2, 32, 4


def cache(generator: Any, stored: Any, scale: Any, layout: str) -> tuple[Any, Any]:
    """Codes of a cache of 9 pages, and the numbers that they stand for, by page, slot and head."""
    numbers = torch.randn(9, SIZE, KV_HEADS, DIM, generator=generator) * 3
    factors = torch.ones(()) if scale is None else scale.reshape(-1, 1)
    codes = (numbers / factors).to(stored)
    decoded = codes.float() * factors
    return (codes if layout == "NHD" else codes.transpose(1, 2).contiguous()), decoded


def expected(q: Any, k: Any, v: Any, pages: Any, length: int, causal: bool) -> Any:
    """One request: `[queries, heads, features]`."""
    keys, values = (part[pages].flatten(0, 1)[:length].transpose(0, 1).repeat_interleave(HEADS // KV_HEADS, 0) for part in (k, v))
    count = q.shape[0]
    hidden = torch.arange(length) > torch.arange(count)[:, None] + length - count
    mask = torch.zeros(count, length).masked_fill(hidden if causal else torch.zeros_like(hidden), float("-inf"))
    return torch.nn.functional.scaled_dot_product_attention(q.float().transpose(0, 1), keys, values, mask).transpose(0, 1)


@pytest.mark.parametrize("stored", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("scales", ["none", "tensor", "head"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fp8_caches_equal_their_decoded_form(stored: str, layout: str, scales: str, dtype: str) -> None:
    generator = torch.Generator().manual_seed(11)
    made = {"none": None, "tensor": torch.tensor(0.25), "head": torch.tensor([0.5, 3.0])}[scales]
    (k_cache, k), (v_cache, v) = (cache(generator, getattr(torch, stored), made, layout) for _ in range(2))
    table = {
        "kv_indptr": torch.tensor([0, 3, 3, 5], dtype=torch.int32), "kv_indices": torch.tensor([4, 8, 0, 2, 4, 1], dtype=torch.int32),
        "kv_last_page_len": torch.tensor([2, 0, 4], dtype=torch.int32),
    }  # fmt: skip
    lists, lengths = [[4, 8, 0], [], [2, 4]], [2 * SIZE + 2, 0, 2 * SIZE]
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == "float32" else {"rtol": 1e-2, "atol": 1e-2}
    shared = {"k_cache": k_cache, "v_cache": v_cache, **table, "k_scale": made, "v_scale": made, "layout": layout}

    def check_against(wanted: Any) -> Any:
        def check(who: str, found: list[Any], _: dict[str, Any]) -> None:
            torch.testing.assert_close(found[0].float(), wanted, msg=lambda text: f"{who}: {text}", **tolerance)

        return check

    q = torch.randn(3, HEADS, DIM, generator=generator).to(getattr(torch, dtype))
    rows = [expected(q[b : b + 1], k, v, lists[b], lengths[b], False) if lengths[b] else torch.zeros(1, HEADS, DIM) for b in range(3)]
    call = {name: value for name, value in {"q": q, **shared}.items() if value is not None}
    assert check_every_kernel("attention.gqa.decode.paged.fp8", lambda: call, check_against(torch.cat(rows))) >= 2
    q = torch.randn(6, HEADS, DIM, generator=generator).to(getattr(torch, dtype))
    rows = [expected(q[:4], k, v, lists[0], lengths[0], True), expected(q[4:], k, v, lists[2], lengths[2], True)]
    call = {"q": q, "qo_indptr": torch.tensor([0, 4, 4, 6], dtype=torch.int32), "causal": True, **shared}
    call = {name: value for name, value in call.items() if value is not None}
    assert check_every_kernel("attention.gqa.prefill.paged.fp8", lambda: call, check_against(torch.cat(rows))) >= 2


def test_appended_tokens_are_attended_to_by_the_short_name() -> None:
    """`kv.append` writes the codes that `lz.paged_attention` reads."""
    generator = torch.Generator().manual_seed(2)
    k, v = (torch.randn(5, KV_HEADS, DIM, generator=generator) for _ in range(2))
    k_cache, v_cache = (torch.zeros(2, SIZE, KV_HEADS, DIM, dtype=torch.float8_e4m3fn) for _ in range(2))
    k_scale, v_scale = torch.tensor([0.01, 0.02]), torch.tensor(0.05)
    lz.ops.kv_append(k / k_scale[:, None], v / v_scale, k_cache, v_cache, torch.arange(5))
    q = torch.randn(1, HEADS, DIM, generator=generator)
    pages = {"block_tables": torch.tensor([[0, 1]], dtype=torch.int32), "context_lens": torch.tensor([5], dtype=torch.int32)}
    found = lz.paged_attention(q, k_cache, v_cache, **pages, k_scale=k_scale, v_scale=v_scale)
    torch.testing.assert_close(found, lz.attention(q, k[None], v[None]), rtol=0.1, atol=0.1)
    with pytest.raises(ValueError, match="k_scale and v_scale are for FP8 caches"):
        lz.paged_attention(q, k_cache.float(), v_cache.float(), **pages, k_scale=k_scale)
