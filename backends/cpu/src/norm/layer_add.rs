//! `norm.layer.add`: adds into the residual, and normalizes that row while it is in L1.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{NormLayerAddCall, NormLayerAddKernel, NormLayerAddOut};

use super::layer::{moments, normalize, normalize_f64};
use super::rms_add::add;
use crate::isa::require;
use crate::rows::{Rows, RowsMut, any_row, for_each_range, should_stream};
use crate::simd::{Float, Simd, with_float};

/// Dense rows of any float type, weight and bias of any float type.
#[derive(Debug)]
pub(crate) struct LayerAddRows<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.norm.layer.add",
    operation = "norm.layer.add",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16], W = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> NormLayerAddKernel for LayerAddRows<S> {
    fn run(
        &self,
        call: &NormLayerAddCall<'_>,
        mut out: NormLayerAddOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let simd = require::<S>()?;
        with_float!(call.dtype_t, T => run::<S, T>(simd, call, &mut out))
    }
}

fn run<S: Simd, T: Float>(
    simd: S,
    call: &NormLayerAddCall<'_>,
    out: &mut NormLayerAddOut<'_>,
) -> Result<(), KernelError> {
    let x = Rows::<T>::new(&call.x)?;
    let residual = RowsMut::<T>::new(&mut out.residual)?;
    let y = RowsMut::<T>::new(&mut out.output)?;
    let (weight, bias) = (any_row(call.weight.as_ref())?, any_row(call.bias.as_ref())?);
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
                match moments(simd, residual, call.eps) {
                    Some(moments) => {
                        normalize(simd, residual, next_row, moments, [weight, bias], y, stream);
                    }
                    None => _ = normalize_f64(residual, call.eps, weight, bias, y),
                }
            }
            if stream {
                simd.fence();
            }
        });
    });
    Ok(())
}
