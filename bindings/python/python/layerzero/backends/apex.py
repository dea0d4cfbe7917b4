"""Apex's fused norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from apex.normalization.fused_layer_norm import fused_layer_norm_affine, fused_rms_norm_affine


def _norm_rms(x: Any, weight: Any, *, eps: float, weight_offset: float) -> Any:
    return fused_rms_norm_affine(x, weight, x.shape[-1:], eps)


def _norm_layer(x: Any, weight: Any, bias: Any, *, eps: float, return_stats: bool) -> Any:
    return fused_layer_norm_affine(x, weight, bias, x.shape[-1:], eps)


#: Kernels by id.
KERNELS: dict[str, Callable[..., Any]] = {
    f"apex.norm.{name}.{dtype}": function
    for name, function in (("rms", _norm_rms), ("layer", _norm_layer))
    for dtype in ("f32", "f16", "bf16")
}
