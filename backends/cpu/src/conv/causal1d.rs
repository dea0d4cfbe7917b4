//! `conv.causal1d`: one row of outputs from the last `width` rows of inputs, channels vectorized.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{ConvCausal1dActivation, ConvCausal1dCall, ConvCausal1dKernel, ConvCausal1dOut};

use crate::activation::Silu;
use crate::gemm::dots::recompute_with_bias;
use crate::isa::require;
use crate::pointwise::Pointwise;
use crate::rows::{AnyRow, AnyRows, Rows, RowsMut, Shape, any_row, for_each_range};
use crate::simd::{Float, Simd, vectors, with_float};

/// Dense channels, weights of any float type.
#[derive(Debug)]
pub(crate) struct Causal1d<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.conv.causal1d",
    operation = "conv.causal1d",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16], W = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true,
    workspace = "(width * channels + batch * (width - 1) * channels) * 4"
)]
impl<S: Simd> ConvCausal1dKernel for Causal1d<S> {
    fn run(
        &self,
        call: &ConvCausal1dCall<'_>,
        mut out: ConvCausal1dOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let axes = &call.axes;
        let [batch, seq, channels, width] =
            [axes.batch, axes.seq, axes.channels, axes.width].map(|size| size as usize);
        let bytes = (width * channels + batch * (width - 1) * channels) * size_of::<f32>();
        let workspace = run.workspace(bytes as u64)?.as_mut_ptr().cast::<f32>();
        let weight = AnyRows::new(&call.weight, Shape::Last)?;
        let kind = weight.kind()?;
        let bias = any_row(call.bias.as_ref())?;
        for channel in 0..channels {
            for tap in 0..width {
                // SAFETY: the workspace holds the transposed taps, one row of channels per tap.
                unsafe { *workspace.add(tap * channels + channel) = kind.get(weight.start(channel), tap) };
            }
        }
        let taps = Transposed { start: workspace, width: channels };
        let past = Transposed { start: workspace.wrapping_add(width * channels), width: channels };
        with_float!(call.dtype_t, T => {
            let x = Rows::<T>::new(&call.x)?;
            let initial = call.initial_state.as_ref().map(Rows::<T>::new).transpose()?;
            for row in 0..batch * channels {
                let (b, channel) = (row / channels, row % channels);
                for step in 0..width - 1 {
                    let value = initial.map_or(0.0, |state| state.row(row)[step].to_f32());
                    // SAFETY: the workspace holds the transposed states, one row of channels per step.
                    unsafe { *past.row(b * (width - 1) + step).add(channel) = value };
                }
            }
            let y = RowsMut::<T>::new(&mut out.output)?;
            let silu = call.activation == ConvCausal1dActivation::Silu;
            for_each_range(batch * seq, 2 * channels * size_of::<T>(), &|range| {
                for row in range {
                    let inputs = Inputs { x, past, seq, width, row };
                    // SAFETY: ranges are disjoint, so no other task writes this row.
                    let to = unsafe { y.row(row) };
                    if silu {
                        convolve(s, &inputs, taps, bias, to, Silu { alpha: 1.0 });
                    } else {
                        convolve(s, &inputs, taps, bias, to, crate::mlp::Identity);
                    }
                }
            });
            if let Some(state) = &mut out.final_state {
                let state = RowsMut::<T>::new(state)?;
                for row in 0..batch * channels {
                    let (b, channel) = (row / channels, row % channels);
                    // SAFETY: only this thread writes the state.
                    let to = unsafe { state.row(row) };
                    for (step, to) in to.iter_mut().enumerate() {
                        // The inputs before `seq`, of which the first ones may be of the initial state.
                        *to = match (seq + step).checked_sub(width - 1) {
                            Some(t) => x.row(b * seq + t)[channel],
                            None => initial.map_or(T::from_f32(0.0), |state| state.row(row)[seq + step]),
                        };
                    }
                }
            }
            Ok(())
        })
    }
}

/// Rows of f32 in the workspace, one element per channel.
#[derive(Clone, Copy)]
struct Transposed {
    start: *mut f32,
    width: usize,
}

// SAFETY: written before tasks start, and only read by them.
unsafe impl Sync for Transposed {}

impl Transposed {
    fn row(self, row: usize) -> *mut f32 {
        self.start.wrapping_add(row * self.width)
    }
}

/// The inputs of one output row.
struct Inputs<'a, T> {
    x: Rows<'a, T>,
    past: Transposed,
    seq: usize,
    width: usize,
    row: usize,
}

impl<T: Float> Inputs<'_, T> {
    /// The input that a tap multiplies.
    fn at(&self, tap: usize, channel: usize) -> f32 {
        let (b, t) = (self.row / self.seq, self.row % self.seq);
        match (t + tap).checked_sub(self.width - 1) {
            Some(t) => self.x.row(b * self.seq + t)[channel].to_f32(),
            // SAFETY: the state has a row for each of the steps before the sequence.
            None => unsafe { *self.past.row(b * (self.width - 1) + t + tap).add(channel) },
        }
    }
}

/// Channels that one pass over the taps computes: their sums stay in L1.
const CHANNELS: usize = 1024;

#[inline(never)]
fn convolve<S: Simd, T: Float>(
    s: S,
    inputs: &Inputs<'_, T>,
    taps: Transposed,
    bias: Option<AnyRow>,
    to: &mut [T],
    activation: impl Pointwise<1>,
) {
    let (b, t) = (inputs.row / inputs.seq, inputs.row % inputs.seq);
    let mut sums = [0.0f32; CHANNELS];
    for (first, to) in (0..).step_by(CHANNELS).zip(to.chunks_mut(CHANNELS)) {
        let sums = &mut sums[..to.len()];
        sums.fill(0.0);
        for tap in 0..inputs.width {
            let weights = taps.row(tap).wrapping_add(first).cast_const();
            match (t + tap).checked_sub(inputs.width - 1) {
                Some(t) => add_products(s, sums, weights, &inputs.x.row(b * inputs.seq + t)[first..]),
                None => {
                    let past = inputs.past.row(b * (inputs.width - 1) + t + tap).wrapping_add(first);
                    // SAFETY: the row of the state has this many channels after the first one.
                    add_products(s, sums, weights, unsafe { std::slice::from_raw_parts(past, to.len()) });
                }
            }
        }
        let bias_at = |channel: usize| {
            // SAFETY: there is a bias for every channel.
            bias.map_or(0.0, |bias| unsafe { bias.kind.get(bias.start, first + channel) })
        };
        let done = recompute_with_bias(s, sums, bias_at, |channel| {
            let product = |tap: usize| {
                // SAFETY: there is a weight for every tap and channel.
                let weight = unsafe { *taps.row(tap).add(first + channel) };
                f64::from(weight) * f64::from(inputs.at(tap, first + channel))
            };
            (0..inputs.width).map(product).sum()
        });
        let bias = if done { None } else { bias };
        s.vectorize(|| {
            vectors!(S, to.len(), |span| {
                // SAFETY: sums, outputs and the bias from `first` on have this many elements.
                unsafe {
                    let mut value = <f32 as Float>::load(s, sums.as_ptr(), span);
                    if let Some(bias) = bias {
                        let start = bias.start.wrapping_add(first * bias.kind.size());
                        value = s.add(value, bias.kind.load(s, start, span));
                    }
                    T::store(s, to.as_mut_ptr(), span, activation.apply(s, [value]));
                }
            });
        });
    }
}

/// `sums += weights * inputs`.
#[inline(always)]
fn add_products<S: Simd, T: Float>(s: S, sums: &mut [f32], weights: *const f32, inputs: &[T]) {
    let to = sums.as_mut_ptr();
    s.vectorize(|| {
        vectors!(S, sums.len().min(inputs.len()), |span| {
            // SAFETY: spans stay inside all three, which have one element per channel.
            unsafe {
                let weight = <f32 as Float>::load(s, weights, span);
                let sum = <f32 as Float>::load(s, to, span);
                let product = s.fma(weight, T::load(s, inputs.as_ptr(), span), sum);
                <f32 as Float>::store(s, to, span, product);
            }
        });
    });
}
