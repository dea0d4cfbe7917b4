"""Attention over a KV cache: new keys and values are written into the caches of the run, which are read through a page table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from layerzero._compile.aten.base import Call, Tensor, Unsupported, handles
from layerzero._native import GraphBuilder


@dataclass(frozen=True)
class CacheLayer:
    """The sizes of one layer's cache."""

    kv_heads: int
    head_dim: int
    dtype: str


class CacheInputs:
    """The inputs of a graph with a KV cache, after the model's own: `TABLE`, then keys and values of each layer, which the graph changes.

    Tokens of all sequences are packed into one row. The caches are pages, `[pages, page_size, kv_heads, head_dim]`.
    """

    TABLE = ("slots", "qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len")

    def __init__(self) -> None:
        self.layers: dict[int, CacheLayer] = {}
        self._table: dict[str, int] | None = None
        self._sizes: tuple[Any, Any] = (0, 0)

    def table(self, build: GraphBuilder, tokens: Any) -> dict[str, int]:
        """The page table and the slots of the new tokens, made at the first use."""
        if self._table is None:
            batch, indices = (build.symbol(name, 0, 2**31 - 1) for name in ("sequences", "indices"))
            self._sizes = (build.symbol("pages", 0, 2**31 - 1), build.symbol("page_size", 1, 2**31 - 1))
            shapes = {"qo_indptr": [batch + 1], "kv_indptr": [batch + 1], "kv_indices": [indices], "kv_last_page_len": [batch]}
            self._table = {"slots": build.input("slots", [tokens], "int64")}
            self._table |= {name: build.input(name, shape, "int32") for name, shape in shapes.items()}
        return self._table

    def append(self, build: GraphBuilder, layer: int, k: int, v: int) -> tuple[int, int]:
        """The caches of a layer with the new keys and values, `[tokens, kv_heads, head_dim]`."""
        if layer in self.layers:
            raise Unsupported(f"two attentions with the layer index {layer}")
        tokens, kv_heads, head_dim = build.shape(k)
        slots = self.table(build, tokens)["slots"]
        about = CacheLayer(kv_heads, head_dim, build.dtype(k))
        shape = [*self._sizes, kv_heads, head_dim]
        caches = [build.input(f"{name}_cache_{layer}", shape, about.dtype, True) for name in ("k", "v")]
        self.layers[layer] = about
        written = build.call("kv.append", [k, v, *caches, slots])
        return build.written(written, 2), build.written(written, 3)


@handles("layerzero.cached_attention.default")
def cached_attention(call: Call, q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float | None, window: int,
                     soft_cap: float) -> Tensor:
    state = call.state
    if state is None:
        raise Unsupported("attention over a KV cache outside of lz.Generator")
    build = call.build
    q_node, k_node, v_node = (_tokens_first(call, tensor) for tensor in (q, k, v))
    if build.shape(k_node) != build.shape(v_node):
        raise Unsupported("keys and values with different sizes")
    caches = state.append(build, layer, k_node, v_node)
    table = state.table(build, build.shape(k_node)[0])
    params: dict[str, Any] = {"causal": True, "window_left": window, "soft_cap": float(soft_cap)}
    if scale is not None:
        params["sm_scale"] = float(scale)
    inputs = [q_node, *caches, *(table[name] for name in CacheInputs.TABLE[1:])]
    return Tensor(build.reshape(build.call("attention.gqa.prefill.paged", inputs, **params), call.shape))


def _tokens_first(call: Call, x: Tensor) -> int:
    """`[1, heads, tokens, features]` as `[tokens, heads, features]`."""
    batch, heads, tokens, features = call.build.shape(x.node)
    if batch != 1:
        raise Unsupported("a batch of more than one row: tokens of all sequences are packed")
    return call.build.reshape(call.build.permute(x.node, [0, 2, 1, 3]), [tokens, heads, features])
