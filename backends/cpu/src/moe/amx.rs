//! The gated MLP of one expert of bf16 on AMX tiles. As in `mlp.fused`, a hidden value is stored as two bf16, the
//! rounded value and the rounding error.

use std::ops::Range;

use half::bf16;
use lz_core::DType;

use super::expert::Expert;
use crate::gemm::amx::{GemmOperands, NC, gemm};
use crate::mlp::store_split_bf16;
use crate::simd::{Amx, Float, Simd};

/// Gate columns of a block; as many up columns follow.
const GATE_COLUMNS: usize = NC / 2;

/// Runs the expert if the tiles are available and the operands are bf16.
pub(super) fn run<S: Simd, T: Float>(expert: &Expert<'_, S, T>, packed: &mut [u8]) -> bool {
    // A constant, so that no code is created for other types.
    if !const { S::TILES && matches!(T::DTYPE, DType::BF16) } {
        return false;
    }
    let Some(s) = Amx::detect() else { return false };
    let (weights, number) = (&expert.weights, expert.number);
    let (rows, width) = (expert.tokens.len(), weights.intermediate);
    // A row of hidden values has the space of one f32 per value: values first, then their rounding errors.
    let hidden = |row: usize| expert.hidden.row(row).cast::<bf16>();
    if width > 0 {
        let operands = GemmOperands {
            a: &[&|row| expert.token(row).as_ptr().cast()],
            b: &|column| {
                let (half, index) = (column % NC / GATE_COLUMNS, column % GATE_COLUMNS);
                // Columns past the end are computed and ignored.
                let feature = (column / NC * GATE_COLUMNS + index).min(width - 1);
                weights.gate_or_up(number, half, feature).as_ptr().cast()
            },
            sizes: [rows, width.div_ceil(GATE_COLUMNS) * NC, expert.x.width()],
        };
        let epilogue = |row: usize, columns: Range<usize>, sums: &mut [f32]| {
            let first = columns.start / NC * GATE_COLUMNS;
            let (gates, ups) = sums.split_at_mut(GATE_COLUMNS);
            let mut values = [0.0f32; GATE_COLUMNS];
            let values = &mut values[..width.min(first + GATE_COLUMNS) - first];
            expert.gate(row, first, gates, ups, values);
            // SAFETY: the row has space for its columns, which belong to this task, and for their rounding
            // errors.
            unsafe { store_split_bf16(s, values, hidden(row).wrapping_add(first), width) };
        };
        // SAFETY: rows of both operands have the width of x (validated).
        unsafe { gemm(s, &operands, packed, &epilogue) };
    }
    let operands = GemmOperands {
        a: &[&|row| hidden(row).cast_const().cast(), &|row| {
            hidden(row).wrapping_add(width).cast_const().cast()
        }],
        b: &|column| weights.down_row(number, column).as_ptr().cast(),
        sizes: [rows, weights.out_features, width],
    };
    // SAFETY: the first GEMM wrote both parts of every value; rows of the weight have the same width.
    unsafe { gemm(s, &operands, packed, &|row, columns, sums| expert.add(row, columns, sums)) };
    true
}
