"""Copies of a tensor with some elements replaced: what changes in place of slices and indices become in functional form."""

from __future__ import annotations

from typing import Any

from layerzero._compile.aten.base import Call, Tensor, Unsupported, handles


@handles("aten.copy.default", "aten.fill.Scalar", "aten.fill.Tensor")
def copy(call: Call, x: Tensor, source: Any, *_: Any) -> Tensor:
    return Tensor(call.build.expand(call.tensor(source, call.dtype).node, call.shape))


@handles("aten.slice_scatter.default")
def slice_scatter(call: Call, x: Tensor, source: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    if step != 1:
        raise Unsupported("replacing a slice with steps")
    build = call.build
    axis = call.axis(x, dim)
    first = 0 if start is None else call.size(start)
    before = build.python_slice(x.node, axis, 0, first)
    length = build.shape(source.node)[axis]
    begin = build.shape(before)[axis]
    rest = build.slice(x.node, axis, begin + length, build.shape(x.node)[axis] - begin - length, 1)
    return Tensor(build.concat([before, call.cast(source, call.dtype).node, rest], axis))


@handles("aten.select_scatter.default")
def select_scatter(call: Call, x: Tensor, source: Tensor, dim: int, index: Any) -> Tensor:
    build = call.build
    axis = call.axis(x, dim)
    shape = build.shape(x.node)
    position = call.size(index)
    if isinstance(position, int) and position < 0:
        position = position + shape[axis]
    inserted = build.reshape(call.cast(source, call.dtype).node, [*shape[:axis], 1, *shape[axis + 1 :]])
    before = build.slice(x.node, axis, 0, position, 1)
    after = build.slice(x.node, axis, position + 1, shape[axis] - position - 1, 1)
    return Tensor(build.concat([before, inserted, after], axis))


@handles("aten.scatter.src", "aten.scatter.value", "aten.scatter_add.default", "aten.scatter_.value", "aten.scatter_.src")
def scatter(call: Call, x: Tensor, dim: int, indices: Tensor, source: Any) -> Tensor:
    build = call.build
    rank = call.rank(x)
    if rank == 0:
        raise Unsupported("scattering into a tensor without dimensions")
    axis = call.axis(x, dim)
    sizes = build.shape(indices.node)
    if any(sizes[other] != build.shape(x.node)[other] for other in range(rank) if other != axis):
        raise Unsupported("scattering to a part of the other dimensions")
    updates = call.tensor(source, call.dtype).node
    if isinstance(source, Tensor):
        for other in range(rank):
            updates = build.slice(updates, other, 0, sizes[other], 1)
    else:
        updates = build.expand(updates, sizes)
    order = [other for other in range(rank) if other != axis] + [axis]
    inputs = [build.permute(node, order) for node in (x.node, indices.node, updates)]
    reduction = "add" if "scatter_add" in call.target else "none"
    result = build.call("primitive.scatter_elements", inputs, reduction=reduction)
    return Tensor(build.permute(result, [order.index(other) for other in range(rank)]))


@handles("aten.index_add.default", "aten.index_copy.default")
def index_change(call: Call, x: Tensor, dim: int, indices: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    if alpha != 1:
        raise Unsupported("adding at indices with a factor")
    return Tensor(_replace(call, x.node, call.axis(x, dim), indices.node, source.node, "add" if "add" in call.target else "none"))


def _replace(call: Call, x: int, axis: int, indices: int, source: int, reduction: str) -> int:
    """Slices of one dimension, by index."""
    build = call.build
    shape = build.shape(x)
    if not shape:
        raise Unsupported("a tensor without dimensions")
    outer: Any = 1
    for size in shape[:axis]:
        outer = outer * size
    inner: Any = 1
    for size in shape[axis + 1 :]:
        inner = inner * size
    count = build.reshape(indices, [-1])
    flat = build.reshape(x, [outer, shape[axis], inner])
    updates = build.reshape(source, [outer, build.shape(count)[0], inner])
    return build.reshape(build.call("primitive.scatter", [flat, count, updates], reduction=reduction), shape)


@handles("aten.index_put.default")
def index_put(call: Call, x: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    build = call.build
    given = [(axis, tensor) for axis, tensor in enumerate(indices) if tensor is not None]
    shape = build.shape(x.node)
    if len(given) == 1 and build.dtype(given[0][1].node) == "bool":
        axis, mask = given[0]
        if axis != 0 or call.rank(values) or accumulate:
            raise Unsupported("storing values where a mask holds: their number depends on the mask")
        mask_shape = build.shape(mask.node)
        condition = build.reshape(mask.node, [*mask_shape, *[1] * (len(shape) - len(mask_shape))])
        value = call.tensor(values, call.dtype).node
        return Tensor(build.select_where(build.expand(condition, shape), build.expand(value, shape), x.node))
    if len(given) != 1 or build.dtype(given[0][1].node) == "bool":
        raise Unsupported("storing values at several indices")
    axis, index = given[0]
    target = [*shape[:axis], *build.shape(index.node), *shape[axis + 1 :]]
    updates = build.expand(call.tensor(values, call.dtype).node, target)
    return Tensor(_replace(call, x.node, axis, index.node, updates, "add" if accumulate else "none"))


@handles("aten.one_hot.default")
def one_hot(call: Call, x: Tensor, classes: int = -1) -> Tensor:
    if not isinstance(classes, int) or classes < 0:
        raise Unsupported("one-hot vectors whose length depends on values")
    build = call.build
    column = build.reshape(x.node, [*build.shape(x.node), 1])
    numbers = build.arange(0, 1, classes, "int64")
    return call.cast(Tensor(build.compare("eq", column, numbers)), call.dtype)
