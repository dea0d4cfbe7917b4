"""Sampling with the random numbers that the operations define: the tokens are those of the host reference.

Prefix sums are computed by doubling distances instead of `cumsum`, which is not deterministic on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch

from layerzero.backends.torch_reference._order import best_first, in_order

_NONE = float("-inf")
_LOW = 0xFFFFFFFF
#: The constants by which the schemas separate the random streams of the operations.
TOPK, TOPP, SPECULATIVE, MINP = 1, 2, 3, 4


def uniforms(stream: int, count: int, seed: int, offset: int, seed_tensor: Any, offset_tensor: Any, device: Any) -> Any:
    """The two numbers in [0, 1) of each Philox4x32-10 block, for `count` rows or positions.

    Seed and offset tensors stay on the device, so that a captured graph samples anew when they change.
    """

    def words(value: int, tensor: Any) -> Any:
        if tensor is not None:
            return tensor & _LOW, (tensor >> 32) & _LOW
        return value & _LOW, (value >> 32) & _LOW

    keys = list(words(seed, seed_tensor))
    numbers = torch.arange(count, dtype=torch.int64, device=device) + (stream << 56)
    zero = torch.zeros_like(numbers)
    low, high = words(offset, offset_tensor)
    counter = [zero + low, zero + high, numbers & _LOW, numbers >> 32]
    for _ in range(10):
        high0, low0 = _product(counter[0], 0xD2511F53)
        high1, low1 = _product(counter[2], 0xCD9E8D57)
        counter = [high1 ^ counter[1] ^ keys[0], low1, high0 ^ counter[3] ^ keys[1], low0]
        keys = [(keys[0] + 0x9E3779B9) & _LOW, (keys[1] + 0xBB67AE85) & _LOW]
    return _fraction(*counter[:2]), _fraction(*counter[2:])


def _product(a: Any, b: int) -> Any:
    """Upper and lower half of the product of two 32-bit numbers, computed in 16-bit parts so that int64 does not overflow."""
    a0, a1 = a & 0xFFFF, a >> 16
    small, large = a0 * b, a1 * b
    lower = small + ((large & 0xFFFF) << 16)
    return (large >> 16) + (lower >> 32), lower & _LOW


def _fraction(first: Any, second: Any) -> Any:
    """The upper 53 of 64 bits as a fraction."""
    return ((second << 21) | (first >> 11)).double() * 2.0**-53


def _running_sums(values: Any) -> Any:
    """Inclusive prefix sums along the last dimension, always added in the same order."""
    distance = 1
    while distance < values.shape[-1]:
        values = torch.cat((values[..., :distance], values[..., distance:] + values[..., :-distance]), -1)
        distance *= 2
    return values


def _first(condition: Any) -> Any:
    """Index of the first true element, and whether there is one."""
    return condition.to(torch.int8).argmax(-1), condition.any(-1)


def _choose(weights: Any, draws: Any) -> Any:
    """The first token whose prefix sum of weights exceeds draw times total; -1 if no weight is positive."""
    sums = _running_sums(weights)
    positive = weights > 0
    token, found = _first((sums > (draws * sums[:, -1])[:, None]) & positive)
    # Rounding may leave no such token: then the last one of positive weight is used.
    index = torch.arange(weights.shape[1], device=weights.device)
    last = torch.where(positive, index, -1).amax(-1)
    return torch.where(found, token, last).to(torch.int32)


def _candidates(logits: Any, temperature: float) -> Any:
    """Logits as f64, their weights, and tokens by descending logit, lower index first among equals."""
    # Adding 0 makes -0 equal to 0; NaN is never sampled.
    rows = (logits.reshape(-1, logits.shape[-1]).double() + 0.0).nan_to_num(nan=_NONE, posinf=torch.inf, neginf=_NONE)
    top = rows.amax(-1, keepdim=True)
    # A division by a Python number would become a multiplication with its reciprocal, which rounds
    # differently.
    heat = torch.full((), temperature, dtype=torch.float64, device=rows.device)
    weights = torch.where(top == torch.inf, (rows == top).double(), torch.exp((rows - top) / heat))
    return rows, weights.masked_fill(rows == _NONE, 0), torch.argsort(rows, dim=-1, descending=True, stable=True)


def _draw(rows: Any, weights: Any, order: Any, count: Any, draws: Any, shape: Any) -> Any:
    """Samples one token per row among the first `count [rows, 1]` in order."""
    last = order.gather(1, count - 1)
    bound = rows.gather(1, last)
    index = torch.arange(rows.shape[1], device=rows.device)
    kept = (rows > bound) | ((rows == bound) & (index <= last))
    return _choose(weights * kept, draws).view(shape)


def topk(
    logits: Any, k_tensor: Any = None, seed_tensor: Any = None, offset_tensor: Any = None, *,
    k: int, temperature: float, seed: int, offset: int,
) -> Any:  # fmt: skip
    """Top-k sampling."""
    shape, vocab = logits.shape[:-1], logits.shape[-1]
    if shape.numel() == 0:
        return logits.new_empty(shape, dtype=torch.int32)
    rows, weights, order = _candidates(logits, temperature)
    if k_tensor is None:
        count = torch.full((rows.shape[0], 1), min(k, vocab), device=rows.device)
    else:
        count = k_tensor.reshape(-1, 1).long().clamp(1, vocab)
    draws, _ = uniforms(TOPK, rows.shape[0], seed, offset, seed_tensor, offset_tensor, rows.device)
    return _draw(rows, weights, order, count, draws, shape)


def topp(
    logits: Any, p_tensor: Any = None, seed_tensor: Any = None, offset_tensor: Any = None, *,
    p: float, top_k: int, temperature: float, seed: int, offset: int,
) -> Any:  # fmt: skip
    """Top-p sampling among the top_k most likely tokens."""
    shape = logits.shape[:-1]
    if shape.numel() == 0:
        return logits.new_empty(shape, dtype=torch.int32)
    rows, weights, order = _candidates(logits, temperature)
    limit = min(top_k, rows.shape[1]) if top_k else rows.shape[1]
    sums = _running_sums(weights.gather(1, order[:, :limit]))
    threshold = p if p_tensor is None else p_tensor.reshape(-1, 1).double()
    index, reached = _first(sums >= threshold * sums[:, -1:])
    count = torch.where(reached, index + 1, limit)[:, None]
    draws, _ = uniforms(TOPP, rows.shape[0], seed, offset, seed_tensor, offset_tensor, rows.device)
    return _draw(rows, weights, order, count, draws, shape)


def minp(
    logits: Any, p_tensor: Any = None, seed_tensor: Any = None, offset_tensor: Any = None, *,
    p: float, temperature: float, seed: int, offset: int,
) -> Any:  # fmt: skip
    """Min-p sampling."""
    shape = logits.shape[:-1]
    if shape.numel() == 0:
        return logits.new_empty(shape, dtype=torch.int32)
    _, weights, _ = _candidates(logits, temperature)
    threshold = p if p_tensor is None else p_tensor.reshape(-1, 1).double()
    draws, _ = uniforms(MINP, weights.shape[0], seed, offset, seed_tensor, offset_tensor, weights.device)
    return _choose(weights * (weights >= threshold), draws).view(shape)


def mask(logits: Any, bitmask: Any) -> Any:
    """Tokens whose bit is not set become -inf."""
    bits = bitmask[..., None] >> torch.arange(32, dtype=bitmask.dtype, device=bitmask.device) & 1
    return torch.where(bits.flatten(-2)[..., : logits.shape[-1]] == 1, logits, -torch.inf).to(logits.dtype)


def penalties(
    logits: Any, output_tokens: Any, prompt_tokens: Any = None, repetition_tensor: Any = None, frequency_tensor: Any = None,
    presence_tensor: Any = None, *, repetition: float, frequency: float, presence: float,
) -> Any:  # fmt: skip
    """In f32, with the number of occurrences of every token."""

    def counts(tokens: Any) -> Any:
        # -1 is counted in an additional column. Sums of ones are exact in any order.
        found = torch.zeros((*logits.shape[:-1], logits.shape[-1] + 1), dtype=torch.int32, device=logits.device)
        found.scatter_add_(-1, tokens.long() + 1, torch.ones_like(tokens))
        return found[..., 1:]

    def each(param: float, tensor: Any) -> Any:
        return param if tensor is None else tensor[..., None]

    generated = counts(output_tokens)
    seen = generated > 0 if prompt_tokens is None else (generated > 0) | (counts(prompt_tokens) > 0)
    factor = each(repetition, repetition_tensor)
    wide = logits.float()
    wide = torch.where(seen, torch.where(wide > 0, wide / factor, wide * factor), wide)
    subtracted = each(frequency, frequency_tensor) * generated + each(presence, presence_tensor)
    return torch.where(generated > 0, wide - subtracted, wide).to(logits.dtype)


def logprobs(logits: Any, tokens: Any, *, top_k: int) -> Any:
    """The logarithm of the softmax in f32, and the best tokens by their logits."""
    every = torch.log_softmax(logits.float(), -1)
    own = tokens.long()[..., None]
    ranks = (logits > logits.gather(-1, own)).sum(-1) + 1
    order = best_first(logits) if top_k else torch.zeros((*logits.shape[:-1], 0), dtype=torch.int64, device=logits.device)
    best, best_tokens = in_order(every, order, top_k)
    return every.gather(-1, own)[..., 0], ranks.to(torch.int32), best, best_tokens.to(torch.int32)


def speculative(
    draft_probs: Any, draft_tokens: Any, target_probs: Any, seed_tensor: Any = None, offset_tensor: Any = None, *,
    seed: int, offset: int,
) -> Any:  # fmt: skip
    """Accepts drafts in order until one is rejected, then samples one token."""
    batch, length = draft_tokens.shape
    if batch == 0:
        return draft_tokens.new_empty((0, length + 1)), draft_tokens.new_empty((0,))

    def clean(probabilities: Any) -> Any:
        return probabilities.double().nan_to_num(nan=0.0, posinf=torch.inf, neginf=0.0).clamp_min(0)

    accept, emit = uniforms(SPECULATIVE, batch * (length + 1), seed, offset, seed_tensor, offset_tensor, draft_probs.device)
    accept, emit = accept.view(batch, -1), emit.view(batch, -1)
    token = draft_tokens.long()[..., None]
    q, p = (clean(probs.gather(2, token)[..., 0]) for probs in (draft_probs, target_probs[:, :length]))
    refused = torch.nn.functional.pad(~(accept[:, :length] * q < p), (0, 1), value=True)
    accepted, _ = _first(refused)
    row = torch.arange(batch, device=accepted.device)
    target = clean(target_probs[row, accepted])
    weights = target
    if length:
        draft = clean(draft_probs[row, accepted.clamp(max=length - 1)])
        rest = (target - draft).nan_to_num(nan=0.0, posinf=torch.inf).clamp_min(0)
        use = (accepted < length) & (rest > 0).any(-1)
        weights = torch.where(use[:, None], rest, target)
    emitted = _choose(weights, emit[row, accepted])
    position = torch.arange(length + 1, device=accepted.device)
    drafted = torch.nn.functional.pad(draft_tokens, (0, 1), value=-1)
    tokens = torch.where(position < accepted[:, None], drafted, -1)
    tokens = torch.where(position == accepted[:, None], emitted[:, None], tokens)
    return tokens.to(torch.int32), accepted.to(torch.int32)
