"""torch's functions as kernels: each of its SDPA backends separately, norms, linear layers, activations.

Adapters convert layouts, masks and causality; the descriptors next to this file decline what they cannot
convert. The caller's `torch.nn.attention.sdpa_kernel` and `torch.backends.mkldnn.flags` (oneDNN) are
respected: a kernel that they disable declines.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from layerzero import _native

_flash_is_enabled = torch.backends.cuda.flash_sdp_enabled
_ENABLED: dict[SDPBackend, Callable[[], bool]] = {
    SDPBackend.FLASH_ATTENTION: _flash_is_enabled,
    SDPBackend.EFFICIENT_ATTENTION: torch.backends.cuda.mem_efficient_sdp_enabled,
    SDPBackend.CUDNN_ATTENTION: torch.backends.cuda.cudnn_sdp_enabled,
    SDPBackend.MATH: torch.backends.cuda.math_sdp_enabled,
}


def _refuse_unpublished(name: str) -> None:
    """Declines a call that needs an undocumented operator of torch if private interfaces are disabled."""
    if not _native.private_interfaces():
        raise NotImplementedError(f"{name} is a private interface, and LAYERZERO_PRIVATE_INTERFACES=0 disables those")


def _cudnn(q: Any, k: Any, v: Any, is_causal: bool, sm_scale: float) -> Any:
    return torch._scaled_dot_product_cudnn_attention(q, k, v, None, False, 0.0, is_causal, scale=sm_scale)[0]


def _attend(
    inner: SDPBackend, q: Any, k: Any, v: Any, mask: Any, *, is_causal: bool, sm_scale: float
) -> Any:
    """Attention over ``[batch, heads, length, features]``."""
    if not _ENABLED[inner]():
        raise NotImplementedError(f"{inner.name} is disabled by the caller's torch.nn.attention.sdpa_kernel")
    if mask is None and inner is SDPBackend.CUDNN_ATTENTION and q.is_cuda and _native.private_interfaces():
        # Selecting a backend with a context manager takes longer than most calls of it.
        return _cudnn(q, k, v, is_causal, sm_scale)
    with sdpa_kernel(inner):
        return F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=is_causal, scale=sm_scale, enable_gqa=q.shape[1] != k.shape[1]
        )


def _mask(
    q: Any, keys: int, mask: Any, slopes: Any, causal: bool, offset: int, left: int, right: int
) -> Any:
    """Everything that hides keys or adds to scores as one mask, or `None`."""
    # Position of each key relative to each query; negative before it.
    distance = torch.arange(keys, device=q.device) - (torch.arange(q.shape[2], device=q.device)[:, None] + offset)
    visible = None
    for hidden in (
        distance > 0 if causal else None,
        distance < -left if left >= 0 else None,
        distance > right if right >= 0 else None,
    ):
        if hidden is not None:
            visible = ~hidden if visible is None else visible & ~hidden
    bias = None
    if slopes is not None:
        bias = slopes[..., :, None, None] * distance
    if mask is not None and mask.dtype == torch.bool:
        visible = mask if visible is None else visible & mask
    elif mask is not None:
        bias = mask if bias is None else bias + mask
    if bias is None:
        return visible
    if visible is not None:
        bias = torch.where(visible, bias, float("-inf"))
    return bias.to(q.dtype)


def _prefill(
    inner: SDPBackend, q: Any, k: Any, v: Any, mask: Any, alibi_slopes: Any = None, *,
    causal: bool = False, causal_offset: int = 0, window_left: int = -1, window_right: int = -1, soft_cap: float = 0.0,
    sm_scale: float, return_lse: bool = False, layout: str,
) -> Any:  # fmt: skip
    if layout == "BSHD":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    # torch aligns causal masks at the first key; other alignments become an explicit mask.
    plain = mask is None and alibi_slopes is None and window_left < 0 and window_right < 0
    is_causal = causal and plain and causal_offset == 0
    combined = None
    if not is_causal and not (plain and not causal):
        combined = _mask(q, k.shape[2], mask, alibi_slopes, causal, causal_offset, window_left, window_right)
        # The fused backends take masks of rank 2 and 4 only.
        combined = combined[(None,) * (4 - combined.dim())]
    output = _attend(inner, q, k, v, combined, is_causal=is_causal, sm_scale=sm_scale)
    return output.transpose(1, 2) if layout == "BSHD" else output


def _decode(
    inner: SDPBackend, q: Any, k: Any, v: Any, kv_lens: Any, alibi_slopes: Any = None, *,
    window_left: int = -1, soft_cap: float = 0.0, sm_scale: float, return_lse: bool = False, layout: str,
) -> Any:  # fmt: skip
    if layout == "BSHD":
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    mask = None
    if kv_lens is not None:
        mask = (torch.arange(k.shape[2], device=k.device) < kv_lens[:, None])[:, None, None]
    return _attend(inner, q.unsqueeze(2), k, v, mask, is_causal=False, sm_scale=sm_scale).squeeze(2)


def _cross(
    inner: SDPBackend, q: Any, k: Any, v: Any, kv_lens: Any, mask: Any, *,
    sm_scale: float, return_lse: bool = False, layout: str,
) -> Any:  # fmt: skip
    """Cross attention: from one query per row, or from a sequence of queries."""
    single = q.dim() == 3
    if single:
        q, mask = q.unsqueeze(2), None if mask is None else mask.unsqueeze(-2)
    elif layout == "BSHD":
        q = q.transpose(1, 2)
    if layout == "BSHD":
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    if mask is not None:
        mask = mask[(None,) * (4 - mask.dim())]
        mask = mask if mask.dtype == torch.bool else mask.to(q.dtype)
    if kv_lens is not None:
        inside = (torch.arange(k.shape[2], device=k.device) < kv_lens[:, None])[:, None, None]
        if mask is None:
            mask = inside
        else:
            mask = mask & inside if mask.dtype == torch.bool else torch.where(inside, mask, float("-inf"))
    output = _attend(inner, q, k, v, mask, is_causal=False, sm_scale=sm_scale)
    if single:
        return output.squeeze(2)
    return output.transpose(1, 2) if layout == "BSHD" else output


#: cuDNN attention, where torch's C ABI lacks it.
_cudnn_prefill, _cudnn_decode = partial(_prefill, SDPBackend.CUDNN_ATTENTION), partial(_decode, SDPBackend.CUDNN_ATTENTION)
#: Flash attention on the host, likewise.
_host_prefill, _host_decode = partial(_prefill, SDPBackend.FLASH_ATTENTION), partial(_decode, SDPBackend.FLASH_ATTENTION)


def _flash_prefill_on_host(
    q: Any, k: Any, v: Any, mask: Any, alibi_slopes: Any = None, *,
    causal: bool, causal_offset: int, window_left: int, window_right: int, soft_cap: float, sm_scale: float, return_lse: bool,
    layout: str,
) -> Any:  # fmt: skip
    """Without a mask the C function is called directly: selecting the SDPA backend would need a context manager."""
    plain = mask is None and alibi_slopes is None and window_left < 0 and window_right < 0 and not (causal and causal_offset)
    return (_native.torch_host_prefill if plain and q.shape == k.shape else _host_prefill)(
        q, k, v, mask, alibi_slopes, causal=causal, causal_offset=causal_offset, window_left=window_left, window_right=window_right,
        soft_cap=soft_cap, sm_scale=sm_scale, return_lse=return_lse, layout=layout,
    )  # fmt: skip


def _flash_decode_on_host(
    q: Any, k: Any, v: Any, kv_lens: Any, alibi_slopes: Any = None, *,
    window_left: int, soft_cap: float, sm_scale: float, return_lse: bool, layout: str,
) -> Any:  # fmt: skip
    plain = kv_lens is None and alibi_slopes is None and window_left < 0 and q.shape[1] == k.shape[1 if layout == "BHSD" else 2]
    return (_native.torch_host_decode if plain else _host_decode)(
        q, k, v, kv_lens, alibi_slopes, window_left=window_left, soft_cap=soft_cap, sm_scale=sm_scale, return_lse=return_lse,
        layout=layout,
    )  # fmt: skip


def _flash(q: Any, k: Any, v: Any, is_causal: bool, sm_scale: float) -> Any:
    """Output and lse. Flash attention aligns causal masks at the last key, as the operations do; descriptors admit nothing else."""
    if not _flash_is_enabled():
        raise NotImplementedError("FLASH_ATTENTION is disabled by the caller's torch.nn.attention.sdpa_kernel")
    _refuse_unpublished("torch._scaled_dot_product_flash_attention")
    return torch._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal, scale=sm_scale)[:2]


def _flash_prefill(
    q: Any, k: Any, v: Any, mask: Any, alibi_slopes: Any = None, *,
    causal: bool, causal_offset: int, window_left: int, window_right: int, soft_cap: float, sm_scale: float, return_lse: bool,
    layout: str,
) -> Any:  # fmt: skip
    if layout == "BHSD":
        output, lse = _flash(q, k, v, causal, sm_scale)
        return (output, lse) if return_lse else output
    output, lse = _flash(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal, sm_scale)
    output = output.transpose(1, 2)
    return (output, lse.transpose(1, 2)) if return_lse else output


def _flash_decode(
    q: Any, k: Any, v: Any, kv_lens: Any, alibi_slopes: Any = None, *,
    window_left: int, soft_cap: float, sm_scale: float, return_lse: bool, layout: str,
) -> Any:  # fmt: skip
    if layout == "BSHD":
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    output, lse = _flash(q.unsqueeze(2), k, v, False, sm_scale)
    return (output.squeeze(2), lse.squeeze(2)) if return_lse else output.squeeze(2)


_sdpa = F.scaled_dot_product_attention


def _own_prefill(
    q: Any, k: Any, v: Any, mask: Any, alibi_slopes: Any = None, *,
    causal: bool, causal_offset: int, window_left: int, window_right: int, soft_cap: float, sm_scale: float, return_lse: bool,
    layout: str,
) -> Any:  # fmt: skip
    """The backend that torch selects, which costs less on the host than selecting one. Called where torch's C ABI cannot create views."""
    if layout == "BHSD":
        return _sdpa(q, k, v, None, 0.0, causal, scale=sm_scale)
    return _sdpa(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), None, 0.0, causal, scale=sm_scale).transpose(1, 2)


def _own_grouped_prefill(
    q: Any, k: Any, v: Any, mask: Any, alibi_slopes: Any = None, *,
    causal: bool, causal_offset: int, window_left: int, window_right: int, soft_cap: float, sm_scale: float, return_lse: bool,
    layout: str,
) -> Any:  # fmt: skip
    if layout == "BHSD":
        return _sdpa(q, k, v, None, 0.0, causal, scale=sm_scale, enable_gqa=True)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return _sdpa(q, k, v, None, 0.0, causal, scale=sm_scale, enable_gqa=True).transpose(1, 2)


def _own_decode(
    q: Any, k: Any, v: Any, kv_lens: Any, alibi_slopes: Any = None, *,
    window_left: int, soft_cap: float, sm_scale: float, return_lse: bool, layout: str,
) -> Any:  # fmt: skip
    if layout == "BSHD":
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    return _sdpa(q.unsqueeze(2), k, v, None, 0.0, False, scale=sm_scale).squeeze(2)


def _own_grouped_decode(
    q: Any, k: Any, v: Any, kv_lens: Any, alibi_slopes: Any = None, *,
    window_left: int, soft_cap: float, sm_scale: float, return_lse: bool, layout: str,
) -> Any:  # fmt: skip
    if layout == "BSHD":
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    return _sdpa(q.unsqueeze(2), k, v, None, 0.0, False, scale=sm_scale, enable_gqa=True).squeeze(2)


_rms_norm = torch.rms_norm


def _norm_rms(x: Any, weight: Any, *, eps: float, weight_offset: float) -> Any:
    if weight is None:
        return _rms_norm(x, x.shape[-1:], None, eps)
    if weight_offset:
        weight = weight.float() + weight_offset
    # The weight has the length of a row.
    if weight.dtype is x.dtype:
        return _rms_norm(x, weight.shape, weight, eps)
    return _rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)


def _norm_rms_add(x: Any, residual: Any, weight: Any, *, eps: float, weight_offset: float) -> Any:
    residual.add_(x)
    return _norm_rms(residual, weight, eps=eps, weight_offset=weight_offset)


def _norm_layer(x: Any, weight: Any, bias: Any, *, eps: float, return_stats: bool) -> Any:
    output, mean, inverse = torch.native_layer_norm(
        x.float(),
        x.shape[-1:],
        None if weight is None else weight.float(),
        None if bias is None else bias.float(),
        eps,
    )
    output = output.to(x.dtype)
    return (output, mean[..., 0], inverse[..., 0]) if return_stats else output


_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


def _linear(x: Any, weight: Any, bias: Any, *, activation: str) -> Any:
    return _ACTIVATIONS[activation](F.linear(x, weight, bias))


def _linear_into(x: Any, weight: Any, bias: Any, *, activation: str, out: Any = None) -> Any:
    """A linear layer that can write into the caller's tensor."""
    if out is None or activation != "none":
        result = _linear(x, weight, bias, activation=activation)
        return result if out is None else out.copy_(result)
    rows, target = x.reshape(-1, x.shape[-1]), out.view(-1, weight.shape[0])
    if bias is None:
        torch.mm(rows, weight.t(), out=target)
    else:
        torch.addmm(bias, rows, weight.t(), out=target)
    return out


#: oneDNN's names of activations, and the formula.
_POINTWISE = {"none": ("none", ""), "relu": ("relu", ""), "silu": ("swish", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh")}


def _onednn_linear(x: Any, weight: Any, bias: Any, *, activation: str) -> Any:
    """One oneDNN primitive, including the activation."""
    _refuse_unpublished("torch.ops.mkldnn._linear_pointwise")
    if not torch.backends.mkldnn.is_available():
        raise NotImplementedError("torch was built without oneDNN")
    if not torch.backends.mkldnn.enabled:
        raise NotImplementedError("oneDNN is disabled by the caller's torch.backends.mkldnn")
    if x.dtype in _ONEDNN_NEEDS and not _ONEDNN_NEEDS[x.dtype]():
        raise NotImplementedError(f"oneDNN does not support {x.dtype} on this processor")
    kind, formula = _POINTWISE[activation]
    return torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, kind, [], formula)


#: Dtypes that oneDNN supports on some processors only.
_ONEDNN_NEEDS: dict[Any, Callable[[], bool]] = {
    torch.bfloat16: lambda: torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    torch.float16: lambda: torch.ops.mkldnn._is_mkldnn_fp16_supported(),
}


def _weight_only(
    x: Any, weight: Any, scale: Any, zero_point: Any, bias: Any, *,
    format: str, granularity: str, block_size: int, weight_layout: str, stored: int, activation: str,
) -> Any:  # fmt: skip
    """int8 weights in rows of whole vectors: torch's kernel reads past the end of others. Its int4 kernel
    needs a packed copy of the weight, and a cached copy would go stale unnoticed: writing through
    `weight.data` does not increment the version counter."""
    _refuse_unpublished("torch._weight_int8pack_mm")
    rows = torch._weight_int8pack_mm(x.reshape(-1, x.shape[-1]), weight, scale.to(x.dtype))
    output = _ACTIVATIONS[activation](rows if bias is None else rows + bias)
    return output.view(*x.shape[:-1], weight.shape[0])


def _linear_fp8(
    x: Any, weight: Any, x_scale: Any, weight_scale: Any, bias: Any = None, *,
    x_granularity: str, weight_granularity: str, activation: str, output_dtype: str,
) -> Any:  # fmt: skip
    """torch's scaled product: cuBLASLt for one scale per operand, CUTLASS for one per row."""
    _refuse_unpublished("torch._scaled_mm")
    if x_granularity == "row":
        x_scale, weight_scale = x_scale.reshape(-1, 1), weight_scale.reshape(1, -1)
    rows = x.reshape(-1, x.shape[-1])
    output = torch._scaled_mm(rows, weight.t(), x_scale, weight_scale, bias, out_dtype=torch.bfloat16)
    return _ACTIVATIONS[activation](output).view(*x.shape[:-1], weight.shape[0])


def _linear_fp8_block(
    x: Any, weight: Any, x_scale: Any, weight_scale: Any, bias: Any = None, *,
    x_granularity: str, weight_granularity: str, activation: str, output_dtype: str,
) -> Any:  # fmt: skip
    """torch's scaled product with a scale for each block: cuBLASLt, which has it on Hopper only."""
    _refuse_unpublished("torch._scaled_mm")
    # The host limits calls with few rows, so no view is created that changes nothing.
    is_matrix = x.dim() == 2
    rows = (x if is_matrix else x.reshape(-1, x.shape[-1])).contiguous()
    # cuBLASLt reads the scales of x by column; those of a caller who stores them so are not copied.
    if not is_matrix or x_scale.stride() != (1, rows.shape[0]):
        x_scale = x_scale.reshape(rows.shape[0], -1).t().contiguous().t()
    columns, column_scale = weight.contiguous().t(), weight_scale.contiguous().t()
    bias = None if bias is None else bias.contiguous()
    output = torch._scaled_mm(rows, columns, x_scale, column_scale, bias, out_dtype=torch.bfloat16)
    output = output if activation == "none" else _ACTIVATIONS[activation](output)
    return output if is_matrix else output.view(*x.shape[:-1], weight.shape[0])


def _fused(x: Any, gate_weight: Any, up_weight: Any, down_weight: Any, *, activation: str) -> Any:
    gated = _ACTIVATIONS[activation](F.linear(x, gate_weight)) * F.linear(x, up_weight)
    return F.linear(gated, down_weight)


def _fused_into(x: Any, gate_weight: Any, up_weight: Any, down_weight: Any, *, activation: str, out: Any = None) -> Any:
    """A gated MLP that can write into the caller's tensor."""
    gated = _ACTIVATIONS[activation](F.linear(x, gate_weight)) * F.linear(x, up_weight)
    return _linear_into(gated, down_weight, None, activation="none", out=out)


def _embedding(table: Any, ids: Any) -> Any:
    return F.embedding(ids, table)


def _gelu(x: Any, *, approximate: str) -> Any:
    return F.gelu(x, approximate=approximate)


def _gelu_mul(gate: Any, up: Any, *, approximate: str) -> Any:
    return (F.gelu(gate.float(), approximate=approximate) * up.float()).to(gate.dtype)


def _silu(x: Any, *, alpha: float) -> Any:
    return F.silu(x) if alpha == 1.0 else (x.float() * torch.sigmoid(alpha * x.float())).to(x.dtype)


def _silu_mul(gate: Any, up: Any) -> Any:
    return (F.silu(gate.float()) * up.float()).to(gate.dtype)


def _relu_squared(x: Any) -> Any:
    return F.relu(x).square()


def _rope(x: Any, cos: Any, sin: Any, positions: Any, *, interleaved: bool, layout: str) -> Any:
    heads_first = layout == "BHSD"
    length = x.shape[2 if heads_first else 1]
    if positions is None:
        cos, sin = cos[None, :length], sin[None, :length]
    else:
        cos, sin = cos[positions], sin[positions]
    # One angle for all heads of a token.
    cos, sin = (table.unsqueeze(1 if heads_first else 2).float() for table in (cos, sin))
    rotary = 2 * cos.shape[-1]
    rotated, rest = x[..., :rotary].float(), x[..., rotary:]
    if interleaved:
        first, second = rotated[..., 0::2], rotated[..., 1::2]
        result = torch.stack((first * cos - second * sin, second * cos + first * sin), -1).flatten(-2)
    else:
        first, second = rotated.chunk(2, -1)
        result = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    return torch.cat((result.to(x.dtype), rest), -1)


def _merge(v: Any, s: Any) -> Any:
    top = s.amax(-2, keepdim=True)
    weights = torch.exp(s - torch.where(torch.isinf(top), 0, top))
    total = weights.sum(-2)
    merged = (weights[..., None] * v.float()).sum(-3) / torch.where(total == 0, 1, total)[..., None]
    return merged.to(v.dtype), torch.log(total) + torch.where(torch.isinf(top), 0, top)[..., 0, :]


def _takes_arrays(function: Callable[..., Any], written: tuple[int, ...] = ()) -> Callable[..., Any]:
    """The same function for callers with numpy arrays or buffers: their memory is viewed as tensors. An array
    with a negative stride cannot be viewed by torch and is copied; it is copied back if the argument is one
    of `written`."""

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if isinstance(arguments[0], torch.Tensor):
            return function(*arguments, **keywords)
        arrays = tuple(map(_as_array, arguments))
        views = tuple(map(_view, arrays))
        result = function(*views, **keywords)
        for at in written:
            if not _is_viewable(arrays[at]):
                arrays[at][...] = _array(views[at])
        convert = _array if hasattr(arguments[0], "dtype") else _buffer
        return tuple(map(convert, result)) if isinstance(result, tuple) else convert(result)

    return call


def _as_array(value: Any) -> Any:
    """Converts a Python buffer to an array; arrays and `None` are returned unchanged."""
    if value is None or hasattr(value, "dtype"):
        return value
    import numpy

    return numpy.asarray(memoryview(value))


def _is_viewable(array: Any) -> bool:
    return all(step >= 0 for step in array.strides)


# Dtypes that torch has and numpy lacks: exchanged as their bits.
_BITS = {
    "bfloat16": (torch.bfloat16, torch.uint16),
    "float8_e4m3fn": (torch.float8_e4m3fn, torch.uint8),
    "float8_e5m2": (torch.float8_e5m2, torch.uint8),
}
_NAMES = {dtype: (name, bits) for name, (dtype, bits) in _BITS.items()}


def _view(value: Any) -> Any:
    """An array as a tensor: the same memory, or a copy if torch does not support its strides."""
    if value is None:
        return None
    if not hasattr(value, "strides"):
        raise NotImplementedError(f"torch cannot view a {type(value).__name__} as a tensor")
    if not _is_viewable(value):
        value = value.copy()
    if known := _BITS.get(value.dtype.name):
        dtype, bits = known
        return _borrowed(value.view(str(bits).removeprefix("torch."))).view(dtype)
    return _borrowed(value)


def _borrowed(array: Any) -> Any:
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise NotImplementedError(f"torch cannot view the array as a tensor: {error}") from None


def _array(tensor: torch.Tensor) -> Any:
    if known := _NAMES.get(tensor.dtype):
        name, bits = known
        # The caller's own arrays have this dtype, so numpy has it registered by name.
        return tensor.view(bits).numpy().view(name)
    return tensor.numpy()


def _buffer(tensor: torch.Tensor) -> Any:
    return memoryview(_array(tensor))


_INNER = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}

_PLAIN: dict[str, Callable[..., Any]] = {
    "norm.rms": _norm_rms,
    "norm.rms.add": _norm_rms_add,
    "norm.layer": _norm_layer,
    "mlp.linear": _linear,
    "mlp.fused": _fused,
    "embedding.lookup": _embedding,
    "activation.gelu": _gelu,
    "activation.gelu_mul": _gelu_mul,
    "activation.silu": _silu,
    "activation.silu_mul": _silu_mul,
    "activation.relu": F.relu,
    "activation.relu_squared": _relu_squared,
    "posenc.rope": _rope,
    "attention.state.merge": _merge,
}

#: Kernels by id; host and GPU use the same functions, except for attention with one of torch's SDPA backends.
KERNELS: dict[str, Callable[..., Any]] = {f"torch.{name}": _takes_arrays(function) for name, function in _PLAIN.items()}
KERNELS["torch.norm.rms.add"] = _takes_arrays(_norm_rms_add, written=(1,))
for _name in ("flash", "math"):
    for _length in ("prefill", "decode"):
        KERNELS[f"torch.sdpa.{_name}.cross.{_length}"] = _takes_arrays(partial(_cross, _INNER[_name]))
KERNELS["torch.onednn.mlp.linear"] = _takes_arrays(_onednn_linear)
KERNELS["torch.mlp.linear.weight_only"] = _takes_arrays(_weight_only)
# numpy arrays are never on a GPU.
KERNELS.update({f"torch.cuda.{name}": function for name, function in _PLAIN.items()})
KERNELS["torch.cuda.mlp.linear"], KERNELS["torch.cuda.mlp.fused"] = _linear_into, _fused_into
# These, and the attention kernels below, call the function of the same name here if torch's C ABI fails.
KERNELS["torch.cuda.norm.rms"] = _native.torch_rms_norm
KERNELS["torch.cuda.mlp.linear.fp8"] = _linear_fp8
KERNELS["torch.cuda.mlp.linear.fp8.block"] = _linear_fp8_block
for _family in ("standard", "gqa"):
    KERNELS[f"torch.cuda.sdpa.own.{_family}.prefill"] = _native.torch_own_grouped_prefill if _family == "gqa" else _native.torch_own_prefill
    KERNELS[f"torch.cuda.sdpa.own.{_family}.decode"] = _native.torch_own_grouped_decode if _family == "gqa" else _native.torch_own_decode
    for _name, _backend in _INNER.items():
        KERNELS[f"torch.sdpa.{_name}.{_family}.prefill"] = _takes_arrays(partial(_prefill, _backend))
        KERNELS[f"torch.sdpa.{_name}.{_family}.decode"] = _takes_arrays(partial(_decode, _backend))
        KERNELS[f"torch.cuda.sdpa.{_name}.{_family}.prefill"] = partial(_prefill, _backend)
        KERNELS[f"torch.cuda.sdpa.{_name}.{_family}.decode"] = partial(_decode, _backend)
    KERNELS[f"torch.sdpa.flash.{_family}.prefill"] = _takes_arrays(_flash_prefill_on_host)
    KERNELS[f"torch.sdpa.flash.{_family}.decode"] = _takes_arrays(_flash_decode_on_host)
    KERNELS[f"torch.cuda.sdpa.flash.{_family}.prefill"] = _native.torch_flash_prefill
    KERNELS[f"torch.cuda.sdpa.flash.{_family}.decode"] = _native.torch_flash_decode
    KERNELS[f"torch.cuda.sdpa.cudnn.{_family}.prefill"] = _native.torch_cudnn_prefill
    KERNELS[f"torch.cuda.sdpa.cudnn.{_family}.decode"] = _native.torch_cudnn_decode
