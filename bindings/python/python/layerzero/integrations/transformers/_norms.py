"""RMS norms of a model, computed by `norm.rms`."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

import layerzero as lz

from ._probe import close
from ._swaps import Swaps

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_EPSILONS = ("variance_epsilon", "eps", "epsilon", "norm_eps", "rms_norm_eps", "layer_norm_eps")
_SWAPPED = "_layerzero_norm"
_MAPPED = "_layerzero_mapped_norm"


def swap_norms(model: torch.nn.Module) -> Swaps:
    """Replaces every RMS norm of a model with `norm.rms`.

    A module is an RMS norm if its own forward gives the results of `norm.rms` on random inputs and weights, on very
    small and very large values, on rows with one nonzero element and on NaN, with the weight or the weight plus one as
    the factor; its name does not matter. Its result must not depend on float attributes other than the epsilon. Calls
    with more than one argument, or with a dtype that was not compared, go to the module's own forward.
    """
    swaps = Swaps()
    for name, module in model.named_modules():
        kind = type(module)
        # torch's other modules are known not to be RMS norms.
        others = kind.__module__.startswith("torch.") and not isinstance(module, torch.nn.RMSNorm)
        if others or not (_epsilon(module) or "norm" in kind.__name__.lower()):
            continue
        if _SWAPPED in vars(module):
            swaps.swapped.append(name)
            continue
        form, reason = (None, "has a forward that was replaced by other code") if "forward" in vars(module) else _form(module)
        if form is None:
            swaps.left[name] = f"{kind.__name__} {reason}"
            continue
        setattr(module, _SWAPPED, form)
        # Copied and pickled with the module, so that a copy of the model uses the copy's weights.
        module.forward = functools.partial(_forward, module)
        swaps.swapped.append(name)
    return swaps


def mapped_norm(module: Any, hidden_states: torch.Tensor) -> Any:
    """The forward of a module that the `kernels` package mapped to LayerZero: `norm.rms` if the module is an RMS norm, else its own."""
    # An attribute, because torch.compile reads it as a constant.
    form = module.__dict__.get(_MAPPED, False)
    if form is False:
        form, reason = _form(module)
        module.__dict__[_MAPPED] = form
        if form is None:
            warnings.warn(f"layerzero does not run {type(module).__name__}, which {reason}", stacklevel=3)
    if form is None:
        return type(module).forward(module, hidden_states)
    return _run(module, form, hidden_states)


def _forward(self: Any, hidden_states: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
    if arguments or keywords:
        return type(self).forward(self, hidden_states, *arguments, **keywords)
    return _run(self, getattr(self, _SWAPPED), hidden_states)


_Form = tuple[str, float, frozenset[tuple[torch.dtype, torch.dtype | None]]]


def _run(module: Any, form: _Form, hidden_states: torch.Tensor) -> Any:
    epsilon, offset, dtypes = form
    weight = getattr(module, "weight", None)
    known = hidden_states.dtype, None if weight is None else weight.dtype
    fits = weight is None or weight.shape == hidden_states.shape[-1:]
    if not fits or known not in dtypes:
        return type(module).forward(module, hidden_states)
    return lz.ops.norm_rms(hidden_states, weight, eps=getattr(module, epsilon), weight_offset=offset)


def _epsilon(module: torch.nn.Module) -> str | None:
    return next((name for name in _EPSILONS if isinstance(getattr(module, name, None), float)), None)


@torch.compiler.disable(reason="layerzero compares its norm with the model's once; run the model before compiling it")
def _form(module: torch.nn.Module) -> tuple[_Form | None, str]:
    """The name of the epsilon, the offset of the weight and the dtypes for which a module is an RMS norm, or why it is not one."""
    epsilon = _epsilon(module)
    parameters = dict(module.named_parameters())
    weight = parameters.get("weight")
    if epsilon is None or set(parameters) - {"weight"} or any(True for _ in module.buffers()):
        return None, "does not have the parameters of an RMS norm: an epsilon and at most a weight"
    if weight is not None and (weight.ndim != 1 or weight.is_meta):
        return None, "has a weight with more than one dimension" if weight.ndim != 1 else "has no weights yet (meta device)"
    own = _with_own_forward(module)
    for offset in (0.0, 1.0) if weight is not None else (0.0,):
        dtypes = frozenset(
            (dtype, None if weight is None else weight.dtype)
            for dtype in _DTYPES
            if all(_is_rms(own, probe, epsilon, offset) for probe in _probes(weight, dtype))
        )
        if not dtypes:
            continue
        if other := _other_setting(own, weight, min(dtypes, key=str)[0], epsilon, offset):
            return None, f"computes something other than norm.rms: its result depends on `{other}`"
        return (epsilon, offset, dtypes), ""
    return None, "computes something other than norm.rms"


class _Probe(NamedTuple):
    """An input, and a weight unless the module has none. Not the module's own weight: if that is all 0 or all 1,
    different formulas give the same results."""

    x: torch.Tensor
    weight: torch.Tensor | None


def _probes(weight: torch.Tensor | None, dtype: torch.dtype) -> Iterator[_Probe]:
    """Rows of all magnitudes, and a single row."""
    generator = torch.Generator().manual_seed(2)
    features = 1024 if weight is None else weight.shape[0]
    device = torch.device("cpu") if weight is None else weight.device
    # Large factors make large results, which reveal a clamp.
    factors = 8 * torch.randn(features, generator=generator)
    # Small rows reveal where the epsilon is added, large ones what overflows or is clamped.
    scales = torch.tensor([1e-3, 1.0, 30.0, 1e4])[:, None]
    rows = torch.randn(4, features, generator=generator) * scales
    spike = torch.zeros(features)
    spike[factors.abs().argmax()] = 50
    with_nan = rows[1].clone()
    with_nan[-1] = math.nan
    probed = None if weight is None else factors.to(device=device, dtype=weight.dtype)
    batch = torch.stack((*rows, spike, with_nan)).view(2, 3, features)
    for x in (batch, rows[1].view(1, 1, features)):
        yield _Probe(x.to(device=device, dtype=dtype), probed)


def _result(module: torch.nn.Module, probe: _Probe) -> Any:
    changed = {} if probe.weight is None else {"weight": probe.weight}
    return torch.func.functional_call(module, changed, (probe.x,))


@torch.no_grad()
def _is_rms(module: torch.nn.Module, probe: _Probe, epsilon: str, offset: float) -> bool:
    try:
        found = lz.ops.norm_rms(probe.x, probe.weight, eps=getattr(module, epsilon), weight_offset=offset)
        return close(found, _result(module, probe))
    except Exception:
        # A module that cannot be called with one tensor is not an RMS norm.
        return False


def _other_setting(
    module: torch.nn.Module, weight: torch.Tensor | None, dtype: torch.dtype, epsilon: str, offset: float
) -> str | None:
    """A float attribute, besides the epsilon, that changes the result of the module."""
    probe = next(_probes(weight, dtype))
    settings: dict[str, object] = dict(vars(module))
    for name, value in settings.items():
        if name == epsilon or not isinstance(value, float):
            continue
        setattr(module, name, 2 * value + 1)
        if not _is_rms(module, probe, epsilon, offset):
            return name
        setattr(module, name, value)
    return None


def _with_own_forward(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of a module, whose forward is that of its class. Other threads may run the module itself meanwhile."""
    other = copy.deepcopy(module)
    vars(other).pop("forward", None)
    return other
