//! Blocks in f64: for values that overflow f32, and for recurrences that amplify rounding errors.

use super::engine::{Block, Recurrence};
use crate::simd::{Float, Simd};

/// Runs a block in f64. Outputs that were written already are overwritten.
#[cold]
#[inline(never)]
pub(super) fn run_block<S: Simd, T: Float>(call: &Recurrence<'_, S, T>, block: &Block) {
    let columns = block.first..block.first + block.count;
    let mut row = vec![0.0f32; block.count];
    let mut state: Vec<Vec<f64>> = (0..call.key_dim)
        .map(|i| {
            // SAFETY: the block belongs to this task.
            unsafe { call.states.load(call.head(block), i, columns.clone(), &mut row) };
            row.iter().map(|&value| f64::from(value)).collect()
        })
        .collect();
    for t in 0..call.sizes[1] {
        let index = call.position(block, t);
        let position = (call.exact)(call.key_position(block, t), index);
        for (row, decay) in state.iter_mut().zip(&position.decay) {
            row.iter_mut().for_each(|value| *value *= decay);
        }
        let product = |state: &[Vec<f64>], left: &[f64], j: usize| -> f64 {
            left.iter().zip(state).map(|(left, row)| left * row[j]).sum()
        };
        let v = &call.v.row(index)[columns.clone()];
        let change: Vec<f64> = v
            .iter()
            .enumerate()
            .map(|(j, v)| {
                let predicted = if call.delta_rule { product(&state, &position.k, j) } else { 0.0 };
                position.factor * (f64::from(v.to_f32()) - predicted)
            })
            .collect();
        for (row, k) in state.iter_mut().zip(&position.k) {
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
    for (i, values) in state.iter().enumerate() {
        row.iter_mut().zip(values).for_each(|(to, value)| *to = *value as f32);
        // SAFETY: the block belongs to this task.
        unsafe { call.states.store(call.head(block), i, columns.clone(), &row) };
    }
}
