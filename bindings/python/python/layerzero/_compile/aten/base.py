"""What handlers share: the table, tensors, symbolic sizes and dtype promotion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from layerzero._native import GraphBuilder, SymbolicSize

Size = int | SymbolicSize
Handler = Callable[..., Any]

_HANDLERS: dict[str, Handler] = {}
_NAMESPACES: dict[str, Handler] = {}

_DTYPES = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float64: "float64",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.bool: "bool",
}

#: Dtypes by their names in graphs.
DTYPES_BY_NAME = {name: dtype for dtype, name in _DTYPES.items()}

# The smallest value and the number of values of short integers.
_WRAPPED = {"int32": (-(2**31), 2**32), "int16": (-(2**15), 2**16), "int8": (-(2**7), 2**8), "uint8": (0, 2**8)}


class Unsupported(Exception):
    """Arguments of an operator that cannot be imported."""


@dataclass(frozen=True)
class Tensor:
    """A node of the graph that is built."""

    node: int


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Registers the handler of operators, named as torch prints them (`aten.add.Tensor`)."""

    def register(handler: Handler) -> Handler:
        for name in names:
            _HANDLERS[name] = handler
        return handler

    return register


def handles_namespace(name: str) -> Callable[[Handler], Handler]:
    """Registers the handler of all operators of a namespace that have none of their own."""

    def register(handler: Handler) -> Handler:
        _NAMESPACES[name] = handler
        return handler

    return register


def find(target: Any) -> Handler | None:
    """The handler of an operator."""
    name = str(target)
    return _HANDLERS.get(name) or _HANDLERS.get(getattr(target, "__name__", "")) or _NAMESPACES.get(name.partition(".")[0])


def supported() -> list[str]:
    """The operators that can be imported."""
    return sorted(_HANDLERS)


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype in graphs."""
    if dtype not in _DTYPES:
        raise Unsupported(f"dtype {dtype}")
    return _DTYPES[dtype]


class Sizes:
    """Sizes of the exported program as sizes of the graph: one symbol per symbol of torch."""

    def __init__(self, build: GraphBuilder, program: torch.export.ExportedProgram) -> None:
        self._build = build
        self._ranges = program.range_constraints
        self._symbols: dict[sympy.Symbol, SymbolicSize] = {}

    def of(self, size: Any) -> Size:
        """The size of a torch int, symbolic int or sympy expression."""
        if isinstance(size, (int, SymbolicSize)):
            return size
        expression = size.node.expr if isinstance(size, torch.SymInt) else size
        return self._expression(expression)

    def _symbol(self, symbol: sympy.Symbol) -> SymbolicSize:
        if symbol not in self._symbols:
            limits = self._ranges.get(symbol)
            upper = limits.upper if limits is not None else None
            # torch specializes on 0 and 1, so its lower limit of 2 is not the model's.
            lower = int(limits.lower) if limits is not None and int(limits.lower) > 2 else 0
            maximum = int(upper) if upper is not None and upper.is_finite and upper.is_Integer else 2**63 - 1
            self._symbols[symbol] = self._build.symbol(str(symbol), lower, min(maximum, 2**63 - 1))
        return self._symbols[symbol]

    def _expression(self, expression: Any) -> Size:
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            return self._symbol(expression)
        arguments = [self._expression(argument) for argument in expression.args]
        name = type(expression).__name__
        if expression.is_Add:
            return sum(arguments[1:], arguments[0])
        if expression.is_Mul:
            result = arguments[0]
            for argument in arguments[1:]:
                result = result * argument
            return result
        if expression.is_Pow and expression.args[1].is_Integer and int(expression.args[1]) > 0:
            result = arguments[0]
            for _ in range(int(expression.args[1]) - 1):
                result = result * arguments[0]
            return result
        if name in ("FloorDiv", "CleanDiv", "IntTrueDiv"):
            return arguments[0] // arguments[1]
        if name in ("Mod", "PythonMod"):
            return arguments[0] % arguments[1]
        if name in ("Max", "Min"):
            result = arguments[0]
            for argument in arguments[1:]:
                result = _extreme(name, result, argument)
            return result
        raise Unsupported(f"the size {expression}")


def _extreme(name: str, a: Size, b: Size) -> Size:
    if isinstance(a, SymbolicSize):
        return a.larger(b) if name == "Max" else a.smaller(b)
    if isinstance(b, SymbolicSize):
        return b.larger(a) if name == "Max" else b.smaller(a)
    return max(a, b) if name == "Max" else min(a, b)


class Call:
    """One node of the program: the builder, and what torch inferred about the result."""

    def __init__(self, build: GraphBuilder, sizes: Sizes, node: torch.fx.Node, state: Any = None) -> None:
        self.build = build
        self.sizes = sizes
        # The inputs of a KV cache, for models that have one.
        self.state = state
        self.meta = node.meta.get("val")
        self.target = str(node.target)

    def size(self, value: Any) -> Size:
        """A size argument."""
        return self.sizes.of(value)

    def shape_of(self, meta: torch.Tensor) -> list[Size]:
        """The shape that torch inferred."""
        return [self.sizes.of(size) for size in meta.shape]

    @property
    def shape(self) -> list[Size]:
        """The shape of the result."""
        return self.shape_of(self.meta)

    @property
    def dtype(self) -> str:
        """The dtype of the result."""
        return dtype_name(self.meta.dtype)

    def rank(self, x: Tensor) -> int:
        """The number of dimensions."""
        return len(self.build.shape(x.node))

    def axis(self, x: Tensor, axis: int) -> int:
        """A dimension as an index; negative ones count from the end."""
        return axis % max(self.rank(x), 1)

    def axes(self, x: Tensor, axes: Any) -> list[int]:
        """Dimensions as indices; all of them for none."""
        if axes is None:
            return []
        axes = [axes] if isinstance(axes, int) else list(axes)
        return [self.axis(x, axis) for axis in axes]

    def at_least_1d(self, x: Tensor) -> Tensor:
        """The tensor itself, or one element along a dimension: torch lets tensors without dimensions have dimension 0."""
        return x if self.rank(x) else Tensor(self.build.reshape(x.node, [1]))

    def shaped(self, node: int) -> Tensor:
        """A result in the shape that torch inferred."""
        return Tensor(self.build.reshape(node, self.shape))

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        """The tensor with another dtype."""
        return Tensor(self.build.cast(x.node, dtype))

    def tensor(self, value: Any, dtype: str) -> Tensor:
        """An operand: a tensor with this dtype, a number or a size."""
        if isinstance(value, Tensor):
            return self.cast(value, dtype)
        if isinstance(value, (SymbolicSize, torch.SymInt)):
            sizes = Tensor(self.build.sizes([self.size(value)], True))
            return self.cast(sizes, dtype)
        if isinstance(value, bool):
            value = int(value)
        if dtype == "int64":
            return Tensor(self.build.scalar(int(value), dtype))
        if dtype in _WRAPPED:
            # Integers that do not fit wrap around.
            low, count = _WRAPPED[dtype]
            value = (int(value) - low) % count + low
        return Tensor(self.build.scalar(float(value), dtype))

    def common(self, a: Any, b: Any) -> str:
        """The dtype to which torch promotes two operands."""
        return dtype_name(torch.result_type(self._operand(a), self._operand(b)))

    def _operand(self, value: Any) -> Any:
        """An operand of the same dtype and kind, for torch's promotion rules."""
        if isinstance(value, Tensor):
            dtype = next(key for key, name in _DTYPES.items() if name == self.build.dtype(value.node))
            return torch.empty((1,) * self.rank(value), dtype=dtype)
        return 1 if isinstance(value, (SymbolicSize, torch.SymInt)) else value
