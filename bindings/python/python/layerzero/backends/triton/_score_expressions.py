"""Score expressions (`score_mod`) as Triton functions.

`_native.score_mod_steps` checks a text and gives the steps of a stack machine. The source of a function is generated from these steps
only: it consists of the templates below, of names that are made here, and of numbers. No part of the text reaches it.

Integers are computed exactly, in int32 or int64 as their ranges require. Other numbers have the type `REAL` of the kernel: f32, or f64 if
the tensors are f32. Because a score is a sum of rounded products, an expression that would enlarge its rounding error is declined
(`NotImplementedError`); so are quotients and remainders that are rounded to integers, unless their operands are integers.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from layerzero import _native

#: Ranges of the indices, which the descriptor declares: up to 2^22 queries and keys, and as large an offset.
MAX_LENGTH = 1 << 22
#: By how much an expression may enlarge differences between scores.
MAX_GAIN = 4.0
#: Integers of this size and less are f32 numbers; those of less than the other one are int32, or f64 numbers.
_EXACT_F32, _EXACT_I32, _EXACT_F64 = 1 << 24, 1 << 31, 1 << 53

_BOOL, _INT, _REAL = "bool", "int", "real"


class _Value(NamedTuple):
    """A subexpression: the variable that has its value, and what is known about it."""

    name: str
    kind: str
    #: Bounds, as if parameters were between -1 and 1. Exact for integers.
    low: float = -math.inf
    high: float = math.inf
    #: Bound of its derivative with respect to the score.
    gain: float = 0.0
    #: Whether it consists of parameters and constants, with at least one parameter: a factor of such a value counts as its constants.
    is_parameter: bool = False
    #: Whether a zero may be negative in IEEE arithmetic, which integers do not represent.
    negative_zero: bool = False
    #: The number, of a constant.
    constant: float | None = None
    #: How an integer was computed: an expression with a place for each operand, and the operands.
    origin: tuple[str, tuple[Any, ...]] | None = None

    @property
    def size(self) -> float:
        """The largest magnitude."""
        return max(abs(self.low), abs(self.high))


#: The names of the arguments of a generated function by slot of the steps: `lz_core::score_mod::slot`.
ARGUMENTS = ("score", "kv_idx", "q_idx", "q_pos", "h", "b")
_INFINITY, _PARAMETERS = 6, 7
_SLOTS = (
    _Value("score", _REAL, gain=1.0),
    _Value("kv_idx", _INT, 0, MAX_LENGTH - 1),
    _Value("q_idx", _INT, 0, MAX_LENGTH - 1),
    _Value("q_pos", _INT, -MAX_LENGTH, 2 * MAX_LENGTH - 2),
    _Value("h", _INT, 0, MAX_LENGTH - 1),
    _Value("b", _INT, 0, MAX_LENGTH - 1),
)
_COMPARISONS = {"equal": "==", "not_equal": "!=", "less": "<", "less_or_equal": "<=", "greater": ">", "greater_or_equal": ">="}
_ARITHMETIC = {"add": "+", "subtract": "-", "multiply": "*"}


def _times(gain: float, factor: float) -> float:
    """A product of bounds, in which zero times infinity is zero."""
    return 0.0 if gain == 0 or factor == 0 else gain * factor


def _bounds(*candidates: float) -> tuple[float, float]:
    """The smallest and the largest of these, or no bounds if one is undefined."""
    return (-math.inf, math.inf) if any(math.isnan(one) for one in candidates) else (min(candidates), max(candidates))


def _product(a: _Value, b: _Value) -> tuple[float, float]:
    return _bounds(*(_times(one, other) for one in (a.low, a.high) for other in (b.low, b.high)))


class _Writer:
    """Writes the statements of a function."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.stack: list[_Value] = []
        #: Integers that exist as numbers of the type `REAL` too.
        self.converted: dict[str, str] = {}

    def add(self, expression: str, kind: str, low: float, high: float, gain: float, operands: Sequence[_Value], constant: float | None = None) -> _Value:
        """A statement that computes a value from its operands."""
        name = f"t{len(self.lines)}"
        self.lines.append(f"{name} = {expression}")
        is_fixed = all(one.is_parameter or one.constant is not None for one in operands)
        is_parameter = is_fixed and any(one.is_parameter for one in operands)
        return _Value(name, kind, low, high, gain, is_parameter, any(one.negative_zero for one in operands), constant)

    # Conversions

    def constant(self, value: float) -> _Value:
        is_negative_zero = value == 0 and math.copysign(1.0, value) < 0
        if value.is_integer() and abs(value) < _EXACT_F64 and not is_negative_zero:
            dtype = "tl.int32" if abs(value) < _EXACT_I32 else "tl.int64"
            return self.add(f"tl.full((), {int(value)}, {dtype})", _INT, value, value, 0.0, (), value)
        return self.add(f"tl.full((), {_literal(value)}, REAL)", _REAL, *_bounds(value, value), 0.0, (), value)

    def real(self, value: _Value) -> _Value:
        """The value as a number of the type `REAL`."""
        if value.kind == _REAL:
            return value
        name = self.converted.get(value.name)
        if name is None:
            template, operands = value.origin or ("", ())
            if operands and all(one.size <= _EXACT_F32 for one in (value, *operands)):
                # Exact in f32 as well: only the indices are converted, which are vectors, and not each score's integer.
                expression = template.format(*(self.real(one).name for one in operands))
            else:
                expression = f"{value.name}.to(REAL)"
            name = self.add(expression, _REAL, value.low, value.high, value.gain, (value,)).name
            self.converted[value.name] = name
        return value._replace(name=name, kind=_REAL)

    def truth(self, value: _Value) -> _Value:
        """The value as a bool. Constants of the language are bools as well."""
        if value.kind == _BOOL:
            return value
        return self.add(f"{value.name} != 0", _BOOL, 0, 1, 0.0, (value,))

    def integers(self, values: Sequence[_Value], low: float, high: float) -> list[str]:
        """Operands of an operation on integers whose results have these bounds."""
        if max(abs(low), abs(high)) >= _EXACT_F64:
            raise NotImplementedError("an integer of score_mod may exceed 2^53, where f64 numbers are rounded")
        sizes = (max(abs(low), abs(high)), *(value.size for value in values))
        return [f"{value.name}.to(tl.int64)" if max(sizes) >= _EXACT_I32 else value.name for value in values]

    # Operations

    def unary(self, name: str, value: _Value) -> _Value:
        if name == "not":
            return self.add(f"{self.truth(value).name} == 0", _BOOL, 0, 1, 0.0, (value,))
        if name == "negate":
            if value.kind == _INT:
                made = self.add(f"-{value.name}", _INT, -value.high, -value.low, 0.0, (value,), None if value.constant is None else -value.constant)
                return made._replace(negative_zero=value.negative_zero or value.low <= 0 <= value.high, origin=("-{}", (value,)))
            return self.add(f"-{value.name}", _REAL, -value.high, -value.low, value.gain, (value,), None if value.constant is None else -value.constant)
        if name == "abs":
            low = 0.0 if value.low <= 0 <= value.high else min(abs(value.low), abs(value.high))
            made = self.add(f"tl.abs({value.name})", value.kind, low, value.size, value.gain, (value,))
            return made._replace(negative_zero=False, origin=("tl.abs({})", (value,)) if value.kind == _INT else None)
        return self.function(name, self.real(value))

    def function(self, name: str, value: _Value) -> _Value:
        low, high = value.low, value.high
        if name == "tanh":
            return self.add(f"tanh({value.name})", _REAL, math.tanh(low), math.tanh(high), value.gain, (value,))
        if name == "exp":
            top = math.exp(high) if high < 700 else math.inf
            return self.add(f"tl.exp({value.name})", _REAL, math.exp(low) if low < 700 else math.inf, top, _times(value.gain, top), (value,))
        # Their slopes have no bound near 0.
        if name == "sqrt":
            slope = 0.5 / math.sqrt(low) if low > 0 else math.inf
            bounds = (math.sqrt(max(low, 0.0)), math.sqrt(max(high, 0.0)))
            return self.add(f"tl.sqrt({value.name})", _REAL, *bounds, _times(value.gain, slope), (value,))
        if name == "log":
            slope = 1 / low if low > 0 else math.inf
            bounds = (math.log(low) if low > 0 else -math.inf, math.log(high) if 0 < high < math.inf else math.inf)
            return self.add(f"tl.log({value.name})", _REAL, *bounds, _times(value.gain, slope), (value,))
        raise _unknown(name)

    def binary(self, name: str, a: _Value, b: _Value) -> _Value:
        if name in ("and", "or"):
            left, right = self.truth(a).name, self.truth(b).name
            return self.add(f"tl.where({left}, {right}, {left})" if name == "and" else f"tl.where({left}, {left}, {right})", _BOOL, 0, 1, 0.0, (a, b))
        if name in _COMPARISONS:
            return self.comparison(name, a, b)
        if name in _ARITHMETIC:
            return self.arithmetic(name, a, b)
        if name in ("min", "max"):
            pick = min if name == "min" else max
            kind = _INT if a.kind == b.kind == _INT else _REAL
            if kind == _REAL:
                a, b = self.real(a), self.real(b)
            left, right = self.integers((a, b), 0, 0) if kind == _INT else (a.name, b.name)
            bounds = (pick(a.low, b.low), pick(a.high, b.high))
            return self.add(f"{name}imum({left}, {right})", kind, *bounds, max(a.gain, b.gain), (a, b))
        if name == "divide":
            return self.quotient(a, b)
        if name in ("floor_divide", "modulo", "ceil_divide"):
            return self.whole(name, a, b)
        raise _unknown(name)

    def comparison(self, name: str, a: _Value, b: _Value) -> _Value:
        if a.gain or b.gain:
            raise NotImplementedError("score_mod compares the score, whose rounding error could change the result")
        if a.kind == b.kind == _INT:
            left, right = self.integers((a, b), 0, 0)
        elif max((one.size for one in (a, b) if one.kind == _INT), default=0) > _EXACT_F32:
            # f32 does not represent these integers.
            left, right = f"{a.name}.to(tl.float64)", f"{b.name}.to(tl.float64)"
        else:
            left, right = self.real(a).name, self.real(b).name
        return self.add(f"{left} {_COMPARISONS[name]} {right}", _BOOL, 0, 1, 0.0, (a, b))

    def arithmetic(self, name: str, a: _Value, b: _Value) -> _Value:
        if name == "add":
            low, high, gain = a.low + b.low, a.high + b.high, a.gain + b.gain
        elif name == "subtract":
            low, high, gain = a.low - b.high, a.high - b.low, a.gain + b.gain
        else:
            (low, high), gain = _product(a, b), _times(a.gain, b.size) + _times(b.gain, a.size)
        low, high = (-math.inf, math.inf) if math.isnan(low) or math.isnan(high) else (low, high)
        operator, constant = _ARITHMETIC[name], None
        if a.constant is not None and b.constant is not None and a.kind == b.kind == _INT:
            constant = {"+": a.constant + b.constant, "-": a.constant - b.constant, "*": a.constant * b.constant}[operator]
        if a.kind == b.kind == _INT:
            left, right = self.integers((a, b), low, high)
            made = self.add(f"{left} {operator} {right}", _INT, low, high, 0.0, (a, b), constant)._replace(origin=(f"{{}} {operator} {{}}", (a, b)))
            if name == "multiply":
                return made._replace(negative_zero=made.negative_zero or (low < 0 or a.low < 0 or b.low < 0) and low <= 0 <= high)
            return made
        a, b = self.real(a), self.real(b)
        return self.add(f"{a.name} {operator} {b.name}", _REAL, low, high, gain, (a, b))

    def quotient(self, a: _Value, b: _Value) -> _Value:
        if b.negative_zero and b.low <= 0 <= b.high:
            raise NotImplementedError("score_mod divides by a value that may be a negative zero")
        a, b = self.real(a), self.real(b)
        if b.is_parameter:
            # Like a factor: its size is the caller's choice.
            least = b.size
        else:
            least = 0.0 if b.low <= 0 <= b.high else min(abs(b.low), abs(b.high))
        inverse = 1 / least if least else math.inf
        gain = _times(a.gain, inverse) + _times(_times(b.gain, a.size), _times(inverse, inverse))
        has_bounds = least > 0 and not b.is_parameter
        low, high = _product(a, b._replace(low=min(1 / b.low, 1 / b.high), high=max(1 / b.low, 1 / b.high))) if has_bounds else (-math.inf, math.inf)
        if b.constant is not None and math.frexp(b.constant)[0] in (0.5, -0.5):
            # A power of two: the product with its inverse is the same number.
            return self.add(f"{a.name} * tl.full((), {_literal(1 / b.constant)}, REAL)", _REAL, low, high, gain, (a, b))
        return self.add(f"divide({a.name}, {b.name})", _REAL, low, high, gain, (a, b))

    def whole(self, name: str, a: _Value, b: _Value) -> _Value:
        """Division with rounding to an integer, and its remainder."""
        if not a.kind == b.kind == _INT:
            raise NotImplementedError("score_mod rounds a quotient of numbers that are not integers, which requires exact numbers")
        if b.low <= 0 <= b.high:
            raise NotImplementedError("score_mod divides integers by one that may be 0")
        left, right = self.integers((a, b), 0, 0)
        is_natural = a.low >= 0 and b.low > 0
        if name == "modulo":
            least, most = (0.0, b.high - 1) if b.low > 0 else (b.low + 1, 0.0)
            expression = f"{left} % {right}" if is_natural else f"modulo({left}, {right})"
            return self.add(expression, _INT, least, most, 0.0, (a, b))._replace(negative_zero=not is_natural)
        ends = [one / other for one in (a.low, a.high) for other in (b.low, b.high)]
        low, high = math.floor(min(ends)), math.ceil(max(ends))
        if name == "ceil_divide":
            expression = f"-floor_divide(-{left}, {right})"
        else:
            expression = f"{left} // {right}" if is_natural else f"floor_divide({left}, {right})"
        return self.add(expression, _INT, low, high, 0.0, (a, b))._replace(negative_zero=name == "ceil_divide" or not is_natural)

    def select(self, condition: _Value, then: _Value, otherwise: _Value) -> _Value:
        condition = self.truth(condition)
        kind = _INT if then.kind == otherwise.kind == _INT else _REAL
        if kind == _REAL:
            then, otherwise = self.real(then), self.real(otherwise)
        left, right = self.integers((then, otherwise), 0, 0) if kind == _INT else (then.name, otherwise.name)
        bounds = (min(then.low, otherwise.low), max(then.high, otherwise.high))
        gain = max(then.gain, otherwise.gain)
        return self.add(f"tl.where({condition.name}, {left}, {right})", kind, *bounds, gain, (then, otherwise))

    def step(self, name: str, number: float) -> None:
        """One step of the stack machine."""
        stack = self.stack
        if name == "constant":
            stack.append(self.constant(number))
        elif name == "slot":
            stack.append(self.slot(int(number)))
        elif name == "copy_second":
            stack.append(stack[-2])
        elif name == "drop_second":
            stack[-2:] = [stack[-1]]
        elif name == "select":
            stack[-3:] = [self.select(*stack[-3:])]
        elif name in ("negate", "not", "abs", "sqrt", "exp", "log", "tanh"):
            stack[-1] = self.unary(name, stack[-1])
        else:
            stack[-2:] = [self.binary(name, *stack[-2:])]

    def slot(self, number: int) -> _Value:
        if number == _INFINITY:
            return self.add('tl.full((), float("inf"), REAL)', _REAL, math.inf, math.inf, 0.0, (), math.inf)
        if number < _INFINITY:
            return _SLOTS[number]
        # The first element of `given` is no parameter.
        made = self.add(f"given[{number - _PARAMETERS + 1}]", _REAL, -1.0, 1.0, 0.0, ())
        return made._replace(is_parameter=True)


def _unknown(name: str) -> NotImplementedError:
    return NotImplementedError(f"score_mod has an operation that the kernel does not know: {name}")


def _literal(value: float) -> str:
    """A number as Python source."""
    return repr(float(value)) if math.isfinite(value) else f'float("{value}")'


def source_of(steps: Sequence[tuple[str, float]]) -> str:
    """The Python source of the function of an expression; `NotImplementedError` says why there is none."""
    writer = _Writer()
    for name, number in steps:
        writer.step(name, number)
    (result,) = writer.stack
    # The comparison is false for NaN.
    if not result.gain <= MAX_GAIN:
        by = f"{result.gain:g} times" if math.isfinite(result.gain) else "without bound"
        raise NotImplementedError(f"score_mod may enlarge the rounding errors of scores {by} (at most {MAX_GAIN:g} times)")
    lines = [*writer.lines, f"return {writer.real(result).name}"] if result.kind == _REAL else [*writer.lines, f"return {result.name}.to(REAL)"]
    body = "".join(f"    {line}\n" for line in lines)
    return f"@triton.jit\ndef modify(score, b, h, q_idx, kv_idx, q_pos, given, REAL: tl.constexpr):\n{body}"


class Expression(NamedTuple):
    """A compiled expression: its function for `_score_mod_kernels.attend`, and a number that tells it from others."""

    modify: Any
    number: int


_NUMBERS = iter(range(1 << 62))


def build(steps: Sequence[tuple[str, float]]) -> Expression:
    """The function of an expression."""
    import triton
    import triton.language as tl

    from layerzero.backends.triton import _score_mod_kernels as kernels

    source = source_of(steps)
    # Triton reads the source of a function from its file.
    number = next(_NUMBERS)
    file = f"<score_mod {number}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    helpers = ("tanh", "minimum", "maximum", "divide", "floor_divide", "modulo")
    namespace: dict[str, Any] = {"__name__": __name__, "triton": triton, "tl": tl, **{name: getattr(kernels, name) for name in helpers}}
    exec(compile(source, file, "exec"), namespace)
    return Expression(namespace["modify"], number)


#: Expressions by text and number of parameters, or why the kernel does not compute them. Each compiled one takes memory until the process ends.
_KNOWN: dict[tuple[bytes, int], Expression | str] = {}
_MAX_KNOWN = 1024


def _find(text: bytes, parameters: int) -> Expression | str:
    if len(_KNOWN) >= _MAX_KNOWN:
        return f"the process has used {_MAX_KNOWN} score_mod texts; values that change from call to call belong into score_params"
    try:
        found: Expression | str = build(_native.score_mod_steps(text, parameters))
    except NotImplementedError as error:
        found = str(error)
    return _KNOWN.setdefault((text, parameters), found)


def expression_of(text: Any, parameters: int) -> Expression:
    """The expression of a checked text: a `str`, or a tensor of bytes on the host. Raises `NotImplementedError` if it is declined."""
    encoded = text.encode() if isinstance(text, str) else bytes(text.tolist())
    found = _KNOWN.get((encoded, parameters)) or _find(encoded, parameters)
    if isinstance(found, str):
        raise NotImplementedError(found)
    return found
