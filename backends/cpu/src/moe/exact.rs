//! Rows of experts in f64, for results that are not finite: an intermediate result may have overflowed in f32.

use lz_core::{KernelError, TensorView};

use super::gating::Gating;
use crate::memory;
use crate::rows::{Rows, RowsMut};
use crate::simd::Float;

/// The experts of a row.
pub(super) struct ExactRows<'a> {
    indices: Rows<'a, i32>,
    factors: Rows<'a, f32>,
    intermediate: usize,
    gating: Gating,
}

impl<'a> ExactRows<'a> {
    /// `indices` and `factors` have the experts of each row and their weights.
    pub(super) fn new(
        [indices, factors]: [&'a TensorView<'_>; 2],
        intermediate: usize,
        gating: Gating,
    ) -> Result<ExactRows<'a>, KernelError> {
        Ok(ExactRows { indices: Rows::new(indices)?, factors: Rows::new(factors)?, intermediate, gating })
    }

    /// Recomputes rows of the output that are not finite. `project` is a gate or up feature (its half 0 or 1) of a row for an expert,
    /// `down` an output feature of an expert for hidden values, both with their biases.
    pub(super) fn recompute<T: Float>(
        &self,
        output: &RowsMut<'_, T>,
        project: impl Fn(usize, usize, usize, usize) -> f64,
        down: impl Fn(usize, usize, &[f64]) -> f64,
    ) -> Result<(), KernelError> {
        for row in 0..self.indices.count() {
            // SAFETY: all tasks finished, so no other reference to the row exists.
            let output = unsafe { output.row(row) };
            if output.iter().any(|value| !value.to_f32().is_finite()) {
                self.write(row, output, |expert, half, feature| project(row, expert, half, feature), &down)?;
            }
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn write<T: Float>(
        &self,
        row: usize,
        output: &mut [T],
        project: impl Fn(usize, usize, usize) -> f64,
        down: impl Fn(usize, usize, &[f64]) -> f64,
    ) -> Result<(), KernelError> {
        let mut sums = memory::collect(output.len(), std::iter::repeat(0.0))?;
        let mut hidden = memory::with_capacity(self.intermediate)?;
        for (&index, &factor) in self.indices.row(row).iter().zip(self.factors.row(row)) {
            let Ok(expert) = usize::try_from(index) else { continue };
            hidden.clear();
            hidden.extend((0..self.intermediate).map(|feature| {
                self.gating.apply_f64(project(expert, 0, feature), project(expert, 1, feature))
            }));
            for (feature, sum) in sums.iter_mut().enumerate() {
                *sum += f64::from(factor) * down(expert, feature, &hidden);
            }
        }
        for (output, sum) in output.iter_mut().zip(&sums) {
            *output = T::from_f32(*sum as f32);
        }
        Ok(())
    }
}
