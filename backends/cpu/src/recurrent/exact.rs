//! Blocks in f64: for values that overflow f32, and for recurrences that amplify rounding errors.

use lz_core::KernelError;

use super::engine::{Block, Recurrence};
use crate::memory;
use crate::simd::{Float, Simd};

/// Runs a block in f64. Outputs that were written already are overwritten.
#[cold]
#[inline(never)]
pub(super) fn run_block<S: Simd, T: Float>(
    call: &Recurrence<'_, S, T>,
    block: &Block,
) -> Result<(), KernelError> {
    let columns = block.first..block.first + block.count;
    let mut row = memory::collect(block.count, std::iter::repeat(0.0f32))?;
    let mut change: Vec<f64> = memory::with_capacity(block.count)?;
    let mut state: Vec<f64> = memory::with_capacity(call.key_dim * block.count)?;
    for i in 0..call.key_dim {
        // SAFETY: the block belongs to this task.
        unsafe { call.states.load(call.head(block), i, columns.clone(), &mut row) };
        state.extend(row.iter().map(|&value| f64::from(value)));
    }
    for t in 0..call.sizes[1] {
        let index = call.position(block, t);
        let position = (call.exact)(call.key_position(block, t), index)?;
        for (row, decay) in state.chunks_exact_mut(block.count).zip(&position.decay) {
            row.iter_mut().for_each(|value| *value *= decay);
        }
        let product = |state: &[f64], left: &[f64], j: usize| -> f64 {
            left.iter().zip(state.chunks_exact(block.count)).map(|(left, row)| left * row[j]).sum()
        };
        let v = &call.v.row(index)[columns.clone()];
        change.clear();
        change.extend(v.iter().enumerate().map(|(j, v)| {
            let predicted = if call.delta_rule { product(&state, &position.k, j) } else { 0.0 };
            position.factor * (f64::from(v.to_f32()) - predicted)
        }));
        for (row, k) in state.chunks_exact_mut(block.count).zip(&position.k) {
            row.iter_mut().zip(&change).for_each(|(value, change)| *value += k * change);
        }
        // SAFETY: the block belongs to this task.
        let to = unsafe { call.y.part(index, columns.clone()) };
        for (j, (to, v)) in to.iter_mut().zip(v).enumerate() {
            let skipped =
                call.skip.map_or(0.0, |_| f64::from(call.skip_factor(block)) * f64::from(v.to_f32()));
            let read = f64::from(call.scale) * product(&state, &position.q, j);
            *to = T::from_f32((read + skipped) as f32);
        }
    }
    for (i, values) in state.chunks_exact(block.count).enumerate() {
        row.iter_mut().zip(values).for_each(|(to, value)| *to = *value as f32);
        // SAFETY: the block belongs to this task.
        unsafe { call.states.store(call.head(block), i, columns.clone(), &row) };
    }
    Ok(())
}
