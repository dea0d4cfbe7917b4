"""Triton kernels of mixtures of experts: slots (a token and one of its experts) sorted by expert, and products of each expert's slots."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from layerzero.backends.triton._linear_kernels import _activate


@triton.jit
def count(indices, counts, slots, BLOCK: tl.constexpr):
    """The number of slots of one expert."""
    expert = tl.program_id(0)
    found = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, slots, BLOCK):
        at = start + tl.arange(0, BLOCK)
        found += (tl.load(indices + at, mask=at < slots, other=-1) == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(found, 0))


@triton.jit
def place(indices, counts, order, tiles, slots, experts, M_BLOCK: tl.constexpr, EXPERTS: tl.constexpr, BLOCK: tl.constexpr):
    """Writes the slots of one expert in order, filled up to whole tiles with the number of slots, and the expert of each of its tiles.
    `tiles` begins with the number of tiles."""
    expert = tl.program_id(0)
    every = tl.arange(0, EXPERTS)
    tiles_of = (tl.load(counts + every, mask=every < experts, other=0) + M_BLOCK - 1) // M_BLOCK
    if expert == 0:
        tl.store(tiles, tl.sum(tiles_of, 0))
    first = tl.sum(tl.where(every < expert, tiles_of, 0), 0)
    end = first + tl.sum(tl.where(every == expert, tiles_of, 0), 0)
    for tile in range(first, end):
        tl.store(tiles + 1 + tile, expert)
    next_one = first * M_BLOCK
    for start in range(0, slots, BLOCK):
        at = start + tl.arange(0, BLOCK)
        is_own = (tl.load(indices + at, mask=at < slots, other=-1) == expert).to(tl.int32)
        tl.store(order + next_one + tl.cumsum(is_own, 0) - 1, at, mask=is_own != 0)
        next_one += tl.sum(is_own, 0)
    rest = next_one + tl.arange(0, M_BLOCK)
    tl.store(order + rest, tl.zeros((M_BLOCK,), tl.int32) + slots, mask=rest < end * M_BLOCK)


@triton.jit
def _slots_of(tile, order, tiles, slots, M_BLOCK: tl.constexpr):
    """The expert of a tile, its rows, their slots, and which of them exist."""
    m = tile * M_BLOCK + tl.arange(0, M_BLOCK)
    slot = tl.load(order + m)
    return tl.load(tiles + 1 + tile).to(tl.int64), m, slot, slot < slots


@triton.jit
def _gated(gate, up, alpha, limit, up_offset, KIND: tl.constexpr, HAS_LIMIT: tl.constexpr):
    """The activated gate times up, both bounded with `HAS_LIMIT`."""
    if HAS_LIMIT:
        # Comparisons keep NaN.
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    if KIND == 2:
        gate = gate / (1.0 + tl.exp(-alpha * gate))
    else:
        gate = _activate(gate, KIND)
    return gate * (up + up_offset)


@triton.jit
def gate_up(
    x, weight, bias, order, tiles, hidden, slots, top_k, inner, middle, alpha, limit, up_offset, KIND: tl.constexpr, HAS_BIAS: tl.constexpr,
    INTERLEAVED: tl.constexpr, HAS_LIMIT: tl.constexpr, EVEN: tl.constexpr, M_BLOCK: tl.constexpr, N_BLOCK: tl.constexpr,
    K_BLOCK: tl.constexpr,
):  # fmt: skip
    """Some gated features of a tile of slots."""
    tile = tl.program_id(0)
    if tile >= tl.load(tiles):
        return
    expert, m, slot, is_row = _slots_of(tile, order, tiles, slots, M_BLOCK)
    n = tl.program_id(1) * N_BLOCK + tl.arange(0, N_BLOCK)
    is_column = n < middle
    gate_row = 2 * n if INTERLEAVED else n
    up_row = 2 * n + 1 if INTERLEAVED else middle + n
    at = tl.arange(0, K_BLOCK)
    lefts = x + (slot // top_k).to(tl.int64)[:, None] * inner + at[None, :]
    weights = weight + expert * 2 * middle * inner
    gates = weights + gate_row.to(tl.int64)[None, :] * inner + at[:, None]
    ups = weights + up_row.to(tl.int64)[None, :] * inner + at[:, None]
    gate = tl.zeros((M_BLOCK, N_BLOCK), tl.float32)
    up = tl.zeros((M_BLOCK, N_BLOCK), tl.float32)
    for start in range(0, inner, K_BLOCK):
        if EVEN:
            left = tl.load(lefts + start, mask=is_row[:, None], other=0.0)
            gate = tl.dot(left, tl.load(gates + start), gate, input_precision="tf32x3")
            up = tl.dot(left, tl.load(ups + start), up, input_precision="tf32x3")
        else:
            inside = start + at < inner
            both = is_column[None, :] & inside[:, None]
            left = tl.load(lefts + start, mask=is_row[:, None] & inside[None, :], other=0.0)
            gate = tl.dot(left, tl.load(gates + start, mask=both, other=0.0), gate, input_precision="tf32x3")
            up = tl.dot(left, tl.load(ups + start, mask=both, other=0.0), up, input_precision="tf32x3")
    if HAS_BIAS:
        biases = bias + expert * 2 * middle
        gate += tl.load(biases + gate_row, mask=is_column, other=0.0).to(tl.float32)[None, :]
        up += tl.load(biases + up_row, mask=is_column, other=0.0).to(tl.float32)[None, :]
    result = _gated(gate, up, alpha, limit, up_offset, KIND, HAS_LIMIT)
    where = hidden + m.to(tl.int64)[:, None] * middle + n[None, :]
    tl.store(where, result.to(hidden.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


@triton.jit
def down(
    hidden, weight, bias, order, tiles, factors, results, slots, middle, outer, HAS_BIAS: tl.constexpr, EVEN: tl.constexpr,
    M_BLOCK: tl.constexpr, N_BLOCK: tl.constexpr, K_BLOCK: tl.constexpr,
):  # fmt: skip
    """Some weighted output features of a tile of slots, in f32 at the place of each slot."""
    tile = tl.program_id(0)
    if tile >= tl.load(tiles):
        return
    expert, m, slot, is_row = _slots_of(tile, order, tiles, slots, M_BLOCK)
    n = tl.program_id(1) * N_BLOCK + tl.arange(0, N_BLOCK)
    is_column = n < outer
    at = tl.arange(0, K_BLOCK)
    lefts = hidden + m.to(tl.int64)[:, None] * middle + at[None, :]
    weights = weight + expert * outer * middle + n.to(tl.int64)[None, :] * middle + at[:, None]
    sums = tl.zeros((M_BLOCK, N_BLOCK), tl.float32)
    for start in range(0, middle, K_BLOCK):
        if EVEN:
            left = tl.load(lefts + start, mask=is_row[:, None], other=0.0)
            sums = tl.dot(left, tl.load(weights + start), sums, input_precision="tf32x3")
        else:
            inside = start + at < middle
            left = tl.load(lefts + start, mask=is_row[:, None] & inside[None, :], other=0.0)
            right = tl.load(weights + start, mask=is_column[None, :] & inside[:, None], other=0.0)
            sums = tl.dot(left, right, sums, input_precision="tf32x3")
    if HAS_BIAS:
        sums += tl.load(bias + expert * outer + n, mask=is_column, other=0.0).to(tl.float32)[None, :]
    sums *= tl.load(factors + slot, mask=is_row, other=0.0)[:, None]
    tl.store(results + slot.to(tl.int64)[:, None] * outer + n[None, :], sums, mask=is_row[:, None] & is_column[None, :])


@triton.jit
def combine(results, indices, out, top_k, experts, outer, BLOCK: tl.constexpr):
    """Adds the results of a token's slots in order."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = n < outer
    sums = tl.zeros((BLOCK,), tl.float32)
    for slot in range(0, top_k):
        expert = tl.load(indices + row * top_k + slot)
        found = tl.load(results + (row * top_k + slot) * outer + n, mask=is_column, other=0.0)
        # Slots without an expert have no result.
        sums += tl.where((expert >= 0) & (expert < experts), found, 0.0)
    tl.store(out + row * outer + n, sums.to(out.dtype.element_ty), mask=is_column)


@triton.jit
def route(
    logits, bias, weights, indices, experts, top_k, top_groups, scale, SIGMOID: tl.constexpr, HAS_BIAS: tl.constexpr,
    RENORMALIZE: tl.constexpr, TOP2: tl.constexpr, GROUPS: tl.constexpr, GROUP_BLOCK: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The experts and weights of one row, in f64 so that the choice does not depend on rounding. `GROUPS` groups of `SIZE` experts are the
    rows of a tile of `GROUP_BLOCK` by `BLOCK`."""
    row = tl.program_id(0).to(tl.int64)
    group, member = tl.arange(0, GROUP_BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    expert = group * SIZE + member
    exists = (group < GROUPS) & (member < SIZE)
    values = tl.load(logits + row * experts + expert, mask=exists, other=float("-inf")).to(tl.float64)
    is_number = values == values
    if SIGMOID:
        numerators = 1.0 / (1.0 + tl.exp(-values))
        total = tl.sum(tl.sum(tl.zeros((GROUP_BLOCK, BLOCK), tl.float64), 1), 0) + 1.0
    else:
        largest = tl.max(tl.max(tl.where(is_number, values, float("-inf")), 1), 0)
        numerators = tl.exp(values - largest)
        total = tl.sum(tl.sum(tl.where(exists, numerators, 0.0), 1), 0)
    choice = values
    if HAS_BIAS:
        choice = numerators / total + tl.load(bias + expert, mask=exists, other=0.0).to(tl.float64)
    # Ranks: 0 taken or absent, 1 NaN, 2 others. The lowest index wins among equals.
    rank = tl.where(exists, tl.where(choice == choice, 2, 1), 0)
    choice = tl.where(rank == 2, choice, float("-inf"))
    if GROUPS > 1:
        best = tl.max(choice, 1)
        highest_rank = tl.max(rank, 1)
        has_nan = highest_rank == 1
        if TOP2:
            if SIZE > 1:
                is_best = (rank == highest_rank[:, None]) & (choice == best[:, None])
                place = tl.min(tl.where(is_best, member, BLOCK), 1)
                is_other = member != place[:, None]
                best += tl.max(tl.where(is_other, choice, float("-inf")), 1)
                # A sum with NaN is NaN.
                has_nan = has_nan | (tl.max(tl.where(is_other, rank, 0), 1) == 1)
        of_group = tl.arange(0, GROUP_BLOCK)
        group_rank = tl.where(of_group < GROUPS, tl.where(has_nan | (best != best), 1, 2), 0)
        best = tl.where(group_rank == 2, best, float("-inf"))
        chosen = tl.zeros((GROUP_BLOCK,), tl.int32)
        for _ in range(0, top_groups):
            highest = tl.max(group_rank, 0)
            top = tl.max(tl.where(group_rank == highest, best, float("-inf")), 0)
            first = tl.min(tl.where((group_rank == highest) & (best == top), of_group, GROUP_BLOCK), 0)
            chosen = tl.where(of_group == first, 1, chosen)
            group_rank = tl.where(of_group == first, 0, group_rank)
        rank = tl.where(chosen[:, None] != 0, rank, 0)
    sums = tl.sum(tl.sum(tl.zeros((GROUP_BLOCK, BLOCK), tl.float64), 1), 0)
    for slot in range(0, top_k):
        highest = tl.max(tl.max(rank, 1), 0)
        top = tl.max(tl.max(tl.where(rank == highest, choice, float("-inf")), 1), 0)
        first = tl.min(tl.min(tl.where((rank == highest) & (choice == top), expert, GROUP_BLOCK * SIZE + BLOCK), 1), 0)
        is_first = expert == first
        value = tl.sum(tl.sum(tl.where(is_first & exists, numerators, 0.0), 1), 0)
        tl.store(indices + row * top_k + slot, first)
        if RENORMALIZE:
            sums += value
        else:
            tl.store(weights + row * top_k + slot, (value / total * scale).to(tl.float32))
        rank = tl.where(is_first, 0, rank)
    if RENORMALIZE:
        for slot in range(0, top_k):
            at = tl.load(indices + row * top_k + slot)
            value = tl.sum(tl.sum(tl.where((expert == at) & exists, numerators, 0.0), 1), 0)
            tl.store(weights + row * top_k + slot, tl.where(sums == 0.0, 0.0, value / sums * scale).to(tl.float32))
