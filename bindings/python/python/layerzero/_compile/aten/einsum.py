"""Sums of products: `einsum` in terms of products of matrices."""

from __future__ import annotations

from typing import Any

from layerzero._compile.aten.base import Call, Tensor, Unsupported, handles


@handles("aten.einsum.default")
def einsum(call: Call, equation: str, operands: list[Tensor], path: Any = None) -> Tensor:
    equation = equation.replace(" ", "")
    if "." in equation:
        raise Unsupported(f"einsum with an ellipsis: {equation}")
    inputs, arrow, output = equation.partition("->")
    names = inputs.split(",")
    if not arrow:
        letters = sorted(set(inputs) - {","})
        output = "".join(letter for letter in letters if inputs.count(letter) == 1)
    if any(len(set(term)) != len(term) for term in names):
        raise Unsupported(f"einsum with a diagonal: {equation}")
    operands = [call.cast(operand, call.dtype) for operand in operands]
    node, term = operands[0].node, names[0]
    for index in range(1, len(operands)):
        needed = set(output).union(*names[index + 1 :])
        node, term = _product(call, (node, term), (operands[index].node, names[index]), needed)
    node, term = _sum(call, node, term, set(output))
    return Tensor(call.build.permute(node, [term.index(letter) for letter in output]))


def _sum(call: Call, node: int, term: str, needed: set[str]) -> tuple[int, str]:
    """Sums over the dimensions that nothing needs."""
    axes = [axis for axis, letter in enumerate(term) if letter not in needed]
    if not axes:
        return node, term
    return call.build.reduce("sum", node, axes, False), "".join(letter for letter in term if letter in needed)


def _product(call: Call, a: tuple[int, str], b: tuple[int, str], needed: set[str]) -> tuple[int, str]:
    """Two operands as one batched product `[batch, rows, inner] x [batch, inner, columns]`."""
    build = call.build
    (left, left_term), (right, right_term) = (
        _sum(call, *one, needed | set(other[1])) for one, other in ((a, b), (b, a))
    )
    shared = [letter for letter in left_term if letter in right_term]
    batch = "".join(letter for letter in shared if letter in needed)
    inner = "".join(letter for letter in shared if letter not in needed)
    rows = "".join(letter for letter in left_term if letter not in shared)
    columns = "".join(letter for letter in right_term if letter not in shared)
    sizes = dict(zip(left_term, build.shape(left))) | dict(zip(right_term, build.shape(right)))

    def arranged(node: int, term: str, *groups: str) -> int:
        order = [term.index(letter) for group in groups for letter in group]
        shape = [sizes[letter] for letter in batch]
        for group in groups[1:]:
            size: Any = 1
            for letter in group:
                size = size * sizes[letter]
            shape.append(size)
        return build.reshape(build.permute(node, order), shape)

    product = build.matmul(arranged(left, left_term, batch, rows, inner), arranged(right, right_term, batch, inner, columns))
    term = batch + rows + columns
    return build.reshape(product, [sizes[letter] for letter in term]), term
