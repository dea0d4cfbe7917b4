//! `norm.group`: three passes over a group, which usually fits L2: mean, variance, and the result.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{NormGroupActivation, NormGroupCall, NormGroupKernel, NormGroupOut};

use crate::activation::Silu;
use crate::isa::require;
use crate::mlp::Identity;
use crate::pointwise::Pointwise;
use crate::rows::{AnyRow, Rows, RowsMut, any_row, for_each_range};
use crate::simd::{Float, Simd, vectors, with_float};

/// Dense positions of any float type, weight and bias of any float type.
#[derive(Debug)]
pub(crate) struct GroupRows<S>(pub PhantomData<S>);

/// Elements that are summed in f32 before they are added in f64.
const BLOCK: usize = 1024;

#[lz_macros::kernel(
    id = "cpu.norm.group",
    operation = "norm.group",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16], W = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> NormGroupKernel for GroupRows<S> {
    fn run(
        &self,
        call: &NormGroupCall<'_>,
        mut out: NormGroupOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let (channels, groups) = (call.axes.channels as usize, call.groups as usize);
        let rows = channels / groups;
        let (weight, bias) = (any_row(call.weight.as_ref())?, any_row(call.bias.as_ref())?);
        with_float!(call.dtype_t, T => {
            let x = Rows::<T>::new(&call.x)?;
            let y = RowsMut::<T>::new(&mut out.output)?;
            if rows * x.width() == 0 {
                return Ok(());
            }
            for_each_range(x.count() / rows, 4 * rows * x.width() * size_of::<T>(), &|range| {
                for group in range {
                    let moments = Moments::new(s, &x, group * rows..(group + 1) * rows, call.eps);
                    for row in group * rows..(group + 1) * rows {
                        let channel = row % channels;
                        // SAFETY: weight and bias have an element per channel.
                        let at = |row: AnyRow| f64::from(unsafe { row.kind.get(row.start, channel) });
                        let factor = weight.map_or(1.0, at) * moments.inv_std;
                        let addend = bias.map_or(0.0, at);
                        // SAFETY: every group belongs to one task.
                        let to = unsafe { y.row(row) };
                        let affine = Affine { mean: moments.mean, factor, addend, wide: moments.wide };
                        match call.activation {
                            NormGroupActivation::None => affine.write(s, x.row(row), to, Identity),
                            NormGroupActivation::Silu => affine.write(s, x.row(row), to, Silu { alpha: 1.0 }),
                        }
                    }
                }
            });
            Ok(())
        })
    }
}

/// Mean and inverse standard deviation of a group.
struct Moments {
    mean: f64,
    inv_std: f64,
    /// Whether results must be computed in f64.
    wide: bool,
}

impl Moments {
    fn new<S: Simd, T: Float>(s: S, x: &Rows<'_, T>, rows: std::ops::Range<usize>, eps: f32) -> Moments {
        let count = (rows.len() * x.width()) as f64;
        let blocks = || rows.clone().flat_map(|row| x.row(row).chunks(BLOCK));
        let sum: f64 = blocks().map(|block| f64::from(block_sum(s, block))).sum();
        let mean = sum / count;
        // Deviations from the rounded mean are exact where they matter; the rest is a constant.
        let rounded = mean as f32;
        let squares: f64 = blocks().map(|block| f64::from(block_squares(s, block, rounded))).sum();
        let variance = squares / count - (mean - f64::from(rounded)).powi(2);
        if variance.is_finite() && squares > 1e-25 {
            let inv_std = 1.0 / (variance.max(0.0) + f64::from(eps)).sqrt();
            return Moments { mean, inv_std, wide: mean.abs() > 1e30 };
        }
        // f32 overflowed, or has lost significant digits.
        let values = || blocks().flatten().map(|x| f64::from(x.to_f32()));
        let mean = values().sum::<f64>() / count;
        let variance = values().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        Moments { mean, inv_std: 1.0 / (variance + f64::from(eps)).sqrt(), wide: true }
    }
}

#[inline(never)]
fn block_sum<S: Simd, T: Float>(s: S, block: &[T]) -> f32 {
    s.vectorize(|| {
        let mut sums = [s.splat(0.0); 4];
        vectors!(S, block.len(), |span, k of 4| {
            // SAFETY: spans stay inside the block.
            sums[k] = s.add(sums[k], unsafe { T::load(s, block.as_ptr(), span) });
        });
        s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
    })
}

#[inline(never)]
fn block_squares<S: Simd, T: Float>(s: S, block: &[T], mean: f32) -> f32 {
    s.vectorize(|| {
        let mut sums = [s.splat(0.0); 4];
        vectors!(S, block.len(), |span, k of 4| {
            // SAFETY: spans stay inside the block.
            let deviation = s.sub(unsafe { T::load(s, block.as_ptr(), span) }, s.splat(mean));
            let deviation = match crate::simd::Span::part(span) {
                Some(count) => s.keep_first(deviation, count),
                None => deviation,
            };
            sums[k] = s.fma(deviation, deviation, sums[k]);
        });
        s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
    })
}

/// The normalization of one channel.
struct Affine {
    mean: f64,
    factor: f64,
    addend: f64,
    wide: bool,
}

impl Affine {
    #[inline(never)]
    fn write<S: Simd, T: Float>(&self, s: S, x: &[T], to: &mut [T], activation: impl Pointwise<1>) {
        let rounded = self.mean as f32;
        let correction = ((self.mean - f64::from(rounded)) * self.factor) as f32;
        // NaN is not below the bound.
        let small = self.factor.abs() < 1e30;
        if self.wide || !small {
            return self.write_f64(s, x, to, activation);
        }
        let (factor, addend) = (self.factor as f32, (self.addend - f64::from(correction)) as f32);
        s.vectorize(|| {
            vectors!(S, to.len(), |span| {
                // SAFETY: both rows have this many elements.
                unsafe {
                    let deviation = s.sub(T::load(s, x.as_ptr(), span), s.splat(rounded));
                    let value = s.fma(deviation, s.splat(factor), s.splat(addend));
                    T::store(s, to.as_mut_ptr(), span, activation.apply(s, [value]));
                }
            });
        });
    }

    /// For factors that f32 cannot represent.
    #[cold]
    #[inline(never)]
    fn write_f64<S: Simd, T: Float>(&self, s: S, x: &[T], to: &mut [T], activation: impl Pointwise<1>) {
        for (x, to) in x.iter().zip(to) {
            let value = [((f64::from(x.to_f32()) - self.mean) * self.factor + self.addend) as f32; 1];
            s.vectorize(|| {
                // SAFETY: one element is readable and writable.
                unsafe {
                    let lane = <f32 as Float>::load(s, value.as_ptr(), crate::simd::Tail(0, 1));
                    T::store(s, to, crate::simd::Tail(0, 1), activation.apply(s, [lane]));
                }
            });
        }
    }
}
