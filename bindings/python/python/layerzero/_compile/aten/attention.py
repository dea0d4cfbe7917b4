"""Attention, and calls of LayerZero's own operations."""

from __future__ import annotations

from typing import Any

from layerzero import _native
from layerzero._compile.aten.base import Call, Tensor, Unsupported, handles, handles_namespace


@handles("aten.scaled_dot_product_attention.default", "layerzero.traced_attention.default")
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


def _operations() -> dict[str, str]:
    """Operations by their name in `torch.ops.layerzero`."""
    return {name.replace(".", "_"): name for name in _native.list_operations()}


def _fixed() -> dict[str, dict[str, Any]]:
    """The params that each overload without `out` fixes."""
    from layerzero._torch_ops import OVERLOADS

    return {overload.schema.split("(", 1)[0]: overload.fixed for overload in OVERLOADS if not overload.places}


@handles_namespace("layerzero")
def operation(call: Call, *inputs: Tensor | None, **params: Any) -> Any:
    """A call of `torch.ops.layerzero` is one node: tensors by position, params by name, `None` for defaults."""
    _, name, overload = call.target.split(".")
    fixed = _fixed().get(name if overload == "default" else f"{name}.{overload}")
    if fixed is None or name not in _operations():
        raise Unsupported(f"{call.target}, which writes to its arguments or is no operation")
    given = {param: call.size(value) if hasattr(value, "node") else value for param, value in params.items() if value is not None}
    nodes = [None if tensor is None else tensor.node for tensor in inputs]
    result = call.build.call(_operations()[name], nodes, **given, **fixed)
    if not isinstance(call.meta, (list, tuple)):
        return Tensor(result)
    return [Tensor(result), *(Tensor(call.build.projection(result, index)) for index in range(1, len(call.meta)))]
