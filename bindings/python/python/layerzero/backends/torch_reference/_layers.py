"""Norms, activations, linear layers, position encodings, embeddings and KV-cache updates, written with torch functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from layerzero.backends.torch_reference._quantization import DTYPES, dequantize, quantize

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


def norm_rms(x: Any, weight: Any = None, *, eps: float, weight_offset: float) -> Any:
    """In f32 if x and weight have different dtypes."""
    if weight is None:
        return torch.rms_norm(x, x.shape[-1:], None, eps)
    if weight_offset:
        weight = weight.float() + weight_offset
    if weight.dtype is x.dtype:
        return torch.rms_norm(x, weight.shape, weight, eps)
    return torch.rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)


def norm_rms_add(x: Any, residual: Any, weight: Any = None, *, eps: float, weight_offset: float) -> Any:
    """The norm of the rounded sum, which is stored in the residual."""
    residual.add_(x)
    return norm_rms(residual, weight, eps=eps, weight_offset=weight_offset)


def norm_rms_quantize(
    x: Any, weight: Any = None, scale: Any = None, *, format: str, granularity: str, block_size: int, eps: float, weight_offset: float
) -> Any:
    """The norm in f32, rounded to the dtype of x, then quantized."""
    factor = None if weight is None else weight.float() + weight_offset
    rows = torch.rms_norm(x.float(), x.shape[-1:], factor, eps).to(x.dtype).reshape(-1, x.shape[-1])
    if scale is not None and granularity != "tensor":
        scale = scale.reshape(rows.shape[0], *(() if granularity == "row" else scale.shape[-1:]))
    result = quantize(rows, scale, format=format, granularity="channel" if granularity == "row" else granularity, block_size=block_size)
    if scale is not None:
        return result.view(x.shape)
    codes, computed = result
    return codes.view(x.shape), computed.view((*x.shape[:-1], *computed.shape[1:]))


def norm_rms_add_quantize(x: Any, residual: Any, weight: Any = None, scale: Any = None, **params: Any) -> Any:
    """The quantized norm of the rounded sum, which is stored in the residual."""
    residual.add_(x)
    return norm_rms_quantize(residual, weight, scale, **params)


def norm_layer_add(x: Any, residual: Any, weight: Any = None, bias: Any = None, *, eps: float) -> Any:
    """The norm of the rounded sum, which is stored in the residual."""
    residual.add_(x)
    return norm_layer(residual, weight, bias, eps=eps, return_stats=False)


def norm_layer(x: Any, weight: Any = None, bias: Any = None, *, eps: float, return_stats: bool) -> Any:
    """In f32 if the dtypes differ or the statistics are requested."""
    if not return_stats and all(one is None or one.dtype is x.dtype for one in (weight, bias)):
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)
    weight, bias = (None if one is None else one.float() for one in (weight, bias))
    output, mean, inverse = torch.native_layer_norm(x.float(), x.shape[-1:], weight, bias, eps)
    output = output.to(x.dtype)
    return (output, mean[..., 0], inverse[..., 0]) if return_stats else output


def norm_group(x: Any, weight: Any = None, bias: Any = None, *, groups: int, eps: float, activation: str) -> Any:
    """In f32."""
    if x.numel() == 0:
        return torch.empty_like(x)
    weight, bias = (None if one is None else one.float() for one in (weight, bias))
    # The function of `torch.nn.functional` refuses one element per group.
    output = torch.group_norm(x.float(), groups, weight, bias, eps, False)
    return (F.silu(_finite_below(output)) if activation == "silu" else output).to(x.dtype)


def norm_ada(x: Any, scale: Any, shift: Any, *, eps: float) -> Any:
    """In f32."""
    normalized = F.layer_norm(x.float(), x.shape[-1:], None, None, eps)
    return torch.addcmul(shift[:, None].float(), normalized, 1 + scale[:, None].float()).to(x.dtype)


def _finite_below(x: Any) -> Any:
    """torch's activations give NaN at -inf, where the operations give the limit."""
    return x.clamp_min(torch.finfo(x.dtype).min)


def gelu(x: Any, *, approximate: str) -> Any:
    """GELU, exact or with the tanh approximation."""
    return F.gelu(_finite_below(x), approximate=approximate)


def gelu_mul(gate: Any, up: Any, *, approximate: str) -> Any:
    """The gate of GeGLU."""
    return F.gelu(gate, approximate=approximate).mul_(up)


def silu(x: Any, *, alpha: float) -> Any:
    """SiLU with any alpha."""
    if alpha == 1.0:
        return F.silu(_finite_below(x), inplace=True)
    if alpha == 0.0:
        return x * 0.5
    # An infinity times a sigmoid of 0 would be NaN; the limit is 0.
    gate = torch.sigmoid(alpha * x.float())
    return (x.float() * gate).masked_fill(gate == 0, 0).to(x.dtype)


def silu_mul(gate: Any, up: Any) -> Any:
    """The gate of SwiGLU."""
    return F.silu(gate).mul_(up)


def relu_squared(x: Any) -> Any:
    """Nemotron's activation."""
    return F.relu(x).square_()


def linear(x: Any, weight: Any, bias: Any = None, *, activation: str) -> Any:
    """A matrix product with an optional activation."""
    return ACTIVATIONS[activation](F.linear(x, weight, bias))


def fused(x: Any, gate_weight: Any, up_weight: Any, down_weight: Any, *, activation: str) -> Any:
    """A gated MLP."""
    gated = ACTIVATIONS[activation](F.linear(x, gate_weight)) * F.linear(x, up_weight)
    return F.linear(gated, down_weight)


def pack(weight: Any) -> Any:
    """Packs into panels of 16 rows with words of 4 bytes."""
    rows, stored = weight.shape
    padded = F.pad(weight, (0, -stored % 4, 0, -rows % 16))
    return padded.view(padded.shape[0] // 16, 16, padded.shape[1] // 4, 4).transpose(1, 2).contiguous()


def _in_rows(weight: Any, layout: str, rows: int, stored: int) -> Any:
    """Unpacks a weight."""
    if layout == "plain":
        return weight
    return weight.transpose(1, 2).flatten(2, 3).flatten(0, 1)[:rows, :stored]


def weight_only(
    x: Any, weight: Any, scale: Any, zero_point: Any = None, bias: Any = None, *,
    format: str, granularity: str, block_size: int, weight_layout: str, stored: int, activation: str,
) -> Any:  # fmt: skip
    """Dequantizes the weight, then multiplies in f32."""
    inner = x.shape[-1]
    values = _in_rows(weight, weight_layout, scale.shape[0], stored)
    if format == "int4":
        nibbles = torch.stack((values & 15, values >> 4), -1).flatten(-2)[..., :inner]
        values = (nibbles ^ 8).to(torch.int8) - 8
    if granularity == "block":
        # One scale per input column, because the last block may be shorter.
        group = torch.arange(inner, device=x.device) // block_size
        scale = scale[:, group]
        zero_point = None if zero_point is None else zero_point[:, group]
    else:
        scale = scale[:, None]
        zero_point = None if zero_point is None else zero_point[:, None]
    if zero_point is not None:
        values = values.long() - zero_point
    output = F.linear(x.float(), values.float() * scale, None if bias is None else bias.float())
    return ACTIVATIONS[activation](output).to(x.dtype)


def linear_int8(
    x: Any, weight: Any, x_scale: Any, weight_scale: Any, x_zero_point: Any = None, bias: Any = None, *,
    x_granularity: str, weight_layout: str, activation: str, output_dtype: str,
) -> Any:  # fmt: skip
    """In f64, which represents every sum of such products exactly."""
    rows = x.double()
    if x_granularity == "row":
        x_scale = x_scale[..., None]
        x_zero_point = None if x_zero_point is None else x_zero_point[..., None]
    if x_zero_point is not None:
        rows = rows - x_zero_point
    weight = _in_rows(weight, weight_layout, weight_scale.shape[0], x.shape[-1])
    output = F.linear(rows, weight.double()) * (x_scale.double() * weight_scale.double())
    if bias is not None:
        output += bias
    return ACTIVATIONS[activation](output).to(DTYPES[output_dtype])


#: Elements per side of a block that shares a scale.
_FP8_BLOCK = 128


def linear_fp8(
    x: Any, weight: Any, x_scale: Any, weight_scale: Any, bias: Any = None, *,
    x_granularity: str, weight_granularity: str, activation: str, output_dtype: str,
) -> Any:  # fmt: skip
    """Dequantizes both operands, then multiplies in f32."""
    block = torch.arange(x.shape[-1], device=x.device) // _FP8_BLOCK
    if x_granularity != "tensor":
        x_scale = x_scale[..., None] if x_granularity == "row" else x_scale[..., block]
    if weight_granularity == "row":
        weight_scale = weight_scale[:, None]
    elif weight_granularity == "block":
        weight_scale = weight_scale[torch.arange(weight.shape[0], device=x.device)[:, None] // _FP8_BLOCK, block]
    output = F.linear(x.float() * x_scale, weight.float() * weight_scale)
    if bias is not None:
        output = output + bias
    return ACTIVATIONS[activation](output).to(DTYPES[output_dtype])


def linear_fp4(
    x: Any, weight: Any, x_scale: Any, weight_scale: Any, x_global_scale: Any = None, weight_global_scale: Any = None, bias: Any = None, *,
    format: str, activation: str, output_dtype: str,
) -> Any:  # fmt: skip
    """Dequantizes both operands, then multiplies in f32."""
    block, inner = 16 if format == "nvfp4" else 32, 2 * x.shape[-1]
    rows, columns = (
        dequantize(codes, scale, None, global_scale, format=format, granularity="block", block_size=block, inner=inner, output_dtype="f32")
        for codes, scale, global_scale in ((x, x_scale, x_global_scale), (weight, weight_scale, weight_global_scale))
    )
    output = F.linear(rows, columns)
    if bias is not None:
        output = output + bias
    return ACTIVATIONS[activation](output).to(DTYPES[output_dtype])


def embedding(table: Any, ids: Any) -> Any:
    """Rows of the table."""
    return F.embedding(ids, table)


def alibi(scores: Any, slopes: Any, *, causal_offset: int) -> Any:
    """ALiBi bias, in f32."""
    queries, keys = scores.shape[-2:]
    positions = torch.arange(causal_offset, causal_offset + queries, device=scores.device)
    distance = torch.arange(keys, device=scores.device) - positions[:, None]
    return (scores + slopes[:, None, None] * distance).to(scores.dtype)


def rope(x: Any, cos: Any, sin: Any, positions: Any = None, *, interleaved: bool, layout: str) -> Any:
    """Rotates pairs of features in f32."""
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


_SATURATES_AT = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def _last_writer(slots: Any) -> Any:
    """The last write to the same slot, for each write: torch does not define which of two writes wins, so all write the same values."""
    ordered, order = torch.sort(slots, stable=True)
    end = torch.searchsorted(ordered, slots.contiguous(), right=True)
    return order[end - 1]


def append(k: Any, v: Any, k_cache: Any, v_cache: Any, slots: Any, *, layout: str) -> None:
    """Writes new tokens into pages. Skipped tokens write the final content of slot 0, so that their number need not be known on the host."""
    if slots.shape[0] == 0 or k_cache.shape[0] == 0:
        return
    size = k_cache.shape[1 if layout == "NHD" else 2]
    skipped, first = slots < 0, slots == 0
    writer = torch.where(skipped, _last_of(first), _last_writer(slots))
    unchanged = (skipped & ~first.any())[:, None, None]
    page, offset = slots.clamp_min(0) // size, slots.clamp_min(0) % size
    index = (page, offset) if layout == "NHD" else (page, slice(None), offset)
    for cache, values in ((k_cache, k), (v_cache, v)):
        largest = _SATURATES_AT.get(cache.dtype)
        if largest is None:
            values = values.to(cache.dtype)
        else:
            # Not every torch supports indexed writes of 8-bit floats.
            values = values.float().clamp(-largest, largest).to(cache.dtype).view(torch.uint8)
            cache = cache.view(torch.uint8)
        cache[index] = torch.where(unchanged, cache[index], values[writer])


def rope_append(
    q: Any, k: Any, v: Any, cos: Any, sin: Any, positions: Any, k_cache: Any, v_cache: Any, slots: Any, *, interleaved: bool, layout: str
) -> Any:
    """Rotates queries and keys, and appends."""
    q, k = (rope(one[None], cos, sin, positions[None], interleaved=interleaved, layout="BSHD")[0] for one in (q, k))
    append(k, v, k_cache, v_cache, slots, layout=layout)
    return q


def _last_of(condition: Any) -> Any:
    """Index of the last true element; 0 if there is none."""
    return torch.where(condition, torch.arange(condition.shape[0], device=condition.device), 0).amax(-1)


def compact(k_cache: Any, v_cache: Any, source: Any, target: Any, *, layout: str) -> None:
    """Copies pages; every source page is read before any target page is written."""
    if source.shape[0] == 0:
        return
    page = source.long()[_last_writer(target)]
    for cache in (k_cache, v_cache):
        cache = cache.view(torch.uint8) if cache.dtype in _SATURATES_AT else cache
        cache[target.long()] = cache[page]
