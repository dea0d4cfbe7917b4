//! `sampling.speculative`: accepts draft tokens in order until one is rejected, then draws one token.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::reference::philox::{Stream, block_at, uniform};
use lz_ops::{SamplingSpeculativeCall, SamplingSpeculativeKernel, SamplingSpeculativeOut};

use super::{choose, for_each_slot, scalar};
use crate::rows::{Rows, RowsMut, Shape};
use crate::simd::Simd;

/// Probabilities with a dense vocabulary. The schema fixes the summation order, so nothing is vectorized.
#[derive(Debug)]
pub(crate) struct Speculative<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.sampling.speculative",
    operation = "sampling.speculative",
    backend = "cpu",
    priority = 60,
    strides = last_dense,
    deterministic
)]
impl<S: Simd> SamplingSpeculativeKernel for Speculative<S> {
    fn run(
        &self,
        call: &SamplingSpeculativeCall<'_>,
        mut out: SamplingSpeculativeOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let seed = scalar(call.seed_tensor.as_ref(), call.seed)?;
        let offset = scalar(call.offset_tensor.as_ref(), call.offset)?;
        let (draft, target) = (Rows::<f32>::new(&call.draft_probs)?, Rows::<f32>::new(&call.target_probs)?);
        let drafted = Rows::<i32>::shaped(&call.draft_tokens, Shape::Elements)?;
        let tokens = RowsMut::<i32>::shaped(&mut out.tokens, Shape::Elements)?;
        let accepted = RowsMut::<i32>::shaped(&mut out.accepted, Shape::Elements)?;
        let (length, vocab) = (call.axes.draft_len as usize, call.axes.vocab as usize);
        let request = |b: usize| {
            let uniforms = |i: usize| {
                let [w0, w1, w2, w3] =
                    block_at(Stream::Speculative, seed, offset, (b * (length + 1) + i) as u64);
                (uniform(w0, w1), uniform(w2, w3))
            };
            let write = |i: usize, token: i32| {
                // SAFETY: every request belongs to one task.
                unsafe { tokens.row(b * (length + 1) + i)[0] = token };
            };
            let mut count = 0;
            while count < length {
                let token = drafted.row(b * length + count)[0];
                let probability = |rows: &Rows<'_, f32>, row: usize| {
                    // A token outside the vocabulary has probability 0; validation rejects such tokens.
                    let found = usize::try_from(token).ok().and_then(|token| rows.row(row).get(token));
                    found.map_or(0.0, |&value| weight(value))
                };
                let (q, p) =
                    (probability(&draft, b * length + count), probability(&target, b * (length + 1) + count));
                if uniforms(count).0 * q < p {
                    write(count, token);
                    count += 1;
                } else {
                    break;
                }
            }
            let p = target.row(b * (length + 1) + count);
            let q = (count < length).then(|| draft.row(b * length + count));
            write(count, draw_next(p, q, uniforms(count).1));
            (count + 1..=length).for_each(|i| write(i, -1));
            // SAFETY: as above.
            unsafe { accepted.row(b)[0] = count as i32 };
        };
        for_each_slot(call.axes.batch as usize, 2 * vocab * size_of::<f32>(), |_, requests| {
            requests.for_each(request);
        });
        Ok(())
    }
}

/// NaN and negative probabilities count as 0.
#[inline(always)]
fn weight(probability: f32) -> f64 {
    f64::from(probability).max(0.0)
}

/// Draws the token after the accepted ones.
fn draw_next(target: &[f32], draft: Option<&[f32]>, u: f64) -> i32 {
    if let Some(draft) = draft {
        let rest = |(&p, &q): (&f32, &f32)| (weight(p) - weight(q)).max(0.0);
        let both = target.iter().zip(draft);
        if both.clone().any(|both| rest(both) > 0.0) {
            return choose((0..).zip(both.map(rest)), u);
        }
    }
    choose((0..).zip(target.iter().map(|&p| weight(p))), u)
}
