"""Attention, and calls of LayerZero's own operations."""

from __future__ import annotations

from typing import Any

from layerzero._compile.aten.base import Call, Tensor, Unsupported, handles


@handles("aten.scaled_dot_product_attention.default")
def attention(call: Call, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout: float = 0.0,
              is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False) -> Tensor:
    if dropout:
        raise Unsupported("attention with dropout")
    build = call.build
    if call.dtype not in ("float32", "float16", "bfloat16"):
        raise Unsupported(f"attention of {call.dtype}")
    rank = call.rank(q)
    if rank < 3:
        raise Unsupported(f"attention with {rank} dimensions")
    q, k, v = (_four(call, tensor) for tensor in (q, k, v))
    params: dict[str, Any] = {"layout": "BHSD"}
    if scale is not None:
        params["sm_scale"] = float(scale)
    if is_causal:
        # torch aligns the first query with the first key.
        params |= {"causal": True, "causal_offset": 0}
    if mask is not None and call.rank(mask) > 4:
        raise Unsupported("a mask with more than 4 dimensions")
    inputs = [q.node, k.node, v.node, None if mask is None else mask.node]
    return Tensor(build.reshape(build.call("attention.gqa.prefill", inputs, **params), call.shape))


def _four(call: Call, x: Tensor) -> Tensor:
    """The tensor with exactly the dimensions batch, heads, length and features."""
    shape = call.build.shape(x.node)
    if len(shape) == 4:
        return x
    batch: Any = 1
    for size in shape[:-3]:
        batch = batch * size
    return Tensor(call.build.reshape(x.node, [batch, *shape[-3:]]))
