//! `norm.rms`: each row is read once for its sum of squares and once more, from L1, to be scaled.

use std::marker::PhantomData;

use half::{bf16, f16};
use lz_core::{KernelError, Run};
use lz_ops::{NormRmsCall, NormRmsKernel, NormRmsOut};

use crate::isa::require;
use crate::rows::{AnyRow, Rows, RowsMut, any_row, can_stream, for_each_range, should_stream};
use crate::simd::{Float, FloatKind, Simd, Span, Work, prefetch, vectors, with_float};

/// Dense rows of any float type, weight of any float type.
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
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> NormRmsKernel for RmsRows<S> {
    fn run(
        &self,
        call: &NormRmsCall<'_>,
        mut out: NormRmsOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let simd = require::<S>()?;
        with_float!(call.dtype_t, T => run::<S, T>(simd, call, &mut out))
    }
}

fn run<S: Simd, T: Float>(
    simd: S,
    call: &NormRmsCall<'_>,
    out: &mut NormRmsOut<'_>,
) -> Result<(), KernelError> {
    let x = Rows::<T>::new(&call.x)?;
    let y = RowsMut::<T>::new(&mut out.output)?;
    let weight = (any_row(call.weight.as_ref())?, call.weight_offset);
    let (count, bytes) = (x.count(), 2 * x.width() * size_of::<T>());
    let stream = should_stream(count * x.width() * size_of::<T>());
    for_each_range(count, bytes, &|range| {
        simd.vectorize(|| {
            for row in range {
                // SAFETY: ranges are disjoint, so no other task writes this row.
                let y = unsafe { y.row(row) };
                // Prefetch target while this row is written.
                let next_row = x.row((row + 1).min(count - 1)).as_ptr();
                normalize(simd, x.row(row), next_row, weight, call.eps, y, stream);
            }
            if stream {
                simd.fence();
            }
        });
    });
    Ok(())
}

#[inline(always)]
pub(super) fn normalize<S: Simd, T: Float>(
    s: S,
    x: &[T],
    next_row: *const T,
    (weight, offset): (Option<AnyRow>, f32),
    eps: f32,
    y: &mut [T],
    stream: bool,
) {
    let squares = square_sum(s, x);
    // NaN needs no special case: the whole row becomes NaN either way.
    if squares > f32::MAX || (squares <= 1e-30 && eps <= 1e-20) {
        return normalize_f64(x, weight, offset, eps, y);
    }
    let scale = 1.0 / (squares / x.len() as f32 + eps).sqrt();
    let stream = stream && can_stream::<S, T>(y);
    let row = Scaled { s, x, y, next_row, weight: None::<*const f32>, offset, scale, stream };
    match weight.map(|weight| (weight.kind, weight.start)) {
        None => s.perform(row),
        Some((FloatKind::F32, start)) => s.perform(row.with::<f32>(start)),
        Some((FloatKind::F16, start)) => s.perform(row.with::<f16>(start)),
        Some((FloatKind::BF16, start)) => s.perform(row.with::<bf16>(start)),
    }
}

/// The second pass over a row, monomorphized per type. A weight has the length of the row (validated).
struct Scaled<'r, S, T, W> {
    s: S,
    x: &'r [T],
    y: &'r mut [T],
    /// The next row (prefetch target).
    next_row: *const T,
    weight: Option<*const W>,
    offset: f32,
    scale: f32,
    stream: bool,
}

impl<'r, S, T> Scaled<'r, S, T, f32> {
    fn with<W>(self, weight: *const u8) -> Scaled<'r, S, T, W> {
        let Scaled { s, x, y, next_row, offset, scale, stream, .. } = self;
        Scaled { s, x, y, next_row, weight: Some(weight.cast()), offset, scale, stream }
    }
}

impl<S: Simd, T: Float, W: Float> Work for Scaled<'_, S, T, W> {
    #[inline(always)]
    fn perform(self) {
        let (s, next_row) = (self.s, self.next_row);
        let (from, to, len) = (self.x.as_ptr(), self.y.as_mut_ptr(), self.x.len());
        let (scale, offset) = (s.splat(self.scale), s.splat(self.offset));
        // SAFETY: spans stay inside the row; y and the weight have its length.
        unsafe {
            match (self.weight, self.stream) {
                (Some(weight), false) => vectors!(S, len, |span| {
                    prefetch(next_row.wrapping_add(span.at()));
                    let factor = s.add(W::load(s, weight, span), offset);
                    T::store(s, to, span, s.mul(s.mul(T::load(s, from, span), scale), factor));
                }),
                (Some(weight), true) => vectors!(S, len, |span| {
                    prefetch(next_row.wrapping_add(span.at()));
                    let factor = s.add(W::load(s, weight, span), offset);
                    T::stream(s, to, span, s.mul(s.mul(T::load(s, from, span), scale), factor));
                }),
                (None, false) => vectors!(S, len, |span| {
                    prefetch(next_row.wrapping_add(span.at()));
                    T::store(s, to, span, s.mul(T::load(s, from, span), scale));
                }),
                (None, true) => vectors!(S, len, |span| {
                    prefetch(next_row.wrapping_add(span.at()));
                    T::stream(s, to, span, s.mul(T::load(s, from, span), scale));
                }),
            }
        }
    }
}

/// Sum of squares, in several accumulators that are added in a fixed order.
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

/// Fallback in f64 for rows whose sum of squares overflows f32, or is too small to be accurate.
#[cold]
#[inline(never)]
fn normalize_f64<T: Float>(x: &[T], weight: Option<AnyRow>, offset: f32, eps: f32, y: &mut [T]) {
    let squares: f64 = x.iter().map(|x| f64::from(x.to_f32()).powi(2)).sum();
    let scale = 1.0 / (squares / x.len() as f64 + f64::from(eps)).sqrt();
    for (index, (y, x)) in y.iter_mut().zip(x).enumerate() {
        // SAFETY: a weight is as long as a row.
        let weight = weight.map(|weight| unsafe { weight.kind.get(weight.start, index) });
        let factor = weight.map_or(1.0, |weight| f64::from(weight) + f64::from(offset));
        *y = T::from_f32((f64::from(x.to_f32()) * scale * factor) as f32);
    }
}
