//! One to four rows times unpacked integer weights: each row of the weight is read once, in place; bound by
//! memory bandwidth. Packing it into panels first, which pays off for many rows, would cost more than the
//! products.

use crate::simd::{Float, FullVector, MAX_LANES, Simd, Span, Tail, load_bytes, load_nibbles};

/// Maximum rows of the input for which this path is faster.
pub(super) const MAX_ROWS: usize = 4;

/// Rows of the weight that share a load of the input.
pub(super) const NR: usize = 4;

/// Whether groups of `block` inputs start at vector boundaries, for every instruction set.
pub(super) fn supports(block: usize, depth: usize) -> bool {
    block >= depth || block.is_multiple_of(MAX_LANES)
}

/// A row of the weight with its scales and zero points, one per group.
#[derive(Clone, Copy)]
pub(super) struct Column {
    pub bytes: *const u8,
    pub scales: *const f32,
    pub zero_points: Option<*const i32>,
}

/// Rows of the input as f32, their stride, and how inputs are grouped.
#[derive(Clone, Copy)]
pub(super) struct Inputs {
    pub start: *const f32,
    pub stride: usize,
    pub depth: usize,
    pub block: usize,
}

/// Dot products of `MR` rows with some rows of the weight.
///
/// # Safety
/// All inputs, integers, scales and zero points are readable, and [`supports`] accepts the groups.
#[inline(never)]
pub(super) unsafe fn sum<S: Simd, const BITS: u32, const MR: usize>(
    s: S,
    x: Inputs,
    columns: [Column; NR],
) -> [[f32; NR]; MR] {
    s.vectorize(|| {
        let mut totals = [[s.splat(0.0); NR]; MR];
        let (mut group, mut first) = (0, 0);
        while first < x.depth {
            let end = x.depth.min(first + x.block);
            // SAFETY: the caller guarantees every group; spans stay inside this one.
            unsafe {
                let zero_points = columns
                    .map(|column| s.splat(column.zero_points.map_or(0.0, |start| *start.add(group) as f32)));
                let mut sums = [[s.splat(0.0); NR]; MR];
                let mut at = first;
                while at + S::LANES <= end {
                    add::<S, BITS, MR>(s, &x, &columns, &zero_points, FullVector(at), &mut sums);
                    at += S::LANES;
                }
                if at < end {
                    add::<S, BITS, MR>(s, &x, &columns, &zero_points, Tail(at, end - at), &mut sums);
                }
                for (totals, sums) in totals.iter_mut().zip(&sums) {
                    for ((total, &sum), column) in totals.iter_mut().zip(sums).zip(&columns) {
                        *total = s.fma(sum, s.splat(*column.scales.add(group)), *total);
                    }
                }
            }
            (group, first) = (group + 1, end);
        }
        totals.map(|totals| totals.map(|total| s.sum(total)))
    })
}

/// Adds the products of one span.
///
/// # Safety
/// As [`sum`], and the span is inside the rows and starts at an even index.
#[inline(always)]
unsafe fn add<S: Simd, const BITS: u32, const MR: usize>(
    s: S,
    x: &Inputs,
    columns: &[Column; NR],
    zero_points: &[S::F32; NR],
    span: impl Span,
    sums: &mut [[S::F32; NR]; MR],
) {
    // SAFETY: the caller guarantees the span. Inputs past the end of a tail are 0, whatever the weight is
    // there.
    unsafe {
        let mut weights = *zero_points;
        for ((weight, &zero_point), column) in weights.iter_mut().zip(zero_points).zip(columns) {
            let value = if BITS == 4 {
                s.signed_nibble(load_nibbles(s, column.bytes, span), 0)
            } else {
                s.to_f32(s.shr_i32(s.shl_i32(load_bytes(s, column.bytes, span), 24), 24))
            };
            *weight = s.sub(value, zero_point);
        }
        for (row, sums) in sums.iter_mut().enumerate() {
            let input = <f32 as Float>::load(s, x.start.add(row * x.stride), span);
            for (sum, &weight) in sums.iter_mut().zip(&weights) {
                *sum = s.fma(input, weight, *sum);
            }
        }
    }
}
