"""Rotary position embeddings of a model, computed by `posenc.rope`."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import layerzero as lz

from ._probe import close
from ._swaps import Swaps

_FUNCTION = "apply_rotary_pos_emb"
_MAPPED = "_layerzero_mapped_rope"


@dataclass(frozen=True)
class _Form:
    """How a function pairs features, and how its tables repeat the angle of each pair."""

    interleaved: bool
    table: str

    def angles(self, table: torch.Tensor) -> torch.Tensor:
        """One entry per pair, from the model's table."""
        if self.table == "halves":
            return table[..., : table.shape[-1] // 2]
        return table[..., ::2] if self.table == "neighbors" else table

    def tables(self, table: torch.Tensor) -> torch.Tensor:
        """The inverse of `angles`."""
        if self.table == "halves":
            return torch.cat((table, table), -1)
        return table.repeat_interleave(2, -1) if self.table == "neighbors" else table

    def apply(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = self.angles(cos), self.angles(sin)
        batch, length, features = cos.shape
        cos, sin = cos.reshape(batch * length, features), sin.reshape(batch * length, features)
        positions = torch.arange(batch * length, device=q.device).view(batch, length)
        if batch != q.shape[0]:
            positions = positions.expand(q.shape[0], length)
        layout: Any = "BHSD" if unsqueeze_dim == 1 else "BSHD"
        options: dict[str, Any] = {"interleaved": self.interleaved, "layout": layout}
        return lz.ops.posenc_rope(q, cos, sin, positions, **options), lz.ops.posenc_rope(k, cos, sin, positions, **options)


# Llama, GLM, Cohere, GPT-OSS, Perception Encoder.
_FORMS = (
    _Form(False, "halves"),
    _Form(True, "halves"),
    _Form(True, "neighbors"),
    _Form(False, "once"),
    _Form(True, "once"),
)


def swap_rope(model: torch.nn.Module) -> Swaps:
    """Replaces the rotary embedding in the source files of a model with `posenc.rope`.

    Transformers has the function in the source file of each model, so it changes for all models of that file.
    A function is replaced only if it computes what `posenc.rope` computes, and at each new kind of call it is
    first compared on the model's own tensors.
    """
    swaps = Swaps()
    for name in sorted({kind.__module__ for module in model.modules() for kind in type(module).__mro__}):
        own = getattr(sys.modules.get(name), _FUNCTION, None)
        if own is None or not name.startswith(("transformers.", "transformers_modules.")):
            continue
        if hasattr(own, "_layerzero_own"):
            swaps.swapped.append(name)
            continue
        form = next((one for one in _FORMS if _computes(own, one)), None)
        if form is None:
            swaps.left[name] = "its function rotates differently from posenc.rope"
            continue
        setattr(sys.modules[name], _FUNCTION, _replacement(own, form, name))
        swaps.swapped.append(name)
    return swaps


def _computes(own: Callable[..., Any], form: _Form) -> bool:
    """Whether a function gives the results of a form, for heads before and after the sequence."""
    generator = torch.Generator().manual_seed(4)
    half = torch.randn(2, 5, 8, generator=generator)
    cos, sin = form.tables(half.cos()), form.tables(half.sin())
    for dim in (1, 2):
        q, k = torch.randn(2, 5, 4, 16, generator=generator), torch.randn(2, 5, 2, 16, generator=generator)
        if dim == 1:
            q, k = q.transpose(1, 2), k.transpose(1, 2)
        try:
            if not close(form.apply(q, k, cos, sin, dim), own(q, k, cos, sin, unsqueeze_dim=dim)):
                return False
        except Exception:
            # It takes other arguments.
            return False
    return True


def _replacement(own: Callable[..., Any], form: _Form, name: str) -> Callable[..., Any]:
    verdicts: dict[tuple[Any, ...], bool] = {}

    @functools.wraps(own)
    def apply_rotary_pos_emb(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1, **keywords: Any) -> Any:
        if keywords:
            return own(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim, **keywords)
        return _apply(own, form, verdicts, name, q, k, cos, sin, unsqueeze_dim)

    apply_rotary_pos_emb._layerzero_own = own  # type: ignore[attr-defined]
    return apply_rotary_pos_emb


def mapped_rope(module: Any, q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int) -> Any:
    """The forward of a rotation that the `kernels` package mapped to LayerZero: `posenc.rope`, or its own if that differs."""
    own = functools.partial(type(module).forward, module)
    # An attribute, because torch.compile reads it as a constant.
    known = module.__dict__.get(_MAPPED)
    if known is None:
        known = module.__dict__[_MAPPED] = (_find(own), {})
    form, verdicts = known
    if form is None:
        return own(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)
    return _apply(own, form, verdicts, "the rotation of this model", q, k, cos, sin, unsqueeze_dim)


@torch.compiler.disable(reason="layerzero compares its rotation with the model's once; run the model before compiling it")
@torch.no_grad()
def _find(own: Callable[..., Any]) -> _Form | None:
    form = next((one for one in _FORMS if _computes(own, one)), None)
    if form is None:
        warnings.warn("the rotation of this model differs from posenc.rope; its own function is used", stacklevel=4)
    return form


def _apply(
    own: Callable[..., Any],
    form: _Form,
    verdicts: dict[tuple[Any, ...], bool],
    name: str,
    q: Any,
    k: Any,
    cos: Any,
    sin: Any,
    unsqueeze_dim: int,
) -> Any:
    """The rotation by `posenc.rope` if it equals `own` for calls of this kind, else by `own`."""
    kind = _kind(q, k, cos, sin, unsqueeze_dim)
    if kind is None:
        return own(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)
    verdict = verdicts.get(kind)
    if verdict is None:
        verdict = verdicts[kind] = _compare(own, form, name, q, k, cos, sin, unsqueeze_dim)
    if verdict:
        return form.apply(q, k, cos, sin, unsqueeze_dim)
    return own(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)


@torch.compiler.disable(reason="layerzero compares its rotation with the model's once; run the model before compiling it")
@torch.no_grad()
def _compare(
    own: Callable[..., Any], form: _Form, name: str, q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int
) -> bool:
    same = close(form.apply(q, k, cos, sin, unsqueeze_dim), own(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim))
    if not same:
        warnings.warn(f"{name} rotates differently from layerzero with its own tables; its own function is used", stacklevel=4)
    return same


def _kind(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int) -> tuple[Any, ...] | None:
    """The properties of a call that one comparison covers; `None` if the operation cannot take the tensors."""
    if not all(isinstance(one, torch.Tensor) for one in (q, k, cos, sin)) or unsqueeze_dim not in (1, 2):
        return None
    if q.ndim != 4 or k.ndim != 4 or cos.ndim != 3 or sin.shape != cos.shape or cos.shape[0] not in (1, q.shape[0]):
        return None
    return (
        (q.dtype, k.dtype, cos.dtype, sin.dtype, unsqueeze_dim),
        (q.shape[-1], k.shape[-1], cos.shape[-1], cos.shape[0] == 1, q.device.type),
    )
