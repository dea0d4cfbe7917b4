"""RMS norms of a model, computed by `norm.rms`."""

from __future__ import annotations

import functools
from typing import Any

import torch

import layerzero as lz

from ._probe import close
from ._swaps import Swaps

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_EPSILONS = ("variance_epsilon", "eps", "epsilon", "norm_eps", "rms_norm_eps", "layer_norm_eps")


def swap_norms(model: torch.nn.Module) -> Swaps:
    """Replaces every RMS norm of a model with `norm.rms`.

    A module is an RMS norm if its own forward gives the results of `norm.rms` on random inputs and weights,
    with the weight or the weight plus one as the factor. Calls with more than one argument, or with a dtype
    that was not compared, go to the module's own forward.
    """
    swaps = Swaps()
    for name, module in model.named_modules():
        kind = type(module)
        # torch's other norms are known not to be RMS norms.
        others = kind.__module__.startswith("torch.") and not isinstance(module, torch.nn.RMSNorm)
        if others or "norm" not in kind.__name__.lower():
            continue
        if "_layerzero_norm" in vars(module):
            swaps.swapped.append(name)
            continue
        form, reason = _form(module)
        if form is None:
            swaps.left[name] = f"{kind.__name__} {reason}"
            continue
        module._layerzero_norm = form
        # Copied and pickled with the module, so that a copy of the model uses the copy's weights.
        module.forward = functools.partial(_forward, module)
        swaps.swapped.append(name)
    return swaps


def _forward(self: Any, hidden_states: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
    epsilon, offset, dtypes = self._layerzero_norm
    weight = getattr(self, "weight", None)
    known = hidden_states.dtype, None if weight is None else weight.dtype
    fits = weight is None or weight.shape == hidden_states.shape[-1:]
    if arguments or keywords or not fits or known not in dtypes:
        return type(self).forward(self, hidden_states, *arguments, **keywords)
    return lz.ops.norm_rms(hidden_states, weight, eps=getattr(self, epsilon), weight_offset=offset)


_Form = tuple[str, float, frozenset[tuple[torch.dtype, torch.dtype | None]]]


def _form(module: torch.nn.Module) -> tuple[_Form | None, str]:
    """The name of the epsilon, the offset of the weight and the dtypes for which a module is an RMS norm, or why it is not one."""
    if "forward" in vars(module):
        return None, "has a forward that was replaced by other code"
    epsilon = next((name for name in _EPSILONS if isinstance(getattr(module, name, None), float)), None)
    parameters = dict(module.named_parameters())
    weight = parameters.get("weight")
    if epsilon is None or set(parameters) - {"weight"} or any(True for _ in module.buffers()):
        return None, "does not have the parameters of an RMS norm: an epsilon and at most a weight"
    if weight is not None and (weight.ndim != 1 or weight.is_meta):
        return None, "has a weight with more than one dimension" if weight.ndim != 1 else "has no weights yet (meta device)"
    for offset in (0.0, 1.0) if weight is not None else (0.0,):
        dtypes = frozenset(
            (dtype, None if weight is None else weight.dtype)
            for dtype in _DTYPES
            if _is_rms(module, weight, dtype, getattr(module, epsilon), offset)
        )
        if dtypes:
            return (epsilon, offset, dtypes), ""
    return None, "computes something other than norm.rms"


@torch.no_grad()
def _is_rms(
    module: torch.nn.Module, weight: torch.Tensor | None, dtype: torch.dtype, epsilon: float, offset: float
) -> bool:
    generator = torch.Generator().manual_seed(2)
    features = 16 if weight is None else weight.shape[0]
    # Small rows reveal where the epsilon is added, large ones what overflows.
    scales = torch.tensor([1e-3, 1.0, 30.0])[:, None]
    device = weight.device if weight is not None else torch.device("cpu")
    x = (torch.randn(2, 3, features, generator=generator) * scales).to(device=device, dtype=dtype)
    changed: dict[str, Any] = {}
    if weight is not None:
        # Not the module's own weight: if that is all 0 or all 1, different formulas give the same results.
        changed["weight"] = torch.randn(features, generator=generator).to(device=device, dtype=weight.dtype)
    try:
        expected = torch.func.functional_call(module, changed, (x,))
        return close(lz.ops.norm_rms(x, changed.get("weight"), eps=epsilon, weight_offset=offset), expected)
    except Exception:
        # A module that cannot be called with one tensor is not an RMS norm.
        return False
