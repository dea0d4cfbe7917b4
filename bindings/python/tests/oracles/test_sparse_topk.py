"""Attention to listed keys: torch's attention with a mask of those keys, compared with every kernel."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from every_kernel import check_every_kernel  # noqa: E402


def expected_of(q: Any, k: Any, v: Any, indices: Any, scale: float) -> Any:
    """Dense attention in f64 with a mask; every key is listed at most once."""
    visible = torch.zeros(q.shape[0], k.shape[1], k.shape[0] + 1, dtype=torch.bool)
    visible.scatter_(2, indices.long() % (k.shape[0] + 1), True)
    group = q.shape[1] // k.shape[1]
    mask = visible[..., :-1].transpose(0, 1).repeat_interleave(group, 0)
    wide = [tensor.double().transpose(0, 1).repeat_interleave(group if tensor is not q else 1, 0) for tensor in (q, k, v)]
    output = torch.nn.functional.scaled_dot_product_attention(*wide, attn_mask=mask, scale=scale)
    return output.transpose(0, 1)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "features", "shared"), [(4, 2, 16, 24, False), (16, 1, 576, 512, True), (70, 1, 48, 32, True)])
def test_listed_keys_match_dense_attention_with_a_mask(heads: int, kv_heads: int, head_dim: int, features: int, shared: bool) -> None:
    generator = torch.Generator().manual_seed(heads)
    queries, keys, count = 5, 200, 60
    q, k = (torch.randn(size, some, head_dim, generator=generator) for size, some in ((queries, heads), (keys, kv_heads)))
    # As in DeepSeek-V3.2: the values are the first features of the keys.
    v = k[..., :features] if shared else torch.randn(keys, kv_heads, features, generator=generator)
    order = torch.rand(queries, kv_heads, keys, generator=generator).argsort(-1)[..., :count].to(torch.int32)
    # The last entries list no key.
    indices = torch.where(torch.arange(count) < 50, order, -1)
    expected = expected_of(q, k, v, indices, 0.1).float()

    def check(who: str, found: list[Any], _: dict[str, Any]) -> None:
        torch.testing.assert_close(found[0], expected, rtol=1e-5, atol=1e-5, msg=who)

    call = {"q": q, "k": k, "v": v, "indices": indices.contiguous(), "sm_scale": 0.1}
    assert check_every_kernel("attention.sparse.topk", lambda: call, check) >= 2
