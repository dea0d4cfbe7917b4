//! Reference of `sampling.speculative`: accepts draft tokens in order until one is rejected, then draws one
//! token.

use lz_core::KernelError;
use lz_core::tensor::TensorView;

use crate::reference::draw::{Candidate, choose, scalar};
use crate::reference::philox::{Stream, block_at, uniform};
use crate::{SamplingSpeculativeCall, SamplingSpeculativeOut};

/// Runs the operation.
pub fn run(
    call: &SamplingSpeculativeCall<'_>,
    mut out: SamplingSpeculativeOut<'_>,
) -> Result<(), KernelError> {
    let seed = scalar(call.seed_tensor, call.seed);
    let offset = scalar(call.offset_tensor, call.offset);
    let draft_len = call.axes.draft_len;
    for b in 0..call.axes.batch {
        // The two uniforms of a position: for accepting its draft token, and for drawing a token there.
        let uniforms = |i: i64| {
            let number = (b as u64).wrapping_mul(draft_len as u64 + 1).wrapping_add(i as u64);
            let [w0, w1, w2, w3] = block_at(Stream::Speculative, seed, offset, number);
            (uniform(w0, w1), uniform(w2, w3))
        };
        let mut accepted = 0;
        while accepted < draft_len {
            let token = call.draft_tokens.int_at(&[b, accepted]);
            let index = [b, accepted, token];
            let (acceptance, _) = uniforms(accepted);
            if acceptance * probability(&call.draft_probs, index) < probability(&call.target_probs, index) {
                out.tokens.set_int(&[b, accepted], token);
                accepted += 1;
            } else {
                break;
            }
        }
        let (_, u) = uniforms(accepted);
        out.tokens.set_int(&[b, accepted], draw_next(call, b, accepted, u));
        for i in accepted + 1..=draft_len {
            out.tokens.set_int(&[b, i], -1);
        }
        out.accepted.set_int(&[b], accepted);
    }
    Ok(())
}

/// Draws the token after the accepted ones.
fn draw_next(call: &SamplingSpeculativeCall<'_>, b: i64, i: i64, u: f64) -> i64 {
    let target = |token| probability(&call.target_probs, [b, i, token]);
    let all = |weight: &dyn Fn(i64) -> f64| -> Vec<Candidate> {
        (0..call.axes.vocab).map(|token| Candidate { token, weight: weight(token) }).collect()
    };
    if i < call.axes.draft_len {
        let rest = all(&|token| (target(token) - probability(&call.draft_probs, [b, i, token])).max(0.0));
        if rest.iter().any(|candidate| candidate.weight > 0.0) {
            return choose(rest, u);
        }
    }
    choose(all(&target), u)
}

/// A probability; NaN and negative values count as 0.
fn probability(probabilities: &TensorView<'_>, index: [i64; 3]) -> f64 {
    probabilities.at(&index).max(0.0)
}
