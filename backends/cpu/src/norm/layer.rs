//! `norm.layer`: each row is read twice, the second time from L1; three times if its first elements are a bad
//! estimate of the mean.

use std::marker::PhantomData;

use half::{bf16, f16};
use lz_core::{KernelError, Run};
use lz_ops::{NormLayerCall, NormLayerKernel, NormLayerOut};

use crate::isa::require;
use crate::rows::{AnyRow, Rows, RowsMut, Shape, any_row, can_stream, for_each_range, should_stream};
use crate::simd::{Float, FloatKind, Simd, Span, Work, prefetch, vectors, with_float};

/// Dense rows of any float type, weight and bias of any float type.
#[derive(Debug)]
pub(crate) struct LayerRows<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.norm.layer",
    operation = "norm.layer",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16], W = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> NormLayerKernel for LayerRows<S> {
    fn run(
        &self,
        call: &NormLayerCall<'_>,
        mut out: NormLayerOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let simd = require::<S>()?;
        with_float!(call.dtype_t, T => run::<S, T>(simd, call, &mut out))
    }
}

/// Mean and inverse standard deviation of a row. The mean is `mean + correction`, to keep precision in rows
/// far from 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moments {
    mean: f32,
    correction: f32,
    inv_std: f32,
}

fn run<S: Simd, T: Float>(
    simd: S,
    call: &NormLayerCall<'_>,
    out: &mut NormLayerOut<'_>,
) -> Result<(), KernelError> {
    let x = Rows::<T>::new(&call.x)?;
    let y = RowsMut::<T>::new(&mut out.output)?;
    let (weight, bias) = (any_row(call.weight.as_ref())?, any_row(call.bias.as_ref())?);
    let means =
        out.mean.as_mut().map(|output| RowsMut::<f32>::shaped(output, Shape::Elements)).transpose()?;
    let inv_stds =
        out.inv_std.as_mut().map(|output| RowsMut::<f32>::shaped(output, Shape::Elements)).transpose()?;
    let (count, bytes) = (x.count(), 2 * x.width() * size_of::<T>());
    let stream = should_stream(count * x.width() * size_of::<T>());
    for_each_range(count, bytes, &|range| {
        simd.vectorize(|| {
            for row in range {
                // SAFETY: ranges are disjoint, so no other task writes this row.
                let (from, to) = (x.row(row), unsafe { y.row(row) });
                // Prefetch target while this row is written.
                let next_row = x.row((row + 1).min(count - 1)).as_ptr();
                let moments = match moments(simd, from, call.eps) {
                    Some(moments) => {
                        normalize(simd, from, next_row, moments, [weight, bias], to, stream);
                        moments
                    }
                    None => normalize_f64(from, call.eps, weight, bias, to),
                };
                // SAFETY: as above.
                let stats = unsafe {
                    (means.as_ref().map(|to| to.row(row)), inv_stds.as_ref().map(|to| to.row(row)))
                };
                if let (Some([mean]), Some([inv_std])) = stats {
                    (*mean, *inv_std) = (moments.mean + moments.correction, moments.inv_std);
                }
            }
            if stream {
                simd.fence();
            }
        });
    });
    Ok(())
}

/// `None` if f32 overflows, or has lost significant digits.
#[inline(always)]
pub(super) fn moments<S: Simd, T: Float>(s: S, x: &[T], eps: f32) -> Option<Moments> {
    let count = x.len() as f32;
    // The mean of the first elements is usually a good enough shift to compute both moments in one pass.
    let start = &x[..x.len().min(16)];
    let estimate = start.iter().map(|x| x.to_f32()).sum::<f32>() / start.len() as f32;
    let (correction, variance) = moments_around(s, x, estimate);
    if estimate.is_finite() && variance > correction * correction / 16.0 {
        return accurate_moments(estimate, correction, variance, eps);
    }
    let mut sums = [s.splat(0.0); 4];
    vectors!(S, x.len(), |span, k of 4| {
        // SAFETY: spans stay inside the row.
        sums[k] = s.add(sums[k], unsafe { T::load(s, x.as_ptr(), span) });
    });
    let mean = s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3]))) / count;
    let (correction, variance) = moments_around(s, x, mean);
    accurate_moments(mean, correction, variance, eps)
}

/// The moments, if f32 is accurate enough.
#[inline(always)]
fn accurate_moments(mean: f32, correction: f32, variance: f32, eps: f32) -> Option<Moments> {
    let variance = variance + eps;
    let accurate = variance < f32::MAX && variance > 1e-30 && variance > 1e-10 * mean * mean;
    accurate.then(|| Moments { mean, correction, inv_std: 1.0 / variance.sqrt() })
}

/// Distance of the mean from a center, and the variance.
#[inline(always)]
fn moments_around<S: Simd, T: Float>(s: S, x: &[T], center: f32) -> (f32, f32) {
    let count = x.len() as f32;
    let center = s.splat(center);
    let (mut rests, mut squares) = ([s.splat(0.0); 4], [s.splat(0.0); 4]);
    vectors!(S, x.len(), |span, k of 4| {
        // SAFETY: spans stay inside the row.
        let mut rest = s.sub(unsafe { T::load(s, x.as_ptr(), span) }, center);
        if let Some(count) = span.part() {
            rest = s.keep_first(rest, count);
        }
        rests[k] = s.add(rests[k], rest);
        squares[k] = s.fma(rest, rest, squares[k]);
    });
    let all = |sums: [S::F32; 4]| s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])));
    let correction = all(rests) / count;
    (correction, (all(squares) / count - correction * correction).max(0.0))
}

#[inline(always)]
pub(super) fn normalize<S: Simd, T: Float>(
    s: S,
    x: &[T],
    next_row: *const T,
    moments: Moments,
    weight_and_bias: [Option<AnyRow>; 2],
    y: &mut [T],
    stream: bool,
) {
    let stream = stream && can_stream::<S, T>(y);
    let row = Centered::<S, T, f32> { s, x, y, next_row, moments, weight: None, bias: None, stream };
    // The schema requires the same dtype for weight and bias.
    let [weight, bias] = weight_and_bias;
    match weight.or(bias).map_or(FloatKind::F32, |row| row.kind) {
        FloatKind::F32 => s.perform(row.with::<f32>(weight_and_bias)),
        FloatKind::F16 => s.perform(row.with::<f16>(weight_and_bias)),
        FloatKind::BF16 => s.perform(row.with::<bf16>(weight_and_bias)),
    }
}

/// The last pass over a row, monomorphized per type. Weight and bias have the length of the row (validated).
struct Centered<'r, S, T, W> {
    s: S,
    x: &'r [T],
    y: &'r mut [T],
    /// The next row (prefetch target).
    next_row: *const T,
    moments: Moments,
    weight: Option<*const W>,
    bias: Option<*const W>,
    stream: bool,
}

impl<'r, S: Simd, T: Float> Centered<'r, S, T, f32> {
    fn with<W>(self, [weight, bias]: [Option<AnyRow>; 2]) -> Centered<'r, S, T, W> {
        let Centered { s, x, y, next_row, moments, stream, .. } = self;
        let start = |row: Option<AnyRow>| row.map(|row| row.start.cast());
        Centered { s, x, y, next_row, moments, weight: start(weight), bias: start(bias), stream }
    }
}

impl<S: Simd, T: Float, W: Float> Centered<'_, S, T, W> {
    /// # Safety
    /// The span is inside the row.
    #[inline(always)]
    unsafe fn value(&self, span: impl Span, [mean, scale, shift]: [S::F32; 3]) -> S::F32 {
        let s = self.s;
        prefetch(self.next_row.wrapping_add(span.at()));
        // SAFETY: the caller guarantees the span.
        unsafe {
            let value = s.fma(s.sub(T::load(s, self.x.as_ptr(), span), mean), scale, shift);
            match (self.weight, self.bias) {
                (Some(weight), Some(bias)) => s.fma(value, W::load(s, weight, span), W::load(s, bias, span)),
                (Some(weight), None) => s.mul(value, W::load(s, weight, span)),
                (None, Some(bias)) => s.add(value, W::load(s, bias, span)),
                (None, None) => value,
            }
        }
    }
}

impl<S: Simd, T: Float, W: Float> Work for Centered<'_, S, T, W> {
    #[inline(always)]
    fn perform(self) {
        let (s, len, to) = (self.s, self.x.len(), self.y.as_mut_ptr());
        let Moments { mean, correction, inv_std } = self.moments;
        let by = [s.splat(mean), s.splat(inv_std), s.splat(-correction * inv_std)];
        // SAFETY: spans stay inside the row; y has its length and is borrowed exclusively.
        unsafe {
            if self.stream {
                vectors!(S, len, |span| { T::stream(s, to, span, self.value(span, by)) });
            } else {
                vectors!(S, len, |span| { T::store(s, to, span, self.value(span, by)) });
            }
        }
    }
}

/// Fallback in f64 for rows whose moments f32 cannot represent.
#[cold]
#[inline(never)]
pub(super) fn normalize_f64<T: Float>(
    x: &[T],
    eps: f32,
    weight: Option<AnyRow>,
    bias: Option<AnyRow>,
    y: &mut [T],
) -> Moments {
    let to_f64 = |x: &T| f64::from(x.to_f32());
    let mean = x.iter().map(to_f64).sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|x| (to_f64(x) - mean).powi(2)).sum::<f64>() / x.len() as f64;
    let inv_std = 1.0 / (variance + f64::from(eps)).sqrt();
    for (index, (y, x)) in y.iter_mut().zip(x).enumerate() {
        // SAFETY: weight and bias are as long as a row.
        let at = |row: Option<AnyRow>| row.map(|row| f64::from(unsafe { row.kind.get(row.start, index) }));
        let value = (to_f64(x) - mean) * inv_std * at(weight).unwrap_or(1.0) + at(bias).unwrap_or(0.0);
        *y = T::from_f32(value as f32);
    }
    Moments { mean: mean as f32, correction: 0.0, inv_std: inv_std as f32 }
}
