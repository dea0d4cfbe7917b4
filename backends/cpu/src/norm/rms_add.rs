//! `norm.rms.add`: adds into the residual, and normalizes that row while it is in L1.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{NormRmsAddCall, NormRmsAddKernel, NormRmsAddOut};

use super::rms::normalize;
use crate::isa::require;
use crate::rows::{Rows, RowsMut, any_row, for_each_range, should_stream};
use crate::simd::{Float, Simd, vectors, with_float};

/// Dense rows of any float type, weight of any float type.
#[derive(Debug)]
pub(crate) struct RmsAddRows<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.norm.rms.add",
    operation = "norm.rms.add",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16], W = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> NormRmsAddKernel for RmsAddRows<S> {
    fn run(
        &self,
        call: &NormRmsAddCall<'_>,
        mut out: NormRmsAddOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let simd = require::<S>()?;
        with_float!(call.dtype_t, T => run::<S, T>(simd, call, &mut out))
    }
}

fn run<S: Simd, T: Float>(
    simd: S,
    call: &NormRmsAddCall<'_>,
    out: &mut NormRmsAddOut<'_>,
) -> Result<(), KernelError> {
    let x = Rows::<T>::new(&call.x)?;
    let residual = RowsMut::<T>::new(&mut out.residual)?;
    let y = RowsMut::<T>::new(&mut out.output)?;
    let weight = (any_row(call.weight.as_ref())?, call.weight_offset);
    let (count, bytes) = (x.count(), 4 * x.width() * size_of::<T>());
    let stream = should_stream(count * x.width() * size_of::<T>());
    for_each_range(count, bytes, &|range| {
        simd.vectorize(|| {
            for row in range {
                // SAFETY: ranges are disjoint, so no other task writes this row of either.
                let (residual, y) = unsafe { (residual.row(row), y.row(row)) };
                add(simd, x.row(row), residual);
                // Prefetch target while this row is written.
                let next_row = x.row((row + 1).min(count - 1)).as_ptr();
                normalize(simd, residual, next_row, weight, call.eps, y, stream);
            }
            if stream {
                simd.fence();
            }
        });
    });
    Ok(())
}

#[inline(always)]
pub(super) fn add<S: Simd, T: Float>(s: S, x: &[T], residual: &mut [T]) {
    let (from, to) = (x.as_ptr(), residual.as_mut_ptr());
    vectors!(S, x.len(), |span| {
        // SAFETY: spans stay inside the rows, which have the same length (validated).
        unsafe { T::store(s, to, span, s.add(T::load(s, from, span), T::load(s, to, span))) };
    });
}
