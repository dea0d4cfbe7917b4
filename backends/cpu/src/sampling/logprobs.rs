//! `logits.logprobs`: one pass for the maximum, one for the sum and the rank, and the best tokens from the block maxima.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{LogitsLogprobsCall, LogitsLogprobsKernel, LogitsLogprobsOut};

use super::cutoff::{RowScratch, first};
use super::scan::{BLOCK, Scan, token};
use super::topk::Slots;
use super::{SLOTS, for_each_slot};
use crate::isa::require;
use crate::rows::{Rows, RowsMut, Shape};
use crate::simd::{Float, Simd, exp, vectors, with_float};

/// Dense rows of logits, any float type.
#[derive(Debug)]
pub(crate) struct Logprobs<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.logits.logprobs",
    operation = "logits.logprobs",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    batch_invariant = true,
    workspace = "min(rows, 16) * (vocab * 16 + ceil_div(vocab, 256) * 8)"
)]
impl<S: Simd> LogitsLogprobsKernel for Logprobs<S> {
    fn run(
        &self,
        call: &LogitsLogprobsCall<'_>,
        mut out: LogitsLogprobsOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let (rows, vocab, top_k) = (call.axes.rows as usize, call.axes.vocab as usize, call.top_k as usize);
        let slots = Slots(run.workspace((rows.min(SLOTS) * RowScratch::bytes(vocab)) as u64)?.as_mut_ptr());
        let tokens = Rows::<i32>::shaped(&call.tokens, Shape::Elements)?;
        let logprobs = RowsMut::<f32>::shaped(&mut out.logprobs, Shape::Elements)?;
        let ranks = RowsMut::<i32>::shaped(&mut out.ranks, Shape::Elements)?;
        let top_logprobs = RowsMut::<f32>::new(&mut out.top_logprobs)?;
        let top_tokens = RowsMut::<i32>::new(&mut out.top_tokens)?;
        with_float!(call.dtype_t, T => {
            let logits = Rows::<T>::new(&call.logits)?;
            for_each_slot(rows, 2 * vocab * size_of::<T>(), |slot, rows| {
                // SAFETY: the workspace has space for every slot, and each belongs to one task.
                let RowScratch { keys, maxima, sorted, .. } = unsafe { slots.slot(slot, vocab) };
                for row in rows {
                    let logits = logits.row(row);
                    let scan = Scan::new(s, logits, maxima);
                    let logit = logits[tokens.row(row)[0] as usize].to_f32();
                    let [sum, larger] = sums(s, logits, scan.largest, logit);
                    let (largest, log_sum) = (f64::from(scan.largest), sum.ln());
                    let logprob = |logit: f32| ((f64::from(logit) - largest) - log_sum) as f32;
                    // SAFETY: every row belongs to one task.
                    let (to, best) = unsafe {
                        logprobs.row(row)[0] = logprob(logit);
                        ranks.row(row)[0] = 1 + larger as i32;
                        (top_logprobs.row(row), top_tokens.row(row))
                    };
                    let found = first(&scan, top_k, keys, sorted);
                    keys[..found].sort_unstable();
                    for (best, &key) in best.iter_mut().zip(&keys[..found]) {
                        *best = token(key);
                    }
                    // Tokens that are NaN come last.
                    let nan = (0..).zip(logits).filter(|(_, logit)| logit.to_f32().is_nan());
                    for (best, (token, _)) in best.iter_mut().skip(found).zip(nan) {
                        *best = token;
                    }
                    for (to, &token) in to.iter_mut().zip(&*best) {
                        *to = logprob(logits[token as usize].to_f32());
                    }
                }
            });
            Ok(())
        })
    }
}

/// `Σ exp(logit - largest)`, and how many logits exceed `bound`.
fn sums<S: Simd, T: Float>(s: S, logits: &[T], largest: f32, bound: f32) -> [f64; 2] {
    let mut all = [0.0; 2];
    for block in logits.chunks(BLOCK) {
        let found = block_sums(s, block, largest, bound);
        all = [all[0] + f64::from(found[0]), all[1] + f64::from(found[1])];
    }
    all
}

#[inline(never)]
fn block_sums<S: Simd, T: Float>(s: S, block: &[T], largest: f32, bound: f32) -> [f32; 2] {
    s.vectorize(|| {
        let (mut sum, mut count) = (s.splat(0.0), s.splat(0.0));
        vectors!(S, block.len(), |span| {
            // SAFETY: spans stay inside the block.
            let value = unsafe { T::load(s, block.as_ptr(), span) };
            let mut weight = exp(s, s.sub(value, s.splat(largest)));
            let mut larger = s.select(s.lt(s.splat(bound), value), s.splat(1.0), s.splat(0.0));
            if let Some(lanes) = crate::simd::Span::part(span) {
                weight = s.keep_first(weight, lanes);
                larger = s.keep_first(larger, lanes);
            }
            sum = s.add(sum, weight);
            count = s.add(count, larger);
        });
        [s.sum(sum), s.sum(count)]
    })
}
