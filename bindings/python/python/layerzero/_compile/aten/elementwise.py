"""Elementwise functions."""

from __future__ import annotations

from typing import Any

from layerzero._compile.aten.base import Call, Tensor, Unsupported, handles


def _binary(function: str, call: Call, a: Any, b: Any) -> Tensor:
    dtype = call.dtype
    x, y = call.tensor(a, dtype), call.tensor(b, dtype)
    return Tensor(call.build.binary(function, x.node, y.node))


def _register_binary(function: str, *names: str) -> None:
    @handles(*names)
    def handler(call: Call, a: Any, b: Any) -> Tensor:
        return _binary(function, call, a, b)


for _function, _name in [
    ("mul", "mul"),
    ("maximum", "maximum"),
    ("minimum", "minimum"),
    ("maximum", "max"),
    ("minimum", "min"),
    ("pow", "pow"),
    ("atan2", "atan2"),
    ("mod", "remainder"),
    ("fmod", "fmod"),
    ("floor_divide", "floor_divide"),
]:
    _register_binary(
        _function,
        *([f"aten.{_name}.default"] if _name not in ("max", "min") else []),
        f"aten.{_name}.other",
        f"aten.{_name}.Tensor",
        f"aten.{_name}.Scalar",
        f"aten.{_name}.Tensor_Tensor",
        f"aten.{_name}.Tensor_Scalar",
        f"aten.{_name}_.Tensor",
        f"aten.{_name}_.Scalar",
    )


@handles("aten.add.Tensor", "aten.add.Scalar", "aten.add_.Tensor", "aten.add_.Scalar")
def add(call: Call, a: Any, b: Any, alpha: float = 1) -> Tensor:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return _binary("add", call, a, _scaled(call, b, alpha))
    return a + b * alpha


@handles("aten.sub.Tensor", "aten.sub.Scalar", "aten.sub_.Tensor", "aten.sub_.Scalar")
def sub(call: Call, a: Any, b: Any, alpha: float = 1) -> Tensor:
    return _binary("sub", call, a, _scaled(call, b, alpha))


@handles("aten.rsub.Scalar", "aten.rsub.Tensor")
def rsub(call: Call, a: Any, b: Any, alpha: float = 1) -> Tensor:
    return _binary("sub", call, b, _scaled(call, a, alpha))


def _scaled(call: Call, b: Any, alpha: float) -> Any:
    if alpha == 1:
        return b
    if isinstance(b, Tensor):
        return Tensor(call.build.binary_scalar("mul", call.tensor(b, call.dtype).node, float(alpha)))
    return b * alpha


@handles("aten.div.Tensor", "aten.div.Scalar", "aten.div_.Tensor", "aten.div_.Scalar", "aten.true_divide.Tensor")
def div(call: Call, a: Any, b: Any) -> Tensor:
    return _binary("div", call, a, b)


@handles("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(call: Call, a: Any, b: Any, rounding_mode: str | None = None) -> Tensor:
    function = {None: "div", "floor": "floor_divide", "trunc": "trunc_divide"}[rounding_mode]
    return _binary(function, call, a, b)


_FLOATS = ("float32", "float16", "bfloat16", "float64")
_ROUNDINGS = ("floor", "ceil", "round", "trunc")


def _register_unary(function: str, name: str) -> None:
    @handles(f"aten.{name}.default", f"aten.{name}_.default")
    def handler(call: Call, x: Tensor) -> Tensor:
        if call.dtype not in _FLOATS:
            if function in _ROUNDINGS:
                return call.cast(x, call.dtype)
            if function == "square":
                return _binary("mul", call, x, x)
        return Tensor(call.build.unary(function, call.cast(x, call.dtype).node))


for _function, _name in [
    *((name, name) for name in (
        "neg sign exp exp2 expm1 log log2 log10 log1p rsqrt reciprocal square sin cos tan asin acos atan sinh cosh tanh "
        "asinh acosh atanh erf floor ceil round trunc"
    ).split()),
    ("absolute", "abs"),
    ("square_root", "sqrt"),
    ("bitwise_not", "bitwise_not"),
]:
    _register_unary(_function, _name)


def _register_activation(function: str, name: str) -> None:
    @handles(f"aten.{name}.default", f"aten.{name}_.default")
    def handler(call: Call, x: Tensor) -> Tensor:
        if function == "relu" and call.dtype not in _FLOATS:
            return clamp(call, x, 0)
        return Tensor(call.build.activation(function, call.cast(x, call.dtype).node))


for _name in ("relu", "sigmoid", "silu", "mish", "hardswish", "hardsigmoid", "selu", "log_sigmoid"):
    _register_activation(_name, _name)


@handles("aten.gelu.default")
def gelu(call: Call, x: Tensor, approximate: str = "none") -> Tensor:
    return Tensor(call.build.activation("gelu_tanh" if approximate == "tanh" else "gelu", x.node))


@handles("aten.leaky_relu.default", "aten.leaky_relu_.default")
def leaky_relu(call: Call, x: Tensor, slope: float = 0.01) -> Tensor:
    return Tensor(call.build.activation("leaky_relu", x.node, (float(slope), 1.0)))


@handles("aten.elu.default", "aten.elu_.default")
def elu(call: Call, x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    if scale != 1 or input_scale != 1:
        raise Unsupported("a scaled ELU")
    return Tensor(call.build.activation("elu", x.node, (float(alpha), 1.0)))


@handles("aten.softplus.default")
def softplus(call: Call, x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    return Tensor(call.build.activation("softplus", x.node, (float(beta), float(threshold))))


@handles("aten.relu6.default")
def relu6(call: Call, x: Tensor) -> Tensor:
    return clamp(call, x, 0, 6)


@handles("aten.hardtanh.default", "aten.hardtanh_.default")
def hardtanh(call: Call, x: Tensor, low: float = -1, high: float = 1) -> Tensor:
    return clamp(call, x, low, high)


@handles("aten.clamp.default", "aten.clamp_.default", "aten.clamp_min.default", "aten.clamp_max.default", "aten.clip.default")
def clamp(call: Call, x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    if "clamp_max" in call.target:
        low, high = None, low
    x = call.cast(x, call.dtype)
    if low is not None:
        x = Tensor(call.build.binary("maximum", x.node, call.tensor(low, call.dtype).node))
    if high is not None:
        x = Tensor(call.build.binary("minimum", x.node, call.tensor(high, call.dtype).node))
    return x


def _register_compare(function: str) -> None:
    @handles(f"aten.{function}.Tensor", f"aten.{function}.Scalar")
    def handler(call: Call, a: Any, b: Any) -> Tensor:
        dtype = call.common(a, b)
        return Tensor(call.build.compare(function, call.tensor(a, dtype).node, call.tensor(b, dtype).node))


for _function in ("eq", "ne", "lt", "le", "gt", "ge"):
    _register_compare(_function)


def _register_bitwise(function: str, *names: str) -> None:
    @handles(*names)
    def handler(call: Call, a: Any, b: Any) -> Tensor:
        return _binary(function, call, a, b)


for _function, _logical in [("and", "logical_and"), ("or", "logical_or"), ("xor", "logical_xor")]:
    _register_bitwise(
        f"bitwise_{_function}",
        f"aten.bitwise_{_function}.Tensor",
        f"aten.bitwise_{_function}.Scalar",
        f"aten.{_logical}.default",
        f"aten.__{_function}__.Tensor",
        f"aten.__{_function}__.Scalar",
    )


@handles("aten.logical_not.default")
def logical_not(call: Call, x: Tensor) -> Tensor:
    return Tensor(call.build.unary("logical_not", call.cast(x, "bool").node))


@handles("aten.isnan.default", "aten.isinf.default")
def is_special(call: Call, x: Tensor) -> Tensor:
    function = "is_nan" if "isnan" in call.target else "is_inf"
    if call.build.dtype(x.node) not in _FLOATS:
        return Tensor(call.build.expand(call.tensor(0, "bool").node, call.shape))
    return Tensor(call.build.call("primitive.test", [x.node], function=function))


@handles("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
def where(call: Call, condition: Tensor, a: Any, b: Any) -> Tensor:
    dtype = call.dtype
    condition = call.cast(condition, "bool")
    return Tensor(
        call.build.select_where(condition.node, call.tensor(a, dtype).node, call.tensor(b, dtype).node)
    )


@handles("aten.masked_fill.Scalar", "aten.masked_fill.Tensor", "aten.masked_fill_.Scalar", "aten.masked_fill_.Tensor")
def masked_fill(call: Call, x: Tensor, mask: Tensor, value: Any) -> Tensor:
    return where(call, mask, value, x)


@handles(
    "aten.to.dtype",
    "aten._to_copy.default",
    "aten.to.dtype_layout",
    "aten.to.device",
    "aten.type_as.default",
    "aten.float.default",
    "aten.to.other",
)
def convert(call: Call, x: Tensor, *_: Any, **__: Any) -> Tensor:
    return call.cast(x, call.dtype)


@handles("aten.addcmul.default", "aten.addcdiv.default")
def add_product(call: Call, x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> Tensor:
    product = _binary("mul" if "mul" in call.target else "div", call, a, b)
    return _binary("add", call, x, _scaled(call, product, value))


@handles("aten.lerp.Scalar", "aten.lerp.Tensor")
def lerp(call: Call, start: Tensor, end: Tensor, weight: Any) -> Tensor:
    return _binary("add", call, start, _binary("mul", call, _binary("sub", call, end, start), weight))


@handles("aten.isfinite.default")
def is_finite(call: Call, x: Tensor) -> Tensor:
    if call.build.dtype(x.node) not in _FLOATS:
        true = call.tensor(1, "bool")
        return Tensor(call.build.expand(true.node, call.shape))
    special = [call.build.call("primitive.test", [x.node], function=function) for function in ("is_nan", "is_inf")]
    return Tensor(call.build.unary("logical_not", call.build.binary("bitwise_or", *special)))


@handles("aten.glu.default")
def glu(call: Call, x: Tensor, dim: int = -1) -> Tensor:
    axis = call.axis(x, dim)
    half = call.shape[axis]
    values, gate = (call.build.slice(x.node, axis, start, half, 1) for start in (0, half))
    return Tensor(call.build.binary("mul", values, call.build.activation("sigmoid", gate)))
