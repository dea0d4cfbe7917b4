"""Views: other shapes, orders and parts of the same elements."""

from __future__ import annotations

from typing import Any

from layerzero._compile.aten.base import Call, Tensor, Unsupported, handles


@handles(
    "aten.view.default",
    "aten.reshape.default",
    "aten._unsafe_view.default",
    "aten.flatten.using_ints",
    "aten.unflatten.int",
    "aten.squeeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.unsqueeze.default",
    "aten.view_as.default",
    "aten.reshape_as.default",
    "aten.unsqueeze_.default",
)
def reshape(call: Call, x: Tensor, *_: Any, **__: Any) -> Tensor:
    return Tensor(call.build.reshape(x.node, call.shape))


@handles(
    "aten.alias.default",
    "aten.contiguous.default",
    "aten.clone.default",
    "aten.detach.default",
    "aten.detach_.default",
    "aten.lift_fresh_copy.default",
    "aten.lift_fresh.default",
    "aten.alias_copy.default",
    "aten.positive.default",
)
def identity(call: Call, x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x


@handles("aten.dropout.default", "aten.native_dropout.default", "aten.feature_dropout.default")
def dropout(call: Call, x: Tensor, p: float, train: bool) -> Tensor:
    if train and p > 0:
        raise Unsupported("dropout in training mode; call model.eval() first")
    return x


@handles("aten.permute.default")
def permute(call: Call, x: Tensor, order: list[int]) -> Tensor:
    return Tensor(call.build.permute(x.node, [call.axis(x, axis) for axis in order]))


@handles("aten.transpose.int", "aten.swapaxes.default", "aten.transpose_.default")
def transpose(call: Call, x: Tensor, a: int, b: int) -> Tensor:
    order = list(range(call.rank(x)))
    if not order:
        return x
    a, b = call.axis(x, a), call.axis(x, b)
    order[a], order[b] = order[b], order[a]
    return Tensor(call.build.permute(x.node, order))


@handles("aten.t.default", "aten.numpy_T.default", "aten.mT.default")
def matrix_transpose(call: Call, x: Tensor) -> Tensor:
    return x if call.rank(x) < 2 else transpose(call, x, -2, -1)


@handles("aten.movedim.int")
def movedim(call: Call, x: Tensor, source: int, destination: int) -> Tensor:
    source, destination = call.axis(x, source), call.axis(x, destination)
    order = [axis for axis in range(call.rank(x)) if axis != source]
    order.insert(destination, source)
    return Tensor(call.build.permute(x.node, order))


@handles("aten.expand.default", "aten.expand_as.default", "aten.broadcast_to.default")
def expand(call: Call, x: Tensor, *_: Any, **__: Any) -> Tensor:
    return Tensor(call.build.expand(x.node, call.shape))


@handles("aten.slice.Tensor", "aten.slice_copy.Tensor")
def slice_tensor(call: Call, x: Tensor, axis: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    first = 0 if start is None else call.size(start)
    last = None if end is None else call.size(end)
    return Tensor(call.build.python_slice(x.node, call.axis(x, axis), first, last, step))


@handles("aten.narrow.default")
def narrow(call: Call, x: Tensor, axis: int, start: Any, length: Any) -> Tensor:
    return Tensor(call.build.slice(x.node, call.axis(x, axis), call.size(start), call.size(length), 1))


@handles("aten.select.int", "aten.select_copy.int")
def select(call: Call, x: Tensor, axis: int, index: Any) -> Tensor:
    return Tensor(call.build.select(x.node, call.axis(x, axis), call.size(index)))


def _parts(call: Call, x: Tensor, axis: int) -> list[Tensor]:
    """The parts that torch inferred, one after the other."""
    start: Any = 0
    parts = []
    for meta in call.meta:
        length = call.sizes.of(meta.shape[axis])
        parts.append(Tensor(call.build.slice(x.node, axis, start, length, 1)))
        start = start + length
    return parts


@handles("aten.split.Tensor", "aten.split_with_sizes.default", "aten.chunk.default", "aten.split.sizes", "aten.tensor_split.sections")
def split(call: Call, x: Tensor, sizes: Any, dim: int = 0) -> list[Tensor]:
    return _parts(call, x, call.axis(x, dim))


@handles("aten.unbind.int")
def unbind(call: Call, x: Tensor, dim: int = 0) -> list[Tensor]:
    axis = call.axis(x, dim)
    return [Tensor(call.build.select(x.node, axis, index)) for index in range(len(call.meta))]


@handles("aten.diagonal.default")
def diagonal(call: Call, *_: Any) -> Tensor:
    raise Unsupported("a diagonal")


@handles("aten.sym_size.int")
def sym_size(call: Call, x: Tensor, axis: int) -> Any:
    return call.build.shape(x.node)[call.axis(x, axis)]


@handles("aten.sym_numel.default")
def sym_numel(call: Call, x: Tensor) -> Any:
    result: Any = 1
    for size in call.build.shape(x.node):
        result = result * size
    return result


def _register_arithmetic(name: str, function: Any) -> None:
    handles(name)(lambda call, *args: function(*(call.size(arg) for arg in args)))


_register_arithmetic("add", lambda a, b: a + b)
_register_arithmetic("sub", lambda a, b: a - b)
_register_arithmetic("mul", lambda a, b: a * b)
_register_arithmetic("floordiv", lambda a, b: a // b)
_register_arithmetic("mod", lambda a, b: a % b)
_register_arithmetic("neg", lambda a: -a)


@handles("aten._assert_scalar.default", "aten.sym_constrain_range_for_size.default", "aten._assert_tensor_metadata.default")
def assertion(call: Call, *_: Any, **__: Any) -> None:
    """Checks of torch's tracing; the graph has its own."""


def _register_condition(name: str) -> None:
    # Conditions over sizes only feed assertions.
    handles(name)(lambda call, *args: None)


for _name in ("eq", "ne", "lt", "le", "gt", "ge", "sym_not", "_assert_scalar"):
    _register_condition(_name)
