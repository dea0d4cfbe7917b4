"""Shapes of sparse attention and of speculative sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from layerzero._bench.shapes import Shape, _normal


def _block(tokens: int, heads: int, kv_heads: int, head_dim: int, block_rows: int, block_cols: int, listed: int) -> Shape:
    """Every block of queries sees `listed` random blocks of keys."""
    q, k, v = _normal(tokens, heads, head_dim), _normal(tokens, kv_heads, head_dim), _normal(tokens, kv_heads, head_dim)
    rows, columns = tokens // block_rows, tokens // block_cols
    chosen = torch.rand(rows, columns, device="cuda").argsort(-1)[:, :listed].sort(-1).values
    mask = torch.zeros(rows, columns, dtype=torch.bool, device="cuda").scatter_(1, chosen, True)
    mask = mask.repeat_interleave(block_rows, 0).repeat_interleave(block_cols, 1)
    query, key, value = (one.transpose(0, 1)[None] for one in (q, k, v))
    arguments = {
        "q": q, "k": k, "v": v, "indptr": torch.arange(0, rows * listed + 1, listed, dtype=torch.int32, device="cuda"),
        "indices": chosen.flatten().int(), "block_rows": block_rows, "block_cols": block_cols,
    }  # fmt: skip

    def by_torch() -> Any:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=heads != kv_heads)[0].transpose(0, 1)

    name = f"{tokens} tokens H{heads}/{kv_heads} D{head_dim}, {listed} of {columns} blocks of {block_rows}x{block_cols}"
    return Shape("sparse attention", name, "attention.sparse.block", arguments, by_torch, False)


def _variable(tokens: int, heads: int, kv_heads: int, head_dim: int, row_blocks: int, col_blocks: int, share: float) -> Shape:
    """Blocks of queries and keys of random sizes, of which a share is visible."""
    q, k, v = _normal(heads, tokens, head_dim), _normal(kv_heads, tokens, head_dim), _normal(kv_heads, tokens, head_dim)
    visible = torch.rand(kv_heads, row_blocks, col_blocks, device="cuda") < share
    visible[..., 0] = True

    def sizes(blocks: int) -> Any:
        cuts = torch.rand(kv_heads, tokens - 1, device="cuda").argsort(-1)[:, : blocks - 1].sort(-1).values + 1
        ends = F.pad(F.pad(cuts, (0, 1), value=tokens), (1, 0))
        return ends.diff(dim=-1).int()

    rows, columns = sizes(row_blocks), sizes(col_blocks)
    mask = torch.stack(
        [visible[g].repeat_interleave(rows[g].long(), 0).repeat_interleave(columns[g].long(), 1) for g in range(kv_heads)]
    ).repeat_interleave(heads // kv_heads, 0)[None]
    arguments = {"q": q, "k": k, "v": v, "block_mask": visible, "block_row_sizes": rows, "block_col_sizes": columns}

    def by_torch() -> Any:
        return F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, enable_gqa=heads != kv_heads)[0]

    name = f"{tokens} tokens H{heads}/{kv_heads} D{head_dim}, {share:.0%} of {row_blocks}x{col_blocks} blocks"
    return Shape("sparse attention", name, "attention.sparse.variable_block", arguments, by_torch, False)


def _speculative(batch: int, length: int, vocab: int) -> Shape:
    draft, target = (torch.softmax(_normal(batch, count, vocab, dtype=torch.float32), -1) for count in (length, length + 1))
    tokens = torch.randint(0, vocab, (batch, length), dtype=torch.int32, device="cuda")

    def by_torch() -> Any:
        own = tokens.long()[..., None]
        q, p = draft.gather(2, own)[..., 0], target[:, :length].gather(2, own)[..., 0]
        refused = F.pad(torch.rand_like(q) * q >= p, (0, 1), value=True)
        accepted = refused.int().argmax(-1)
        row = torch.arange(batch, device="cuda")
        rest = (target[row, accepted] - F.pad(draft, (0, 0, 0, 1))[row, accepted]).clamp_min(0)
        emitted = torch.multinomial(rest, 1)[:, 0].int()
        position = torch.arange(length + 1, device="cuda")
        found = torch.where(position < accepted[:, None], F.pad(tokens, (0, 1)), -1)
        return torch.where(position == accepted[:, None], emitted[:, None], found), accepted.int()

    arguments = {"draft_probs": draft, "draft_tokens": tokens, "target_probs": target, "seed": 7}
    return Shape("speculative sampling", f"{batch}x{length}x{vocab}", "sampling.speculative", arguments, by_torch, True)


def shapes() -> Iterator[Callable[[], Shape]]:
    """Factories of the shapes."""
    for block in ((2048, 32, 8, 128, 64, 64, 8), (4096, 24, 24, 128, 128, 64, 16), (8192, 32, 8, 128, 64, 64, 32)):
        yield partial(_block, *block)
    for variable in ((1024, 32, 8, 128, 16, 32, 0.3), (2048, 40, 40, 128, 64, 128, 0.25)):
        yield partial(_variable, *variable)
    for speculative in ((16, 5, 128256), (4, 3, 151936), (1, 7, 32000)):
        yield partial(_speculative, *speculative)
