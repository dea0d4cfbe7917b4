"""Attention as matrix products and a softmax, in single precision. Every function serves all operations of its form.

Scores are computed for some queries at a time, so that they take bounded memory. Nothing adds atomically: the same call gives the same
bits.
"""

from __future__ import annotations

from typing import Any

import torch

_HIDDEN = float("-inf")
#: Scores that are in memory at a time, unless one query alone has more.
_MAX_SCORES = 1 << 26


def is_capturing(tensor: Any) -> bool:
    """Whether calls are being recorded into a CUDA graph, where nothing may wait for the device."""
    return bool(tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def attend(q: Any, k: Any, v: Any, visible: Any, bias: Any, sm_scale: float, soft_cap: float) -> Any:
    """Attention of ``q [B, H, M, D]`` over ``k [B, G, L, D]`` and ``v [B, G, L, V]``: output and natural lse, in f32.

    `visible` (bool) and `bias` (float) are None or broadcast to ``[B, G, H / G, M, L]``. Keys that are not visible, or whose score is
    -inf, take no part whatever their values hold.
    """
    batch, heads, queries, _ = q.shape
    groups, length = k.shape[1], k.shape[2]
    if length == 0:
        output = q.new_zeros((batch, heads, queries, v.shape[-1]), dtype=torch.float32)
        return output, output.new_full((batch, heads, queries), _HIDDEN)
    # One product for all queries that share a key head: keys are not repeated.
    q = (q.float() * sm_scale).unflatten(1, (groups, heads // groups))
    keys, values = k.float().transpose(-1, -2), v.float()
    # 0 times a value that is not finite is NaN; such values are rare, so they are looked for first where that is possible.
    odd = is_capturing(v) or not bool(values.isfinite().all())
    step = max(1, _MAX_SCORES // max(batch * heads * length, 1))
    if step >= queries:
        output, lse = _attend_some(q, keys, values, visible, bias, soft_cap, odd)
    else:
        output = q.new_empty((*q.shape[:-1], v.shape[-1]))
        lse = q.new_empty(q.shape[:-1])
        for first in range(0, queries, step):
            some = slice(first, min(first + step, queries))
            inside = (_rows(visible, some), _rows(bias, some))
            output[:, :, :, some], lse[:, :, :, some] = _attend_some(q[:, :, :, some], keys, values, *inside, soft_cap, odd)
    return output.flatten(1, 2), lse.flatten(1, 2)


def _rows(mask: Any, some: slice) -> Any:
    return mask if mask is None or mask.shape[-2] == 1 else mask[..., some, :]


def _attend_some(q: Any, keys: Any, values: Any, visible: Any, bias: Any, soft_cap: float, odd: bool) -> Any:
    """Some queries ``[B, G, R, M, D]`` against all keys."""
    shape = (*q.shape[:-1], keys.shape[-1])
    scores = torch.matmul(q.flatten(2, 3), keys).view(shape)
    if soft_cap > 0:
        scores = scores.div_(soft_cap).tanh_().mul_(soft_cap)
    if bias is not None:
        scores += bias
    if visible is not None:
        scores.masked_fill_(~visible, _HIDDEN)
    part = (scores != _HIDDEN).float().flatten(2, 3) if odd else None
    top = scores.amax(-1, keepdim=True)
    top = top.masked_fill(top == _HIDDEN, 0)
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    weights = weights.flatten(2, 3)
    output = torch.matmul(weights, values.nan_to_num(0, 0, 0) if odd else values).view(*shape[:-1], values.shape[-1])
    output /= total.masked_fill(total == 0, 1)
    if odd:
        output = _with_odd_values(output, part, values).masked_fill(total.isnan(), torch.nan)
    return output, (total.log() + top)[..., 0]


def _with_odd_values(output: Any, part: Any, values: Any) -> Any:
    """Infinities and NaN of the values of the keys that take part."""
    kinds = torch.cat((values == torch.inf, values == -torch.inf, values.isnan()), -1).float()
    high, low, wrong = (torch.matmul(part, kinds) > 0).view(*output.shape[:-1], kinds.shape[-1]).chunk(3, -1)
    output = output.masked_fill(high, torch.inf).masked_fill(low, -torch.inf)
    return output.masked_fill(wrong | (high & low), torch.nan)


def _heads_of(tensor: Any, groups: int) -> Any:
    """``[B, H, M, L]`` with any leading part missing, as what broadcasts to ``[B, G, R, M, L]``."""
    tensor = tensor[(None,) * (4 - tensor.dim())]
    return tensor.unsqueeze(1) if tensor.shape[1] == 1 else tensor.unflatten(1, (groups, -1))


def _with_mask(mask: Any, visible: Any, bias: Any, groups: int) -> Any:
    """A caller's mask, joined with what is hidden and added already."""
    if mask is None:
        return visible, bias
    mask = _heads_of(mask, groups)
    if mask.dtype == torch.bool:
        return mask if visible is None else visible & mask, bias
    return visible, mask.float() if bias is None else bias + mask


def attend_in_sequence(
    q: Any, k: Any, v: Any, mask: Any, slopes: Any, offset: int,
    causal: bool, window_left: int, window_right: int, sm_scale: float, soft_cap: float,
) -> Any:  # fmt: skip
    """Queries ``[B, H, M, D]`` that stand at the keys `offset`, `offset` + 1, …"""
    groups = k.shape[1]
    visible = bias = None
    if causal or window_left >= 0 or window_right >= 0 or slopes is not None:
        stands = torch.arange(offset, offset + q.shape[2], device=q.device)[:, None]
        distance = torch.arange(k.shape[2], device=q.device) - stands
        hidden = None
        if causal:
            hidden = distance > 0
        if window_left >= 0:
            hidden = distance < -window_left if hidden is None else hidden | (distance < -window_left)
        if window_right >= 0:
            hidden = distance > window_right if hidden is None else hidden | (distance > window_right)
        visible = None if hidden is None else ~hidden
        if slopes is not None:
            bias = _heads_of(slopes[..., None, None], groups) * distance
    visible, bias = _with_mask(mask, visible, bias, groups)
    return attend(q, k, v, visible, bias, sm_scale, soft_cap)


def prefill(
    q: Any, k: Any, v: Any, mask: Any = None, alibi_slopes: Any = None, *,
    causal: bool, causal_offset: int, window_left: int, window_right: int, soft_cap: float, sm_scale: float, return_lse: bool,
    layout: str,
) -> Any:  # fmt: skip
    """Whole sequences."""
    if layout == "BSHD":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    output, lse = attend_in_sequence(
        q, k, v, mask, alibi_slopes, causal_offset, causal, window_left, window_right, sm_scale, soft_cap
    )  # fmt: skip
    output = output.to(q.dtype)
    if layout == "BSHD":
        output, lse = output.transpose(1, 2), lse.transpose(1, 2)
    return (output, lse) if return_lse else output


def decode(
    q: Any, k: Any, v: Any, kv_lens: Any = None, alibi_slopes: Any = None, *,
    window_left: int, soft_cap: float, sm_scale: float, return_lse: bool, layout: str,
) -> Any:  # fmt: skip
    """One query a row, which stands at the last of its keys."""
    if layout == "BSHD":
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    lengths = None if kv_lens is None else kv_lens[:, None]
    return decode_rows(q, k, v, lengths, alibi_slopes, window_left, soft_cap, sm_scale, return_lse)


def decode_rows(
    q: Any, k: Any, v: Any, lengths: Any, slopes: Any, window_left: int, soft_cap: float, sm_scale: float, return_lse: bool
) -> Any:
    """Rows of ``[B, 1]`` lengths, or all of them as long as there are keys."""
    places = torch.arange(k.shape[2], device=q.device)
    last = (k.shape[2] if lengths is None else lengths) - 1
    visible = None if lengths is None else places <= last
    if window_left >= 0:
        near = places >= last - window_left
        visible = near if visible is None else visible & near
    bias = None
    if slopes is not None:
        distance = places - last
        bias = _heads_of(slopes[..., None, None], k.shape[1]) * (distance if lengths is None else distance[:, None, None, None])
    if visible is not None and visible.dim() == 2:
        visible = visible[:, None, None, None]
    output, lse = attend(q.unsqueeze(2), k, v, visible, bias, sm_scale, soft_cap)
    output = output.squeeze(2).to(q.dtype)
    return (output, lse.squeeze(2)) if return_lse else output


def cross(
    q: Any, k: Any, v: Any, kv_lens: Any = None, mask: Any = None, *, sm_scale: float, return_lse: bool, layout: str
) -> Any:
    """An encoder's keys, from one query a row or from a sequence of them."""
    single = q.dim() == 3
    if single:
        q, mask = q.unsqueeze(2), None if mask is None else mask.unsqueeze(-2) if mask.dim() else mask
    elif layout == "BSHD":
        q = q.transpose(1, 2)
    if layout == "BSHD":
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    visible = None
    if kv_lens is not None:
        visible = (torch.arange(k.shape[2], device=q.device) < kv_lens[:, None])[:, None, None, None]
    visible, bias = _with_mask(mask, visible, None, k.shape[1])
    output, lse = attend(q, k, v, visible, bias, sm_scale, 0.0)
    output = output.to(q.dtype)
    if single:
        output, lse = output.squeeze(2), lse.squeeze(2)
    elif layout == "BSHD":
        output, lse = output.transpose(1, 2), lse.transpose(1, 2)
    return (output, lse) if return_lse else output


def sparse_block(
    q: Any, k: Any, v: Any, indptr: Any, indices: Any, *,
    block_rows: int, block_cols: int, soft_cap: float, sm_scale: float, return_lse: bool,
) -> Any:  # fmt: skip
    """Blocks of keys listed for each block of queries. One that is listed several times counts so often."""
    rows, columns = -(-q.shape[0] // block_rows), -(-k.shape[0] // block_cols)
    entries = torch.arange(indices.shape[0], device=q.device)
    row = torch.searchsorted(indptr[1:].contiguous(), entries.to(indptr.dtype), right=True)
    counts = torch.zeros((rows, columns), dtype=torch.int32, device=q.device)
    # Sums of integers do not depend on their order.
    counts.index_put_((row, indices.long()), torch.ones_like(indices), accumulate=True)
    of_query = torch.arange(q.shape[0], device=q.device) // block_rows
    of_key = torch.arange(k.shape[0], device=q.device) // block_cols
    listed = counts[of_query[:, None], of_key]
    q, k, v = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
    output, lse = attend(q, k, v, listed > 0, listed.float().log_(), sm_scale, soft_cap)
    output = output[0].transpose(0, 1).to(q.dtype)
    return (output, lse[0].T) if return_lse else output


def sparse_variable_block(
    q: Any, k: Any, v: Any, block_mask: Any, block_row_sizes: Any, block_col_sizes: Any, *,
    soft_cap: float, sm_scale: float, return_lse: bool,
) -> Any:  # fmt: skip
    """Blocks of different sizes, chosen for each key head by a mask of blocks."""
    head = torch.arange(k.shape[0], device=q.device)[:, None, None]
    row = _block_of(block_row_sizes, q.shape[1])[:, :, None]
    column = _block_of(block_col_sizes, k.shape[1])[:, None]
    visible = block_mask[head, row, column][None, :, None]
    output, lse = attend(q[None], k[None], v[None], visible, None, sm_scale, soft_cap)
    output = output[0].to(q.dtype)
    return (output, lse[0]) if return_lse else output


def _block_of(sizes: Any, count: int) -> Any:
    """The block of each of `count` places, by head."""
    ends = sizes.cumsum(-1, dtype=torch.int64)
    places = torch.arange(count, device=sizes.device).expand(sizes.shape[0], count).contiguous()
    return torch.searchsorted(ends, places, right=True)


def merge(v: Any, s: Any) -> Any:
    """Partial results over disjoint keys. A state that saw none takes no part whatever it holds."""
    if s.shape[-2] == 0:
        lse = s.new_full((*s.shape[:-2], s.shape[-1]), _HIDDEN)
        return v.new_zeros((*v.shape[:-3], *v.shape[-2:])), lse
    part = s != _HIDDEN
    top = s.amax(-2, keepdim=True)
    top = top.masked_fill(top == _HIDDEN, 0)
    # A weight that is too small for f32 must still carry an infinity of its value.
    weights = torch.exp(s - top).clamp_min(torch.finfo(torch.float32).tiny) * part
    total = weights.sum(-2)
    values = v.float().masked_fill(~part[..., None], 0)
    merged = (weights[..., None] * values).sum(-3) / total.masked_fill(total == 0, 1)[..., None]
    return merged.to(v.dtype), total.log() + top.squeeze(-2)
