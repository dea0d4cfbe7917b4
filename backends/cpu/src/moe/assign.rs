//! The tokens of each expert: a counting sort of the chosen experts.

use lz_core::KernelError;
use lz_core::tensor::TensorView;

use crate::rows::Rows;

/// The tokens of all experts, one expert after the other, with the weight of each. A token that chose an expert
/// twice is listed once, with the sum of both weights, so that tasks never share a row of the output.
pub struct Assignment<'m> {
    tokens: &'m mut [u32],
    weights: &'m mut [f32],
    /// First entry of each expert, and the end.
    starts: &'m mut [u32],
}

/// Words of workspace: two per slot of every row, and one per expert and one more.
pub fn words(slots: usize, experts: usize) -> usize {
    2 * slots + experts + 1
}

impl<'m> Assignment<'m> {
    /// Sorts the slots of all rows by expert. `words` has as many words as the function of that name returns.
    pub fn new(
        indices: &TensorView<'_>,
        weights: &TensorView<'_>,
        experts: usize,
        words: &'m mut [u32],
    ) -> Result<Assignment<'m>, KernelError> {
        let (indices, from) = (Rows::<i32>::new(indices)?, Rows::<f32>::new(weights)?);
        let slots = indices.count() * indices.width();
        let (tokens, rest) = words.split_at_mut(slots);
        let (weights, starts) = rest.split_at_mut(slots);
        // SAFETY: f32 has the size and alignment of u32, and any bits are valid.
        let weights = unsafe { std::slice::from_raw_parts_mut(weights.as_mut_ptr().cast::<f32>(), slots) };
        starts.fill(0);
        for row in 0..indices.count() {
            for_each_expert(indices.row(row), from.row(row), |expert, _| starts[expert + 1] += 1);
        }
        for expert in 0..experts {
            starts[expert + 1] += starts[expert];
        }
        // Entries are written from the start of each expert, which becomes its end, and then the start of the next.
        for row in 0..indices.count() {
            for_each_expert(indices.row(row), from.row(row), |expert, weight| {
                let entry = starts[expert] as usize;
                (tokens[entry], weights[entry]) = (row as u32, weight);
                starts[expert] += 1;
            });
        }
        for expert in (0..experts).rev() {
            starts[expert + 1] = starts[expert];
        }
        starts[0] = 0;
        Ok(Assignment { tokens, weights, starts })
    }

    /// The tokens of an expert and their weights.
    pub fn of(&self, expert: usize) -> (&[u32], &[f32]) {
        let range = self.starts[expert] as usize..self.starts[expert + 1] as usize;
        (&self.tokens[range.clone()], &self.weights[range])
    }
}

/// Calls `body` for the distinct experts of a row, with the sum of their weights.
fn for_each_expert(indices: &[i32], weights: &[f32], mut body: impl FnMut(usize, f32)) {
    for (slot, &index) in indices.iter().enumerate() {
        let Ok(expert) = usize::try_from(index) else { continue };
        if indices[..slot].contains(&index) {
            continue;
        }
        let same = indices[slot..].iter().zip(&weights[slot..]).filter(|(other, _)| **other == index);
        body(expert, same.map(|(_, weight)| weight).sum());
    }
}
