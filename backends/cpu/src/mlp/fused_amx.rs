//! `mlp.fused` of bf16 on AMX tiles. The intermediate result is stored as two bf16 per value, the rounded
//! value and the rounding error: together accurate enough for bf16 products, in the space of one f32.

use std::ops::Range;

use half::bf16;
use lz_core::{DType, KernelError, Run};
use lz_ops::{MlpFusedCall, MlpFusedOut};

use super::activation::Activation;
use super::fused::{Epilogue, recompute_non_finite_rows, workspace};
use crate::gemm::amx::{GemmOperands, NC, gemm};
use crate::gemm::dots::{MAX_SKINNY_ROWS, dot_f64, recompute_non_finite};
use crate::rows::{Rows, RowsMut};
use crate::simd::{Amx, Avx512, Float, Simd, vectors};

/// Gate columns of a block; as many up columns follow.
const GATE_COLUMNS: usize = NC / 2;

/// The AMX proof if this call takes the AMX path: bf16, and too many rows for the skinny path.
pub(super) fn detect_amx<S: Simd>(call: &MlpFusedCall<'_>) -> Option<Amx> {
    let supported =
        S::TILES && call.dtype_t == Some(DType::BF16) && call.axes.rows as usize > MAX_SKINNY_ROWS;
    supported.then(Amx::detect).flatten()
}

/// The intermediate result, written by several threads in disjoint parts.
#[derive(Clone, Copy)]
struct Intermediate {
    start: *mut bf16,
    /// Values per row. The rounding errors of a row follow it.
    width: usize,
}

// SAFETY: threads write disjoint columns, and read only after all tasks finished.
unsafe impl Send for Intermediate {}
// SAFETY: as above.
unsafe impl Sync for Intermediate {}

impl Intermediate {
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
    let (packed, intermediate) = workspace(call, run)?;
    let intermediate = Intermediate { start: intermediate.as_mut_ptr().cast(), width };
    if width > 0 {
        gate_up_gemm(s, &x, [&gate, &up], activation, packed, intermediate);
    }
    let operands = GemmOperands {
        a: &[&|row| intermediate.row(row).cast_const().cast(), &|row| {
            intermediate.row(row).wrapping_add(width).cast_const().cast()
        }],
        b: &|column| down.row(column).as_ptr().cast(),
        sizes: [rows, down.count(), width],
    };
    let epilogue = |row: usize, columns: Range<usize>, sums: &mut [f32]| {
        let s = s.vectors();
        // SAFETY: tasks write disjoint rows or columns, and these columns are inside the row.
        let to = unsafe { y.part(row, columns) };
        s.vectorize(|| {
            vectors!(Avx512, to.len().min(sums.len()), |span| {
                // SAFETY: sums and outputs have this many elements.
                unsafe {
                    bf16::store(s, to.as_mut_ptr(), span, <f32 as Float>::load(s, sums.as_ptr(), span))
                };
            });
        });
    };
    // SAFETY: the workspace holds both parts of every value, written by the first GEMM; rows of the weight
    // have the same width.
    unsafe { gemm(s, &operands, packed, &epilogue) };
    let is_finite = |y: &[bf16]| y.iter().all(|y| y.to_f32().is_finite());
    recompute_non_finite_rows(&x, [&gate, &up, &down], activation, &y, is_finite)
}

/// The first GEMM, `act(x · gate) * (x · up)`: a column block has gate columns first, then as many up
/// columns.
fn gate_up_gemm(
    s: Amx,
    x: &Rows<'_, bf16>,
    [gate, up]: [&Rows<'_, bf16>; 2],
    activation: Activation,
    packed: &mut [u8],
    intermediate: Intermediate,
) {
    let width = intermediate.width;
    let operands = GemmOperands {
        a: &[&|row| x.row(row).as_ptr().cast()],
        b: &|column| {
            let index = column % NC;
            let (weight, index) =
                if index < GATE_COLUMNS { (gate, index) } else { (up, index - GATE_COLUMNS) };
            // Columns past the end are computed and ignored.
            weight.row((column / NC * GATE_COLUMNS + index).min(width - 1)).as_ptr().cast()
        },
        sizes: [x.count(), width.div_ceil(GATE_COLUMNS) * NC, gate.width()],
    };
    let epilogue = |row: usize, columns: Range<usize>, sums: &mut [f32]| {
        let first = columns.start / NC * GATE_COLUMNS;
        let columns = first..width.min(first + GATE_COLUMNS);
        let (gates, ups) = sums.split_at_mut(GATE_COLUMNS);
        for (weight, sums) in [(gate, &mut *gates), (up, &mut *ups)] {
            let sums = &mut sums[..columns.len()];
            recompute_non_finite(s.vectors(), sums, |index| {
                dot_f64(x.row(row), weight.row(columns.start + index))
            });
        }
        let mut values = [0.0f32; GATE_COLUMNS];
        let values = &mut values[..columns.len()];
        activation.with(Epilogue { s: s.vectors(), gates, ups, to: values });
        // SAFETY: the row has space for its columns, which belong to this task, and for their rounding
        // errors.
        unsafe { store_split_bf16(s, values, intermediate.row(row).wrapping_add(first), width) };
    };
    // SAFETY: rows of both operands have the width of the weight (validated).
    unsafe { gemm(s, &operands, packed, &epilogue) };
}

/// Writes values rounded to bf16, and their rounding errors at distance `stride`.
///
/// # Safety
/// Both destinations are writable.
pub(crate) unsafe fn store_split_bf16(s: Amx, values: &[f32], to: *mut bf16, stride: usize) {
    let s = s.vectors();
    s.vectorize(|| {
        vectors!(Avx512, values.len(), |span| {
            // SAFETY: the caller guarantees the destinations.
            unsafe {
                let value = <f32 as Float>::load(s, values.as_ptr(), span);
                bf16::store(s, to, span, value);
                let rounding_error = s.sub(value, bf16::load(s, to, span));
                bf16::store(s, to.add(stride), span, rounding_error);
            }
        });
    });
}
