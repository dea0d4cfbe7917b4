"""vLLM: LayerZero's operations as implementations of vLLM's IR operations, provider ``layerzero``, an attention backend and a
tokenizer mode.

vLLM loads the plugin by its entry point (``vllm.general_plugins``); nothing needs to be called. An implementation runs if it is in
the priority list of its operation: ``vllm serve ... --ir-op-priority '{"rms_norm": ["layerzero", "native"]}'``, or
``kernel_config={"ir_op_priority": {...}}`` in Python. Calls that an implementation does not support go to the next one of the list.

Every implementation is compared with vLLM's own formula, ``native``, before it is registered. One that differs, or whose operation
has other arguments in the installed vLLM, is not registered, with one warning. The attention backend ``LAYERZERO`` runs if it is
selected: ``--attention-backend LAYERZERO``. So is the tokenizer mode: ``--tokenizer-mode layerzero``.
"""

# Annotations are not postponed: vLLM compares the schemas of functions.
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

PROVIDER = "layerzero"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_logger = logging.getLogger(__name__)


def _rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    result: Tensor = torch.ops.layerzero.norm_rms(x, weight, eps=epsilon)
    return result


def _rms_norm_supports(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    return variance_size is None and x.dtype in _DTYPES and _is_weight(weight, x)


def _fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    return torch.ops.layerzero.norm_rms_add(x, x_residual, weight, eps=epsilon), x_residual


def _fused_add_rms_norm_supports(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    same = x_residual.dtype == x.dtype and x_residual.shape == x.shape
    return same and variance_size is None and x.dtype in _DTYPES and _is_weight(weight, x)


def _is_weight(weight: Tensor | None, x: Tensor) -> bool:
    return weight is None or (weight.dtype in _DTYPES and weight.shape == x.shape[-1:])


class _Implementation(NamedTuple):
    function: Callable[..., Any]
    supports: Callable[..., bool]
    # Whether the function writes an argument that it also returns.
    inplace: bool
    # Arguments to compare with the operation's own formula, for a dtype and whether there is a weight.
    arguments: Callable[[torch.dtype, bool], tuple[Any, ...]]


def _random(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _norm_arguments(dtype: torch.dtype, weighted: bool, tensors: int) -> tuple[Any, ...]:
    # Rows of different magnitude reveal where the epsilon is added.
    scales = torch.tensor([1e-2, 1.0, 20.0])[:, None].to(dtype)
    rows = [_random(3, 32, dtype=dtype, seed=seed) * scales for seed in range(tensors)]
    return (*rows, _random(32, dtype=dtype, seed=9) if weighted else None, 1e-5)


_IMPLEMENTATIONS = {
    "rms_norm": _Implementation(
        _rms_norm, _rms_norm_supports, False, lambda dtype, weighted: _norm_arguments(dtype, weighted, 1)
    ),
    "fused_add_rms_norm": _Implementation(
        _fused_add_rms_norm, _fused_add_rms_norm_supports, True, lambda dtype, weighted: _norm_arguments(dtype, weighted, 2)
    ),
}


def register() -> dict[str, str]:
    """Registers the implementations, as vLLM's plugin. Returns the result for each IR operation of vLLM.

    May be called any number of times, and never raises: a plugin must not stop vLLM.
    """
    _register_attention()
    _register_tokenizer()
    try:
        import vllm.ir.ops  # noqa: F401
        from vllm.ir.op import IrOp
    except ImportError as error:
        _logger.warning("layerzero registers nothing: this vLLM has no IR operations (%s)", error)
        return {}
    results = {}
    for name, operation in IrOp.registry.items():
        implementation = _IMPLEMENTATIONS.get(name)
        if implementation is None:
            results[name] = "layerzero has no operation for it"
        elif PROVIDER in operation.impls:
            results[name] = "registered"
        else:
            results[name] = _register(operation, implementation)
            if results[name] != "registered":
                _logger.warning("layerzero does not implement vLLM's %s: %s", name, results[name])
    return results


def _register_attention() -> None:
    """Registers the attention backend by name. vLLM imports it when it is selected."""
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        if "LAYERZERO" not in AttentionBackendEnum.__members__:
            register_backend("LAYERZERO", "layerzero.integrations.vllm_attention.LayerZeroBackend")
    except Exception as error:
        _logger.warning("layerzero has no attention backend: the installed vLLM registers none by name (%s)", error)


def _register_tokenizer() -> None:
    """Registers the tokenizer mode, with the renderer of conversations of the mode ``hf``."""
    try:
        from vllm.renderers.registry import RENDERER_REGISTRY
        from vllm.tokenizers.registry import TokenizerRegistry

        if PROVIDER not in TokenizerRegistry.tokenizers:
            TokenizerRegistry.register(PROVIDER, "layerzero.integrations.vllm_tokenizer", "LayerZeroTokenizer")
        if PROVIDER not in RENDERER_REGISTRY.renderers:
            RENDERER_REGISTRY.register(PROVIDER, *RENDERER_REGISTRY.renderers["hf"])
    except Exception as error:
        _logger.warning("layerzero has no tokenizer mode: the installed vLLM registers none by name (%s)", error)


def _register(operation: Any, implementation: _Implementation) -> str:
    try:
        problem = _difference(operation, implementation)
        if problem is None:
            options = {"inplace": True} if implementation.inplace and operation.allow_inplace else {}
            if implementation.inplace and not options:
                return "the operation must not write its arguments"
            operation.register_impl(PROVIDER, supports_args=implementation.supports, **options)(implementation.function)
    except Exception as error:
        return f"the installed vLLM is not supported ({type(error).__name__}: {error})"
    return problem or "registered"


@torch.no_grad()
def _difference(operation: Any, implementation: _Implementation) -> str | None:
    """How an implementation differs from the formula of an operation; None if it does not."""
    import layerzero  # noqa: F401

    native = operation.impls["native"].impl_fn
    for dtype in _DTYPES:
        tolerance = operation.get_tolerance(dtype)
        for weighted in (True, False):
            arguments = implementation.arguments(dtype, weighted)
            expected = native(*(one.clone() if isinstance(one, Tensor) else one for one in arguments))
            found = implementation.function(*arguments)
            for one, other in zip(_tensors(found), _tensors(expected), strict=True):
                if one.dtype != other.dtype or not torch.allclose(one, other, **tolerance):
                    return f"it computes something else for {dtype}"
    return None


def _tensors(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)
