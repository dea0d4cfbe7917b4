//! `mlp.fused` of bf16 on AMX tiles. What lies between the two halves is kept as two bf16 a number, the number rounded and what rounding
//! took: as exact together as products of bf16 need, in the memory of one f32.

use std::ops::Range;

use half::bf16;
use lz_core::{DType, KernelError, Run};
use lz_ops::{MlpFusedCall, MlpFusedOut};

use super::activation::Activation;
use super::fused::{Write, mend, workspace};
use crate::gemm::amx::{GemmOperands, NC, gemm};
use crate::gemm::dots::{MAX_SKINNY_ROWS, dot_f64, recompute_non_finite};
use crate::rows::{Rows, RowsMut};
use crate::simd::{Amx, Avx512, Float, Simd, vectors};

/// Columns of a block that are gates; as many ups follow.
const HALF: usize = NC / 2;

/// Tiles, if this call is for them: bf16, and more rows than are streamed.
pub(super) fn tiles_for<S: Simd>(call: &MlpFusedCall<'_>) -> Option<Amx> {
    let wanted = S::TILES && call.dtype_t == Some(DType::BF16) && call.axes.rows as usize > MAX_SKINNY_ROWS;
    wanted.then(Amx::detect).flatten()
}

/// Numbers between the halves, written by several threads, each its own.
#[derive(Clone, Copy)]
struct Between {
    start: *mut bf16,
    /// Numbers of a row. What rounding took of each follows the row.
    width: usize,
}

// SAFETY: threads write columns of their own, and read when all are done.
unsafe impl Send for Between {}
// SAFETY: as above.
unsafe impl Sync for Between {}

impl Between {
    fn row(self, row: usize) -> *mut bf16 {
        self.start.wrapping_add(2 * row * self.width)
    }
}

pub(super) fn run(
    s: Amx,
    call: &MlpFusedCall<'_>,
    activation: Activation,
    out: &mut MlpFusedOut<'_>,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (x, down) = (Rows::<bf16>::new(&call.x)?, Rows::<bf16>::new(&call.down_weight)?);
    let (gate, up) = (Rows::<bf16>::new(&call.gate_weight)?, Rows::<bf16>::new(&call.up_weight)?);
    let y = RowsMut::<bf16>::new(&mut out.output)?;
    let (rows, width) = (x.count(), gate.count());
    let (packed, between) = workspace(call, run)?;
    let between = Between { start: between.as_mut_ptr().cast(), width };
    if width > 0 {
        first_half(s, &x, [&gate, &up], activation, packed, between);
    }
    let operands = GemmOperands {
        a: &[&|row| between.row(row).cast_const().cast(), &|row| {
            between.row(row).wrapping_add(width).cast_const().cast()
        }],
        b: &|column| down.row(column).as_ptr().cast(),
        sizes: [rows, down.count(), width],
    };
    let store = |row: usize, columns: Range<usize>, sums: &mut [f32]| {
        let s = s.vectors();
        // SAFETY: every task writes rows or columns of its own, and these columns are inside the row.
        let to = unsafe { y.part(row, columns) };
        s.vectorize(|| {
            vectors!(Avx512, to.len().min(sums.len()), |span| {
                // SAFETY: sums and places have this many numbers.
                unsafe {
                    bf16::store(s, to.as_mut_ptr(), span, <f32 as Float>::load(s, sums.as_ptr(), span))
                };
            });
        });
    };
    // SAFETY: the workspace holds both parts of every number, which the first half wrote; rows of the weight are as wide.
    unsafe { gemm(s, &operands, packed, &store) };
    mend(&x, [&gate, &up, &down], activation, &y);
    Ok(())
}

/// `act(x · gate) * (x · up)`: blocks have gates first, then as many ups.
fn first_half(
    s: Amx,
    x: &Rows<'_, bf16>,
    [gate, up]: [&Rows<'_, bf16>; 2],
    activation: Activation,
    packed: &mut [u8],
    between: Between,
) {
    let width = between.width;
    let operands = GemmOperands {
        a: &[&|row| x.row(row).as_ptr().cast()],
        b: &|column| {
            let place = column % NC;
            let (weight, place) = if place < HALF { (gate, place) } else { (up, place - HALF) };
            // Columns beyond the last are computed and not looked at.
            weight.row((column / NC * HALF + place).min(width - 1)).as_ptr().cast()
        },
        sizes: [x.count(), width.div_ceil(HALF) * NC, gate.width()],
    };
    let store = |row: usize, columns: Range<usize>, sums: &mut [f32]| {
        let first = columns.start / NC * HALF;
        let columns = first..width.min(first + HALF);
        let (gates, ups) = sums.split_at_mut(HALF);
        for (weight, sums) in [(gate, &mut *gates), (up, &mut *ups)] {
            let sums = &mut sums[..columns.len()];
            recompute_non_finite(s.vectors(), sums, |place| {
                dot_f64(x.row(row), weight.row(columns.start + place))
            });
        }
        let mut values = [0.0f32; HALF];
        let values = &mut values[..columns.len()];
        activation.with(Write { s: s.vectors(), gates, ups, to: values });
        // SAFETY: the row has room for its columns, which are this task's, and for what rounding took of them.
        unsafe { split(s, values, between.row(row).wrapping_add(first), width) };
    };
    // SAFETY: rows of both factors have the width of the weight's, as the call was checked.
    unsafe { gemm(s, &operands, packed, &store) };
}

/// Writes numbers rounded, and what that took of them `apart` behind.
///
/// # Safety
/// Both places are writable.
unsafe fn split(s: Amx, values: &[f32], to: *mut bf16, apart: usize) {
    let s = s.vectors();
    s.vectorize(|| {
        vectors!(Avx512, values.len(), |span| {
            // SAFETY: the caller guarantees the places.
            unsafe {
                let value = <f32 as Float>::load(s, values.as_ptr(), span);
                bf16::store(s, to, span, value);
                let left = s.sub(value, bf16::load(s, to, span));
                bf16::store(s, to.add(apart), span, left);
            }
        });
    });
}
