//! `sampling.mask`: words of 32 tokens, most of which are allowed or forbidden as a whole.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{SamplingMaskCall, SamplingMaskKernel, SamplingMaskOut};

use crate::isa::require;
use crate::rows::{Rows, RowsMut, for_each_range};
use crate::simd::{Float, Simd, with_float};

/// Dense rows of logits, any float type.
#[derive(Debug)]
pub(crate) struct Mask<S>(pub PhantomData<S>);

/// Tokens per word.
const WORD: usize = 32;

#[lz_macros::kernel(
    id = "cpu.sampling.mask",
    operation = "sampling.mask",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> SamplingMaskKernel for Mask<S> {
    fn run(
        &self,
        call: &SamplingMaskCall<'_>,
        mut out: SamplingMaskOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let bitmask = Rows::<i32>::new(&call.bitmask)?;
        with_float!(call.dtype_t, T => {
            let logits = Rows::<T>::new(&call.logits)?;
            let output = RowsMut::<T>::new(&mut out.output)?;
            for_each_range(logits.count(), 2 * logits.width() * size_of::<T>(), &|range| {
                for row in range {
                    // SAFETY: ranges are disjoint, so no other task writes this row.
                    let to = unsafe { output.row(row) };
                    s.vectorize(|| mask_row(logits.row(row), bitmask.row(row), to));
                }
            });
            Ok(())
        })
    }
}

#[inline(always)]
fn mask_row<T: Float>(logits: &[T], words: &[i32], to: &mut [T]) {
    let forbidden = T::from_f32(f32::NEG_INFINITY);
    for ((logits, to), &word) in logits.chunks(WORD).zip(to.chunks_mut(WORD)).zip(words) {
        match word {
            -1 => to.copy_from_slice(logits),
            0 => to.fill(forbidden),
            _ => {
                for (bit, (logit, to)) in logits.iter().zip(to).enumerate() {
                    *to = if word >> bit & 1 == 1 { *logit } else { forbidden };
                }
            }
        }
    }
}
