//! `norm.rms`: each row is read once for its square sum and, still in the first-level cache, once more to be scaled.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{NormRmsCall, NormRmsKernel, NormRmsOut};

use crate::isa::require;
use crate::rows::{AnyRow, Rows, RowsMut, any_row, can_stream, for_each_range, worth_streaming};
use crate::simd::{Float, Simd, vectors, with_float};

/// Rows that are dense, of any float type, with a weight of any.
#[derive(Debug)]
pub(crate) struct RmsRows<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.norm.rms",
    operation = "norm.rms",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16], W = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    tp_invariant = true
)]
impl<S: Simd> NormRmsKernel for RmsRows<S> {
    fn run(
        &self,
        call: &NormRmsCall<'_>,
        out: NormRmsOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let simd = require::<S>()?;
        with_float!(call.dtype_t, T => run::<S, T>(simd, call, out))
    }
}

fn run<S: Simd, T: Float>(
    simd: S,
    call: &NormRmsCall<'_>,
    mut out: NormRmsOut<'_>,
) -> Result<(), KernelError> {
    let x = Rows::<T>::new(&call.x)?;
    let y = RowsMut::<T>::new(&mut out.output)?;
    let weight = any_row(call.weight.as_ref())?;
    let (count, bytes) = (x.count(), 2 * x.width() * size_of::<T>());
    let stream = worth_streaming(count * x.width() * size_of::<T>());
    for_each_range(count, bytes, |range| {
        simd.vectorize(|| {
            for row in range {
                // SAFETY: ranges do not overlap, so nobody else has this row.
                let y = unsafe { y.row(row) };
                normalise(simd, x.row(row), weight, call.weight_offset, call.eps, y, stream);
            }
            if stream {
                simd.fence();
            }
        });
    });
    Ok(())
}

#[inline(always)]
pub(super) fn normalise<S: Simd, T: Float>(
    s: S,
    x: &[T],
    weight: Option<AnyRow>,
    offset: f32,
    eps: f32,
    y: &mut [T],
    stream: bool,
) {
    let squares = square_sum(s, x);
    // A NaN needs no care: it makes the whole row NaN either way.
    if squares > f32::MAX || (squares <= 1e-30 && eps <= 1e-20) {
        return normalise_widely(x, weight, offset, eps, y);
    }
    let scale = s.splat(1.0 / (squares / x.len() as f32 + eps).sqrt());
    let stream = stream && can_stream::<S, T>(y);
    let (from, to) = (x.as_ptr(), y.as_mut_ptr());
    match weight {
        Some(weight) => {
            let offset = s.splat(offset);
            vectors!(S, x.len(), |span| {
                // SAFETY: spans stay inside the row; y and the weight have the length of x, as the call was checked.
                unsafe {
                    let factor = s.add(weight.kind.load(s, weight.start, span), offset);
                    let value = s.mul(s.mul(T::load(s, from, span), scale), factor);
                    if stream { T::stream(s, to, span, value) } else { T::store(s, to, span, value) }
                }
            });
        }
        None => {
            vectors!(S, x.len(), |span| {
                // SAFETY: as above.
                unsafe {
                    let value = s.mul(T::load(s, from, span), scale);
                    if stream { T::stream(s, to, span, value) } else { T::store(s, to, span, value) }
                }
            });
        }
    }
}

/// The sum of squares, in several sums at once that are joined in a fixed order.
#[inline(always)]
fn square_sum<S: Simd, T: Float>(s: S, x: &[T]) -> f32 {
    let mut sums = [s.splat(0.0); 4];
    vectors!(S, x.len(), |span, k of 4| {
        // SAFETY: spans stay inside the row.
        let value = unsafe { T::load(s, x.as_ptr(), span) };
        sums[k] = s.fma(value, value, sums[k]);
    });
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}

/// A row whose square sum does not fit f32, or is so small that it has lost its digits.
#[cold]
#[inline(never)]
fn normalise_widely<T: Float>(x: &[T], weight: Option<AnyRow>, offset: f32, eps: f32, y: &mut [T]) {
    let squares: f64 = x.iter().map(|x| f64::from(x.to_f32()).powi(2)).sum();
    let scale = 1.0 / (squares / x.len() as f64 + f64::from(eps)).sqrt();
    for (index, (y, x)) in y.iter_mut().zip(x).enumerate() {
        // SAFETY: a weight is as long as a row.
        let weight = weight.map(|weight| unsafe { weight.kind.get(weight.start, index) });
        let factor = weight.map_or(1.0, |weight| f64::from(weight) + f64::from(offset));
        *y = T::from_f32((f64::from(x.to_f32()) * scale * factor) as f32);
    }
}
