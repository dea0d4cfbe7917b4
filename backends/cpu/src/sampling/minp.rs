//! `sampling.minp`: tokens above a bound on the logits, and the exact weights of those only.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::reference::philox::{Stream, block_at, uniform};
use lz_ops::{SamplingMinpCall, SamplingMinpKernel, SamplingMinpOut};

use super::cutoff::{RowScratch, weight};
use super::scan::{Scan, token};
use super::topk::Slots;
use super::{SLOTS, choose, for_each_slot, scalar};
use crate::isa::require;
use crate::rows::{Rows, RowsMut, Shape};
use crate::simd::{Simd, with_float};

/// Dense rows of logits, any float type.
#[derive(Debug)]
pub(crate) struct MinP<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.sampling.minp",
    operation = "sampling.minp",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    workspace = "min(rows, 16) * (vocab * 16 + ceil_div(vocab, 256) * 8)"
)]
impl<S: Simd> SamplingMinpKernel for MinP<S> {
    fn run(
        &self,
        call: &SamplingMinpCall<'_>,
        mut out: SamplingMinpOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let seed = scalar(call.seed_tensor.as_ref(), call.seed)?;
        let offset = scalar(call.offset_tensor.as_ref(), call.offset)?;
        let shares = call.p_tensor.as_ref().map(|p| Rows::<f32>::shaped(p, Shape::Elements)).transpose()?;
        let tokens = RowsMut::<i32>::shaped(&mut out.tokens, Shape::Elements)?;
        let (rows, vocab) = (call.axes.rows as usize, call.axes.vocab as usize);
        let slots = Slots(run.workspace((rows.min(SLOTS) * RowScratch::bytes(vocab)) as u64)?.as_mut_ptr());
        let temperature = f64::from(call.temperature);
        with_float!(call.dtype_t, T => {
            let logits = Rows::<T>::new(&call.logits)?;
            for_each_slot(rows, vocab * size_of::<T>(), |slot, rows| {
                // SAFETY: the workspace has space for every slot, and each belongs to one task.
                let RowScratch { keys, weights, maxima, .. } = unsafe { slots.slot(slot, vocab) };
                for row in rows {
                    let scan = Scan::new(s, logits.row(row), maxima);
                    let p = f64::from(shares.map_or(call.p, |shares| shares.row(row)[0]));
                    let found = scan.candidates(bound(scan.largest, p, temperature), keys);
                    let mut count = 0;
                    for index in 0..found {
                        let key = keys[index];
                        let weight = weight(key, scan.largest, temperature);
                        if weight >= p {
                            (keys[count], weights[count]) = (key, weight);
                            count += 1;
                        }
                    }
                    let [w0, w1, ..] = block_at(Stream::MinP, seed, offset, row as u64);
                    let kept = keys[..count].iter().map(|&key| token(key));
                    let drawn = match scan.largest {
                        f32::NEG_INFINITY => -1,
                        _ => choose(kept.zip(weights[..count].iter().copied()), uniform(w0, w1)),
                    };
                    // SAFETY: every row belongs to one task.
                    unsafe { tokens.row(row)[0] = drawn };
                }
            });
            Ok(())
        })
    }
}

/// A logit below which no token is kept. It is a little too low, to allow for rounding; weights decide.
fn bound(largest: f32, p: f64, temperature: f64) -> f32 {
    let largest = f64::from(largest);
    let distance = -temperature * p.ln();
    let slack = 1e-6 * (largest.abs() + distance);
    // Infinite if p is 0 or the largest logit is infinite: then all tokens are candidates.
    let bound = largest - distance - slack;
    if bound.is_finite() { bound as f32 } else { f32::NEG_INFINITY }
}
