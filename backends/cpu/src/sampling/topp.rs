//! `sampling.topp`.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::reference::philox::{Stream, block_at, uniform};
use lz_ops::{SamplingToppCall, SamplingToppKernel, SamplingToppOut};

use super::cutoff::{RowScratch, draw, first, last_to_reach, prefix, weight};
use super::flat::RowWeights;
use super::scan::{Key, Scan};
use super::topk::Slots;
use super::{SLOTS, for_each_slot, scalar};
use crate::isa::require;
use crate::rows::{Rows, RowsMut, Shape};
use crate::simd::{Float, Simd, with_float};

/// Dense rows of logits, any float type.
#[derive(Debug)]
pub(crate) struct TopP<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.sampling.topp",
    operation = "sampling.topp",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    workspace = "min(rows, 16) * (vocab * 16 + ceil_div(vocab, 256) * 8)"
)]
impl<S: Simd> SamplingToppKernel for TopP<S> {
    fn run(
        &self,
        call: &SamplingToppCall<'_>,
        mut out: SamplingToppOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let seed = scalar(call.seed_tensor.as_ref(), call.seed)?;
        let offset = scalar(call.offset_tensor.as_ref(), call.offset)?;
        let shares = call.p_tensor.as_ref().map(|p| Rows::<f32>::shaped(p, Shape::Elements)).transpose()?;
        let tokens = RowsMut::<i32>::shaped(&mut out.tokens, Shape::Elements)?;
        let (rows, vocab) = (call.axes.rows as usize, call.axes.vocab as usize);
        let bytes = rows.min(SLOTS) * RowScratch::bytes(vocab);
        let slots = Slots(run.workspace(bytes as u64)?.as_mut_ptr());
        with_float!(call.dtype_t, T => {
            let logits = Rows::<T>::new(&call.logits)?;
            for_each_slot(rows, vocab * size_of::<T>(), |slot, rows| {
                // SAFETY: the workspace has space for every slot, and each belongs to one task.
                let RowScratch { keys, weights, maxima, sorted } = unsafe { slots.slot(slot, vocab) };
                for row in rows {
                    let scan = Scan::new(s, logits.row(row), maxima);
                    let p = f64::from(shares.map_or(call.p, |shares| shares.row(row)[0]));
                    let params = TopPParams { p, top_k: call.top_k, temperature: call.temperature };
                    let [w0, w1, ..] = block_at(Stream::TopP, seed, offset, row as u64);
                    let u = uniform(w0, w1);
                    let bound = params.bound(&scan);
                    let token = match params.flat(&scan, bound, u, keys, weights) {
                        Some(token) => token,
                        None => match params.last(&scan, bound, keys, sorted) {
                            Some(last) => draw(&scan, last, f64::from(call.temperature), u, keys, weights),
                            None => -1,
                        },
                    };
                    // SAFETY: every row belongs to one task.
                    unsafe { tokens.row(row)[0] = token };
                }
            });
            Ok(())
        })
    }
}

/// Top-p parameters of a row.
struct TopPParams {
    p: f64,
    top_k: i64,
    temperature: f32,
}

impl TopPParams {
    /// A logit below which all logits together have negligible weight; `None` if sums of weights cannot be
    /// used.
    fn bound<S: Simd, T: Float>(&self, scan: &Scan<'_, S, T>) -> Option<f32> {
        if self.top_k != 0 || !scan.largest.is_finite() || !(0.0..1.0).contains(&self.p) {
            return None;
        }
        let about = scan.mass_below(f32::INFINITY, self.temperature);
        let light = (1.0 - self.p) * about / (4.0 * scan.row().len() as f64);
        let largest = f64::from(scan.largest);
        Some((largest + f64::from(self.temperature) * light.ln()).min(largest) as f32)
    }

    /// The token drawn from a flat distribution; `None` if the row is not flat, or the sums are not accurate
    /// enough.
    fn flat<S: Simd, T: Float>(
        &self,
        scan: &Scan<'_, S, T>,
        bound: Option<f32>,
        u: f64,
        keys: &mut [Key],
        weights: &mut [f64],
    ) -> Option<i32> {
        // Above this share of the vocabulary, evaluating candidates one by one costs more than all weights
        // vectorized.
        let many = keys.len() / 16;
        if many == 0 || scan.candidates(bound?, &mut keys[..many]) < many {
            return None;
        }
        let row_weights = RowWeights::new(scan, self.temperature, weights);
        let last = row_weights.last(scan, self.p, self.temperature, keys)?;
        row_weights.draw(scan, last, u)
    }

    /// The last candidate that is kept; `None` if there is none.
    fn last<S: Simd, T: Float>(
        &self,
        scan: &Scan<'_, S, T>,
        bound: Option<f32>,
        keys: &mut [Key],
        sorted: &mut [f32],
    ) -> Option<Key> {
        if scan.largest == f32::NEG_INFINITY {
            return None;
        }
        if let Some(bound) = bound
            && let Some(last) = self.by_mass(scan, bound, keys)
        {
            return Some(last);
        }
        let k = if self.top_k == 0 { usize::MAX } else { usize::try_from(self.top_k).unwrap_or(usize::MAX) };
        let count = first(scan, k, keys, sorted);
        let kept = &mut keys[..count];
        kept.sort_unstable();
        let count = prefix(kept, self.p, |key| weight(key, scan.largest, f64::from(self.temperature)));
        kept[..count].last().copied()
    }

    /// The last candidate that is kept, from sums in another order than the schema's; `None` if they are not
    /// accurate enough.
    fn by_mass<S: Simd, T: Float>(&self, scan: &Scan<'_, S, T>, bound: f32, keys: &mut [Key]) -> Option<Key> {
        // Relative error bounds of the mass estimate and of the summation order.
        const MASS_ERROR: f64 = 1e-4;
        const SUM_ERROR: f64 = 1e-11;
        let temperature = f64::from(self.temperature);
        let count = scan.candidates(bound, keys);
        let candidates = &mut keys[..count];
        let weight = |key: Key| weight(key, scan.largest, temperature);
        let heavy: f64 = candidates.iter().map(|&key| weight(key)).sum();
        let rest = scan.mass_below(bound, self.temperature);
        let slack = rest * MASS_ERROR + heavy * SUM_ERROR;
        let target_mass = self.p * (heavy + rest);
        last_to_reach(candidates, [target_mass - slack, target_mass + slack], weight)
    }
}
