"""The functions of torch that `lz.override_torch` overrides: when LayerZero may run a call, and as which operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from layerzero import _native, ops
from layerzero._override import Overridden


class _Fallback(Exception):
    """A call that torch must run; the message is the reason."""


class _Call(NamedTuple):
    """A call of LayerZero in place of one of torch."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    #: What makes torch's result of it.
    finish: Callable[[Any], Any] | None = None


def _require(condition: bool, why: str) -> None:
    if not condition:
        raise _Fallback(why)


def _check_state() -> None:
    """Refuses states of torch in which a call means more than its result."""
    _require(not torch.compiler.is_compiling() and not torch.jit.is_tracing(), "tracing")
    # Without these interfaces, nothing says whether a call is transformed or observed.
    _require(_native.private_interfaces(), "private interfaces are disabled")
    try:
        _require(torch._C._len_torch_dispatch_stack() == 0, "a dispatch mode")
        _require(torch._C._functorch.peek_interpreter_stack() is None, "torch.func")
        _require(forward_ad._current_level < 0, "forward-mode differentiation")
    except AttributeError:
        raise _Fallback("a release of torch without the interfaces that are listed") from None
    _require(not torch.are_deterministic_algorithms_enabled(), "deterministic algorithms")


def _check_tensors(first: Any, *others: Any) -> None:
    """Refuses tensors that are not plain inference tensors of one dtype and one device."""
    given = [first, *(other for other in others if other is not None)]
    _require(all(type(one) in (torch.Tensor, torch.nn.Parameter) for one in given), "a tensor subclass or another object")
    records = torch.is_grad_enabled() and any(one.requires_grad for one in given)
    _require(not records, "gradients")
    _require(first.device.type in ("cpu", "cuda"), "another device")
    _require(all(one.device == first.device for one in given), "several devices")
    _require(not torch.is_autocast_enabled(first.device.type), "autocast")
    _require(first.dtype in (torch.float32, torch.float16, torch.bfloat16), "another dtype")
    _require(all(one.layout is torch.strided and not one.is_neg() for one in given), "another layout")
    _require(all(one.numel() > 0 for one in given), "an empty tensor")


def _same_dtype(first: torch.Tensor, *others: torch.Tensor | None) -> None:
    _require(all(other is None or other.dtype == first.dtype for other in others), "several dtypes")


def _linear(input: Any, weight: Any, bias: Any = None) -> _Call:
    _check_tensors(input, weight, bias)
    _same_dtype(input, weight, bias)
    _require(input.dim() >= 1 and weight.dim() == 2 and input.shape[-1] == weight.shape[1], "another shape")
    _require(bias is None or tuple(bias.shape) == (weight.shape[0],), "another shape")
    return _Call(ops.mlp_linear, (input, weight, bias), {})


def _over_last(input: Any, normalized_shape: Any, *affine: Any) -> None:
    shape = tuple(normalized_shape)
    _require(len(shape) == 1 and input.dim() >= 1 and input.shape[-1] == shape[0], "another shape")
    _require(all(one is None or tuple(one.shape) == shape for one in affine), "another shape")


def _layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> _Call:
    _check_tensors(input, weight, bias)
    _same_dtype(input, weight, bias)
    _over_last(input, normalized_shape, weight, bias)
    _require(isinstance(eps, float) and eps >= 0, "another eps")
    return _Call(ops.norm_layer, (input, weight, bias), {"eps": eps})


def _rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> _Call:
    _check_tensors(input, weight)
    _same_dtype(input, weight)
    _over_last(input, normalized_shape, weight)
    if eps is None:
        # Which epsilon torch takes for half precision differs between its releases.
        _require(input.dtype is torch.float32, "the default eps of half precision")
        eps = torch.finfo(torch.float32).eps
    _require(isinstance(eps, float) and eps >= 0, "another eps")
    return _Call(ops.norm_rms, (input, weight), {"eps": eps})


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> _Call:
    _check_tensors(query, key, value, attn_mask)
    _same_dtype(query, key, value)
    _require(dropout_p == 0.0, "dropout")
    _require(query.dim() == key.dim() == value.dim() == 4, "another shape")
    batch, heads, queries, dim = query.shape
    _, kv_heads, keys, _ = key.shape
    _require(key.shape[0] == value.shape[0] == batch and key.shape[3] == dim, "another shape")
    _require(value.shape[1] == kv_heads and value.shape[2] == keys, "another shape")
    _require(heads == kv_heads or (enable_gqa and heads % kv_heads == 0), "another shape")
    if attn_mask is not None:
        _require(not is_causal, "a mask and is_causal")
        _require(attn_mask.dtype in (torch.bool, query.dtype), "another dtype of the mask")
        sizes = tuple(attn_mask.shape)
        full = (batch, heads, queries, keys)[4 - len(sizes) :]
        _require(2 <= len(sizes) <= 4 and all(a in (1, b) for a, b in zip(sizes, full, strict=True)), "another shape")
    _require(scale is None or isinstance(scale, float), "another scale")
    shared = {"causal": is_causal, "causal_offset": 0 if is_causal else None, "sm_scale": scale}
    function = ops.attention_standard_prefill if heads == kv_heads else ops.attention_gqa_prefill
    # Views of [batch, sequence, heads, dim], as models make them: no copies, and a result with the strides of torch's fused kernels.
    by_rows = [one.transpose(1, 2) for one in (query, key, value)]
    if all(one.is_contiguous() for one in by_rows):
        keywords = {**shared, "layout": "BSHD"}
        return _Call(function, (*by_rows, attn_mask), keywords, lambda result: result.transpose(1, 2))
    return _Call(function, (query, key, value, attn_mask), {**shared, "layout": "BHSD"})


_FUNCTIONAL = torch.nn.functional
#: Name, rule, and the functions that it applies to.
_RULES: tuple[tuple[str, Callable[..., _Call], tuple[Any, ...]], ...] = (
    ("scaled_dot_product_attention", _attention, (_FUNCTIONAL.scaled_dot_product_attention,)),
    ("rms_norm", _rms_norm, (_FUNCTIONAL.rms_norm, torch.rms_norm)),
    ("layer_norm", _layer_norm, (_FUNCTIONAL.layer_norm,)),
    ("linear", _linear, (_FUNCTIONAL.linear,)),
)


class OverrideMode(TorchFunctionMode):  # type: ignore[misc]
    """While it is entered, calls of the named functions on this thread go through selection."""

    def __init__(self, wanted: tuple[str, ...], overridden: Overridden) -> None:
        super().__init__()
        self._overridden = overridden
        self._rules = {
            function: (name, rule) for name, rule, functions in _RULES if name in wanted for function in functions
        }

    def __enter__(self) -> Overridden:
        super().__enter__()
        return self._overridden

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        found = self._rules.get(func)
        if found is None:
            return func(*args, **keywords)
        name, rule = found
        try:
            _check_state()
            call = rule(*args, **keywords)
            result = call.function(*call.arguments, **call.keywords)
        except _Fallback as why:
            self._overridden.fallbacks[name, str(why)] += 1
            return func(*args, **keywords)
        except TypeError:
            # The arguments are not those of the function: torch says so.
            self._overridden.fallbacks[name, "other arguments"] += 1
            return func(*args, **keywords)
        except _native.LayerZeroError as error:
            self._overridden.fallbacks[name, type(error).__name__] += 1
            return func(*args, **keywords)
        self._overridden.calls[name] += 1
        return result if call.finish is None else call.finish(result)
