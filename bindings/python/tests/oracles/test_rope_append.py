"""Rotation and cache write in one: Llama's rotation and an indexed write of torch, compared with every kernel."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from every_kernel import check_every_kernel  # noqa: E402
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb  # noqa: E402


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_of_llama_and_an_indexed_write(layout: str, dtype: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    tokens, heads, kv_heads, features, pages, size = 6, 4, 2, 16, 5, 4

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator).to(dtype)

    q, k, v = normal(tokens, heads, features), normal(tokens, kv_heads, features), normal(tokens, kv_heads, features)
    positions = torch.tensor([3, 0, 7, 19, 4, 4])
    angles = torch.outer(torch.arange(20.0), 10000.0 ** (-torch.arange(0, features, 2) / features))
    cos, sin = angles.cos(), angles.sin()
    wide = [torch.cat((table[positions], table[positions]), -1)[None] for table in (cos, sin)]
    q_rotated, k_rotated = apply_rotary_pos_emb(q.float().transpose(0, 1)[None], k.float().transpose(0, 1)[None], *wide)
    slots = torch.tensor([9, 2, -1, 17, 0, 5])
    caches = [normal(pages, size, kv_heads, features) for _ in range(2)]
    expected = [cache.clone() for cache in caches]
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[0][slot // size, slot % size] = k_rotated[0, :, token].to(dtype)
            expected[1][slot // size, slot % size] = v[token]
    if layout == "HND":
        caches, expected = ([cache.transpose(1, 2).contiguous() for cache in all] for all in (caches, expected))
    close = 1e-5 if dtype is torch.float32 else 1e-2

    def make() -> dict[str, Any]:
        written = {"k_cache": caches[0].clone(), "v_cache": caches[1].clone()}
        return {"q": q, "k": k, "v": v, "cos": cos, "sin": sin, "positions": positions, **written, "slots": slots, "layout": layout}

    def check(who: str, found: list[Any], call: dict[str, Any]) -> None:
        torch.testing.assert_close(found[0], q_rotated[0].transpose(0, 1).to(dtype), rtol=close, atol=close, msg=who)
        torch.testing.assert_close(call["k_cache"], expected[0], rtol=close, atol=close, msg=who)
        torch.testing.assert_close(call["v_cache"], expected[1], rtol=0, atol=0, msg=who)

    assert check_every_kernel("rope.append", make, check) >= 2
