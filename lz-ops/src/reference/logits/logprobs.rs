//! Reference of `logits.logprobs`: the logarithm of the softmax in f64, and a stable sort.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::index::with;
use crate::{LogitsLogprobsCall, LogitsLogprobsOut};

/// Runs the operation.
pub fn run(call: &LogitsLogprobsCall<'_>, mut out: LogitsLogprobsOut<'_>) -> Result<(), KernelError> {
    for row in Indices::new(&call.axes.rows_dims) {
        let logits: Vec<f64> = (0..call.axes.vocab).map(|token| call.logits.at(&with(row, token))).collect();
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log_sum = logits.iter().map(|logit| (logit - largest).exp()).sum::<f64>().ln();
        let logprob = |token: usize| (logits[token] - largest) - log_sum;
        let token = call.tokens.int_at(&row) as usize;
        out.logprobs.set(&row, logprob(token));
        let rank = 1 + logits.iter().filter(|&&logit| logit > logits[token]).count();
        out.ranks.set_int(&row, rank as i64);
        let mut sorted: Vec<usize> = (0..logits.len()).collect();
        // The sort is stable, so equal logits stay in index order; NaN comes last.
        sorted.sort_by(|&a, &b| {
            let by_nan = logits[a].is_nan().cmp(&logits[b].is_nan());
            by_nan.then(logits[b].partial_cmp(&logits[a]).unwrap_or(std::cmp::Ordering::Equal))
        });
        for (slot, &token) in (0..call.top_k).zip(&sorted) {
            let index = with(row, slot);
            out.top_logprobs.set(&index, logprob(token));
            out.top_tokens.set_int(&index, token as i64);
        }
    }
    Ok(())
}
