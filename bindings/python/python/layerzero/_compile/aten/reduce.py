"""Reductions, softmax, products, selection of the largest."""

from __future__ import annotations

from typing import Any

from layerzero._compile.aten.base import Call, Tensor, Unsupported, handles


def _reduce(function: str, call: Call, x: Tensor, axes: Any, keep_dims: bool) -> Tensor:
    return Tensor(call.build.reduce(function, x.node, call.axes(x, axes), keep_dims))


@handles("aten.sum.default", "aten.sum.dim_IntList", "aten.prod.default", "aten.prod.dim_int")
def total(call: Call, x: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    dtype = call.dtype
    x = call.cast(x, dtype)
    return call.cast(_reduce("prod" if "prod" in call.target else "sum", call, x, dim, keepdim), dtype)


@handles("aten.mean.default", "aten.mean.dim")
def mean(call: Call, x: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    return _reduce("mean", call, call.cast(x, call.dtype), dim, keepdim)


@handles("aten.amax.default", "aten.amin.default", "aten.max.default", "aten.min.default")
def extreme(call: Call, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return _reduce("maximum" if "max" in call.target else "minimum", call, x, dim or None, keepdim)


@handles("aten.max.dim", "aten.min.dim")
def extreme_with_indices(call: Call, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    function = "max" if "max" in call.target else "min"
    x = call.at_least_1d(x)
    axis, shape = call.axis(x, dim), call.shape_of(call.meta[0])
    results = (call.build.reduce(f"{function}imum", x.node, [axis], keepdim), call.build.arg_reduce(f"arg{function}", x.node, axis, keepdim))
    values, indices = (Tensor(call.build.reshape(result, shape)) for result in results)
    return values, indices


@handles("aten.argmax.default", "aten.argmin.default")
def arg_extreme(call: Call, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    function = "argmax" if "argmax" in call.target else "argmin"
    if dim is None:
        x, dim = Tensor(call.build.reshape(x.node, [-1])), 0
    x = call.at_least_1d(x)
    return call.shaped(call.build.arg_reduce(function, x.node, call.axis(x, dim), keepdim))


@handles("aten.any.default", "aten.any.dim", "aten.all.default", "aten.all.dim", "aten.any.dims")
def truth(call: Call, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return call.cast(_reduce("any" if ".any" in call.target else "all", call, call.cast(x, "bool"), dim, keepdim), call.dtype)


@handles("aten.var.correction", "aten.std.correction", "aten.var.dim")
def variance(call: Call, x: Tensor, dim: Any = None, correction: float | None = None, keepdim: bool = False, **_: Any) -> Tensor:
    axes = call.axes(x, dim) or list(range(call.rank(x)))
    mean = call.build.reduce("mean", x.node, axes, True)
    centered = call.build.binary("sub", x.node, mean)
    squares = call.build.reduce("sum", call.build.unary("square", centered), axes, keepdim)
    count: Any = 1
    for axis in axes:
        count = count * call.build.shape(x.node)[axis]
    if not isinstance(count, int):
        raise Unsupported("a variance over a dimension of unknown size")
    result = call.build.binary_scalar("div", squares, max(0.0, float(count - (1 if correction is None else correction))))
    return Tensor(call.build.unary("square_root", result) if "std" in call.target else result)


@handles("aten.linalg_vector_norm.default", "aten.norm.ScalarOpt_dim")
def vector_norm(call: Call, x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    x = call.cast(x, call.dtype)
    if ord == 2:
        return Tensor(call.build.unary("square_root", _reduce("sum_squares", call, x, dim, keepdim).node))
    if ord == 0:
        nonzero = call.cast(Tensor(call.build.compare_scalar("ne", x.node, 0.0)), call.dtype)
        return _reduce("sum", call, nonzero, dim, keepdim)
    sizes = Tensor(call.build.unary("absolute", x.node))
    if ord in (float("inf"), float("-inf")):
        return _reduce("maximum" if ord > 0 else "minimum", call, sizes, dim, keepdim)
    powers = Tensor(call.build.binary_scalar("pow", sizes.node, float(ord)))
    return Tensor(call.build.binary_scalar("pow", _reduce("sum", call, powers, dim, keepdim).node, 1.0 / ord))


@handles("aten.softmax.int", "aten._softmax.default", "aten.log_softmax.int", "aten._log_softmax.default")
def softmax(call: Call, x: Tensor, dim: int, *_: Any, **__: Any) -> Tensor:
    x = call.at_least_1d(call.cast(x, call.dtype))
    return call.shaped(call.build.softmax(x.node, call.axis(x, dim), "log_softmax" in call.target))


@handles("aten.cumsum.default")
def cumsum(call: Call, x: Tensor, dim: int, **_: Any) -> Tensor:
    x = call.at_least_1d(call.cast(x, call.dtype))
    return call.shaped(call.build.cumsum(x.node, call.axis(x, dim)))


@handles("aten.topk.default")
def topk(call: Call, x: Tensor, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    return _topk(call, call.at_least_1d(x), dim, call.size(k), largest, sorted)


@handles("aten.sort.default")
def sort(call: Call, x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    x = call.at_least_1d(x)
    return _topk(call, x, dim, call.build.shape(x.node)[call.axis(x, dim)], descending, True)


def _topk(call: Call, x: Tensor, dim: int, k: Any, largest: bool, sorted: bool) -> tuple[Tensor, Tensor]:
    shape = call.shape_of(call.meta[0])
    results = call.build.topk(x.node, call.axis(x, dim), k, largest, sorted)
    values, indices = (Tensor(call.build.reshape(result, shape)) for result in results)
    return values, indices


@handles("aten.matmul.default", "aten.mm.default", "aten.bmm.default", "aten.mv.default", "aten.dot.default")
def matmul(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return Tensor(call.build.matmul(a.node, b.node))


@handles("aten.addmm.default", "aten.baddbmm.default")
def addmm(call: Call, bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = call.build.matmul(a.node, b.node)
    if alpha != 1:
        product = call.build.binary_scalar("mul", product, float(alpha))
    if beta == 0:
        return Tensor(product)
    addend = bias.node if beta == 1 else call.build.binary_scalar("mul", bias.node, float(beta))
    return Tensor(call.build.binary("add", product, addend))


@handles("aten.outer.default")
def outer(call: Call, a: Tensor, b: Tensor) -> Tensor:
    column = call.build.reshape(a.node, [*call.build.shape(a.node), 1])
    return Tensor(call.build.binary("mul", column, b.node))


@handles("aten.logsumexp.default")
def logsumexp(call: Call, x: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    x = call.cast(x, call.dtype)
    axes = call.axes(x, dim) or list(range(call.rank(x)))
    largest = call.build.reduce("maximum", x.node, axes, True)
    # Where every element is infinite, their difference would be NaN.
    infinite = call.build.call("primitive.test", [largest], function="is_inf")
    shift = call.build.select_where(infinite, call.build.expand(call.tensor(0, call.dtype).node, call.build.shape(largest)), largest)
    powers = call.build.unary("exp", call.build.binary("sub", x.node, shift))
    total = call.build.unary("log", call.build.reduce("sum", powers, axes, True))
    return Tensor(call.build.reshape(call.build.binary("add", total, shift), call.shape))
