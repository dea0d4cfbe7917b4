"""Speculative sampling in two kernels. Seeds and offsets on the device are read there, so that a captured graph can be replayed with others."""

from __future__ import annotations

from typing import Any

import torch

from layerzero.backends import triton as launching
from layerzero.backends.triton import _sampling_kernels as kernels

#: Tokens that a program adds up.
_PART = 2048


def _words(number: int) -> tuple[int, int]:
    """The low and the high word of a 64-bit number, as signed 32-bit integers."""
    return tuple((word & 0xFFFFFFFF) - ((word & 0x80000000) << 1) for word in (number, number >> 32))  # type: ignore[return-value]


def speculative(
    draft_probs: Any, draft_tokens: Any, target_probs: Any, seed_tensor: Any = None, offset_tensor: Any = None, *, seed: int, offset: int
) -> Any:
    """`sampling.speculative`."""
    batch, length = draft_tokens.shape
    vocab, device = target_probs.shape[-1], target_probs.get_device()
    tokens = draft_tokens.new_empty((batch, length + 1))
    accepted = draft_tokens.new_empty(batch)
    width = min(_PART, launching._power(vocab))
    parts = -(-vocab // width)
    uniforms = target_probs.new_empty(batch, dtype=torch.float64)
    sums = target_probs.new_empty((batch, parts, 2), dtype=torch.float64)
    flags = (seed_tensor is not None, offset_tensor is not None)

    def verifying() -> Any:
        return launching._Recipe(kernels.verify, (*flags, launching._power(length + 1), width), 8)

    given = [tokens if one is None else one for one in (seed_tensor, offset_tensor)]
    launching._launch(
        ("speculative.verify", length, vocab, *flags, device), batch, parts,
        (draft_probs, draft_tokens, target_probs, *given, tokens, accepted, uniforms, sums), (*_words(seed), *_words(offset), length, vocab, parts),
        verifying,
    )  # fmt: skip

    def emitting() -> Any:
        return launching._Recipe(kernels.emit, (launching._power(parts), width), 8)

    launching._launch(
        ("speculative.emit", length, vocab, device), batch, 1, (draft_probs, target_probs, tokens, accepted, uniforms, sums),
        (length, vocab, parts), emitting,
    )  # fmt: skip
    return tokens, accepted
