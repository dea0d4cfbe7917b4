"""Operations that torch has no function for, put together from those that it has. Slow, but nothing else has to be installed.

Everything stays on the device. Only decoding over pages waits for it, to know the longest request (what it gathers would be as large as
all requests together for each of them otherwise), and appending to pages, to know how many tokens there are to write.
"""

from __future__ import annotations

from typing import Any

import torch

_NONE = float("-inf")


def _attend(q: Any, k: Any, v: Any, visible: Any, bias: Any, sm_scale: float, soft_cap: float) -> Any:
    """Attention over ``q [..., M, D]``, ``k [..., L, D]``: output and natural lse. Keys that are not visible take no part."""
    scores = torch.matmul(q.float(), k.float().transpose(-1, -2)) * sm_scale
    if soft_cap > 0:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    if bias is not None:
        scores = scores + bias
    scores = scores.masked_fill(~visible, _NONE)
    top = scores.amax(-1, keepdim=True) if scores.shape[-1] else scores.new_full((*scores.shape[:-1], 1), _NONE)
    weights = torch.exp(scores - top.masked_fill(top == _NONE, 0))
    total = weights.sum(-1, keepdim=True)
    output = torch.matmul(weights, v.float()) / torch.where(total == 0, 1, total)
    return output, (torch.log(total) + top.masked_fill(top == _NONE, 0))[..., 0]


def _pages(indptr: Any, indices: Any, last: Any, page_size: int) -> Any:
    """Pages of each request as a table ``[batch, most]`` and the lengths."""
    batch = last.shape[0]
    counts = indptr.diff()
    columns = torch.arange(int(counts.max()) if batch else 0, device=indices.device)
    inside = columns < counts[:, None]
    place = torch.where(inside, indptr[:-1, None] + columns, 0)
    if indices.shape[0] == 0:
        return indices.new_zeros((batch, 0), dtype=torch.int64), torch.zeros_like(last)
    table = torch.where(inside, indices[place.long()], 0).long()
    return table, torch.where(counts > 0, (counts - 1) * page_size + last, 0)


def _gather(cache: Any, table: Any, layout: str) -> Any:
    """Keys or values of each request as ``[batch, heads, length, features]``; beyond its length whatever lies there, made 0."""
    found = cache[table]
    if layout == "NHD":
        found = found.flatten(1, 2).transpose(1, 2)
    else:
        found = found.transpose(1, 2).flatten(2, 3)
    return found


def _spread(k: Any, heads: int) -> Any:
    return k.repeat_interleave(heads // k.shape[1], 1) if k.shape[1] != heads else k


def _clean(values: Any, inside: Any) -> Any:
    """What lies beyond a request's length may be anything, also NaN, and must not reach a sum."""
    return values.masked_fill(~inside[:, None, :, None], 0)


def paged_decode(
    q: Any, k_cache: Any, v_cache: Any, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any, alibi_slopes: Any = None, *,
    window_left: int, soft_cap: float, sm_scale: float, return_lse: bool, layout: str,
) -> Any:  # fmt: skip
    """One query a request."""
    heads = q.shape[1]
    page_size = k_cache.shape[1 if layout == "NHD" else 2]
    table, lengths = _pages(kv_indptr, kv_indices, kv_last_page_len, page_size)
    places = torch.arange(table.shape[1] * page_size, device=q.device)
    inside = places < lengths[:, None]
    k = _spread(_clean(_gather(k_cache, table, layout), inside), heads)
    v = _spread(_clean(_gather(v_cache, table, layout), inside), heads)
    visible = inside
    if window_left >= 0:
        visible = visible & (places >= lengths[:, None] - 1 - window_left)
    bias = None
    if alibi_slopes is not None:
        slopes = alibi_slopes.expand(q.shape[0], heads)
        bias = (slopes[:, :, None] * (places - (lengths[:, None, None] - 1)))[:, :, None]
    output, lse = _attend(q[:, :, None], k, v, visible[:, None, None], bias, sm_scale, soft_cap)
    output = output[:, :, 0].to(q.dtype)
    return (output, lse[:, :, 0]) if return_lse else output


def _own_request(qo_indptr: Any, total: int, device: Any) -> Any:
    """The request of each query and its place in it."""
    rows = torch.arange(total, device=device)
    request = torch.searchsorted(qo_indptr[1:].contiguous(), rows, right=True)
    request = request.clamp(max=max(qo_indptr.shape[0] - 2, 0))
    return request, rows - qo_indptr[request]


def _prefill(
    q: Any, k: Any, v: Any, starts: Any, lengths: Any, qo_indptr: Any, alibi_slopes: Any, *,
    causal: bool, window_left: int, window_right: int, soft_cap: float, sm_scale: float, return_lse: bool,
) -> Any:  # fmt: skip
    """Queries of all requests against keys of all requests, each seeing its own: those from `starts`, as many as `lengths`."""
    total, heads = q.shape[:2]
    request, place = _own_request(qo_indptr, total, q.device)
    stands = place + lengths[request] - qo_indptr.diff()[request]
    columns = torch.arange(k.shape[0], device=q.device) - starts[request][:, None]
    distance = columns - stands[:, None]
    visible = (columns >= 0) & (columns < lengths[request][:, None])
    if causal:
        visible &= distance <= 0
    if window_left >= 0:
        visible &= distance >= -window_left
    if window_right >= 0:
        visible &= distance <= window_right
    bias = None
    if alibi_slopes is not None:
        slopes = alibi_slopes.expand(lengths.shape[0], heads)[request].T
        bias = slopes[:, :, None] * distance
    k, v = (_spread(tensor.transpose(0, 1)[None], heads)[0] for tensor in (k, v))
    output, lse = _attend(q.transpose(0, 1), k, v, visible[None], bias, sm_scale, soft_cap)
    output = output.transpose(0, 1).to(q.dtype)
    return (output, lse.T) if return_lse else output


def ragged_prefill(
    q: Any, k: Any, v: Any, qo_indptr: Any, kv_indptr: Any, alibi_slopes: Any = None, **params: Any
) -> Any:
    """Requests one after the other."""
    return _prefill(q, k, v, kv_indptr[:-1], kv_indptr.diff(), qo_indptr, alibi_slopes, **params)


def paged_prefill(
    q: Any, k_cache: Any, v_cache: Any, qo_indptr: Any, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any,
    alibi_slopes: Any = None, *, layout: str, **params: Any,
) -> Any:  # fmt: skip
    """Requests over pages: all listed pages one after the other, of which a request sees its own up to its length."""
    page_size = k_cache.shape[1 if layout == "NHD" else 2]
    counts = kv_indptr.diff()
    lengths = torch.where(counts > 0, (counts - 1) * page_size + kv_last_page_len, 0)
    k, v = (cache[kv_indices.long()] for cache in (k_cache, v_cache))
    if layout == "HND":
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    k, v = k.flatten(0, 1), v.flatten(0, 1)
    # Places behind the end of a last page may hold anything.
    page = torch.arange(kv_indices.shape[0], device=q.device)
    owner = torch.searchsorted(kv_indptr[1:].contiguous(), page, right=True).clamp(max=max(counts.shape[0] - 1, 0))
    filled = torch.where(page == kv_indptr[owner + 1] - 1, kv_last_page_len[owner], page_size)
    dirty = (torch.arange(page_size, device=q.device) >= filled[:, None]).flatten()
    k, v = (tensor.masked_fill(dirty[:, None, None], 0) for tensor in (k, v))
    return _prefill(q, k, v, kv_indptr[:-1] * page_size, lengths, qo_indptr, alibi_slopes, **params)


def latent(
    q_nope: Any, q_pe: Any, ckv: Any, kpe: Any, *,
    sm_scale: float, return_lse: bool, causal: bool = False, causal_offset: int = 0,
) -> Any:  # fmt: skip
    """Queries over contiguous latents."""
    tokens, length = q_nope.shape[0], ckv.shape[0]
    visible = torch.ones((tokens, length), dtype=torch.bool, device=q_nope.device)
    if causal:
        visible = visible.tril(causal_offset)
    q = torch.cat((q_nope, q_pe), -1).transpose(0, 1)
    k = torch.cat((ckv, kpe), -1)[:, 0]
    output, lse = _attend(q, k, ckv[:, 0], visible[None], None, sm_scale, 0.0)
    output = output.transpose(0, 1).to(q_nope.dtype)
    return (output, lse.T) if return_lse else output


def paged_latent(
    q_nope: Any, q_pe: Any, ckv_cache: Any, kpe_cache: Any, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any, *,
    sm_scale: float, return_lse: bool,
) -> Any:  # fmt: skip
    """One query a request over pages of latents."""
    page_size = ckv_cache.shape[1]
    table, lengths = _pages(kv_indptr, kv_indices, kv_last_page_len, page_size)
    inside = torch.arange(table.shape[1] * page_size, device=q_nope.device) < lengths[:, None]
    ckv = ckv_cache[table].flatten(1, 2).masked_fill(~inside[..., None], 0)
    kpe = kpe_cache[table].flatten(1, 2).masked_fill(~inside[..., None], 0)
    q = torch.cat((q_nope, q_pe), -1)
    output, lse = _attend(q, torch.cat((ckv, kpe), -1), ckv, inside[:, None], None, sm_scale, 0.0)
    output = output.to(q_nope.dtype)
    return (output, lse) if return_lse else output


_SATURATES_AT = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def append(k: Any, v: Any, k_cache: Any, v_cache: Any, slots: Any, *, layout: str) -> None:
    """New tokens into pages. Of tokens with the same slot only the last is written: torch does not say which of two writes wins."""
    ordered, order = torch.sort(slots, stable=True)
    chosen = ordered >= 0
    chosen[:-1] &= ordered[1:] != ordered[:-1]
    rows, slots = order[chosen], ordered[chosen]
    size = k_cache.shape[1 if layout == "NHD" else 2]
    page, place = slots // size, slots % size
    for cache, values in ((k_cache, k[rows]), (v_cache, v[rows])):
        largest = _SATURATES_AT.get(cache.dtype)
        if largest is not None:
            # Not every torch can write to places of an eight-bit float.
            cache, values = cache.view(torch.uint8), values.float().clamp(-largest, largest).to(cache.dtype).view(torch.uint8)
        if layout == "NHD":
            cache[page, place] = values.to(cache.dtype)
        else:
            cache[page, :, place] = values.to(cache.dtype)


def _uniform(rows: int, seed: Any, offset: Any, seed_tensor: Any, offset_tensor: Any, device: Any) -> Any:
    """Numbers in [0, 1) of the operations' own generator, so that a captured graph draws anew when its tensors change."""
    low = 0xFFFFFFFF
    key = torch.full((), seed, dtype=torch.int64, device=device) if seed_tensor is None else seed_tensor.view(())
    start = torch.full((), offset, dtype=torch.int64, device=device) if offset_tensor is None else offset_tensor.view(())
    numbers = torch.arange(rows, dtype=torch.int64, device=device)
    counter = [(start & low).expand(rows), ((start >> 32) & low).expand(rows), numbers & low, numbers >> 32]
    keys = [key & low, (key >> 32) & low]
    for _ in range(10):
        first, second = counter[0], counter[2]
        high0, low0 = _product(first, 0xD2511F53)
        high1, low1 = _product(second, 0xCD9E8D57)
        counter = [high1 ^ counter[1] ^ keys[0], low1, high0 ^ counter[3] ^ keys[1], low0]
        keys = [(keys[0] + 0x9E3779B9) & low, (keys[1] + 0xBB67AE85) & low]
    # 53 bits of the first two words, without a sign in the way.
    return ((counter[1] << 21) | (counter[0] >> 11)).double() * 2.0**-53


def _product(a: Any, b: int) -> Any:
    """Upper and lower half of the product of two numbers of 32 bits, in halves so that nothing overflows 64 signed bits."""
    low = 0xFFFFFFFF
    a0, a1 = a & 0xFFFF, a >> 16
    small, large = a0 * b, a1 * b
    lower = small + ((large & 0xFFFF) << 16)
    return (large >> 16) + (lower >> 32), lower & low


def _draw(logits: Any, keep: Any, temperature: float, draws: Any) -> Any:
    """One token a row among those that are kept, `keep` being told ordered weights, places and the order itself."""
    rows = logits.reshape(-1, logits.shape[-1])
    clean = rows.double().nan_to_num(nan=_NONE, posinf=float("inf"), neginf=_NONE)
    top = clean.amax(-1, keepdim=True)
    weights = torch.where(top == float("inf"), (clean == top).double(), torch.exp((clean - top) / temperature))
    weights = weights.masked_fill(top == _NONE, 0)
    order = torch.argsort(clean, dim=-1, descending=True, stable=True)
    kept = torch.zeros_like(weights, dtype=torch.bool).scatter(1, order, keep(weights.gather(1, order)))
    sums = (weights * kept).cumsum(-1)
    total = sums[:, -1:]
    chosen = (sums <= draws[:, None] * total).sum(-1)
    # Rounding may leave none: then the last one of positive weight.
    last = torch.where(kept & (weights > 0), torch.arange(rows.shape[1], device=rows.device), 0).amax(-1)
    chosen = torch.minimum(chosen, last)
    return torch.where(total[:, 0] > 0, chosen, -1).to(torch.int32).view(logits.shape[:-1])


def sample_topk(
    logits: Any, k_tensor: Any, seed_tensor: Any, offset_tensor: Any, *, k: int, temperature: float, seed: int, offset: int
) -> Any:
    """Among the k most likely."""
    rows = logits.numel() // logits.shape[-1]
    most = k if k_tensor is None else k_tensor.reshape(-1, 1)
    place = torch.arange(logits.shape[-1], device=logits.device)
    draws = _uniform(rows, seed, offset, seed_tensor, offset_tensor, logits.device)
    return _draw(logits, lambda weights: (place < most).expand(weights.shape), temperature, draws)


def sample_topp(
    logits: Any, p_tensor: Any, seed_tensor: Any, offset_tensor: Any, *,
    p: float, top_k: int, temperature: float, seed: int, offset: int,
) -> Any:  # fmt: skip
    """Among the most likely that reach p together, of the top_k most likely."""
    rows = logits.numel() // logits.shape[-1]
    reach = p if p_tensor is None else p_tensor.reshape(-1, 1).double()
    place = torch.arange(logits.shape[-1], device=logits.device)

    def keep(weights: Any) -> Any:
        if top_k:
            weights = weights * (place < top_k)
        sums = weights.cumsum(-1)
        before = sums - weights
        inside = (before < reach * sums[:, -1:]) | (place == 0)
        return inside & (place < top_k) if top_k else inside

    draws = _uniform(rows, seed, offset, seed_tensor, offset_tensor, logits.device)
    return _draw(logits, keep, temperature, draws)


_LARGEST = {"int8": 127.0, "fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}
_STORED = {"int8": torch.int8, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


def _groups(x: Any, granularity: str, block_size: int) -> Any:
    """A scale's place in the shape of its elements: what it is viewed as, and the elements in blocks where it has blocks."""
    if granularity == "block":
        padding = -x.shape[-1] % block_size
        return torch.nn.functional.pad(x, (0, padding)).unflatten(-1, (-1, block_size))
    return x


def _over(scale: Any, granularity: str) -> Any:
    return scale if granularity == "tensor" else scale[..., None]


def _back(values: Any, granularity: str, inner: int) -> Any:
    return values.flatten(-2)[..., :inner] if granularity == "block" else values


def quantize(
    x: Any, scale: Any, zero_point: Any, global_scale: Any, *, format: str, granularity: str, block_size: int
) -> Any:
    """To a byte an element, rounded to nearest even and saturated."""
    values = _groups(x, granularity, block_size)
    made = None
    if scale is None:
        dims = {"tensor": tuple(range(values.dim())), "block": (-1,)}.get(granularity, (*range(values.dim() - 2), values.dim() - 1))
        top = values.abs().amax(dims).float()
        # A division by a number of the host would become a product with its reciprocal, which rounds otherwise.
        scale = top / torch.full((), _LARGEST[format], device=x.device)
        scale = torch.where(top == 0, 1.0, torch.where(scale == 0, 2.0**-149, scale))
        made = scale
    # In single precision, in one kernel: a scale with a dimension decides the dtype as one without would not.
    ratio = values / (scale.reshape(1) if granularity == "tensor" else scale[..., None])
    if format == "int8":
        rounded = torch.round(ratio).nan_to_num(nan=0.0)
        if zero_point is not None:
            rounded = rounded.double() + _over(zero_point, granularity).double()
        quantized = rounded.clamp(-128, 127).to(torch.int8)
    else:
        largest = _LARGEST[format]
        quantized = ratio.clamp_(-largest, largest).to(_STORED[format])
    if granularity == "block":
        quantized = quantized.view(torch.uint8).flatten(-2)[..., : x.shape[-1]].contiguous().view(quantized.dtype)
    return quantized if made is None else (quantized, made)


def dequantize(
    quantized: Any, scale: Any, zero_point: Any, global_scale: Any, *,
    format: str, granularity: str, block_size: int, inner: int, output_dtype: str,
) -> Any:  # fmt: skip
    """From a byte an element."""
    values = _groups(quantized.float(), granularity, block_size)
    if zero_point is None:
        values = values * _over(scale, granularity)
    else:
        difference = values.double() - _over(zero_point, granularity).double()
        values = (difference * _over(scale, granularity).double()).float()
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[output_dtype]
    return _back(values, granularity, inner).to(dtype)
