"""Attention as matrix products and a softmax, in float32. Every function serves all operations of its form.

Scores are computed for some queries at a time, so that memory is bounded. There are no atomic additions:
results are deterministic.
"""

from __future__ import annotations

from typing import Any

import torch

from layerzero.backends.torch_reference._score_mod import ScoreMod, rows

_HIDDEN = float("-inf")
#: Maximum number of scores in memory, unless a single query has more.
_MAX_SCORES = 1 << 26


def is_capturing(tensor: Any) -> bool:
    """Whether a CUDA graph is being captured, which forbids synchronizing the device."""
    return bool(tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def attend(
    q: Any, k: Any, v: Any, visible: Any, bias: Any, sm_scale: float, soft_cap: float, sinks: Any = None, modify: ScoreMod | None = None
) -> Any:
    """Attention of ``q [B, H, M, D]`` over ``k [B, G, L, D]`` and ``v [B, G, L, V]``: output and natural lse, in f32.

    `visible` (bool) and `bias` (float) are None or broadcast to ``[B, G, H / G, M, L]``. Keys that are not
    visible, or whose score is -inf, are ignored whatever their values. `sinks` ``[H]`` are scores without a value.
    With `modify` everything is computed in f64.
    """
    dtype = torch.float32 if modify is None else torch.float64
    batch, heads, queries, _ = q.shape
    groups, length = k.shape[1], k.shape[2]
    if length == 0:
        output = q.new_zeros((batch, heads, queries, v.shape[-1]), dtype=torch.float32)
        if sinks is None:
            return output, output.new_full((batch, heads, queries), _HIDDEN)
        lse = torch.where(sinks < torch.inf, sinks, torch.nan)[:, None].expand(batch, heads, queries)
        return output.masked_fill(lse.isnan()[..., None], torch.nan), lse.contiguous()
    # One product for all queries that share a key head: keys are not repeated.
    q = (q.to(dtype) * sm_scale).unflatten(1, (groups, heads // groups))
    sinks = None if sinks is None else sinks.view(groups, heads // groups, 1, 1)
    keys, values = k.to(dtype).transpose(-1, -2), v.to(dtype)
    # 0 times a non-finite value is NaN. Such values are rare, so they are searched for first where
    # synchronizing is possible.
    non_finite = is_capturing(v) or not bool(values.isfinite().all())
    step = max(1, _MAX_SCORES // max(batch * heads * length, 1))
    if step >= queries:
        output, lse = _attend_some(q, keys, values, visible, bias, soft_cap, non_finite, sinks, modify, 0)
    else:
        output = q.new_empty((*q.shape[:-1], v.shape[-1]))
        lse = q.new_empty(q.shape[:-1])
        for first in range(0, queries, step):
            some = slice(first, min(first + step, queries))
            inside = (rows(visible, some), rows(bias, some), soft_cap, non_finite, sinks, modify, first)
            output[:, :, :, some], lse[:, :, :, some] = _attend_some(q[:, :, :, some], keys, values, *inside)
    return output.flatten(1, 2).float(), lse.flatten(1, 2).float()


def _attend_some(
    q: Any, keys: Any, values: Any, visible: Any, bias: Any, soft_cap: float, non_finite: bool, sinks: Any,
    modify: ScoreMod | None, first: int,
) -> Any:  # fmt: skip
    """Some queries ``[B, G, R, M, D]`` against all keys; `first` is the index of the first one."""
    shape = (*q.shape[:-1], keys.shape[-1])
    scores = torch.matmul(q.flatten(2, 3), keys).view(shape)
    if soft_cap > 0:
        scores = scores.div_(soft_cap).tanh_().mul_(soft_cap)
    if bias is not None:
        scores += bias
    if modify is not None:
        scores = modify(scores, first)
    if visible is not None:
        scores.masked_fill_(~visible, _HIDDEN)
    visible_keys = (scores != _HIDDEN).to(scores.dtype).flatten(2, 3) if non_finite else None
    top = scores.amax(-1, keepdim=True)
    if sinks is not None:
        top = torch.maximum(top, sinks)
    top = top.masked_fill(top == _HIDDEN, 0)
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (sinks - top).exp()
    weights = weights.flatten(2, 3)
    output = torch.matmul(weights, values.nan_to_num(0, 0, 0) if non_finite else values).view(*shape[:-1], values.shape[-1])
    output /= total.masked_fill(total == 0, 1)
    if non_finite:
        output = _with_non_finite_values(output, visible_keys, values).masked_fill(total.isnan(), torch.nan)
    return output, (total.log() + top)[..., 0]


def _with_non_finite_values(output: Any, visible_keys: Any, values: Any) -> Any:
    """Adds the infinities and NaN of the values of visible keys."""
    kinds = torch.cat((values == torch.inf, values == -torch.inf, values.isnan()), -1).to(values.dtype)
    high, low, wrong = (torch.matmul(visible_keys, kinds) > 0).view(*output.shape[:-1], kinds.shape[-1]).chunk(3, -1)
    output = output.masked_fill(high, torch.inf).masked_fill(low, -torch.inf)
    return output.masked_fill(wrong | (high & low), torch.nan)


def _heads_of(tensor: Any, groups: int) -> Any:
    """Reshapes ``[B, H, M, L]``, with any leading dimensions missing, to broadcast to ``[B, G, R, M, L]``."""
    tensor = tensor[(None,) * (4 - tensor.dim())]
    return tensor.unsqueeze(1) if tensor.shape[1] == 1 else tensor.unflatten(1, (groups, -1))


def _with_mask(mask: Any, visible: Any, bias: Any, groups: int) -> Any:
    """Combines the caller's mask with `visible` and `bias`."""
    if mask is None:
        return visible, bias
    mask = _heads_of(mask, groups)
    if mask.dtype == torch.bool:
        return mask if visible is None else visible & mask, bias
    return visible, mask.float() if bias is None else bias + mask


def attend_in_sequence(
    q: Any, k: Any, v: Any, mask: Any, slopes: Any, offset: int,
    causal: bool, window_left: int, window_right: int, sm_scale: float, soft_cap: float, sinks: Any = None,
    score_mod: Any = None, score_params: Any = None, request: int | None = None,
) -> Any:  # fmt: skip
    """Queries ``[B, H, M, D]`` at the positions `offset`, `offset` + 1, … of the keys. `request` is the batch index of a single row for
    `score_mod`."""
    groups = k.shape[1]
    visible = bias = modify = None
    if causal or window_left >= 0 or window_right >= 0 or slopes is not None or score_mod is not None:
        positions = torch.arange(offset, offset + q.shape[2], device=q.device)[:, None]
        distance = torch.arange(k.shape[2], device=q.device) - positions
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
        if score_mod is not None:
            # The caller's mask joins after the expression.
            visible, added = _with_mask(mask, visible, None, groups)
            batch = None if request is None else torch.full((), request, device=q.device)
            modify, mask = ScoreMod(score_mod, score_params, positions, groups, added, batch=batch), None
    visible, bias = _with_mask(mask, visible, bias, groups)
    return attend(q, k, v, visible, bias, sm_scale, soft_cap, sinks, modify)


def prefill(
    q: Any, k: Any, v: Any, mask: Any = None, alibi_slopes: Any = None, sinks: Any = None, score_mod: Any = None, score_params: Any = None, *,
    causal: bool, causal_offset: int, window_left: int, window_right: int, soft_cap: float, sm_scale: float, return_lse: bool,
    layout: str,
) -> Any:  # fmt: skip
    """Whole sequences."""
    if layout == "BSHD":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    output, lse = attend_in_sequence(
        q, k, v, mask, alibi_slopes, causal_offset, causal, window_left, window_right, sm_scale, soft_cap, sinks, score_mod, score_params
    )  # fmt: skip
    output = output.to(q.dtype)
    if layout == "BSHD":
        output, lse = output.transpose(1, 2), lse.transpose(1, 2)
    return (output, lse) if return_lse else output


def decode(
    q: Any, k: Any, v: Any, kv_lens: Any = None, alibi_slopes: Any = None, sinks: Any = None, score_mod: Any = None, score_params: Any = None, *,
    window_left: int, soft_cap: float, sm_scale: float, return_lse: bool, layout: str,
) -> Any:  # fmt: skip
    """One query per row, at the position of its last key."""
    if layout == "BSHD":
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    lengths = None if kv_lens is None else kv_lens[:, None]
    return decode_rows(q, k, v, lengths, alibi_slopes, window_left, soft_cap, sm_scale, return_lse, sinks, score_mod, score_params)


def decode_rows(
    q: Any, k: Any, v: Any, lengths: Any, slopes: Any, window_left: int, soft_cap: float, sm_scale: float, return_lse: bool, sinks: Any = None,
    score_mod: Any = None, score_params: Any = None,
) -> Any:  # fmt: skip
    """One query per row; `lengths` is ``[B, 1]``, or None if all keys count."""
    positions = torch.arange(k.shape[2], device=q.device)
    last = (k.shape[2] if lengths is None else lengths) - 1
    visible = None if lengths is None else positions <= last
    if window_left >= 0:
        near = positions >= last - window_left
        visible = near if visible is None else visible & near
    bias = None
    if slopes is not None:
        distance = positions - last
        bias = _heads_of(slopes[..., None, None], k.shape[1]) * (distance if lengths is None else distance[:, None, None, None])
    if visible is not None and visible.dim() == 2:
        visible = visible[:, None, None, None]
    modify = None
    if score_mod is not None:
        at = torch.full((), last, device=q.device) if lengths is None else last[:, None, None, None]
        modify = ScoreMod(score_mod, score_params, at, k.shape[1])
    output, lse = attend(q.unsqueeze(2), k, v, visible, bias, sm_scale, soft_cap, sinks, modify)
    output = output.squeeze(2).to(q.dtype)
    return (output, lse.squeeze(2)) if return_lse else output


def cross(
    q: Any, k: Any, v: Any, kv_lens: Any = None, mask: Any = None, *, sm_scale: float, return_lse: bool, layout: str
) -> Any:
    """Cross attention, from one query per row or from a sequence of queries."""
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
    """Blocks of keys listed for each block of queries. A block that is listed several times counts as often."""
    rows, columns = -(-q.shape[0] // block_rows), -(-k.shape[0] // block_cols)
    entries = torch.arange(indices.shape[0], device=q.device)
    row = torch.searchsorted(indptr[1:].contiguous(), entries.to(indptr.dtype), right=True)
    counts = torch.zeros((rows, columns), dtype=torch.int32, device=q.device)
    # Integer sums do not depend on the order, so accumulation is deterministic.
    counts.index_put_((row, indices.long()), torch.ones_like(indices), accumulate=True)
    of_query = torch.arange(q.shape[0], device=q.device) // block_rows
    of_key = torch.arange(k.shape[0], device=q.device) // block_cols
    listed = counts[of_query[:, None], of_key]
    q, k, v = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
    output, lse = attend(q, k, v, listed > 0, listed.float().log_(), sm_scale, soft_cap)
    output = output[0].transpose(0, 1).to(q.dtype)
    return (output, lse[0].T) if return_lse else output


def sparse_topk(q: Any, k: Any, v: Any, indices: Any, *, soft_cap: float, sm_scale: float, return_lse: bool) -> Any:
    """Keys listed for each query; some queries at a time, because their keys are copied."""
    queries, heads, groups = q.shape[0], q.shape[1], k.shape[1]
    output, lse = q.new_empty((queries, heads, v.shape[-1])), q.new_empty((queries, heads), dtype=torch.float32)
    group = torch.arange(groups, device=q.device)[:, None]
    # Without keys all indices are -1.
    listed = indices if k.shape[0] else indices[..., :0]
    step = max(1, _MAX_SCORES // max(groups * listed.shape[-1] * (k.shape[-1] + v.shape[-1]), 1))
    for first in range(0, queries, step):
        some = slice(first, min(first + step, queries))
        at = listed[some].long().clamp_min(0)
        visible = (listed[some] >= 0)[:, :, None, None]
        found, sums = attend(q[some, :, None], k[at, group], v[at, group], visible, None, sm_scale, soft_cap)
        output[some], lse[some] = found[:, :, 0].to(q.dtype), sums[:, :, 0]
    return (output, lse) if return_lse else output


def sparse_variable_block(
    q: Any, k: Any, v: Any, block_mask: Any, block_row_sizes: Any, block_col_sizes: Any, *,
    soft_cap: float, sm_scale: float, return_lse: bool,
) -> Any:  # fmt: skip
    """Blocks of different sizes, selected for each key head by a block mask."""
    head = torch.arange(k.shape[0], device=q.device)[:, None, None]
    row = _block_of(block_row_sizes, q.shape[1])[:, :, None]
    column = _block_of(block_col_sizes, k.shape[1])[:, None]
    visible = block_mask[head, row, column][None, :, None]
    output, lse = attend(q[None], k[None], v[None], visible, None, sm_scale, soft_cap)
    output = output[0].to(q.dtype)
    return (output, lse[0]) if return_lse else output


def _block_of(sizes: Any, count: int) -> Any:
    """The block of each of `count` positions, by head."""
    ends = sizes.cumsum(-1, dtype=torch.int64)
    positions = torch.arange(count, device=sizes.device).expand(sizes.shape[0], count).contiguous()
    return torch.searchsorted(ends, positions, right=True)


def merge(v: Any, s: Any) -> Any:
    """Merges partial results over disjoint keys. A state without keys is ignored whatever its values."""
    if s.shape[-2] == 0:
        lse = s.new_full((*s.shape[:-2], s.shape[-1]), _HIDDEN)
        return v.new_zeros((*v.shape[:-3], *v.shape[-2:])), lse
    has_keys = s != _HIDDEN
    top = s.amax(-2, keepdim=True)
    top = top.masked_fill(top == _HIDDEN, 0)
    # A weight that underflows in f32 must still propagate an infinite value.
    weights = torch.exp(s - top).clamp_min(torch.finfo(torch.float32).tiny) * has_keys
    total = weights.sum(-2)
    values = v.float().masked_fill(~has_keys[..., None], 0)
    merged = (weights[..., None] * values).sum(-3) / total.masked_fill(total == 0, 1)[..., None]
    return merged.to(v.dtype), total.log() + top.squeeze(-2)
