//! `conv.causal1d.step`: a few products per channel, bound by memory.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{ConvCausal1dStepActivation, ConvCausal1dStepCall, ConvCausal1dStepKernel, ConvCausal1dStepOut};

use crate::activation::Silu;
use crate::isa::require;
use crate::pointwise::Pointwise;
use crate::rows::{AnyRows, Rows, RowsMut, Shape, any_row, for_each_range};
use crate::simd::{Float, Simd, vectors, with_float};

/// Dense states, weights of any float type.
#[derive(Debug)]
pub(crate) struct Causal1dStep<S>(pub PhantomData<S>);

/// Channels whose sums are computed before the activation.
const CHANNELS: usize = 256;

#[lz_macros::kernel(
    id = "cpu.conv.causal1d.step",
    operation = "conv.causal1d.step",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16], W = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> ConvCausal1dStepKernel for Causal1dStep<S> {
    fn run(
        &self,
        call: &ConvCausal1dStepCall<'_>,
        mut out: ConvCausal1dStepOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let (channels, width) = (call.axes.channels as usize, call.axes.width as usize);
        let weight = AnyRows::new(&call.weight, Shape::Last)?;
        let (kind, bias) = (weight.kind()?, any_row(call.bias.as_ref())?);
        let silu = call.activation == ConvCausal1dStepActivation::Silu;
        with_float!(call.dtype_t, T => {
            let x = Rows::<T>::new(&call.x)?;
            let state = RowsMut::<T>::new(&mut out.state)?;
            let y = RowsMut::<T>::new(&mut out.output)?;
            let blocks = channels.div_ceil(CHANNELS);
            let bytes = CHANNELS.min(channels) * 2 * width * size_of::<T>();
            for_each_range(x.count() * blocks, bytes, &|range| {
                for block in range {
                    let (row, first) = (block / blocks, block % blocks * CHANNELS);
                    let end = channels.min(first + CHANNELS);
                    let mut sums = [0.0f32; CHANNELS];
                    for (channel, sum) in (first..end).zip(&mut sums) {
                        let input = x.row(row)[channel];
                        // SAFETY: every state and output belongs to one task; weights have `width` taps.
                        unsafe {
                            let state = state.row(row * channels + channel);
                            let product = |tap: usize, input: T| {
                                f64::from(kind.get(weight.start(channel), tap)) * f64::from(input.to_f32())
                            };
                            let mut exact = product(width - 1, input);
                            for (tap, &input) in state.iter().enumerate() {
                                exact += product(tap, input);
                            }
                            *sum = (exact + bias.map_or(0.0, |bias| f64::from(bias.kind.get(bias.start, channel)))) as f32;
                            if let Some(last) = state.len().checked_sub(1) {
                                state.copy_within(1.., 0);
                                state[last] = input;
                            }
                        }
                    }
                    // SAFETY: as above.
                    let to = unsafe { y.part(row, first..end) };
                    if silu {
                        store(s, &sums, to, Silu { alpha: 1.0 });
                    } else {
                        store(s, &sums, to, crate::mlp::Identity);
                    }
                }
            });
            Ok(())
        })
    }
}

fn store<S: Simd, T: Float>(s: S, sums: &[f32], to: &mut [T], activation: impl Pointwise<1>) {
    s.vectorize(|| {
        vectors!(S, to.len(), |span| {
            // SAFETY: there are at least as many sums as outputs.
            unsafe {
                let value = activation.apply(s, [<f32 as Float>::load(s, sums.as_ptr(), span)]);
                T::store(s, to.as_mut_ptr(), span, value);
            }
        });
    });
}
