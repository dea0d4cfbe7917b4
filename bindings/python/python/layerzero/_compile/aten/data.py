"""Data movement: concatenation, gathering, ranges, filled tensors."""

from __future__ import annotations

from typing import Any

from layerzero._compile.aten.base import Call, Tensor, Unsupported, handles


@handles("aten.cat.default", "aten.concat.default")
def cat(call: Call, tensors: list[Tensor], dim: int = 0) -> Tensor:
    # torch ignores legacy empty tensors of shape [0] among others.
    rank = len(call.meta.shape)
    parts = [call.cast(tensor, call.dtype) for tensor in tensors if call.rank(tensor) == rank]
    return Tensor(call.build.concat([part.node for part in parts], dim % rank))


@handles("aten.stack.default")
def stack(call: Call, tensors: list[Tensor], dim: int = 0) -> Tensor:
    rank = len(call.meta.shape)
    axis = dim % rank
    shape = list(call.shape)
    shape[axis] = 1
    parts = [call.build.reshape(call.cast(tensor, call.dtype).node, shape) for tensor in tensors]
    return Tensor(call.build.concat(parts, axis))


@handles("aten.repeat.default", "aten.tile.default")
def repeat(call: Call, x: Tensor, repeats: list[Any]) -> Tensor:
    shape = call.build.shape(x.node)
    shape = [1] * (len(repeats) - len(shape)) + shape
    repeats = [1] * (len(shape) - len(repeats)) + [call.size(count) for count in repeats]
    paired = [size for pair in zip([1] * len(shape), shape) for size in pair]
    expanded = [size for pair in zip(repeats, shape) for size in pair]
    x = Tensor(call.build.reshape(x.node, paired))
    return Tensor(call.build.reshape(call.build.expand(x.node, expanded), call.shape))


@handles("aten.repeat_interleave.self_int")
def repeat_interleave(call: Call, x: Tensor, repeats: Any, dim: int | None = None, output_size: Any = None) -> Tensor:
    if dim is None:
        raise Unsupported("repeat_interleave without a dimension")
    axis = call.axis(x, dim)
    shape = call.build.shape(x.node)
    split = [*shape[: axis + 1], 1, *shape[axis + 1 :]]
    expanded = [*shape[: axis + 1], call.size(repeats), *shape[axis + 1 :]]
    node = call.build.expand(call.build.reshape(x.node, split), expanded)
    return Tensor(call.build.reshape(node, call.shape))


@handles("aten.embedding.default")
def embedding(call: Call, weight: Tensor, indices: Tensor, *_: Any, **__: Any) -> Tensor:
    return Tensor(call.build.take(weight.node, 0, indices.node))


@handles("aten.index_select.default")
def index_select(call: Call, x: Tensor, dim: int, indices: Tensor) -> Tensor:
    x = call.at_least_1d(x)
    return call.shaped(call.build.take(x.node, call.axis(x, dim), indices.node))


@handles("aten.index.Tensor")
def index(call: Call, x: Tensor, indices: list[Tensor | None]) -> Tensor:
    given = [(axis, tensor) for axis, tensor in enumerate(indices) if tensor is not None]
    if any(call.build.dtype(tensor.node) == "bool" for _, tensor in given):
        raise Unsupported("indexing by a mask: the size of the result depends on values")
    if len(given) == 1:
        axis, tensor = given[0]
        return Tensor(call.build.take(x.node, axis, tensor.node))
    axes = [axis for axis, _ in given]
    if axes != list(range(axes[0], axes[0] + len(axes))):
        raise Unsupported("indices that are not next to each other")
    # Several indices become one index into the merged dimensions.
    shape = call.build.shape(x.node)
    flat = call.build.linear_index([tensor.node for _, tensor in given], [shape[axis] for axis in axes])
    merged: Any = 1
    for axis in axes:
        merged = merged * shape[axis]
    source = call.build.reshape(x.node, [*shape[: axes[0]], merged, *shape[axes[-1] + 1 :]])
    return Tensor(call.build.take(source, axes[0], flat))


@handles("aten.gather.default")
def gather(call: Call, x: Tensor, dim: int, indices: Tensor, **_: Any) -> Tensor:
    x, indices = call.at_least_1d(x), call.at_least_1d(indices)
    return call.shaped(call.build.take_along(x.node, call.axis(x, dim), indices.node))


@handles("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def arange(call: Call, *bounds: Any, **_: Any) -> Tensor:
    if any(isinstance(bound, float) and not bound.is_integer() for bound in bounds):
        raise Unsupported("a range with fractions")
    values = [int(bound) if isinstance(bound, float) else call.size(bound) for bound in bounds]
    start, step = (0, 1) if len(values) == 1 else (values[0], values[2] if len(values) == 3 else 1)
    if not isinstance(step, int):
        raise Unsupported("a range whose step is a size")
    return Tensor(call.build.arange(start, step, call.shape[0], call.dtype))


@handles(
    "aten.full.default", "aten.full_like.default", "aten.zeros.default", "aten.zeros_like.default", "aten.ones.default",
    "aten.ones_like.default", "aten.new_zeros.default", "aten.new_ones.default", "aten.new_full.default",
    "aten.empty.memory_format", "aten.empty_like.default", "aten.scalar_tensor.default",
)
def filled(call: Call, *args: Any, **_: Any) -> Tensor:
    value: Any = 0
    if "full" in call.target:
        value = args[1] if "new_full" not in call.target else args[2]
    elif "scalar_tensor" in call.target:
        value = args[0]
    elif "ones" in call.target:
        value = 1
    scalar = call.tensor(value, call.dtype)
    return Tensor(call.build.expand(scalar.node, call.shape))


@handles("aten.tril.default", "aten.triu.default")
def triangle(call: Call, x: Tensor, diagonal: int = 0) -> Tensor:
    rows, columns = call.shape[-2:]
    row = call.build.reshape(call.build.arange(0, 1, rows, "int64"), [rows, 1])
    column = call.build.arange(0, 1, columns, "int64")
    shifted = call.build.binary_scalar("add", row, float(diagonal))
    keep = call.build.compare("ge" if "tril" in call.target else "le", shifted, column)
    zero = call.tensor(0, call.dtype)
    return Tensor(call.build.select_where(keep, x.node, zero.node))


@handles("aten.constant_pad_nd.default", "aten.pad.default")
def pad(call: Call, x: Tensor, padding: list[Any], *rest: Any) -> Tensor:
    mode = next((item for item in rest if isinstance(item, str)), "constant")
    if mode != "constant":
        raise Unsupported(f"padding mode {mode}")
    value = next((item for item in rest if isinstance(item, (int, float))), 0)
    pairs = [(call.size(padding[index]), call.size(padding[index + 1])) for index in range(0, len(padding), 2)]
    pairs = [(0, 0)] * (call.rank(x) - len(pairs)) + pairs[::-1]
    return Tensor(call.build.pad(x.node, pairs, float(value)))


@handles("aten.roll.default")
def roll(call: Call, x: Tensor, shifts: list[int], dims: list[int] | None = None) -> Tensor:
    # Without dimensions all elements are rolled as one row.
    node = x.node if dims else call.build.reshape(x.node, [-1])
    for shift, dim in zip(shifts, dims or [0]):
        axis = call.axis(Tensor(node), dim)
        size = call.build.shape(node)[axis]
        if not isinstance(size, int):
            raise Unsupported("rolling a dimension of unknown size")
        split = -shift % max(size, 1)
        head = call.build.slice(node, axis, 0, split, 1)
        tail = call.build.slice(node, axis, split, size - split, 1)
        node = call.build.concat([tail, head], axis)
    return call.shaped(node)


@handles("aten.flip.default")
def flip(call: Call, x: Tensor, dims: list[int]) -> Tensor:
    node = x.node
    for dim in dims:
        axis = call.axis(x, dim)
        size = call.build.shape(node)[axis]
        node = call.build.slice(node, axis, size - 1, size, -1)
    return Tensor(node)


@handles("aten.diff.default")
def diff(call: Call, x: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None) -> Tensor:
    axis = call.axis(x, dim)
    dtype = call.dtype
    if n == 0:
        return call.cast(x, dtype)
    parts = [call.cast(part, dtype).node for part in (prepend, x, append) if part is not None]
    node = call.build.concat(parts, axis)
    length = call.build.shape(node)[axis]
    # More differences than elements are none.
    for _ in range(min(n, length) if isinstance(length, int) else n):
        length = call.build.shape(node)[axis] - 1
        later = call.build.slice(node, axis, 1, length, 1)
        earlier = call.build.slice(node, axis, 0, length, 1)
        node = call.build.binary("bitwise_xor" if dtype == "bool" else "sub", later, earlier)
    return Tensor(node)
