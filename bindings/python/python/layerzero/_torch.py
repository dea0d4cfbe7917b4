"""Operations in torch: `torch.ops.layerzero`, and what `torch.compile` traces in place of `layerzero.ops`.

Imported by `layerzero._watch` once torch is imported. The list of operations is generated code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from layerzero import _native


class Overload(NamedTuple):
    """One overload: its schema, its operation, and the arguments that it fixes."""

    schema: str
    operation: str
    fake: Callable[..., Any]
    fixed: dict[str, bool]
    # The number of returned tensors, and the names of the output arguments if it writes into `out`.
    results: int
    places: tuple[str, ...]


# Kept for the life of the process: torch removes the operations when the library is deleted.
_LIBRARY: torch.library.Library | None = None


def define() -> None:
    """Defines `torch.ops.layerzero`, once."""
    global _LIBRARY
    if _LIBRARY is not None:
        return
    _LIBRARY = torch.library.Library("layerzero", "DEF")
    from layerzero._torch_ops import OVERLOADS

    for overload in OVERLOADS:
        _LIBRARY.define(overload.schema, tags=(torch.Tag.pt2_compliant_tag,))
        name = overload.schema.split("(", 1)[0]
        if not _implemented(name, overload):
            _LIBRARY.impl(name, _implementation(overload), "CompositeExplicitAutograd")
        torch.library.register_fake(f"layerzero::{name}", _fake(overload), lib=_LIBRARY)


def substitute() -> None:
    """Has Dynamo trace the custom operations in place of `layerzero.ops`."""
    define()
    from layerzero import _torch_ops

    for name in {overload.operation for overload in _torch_ops.OVERLOADS}:
        torch.compiler.substitute_in_graph(getattr(_native.ops, name))(getattr(_torch_ops, name))


_KINDS = {"Tensor": "t", "float": "f", "SymInt": "i", "int": "i", "bool": "b", "str": "s"}
#: An argument of a generated schema: its type, its alias annotation, whether it is optional, its name.
_ARGUMENT = re.compile(r"(\w+)(?:\(\w+!?\))?(\?)? (\w+)(?:=.*)?")


def _implemented(name: str, overload: Overload) -> bool:
    """Whether the overload was implemented natively, as a boxed kernel, which recent releases of torch allow."""
    texts = overload.schema[overload.schema.index("(") + 1 : overload.schema.rindex(") ->")].split(", ")
    keyword_start = texts.index("*") if "*" in texts else len(texts)
    kinds, keywords = "", []
    for position, text in enumerate(texts):
        if text in ("*", ""):
            continue
        found = _ARGUMENT.fullmatch(text)
        kind = _KINDS.get(found[1]) if found else None
        if found is None or kind is None:
            return False
        kinds += kind.upper() if found[2] else kind
        if position > keyword_start:
            keywords.append(found[3])
    return _native.implement_overload(
        name,
        getattr(_native.ops, overload.operation),
        kinds,
        len(kinds) - len(keywords),
        [one for one in keywords if one not in overload.places],
        overload.fixed,
        len(overload.places),
        overload.results,
        lambda: _another_overload(overload),
    )


def _implementation(overload: Overload) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(_native.ops, overload.operation)
    fixed, count, names = overload.fixed, overload.results, overload.places
    if names:

        def write(*arguments: Any, **keywords: Any) -> None:
            out = tuple(keywords.pop(name) for name in names)
            function(*arguments, **keywords, **fixed, out=out)

        return write
    if count == 0:
        return function

    def make(*arguments: Any, **keywords: Any) -> Any:
        result = function(*arguments, **keywords, **fixed)
        # The fake kernel promises contiguous results, and a Python kernel may return others.
        if count == 1 and type(result) is not tuple:
            return result if result.is_contiguous() else result.contiguous()
        if type(result) is not tuple or len(result) != count:
            raise ValueError(_another_overload(overload))
        return tuple(one if one.is_contiguous() else one.contiguous() for one in result)

    return make


def _fake(overload: Overload) -> Callable[..., Any]:
    fake, fixed, count = overload.fake, overload.fixed, overload.results
    if overload.places:
        return lambda *arguments, **keywords: None

    def make(*arguments: Any, **keywords: Any) -> Any:
        result = fake(*arguments, **keywords, **fixed)
        if count > 0 and (len(result) if type(result) is tuple else 1) != count:
            raise ValueError(_another_overload(overload))
        return result

    return make


def _another_overload(overload: Overload) -> str:
    name = overload.schema.split("(", 1)[0]
    packet = f"torch.ops.layerzero.{overload.operation}"
    others = ", ".join(str(other) for other in getattr(torch.ops.layerzero, overload.operation).overloads())
    return f"layerzero::{name} returns {overload.results} tensors, but these arguments give another number; use another overload of {packet}: {others}"


def refuse_gradients(operation: str, *tensors: torch.Tensor | None) -> None:
    """Operations have no backward, so a graph that records gradients must not contain them."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                raise RuntimeError(f"{operation} has no backward, but a tensor requires grad; call it under torch.no_grad()")


def text_tensor(text: str | torch.Tensor | None) -> torch.Tensor | None:
    """The UTF-8 bytes of a text, because torch's operations take no text that may also be a tensor."""
    return torch.tensor(list(text.encode()), dtype=torch.uint8) if isinstance(text, str) else text


def out_tensors(operation: str, out: torch.Tensor | Sequence[torch.Tensor], count: int) -> tuple[torch.Tensor, ...]:
    """`out=` as a tuple with one tensor per output."""
    given = (out,) if isinstance(out, torch.Tensor) else tuple(out)
    if len(given) != count:
        raise ValueError(f"{operation} has {count} outputs, but out has {len(given)} tensors")
    return given
