//! `norm.ada`: layer normalization with a weight and a bias of each batch row, which are converted once.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{NormAdaCall, NormAdaKernel, NormAdaOut};

use super::layer::{moments, normalize, normalize_f64};
use crate::isa::require;
use crate::rows::{AnyRow, AnyRows, Rows, RowsMut, Shape, for_each_range, should_stream};
use crate::simd::{Float, FloatKind, Simd, vectors, with_float};

/// Dense rows of any float type, scale and shift of any float type.
#[derive(Debug)]
pub(crate) struct AdaRows<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.norm.ada",
    operation = "norm.ada",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16], W = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true,
    workspace = "2 * batch * hidden * 4"
)]
impl<S: Simd> NormAdaKernel for AdaRows<S> {
    fn run(
        &self,
        call: &NormAdaCall<'_>,
        mut out: NormAdaOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let (batch, seq, hidden) =
            (call.axes.batch as usize, call.axes.seq as usize, call.axes.hidden as usize);
        let workspace = run.workspace((2 * batch * hidden * size_of::<f32>()) as u64)?.as_mut_ptr().cast();
        let modulation = Modulation { start: workspace, hidden };
        let (scale, shift) =
            (AnyRows::new(&call.scale, Shape::Last)?, AnyRows::new(&call.shift, Shape::Last)?);
        let kind = scale.kind()?;
        for b in 0..batch {
            s.vectorize(|| {
                vectors!(S, hidden, |span| {
                    // SAFETY: rows of scale and shift have `hidden` elements, and the workspace holds both.
                    unsafe {
                        let factor = s.add(kind.load(s, scale.start(b), span), s.splat(1.0));
                        <f32 as Float>::store(s, modulation.row(2 * b), span, factor);
                        let addend = kind.load(s, shift.start(b), span);
                        <f32 as Float>::store(s, modulation.row(2 * b + 1), span, addend);
                    }
                });
            });
        }
        with_float!(call.dtype_t, T => {
            let x = Rows::<T>::new(&call.x)?;
            let y = RowsMut::<T>::new(&mut out.output)?;
            let (count, bytes) = (x.count(), 2 * hidden * size_of::<T>());
            let stream = should_stream(count * hidden * size_of::<T>());
            for_each_range(count, bytes, &|range| {
                s.vectorize(|| {
                    for row in range {
                        // SAFETY: ranges are disjoint, so no other task writes this row.
                        let (from, to) = (x.row(row), unsafe { y.row(row) });
                        // Prefetch target while this row is written.
                        let next_row = x.row((row + 1).min(count - 1)).as_ptr();
                        let [weight, bias] = [0, 1].map(|part| {
                            let start = modulation.row(2 * (row / seq) + part).cast_const().cast();
                            Some(AnyRow { start, kind: FloatKind::F32 })
                        });
                        match moments(s, from, call.eps) {
                            Some(moments) => normalize(s, from, next_row, moments, [weight, bias], to, stream),
                            None => _ = normalize_f64(from, call.eps, weight, bias, to),
                        }
                    }
                    if stream {
                        s.fence();
                    }
                });
            });
            Ok(())
        })
    }
}

/// Factors and addends of each batch row in the workspace.
#[derive(Clone, Copy)]
struct Modulation {
    start: *mut f32,
    hidden: usize,
}

// SAFETY: written before tasks start, and only read by them.
unsafe impl Sync for Modulation {}

impl Modulation {
    fn row(self, row: usize) -> *mut f32 {
        self.start.wrapping_add(row * self.hidden)
    }
}
