//! Reference of `sampling.topp`: the most likely candidates up to a cumulative probability, and one draw
//! among them.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::draw::{Candidate, candidates, choose, scalar};
use crate::reference::philox::{Stream, block_at, uniform};
use crate::{SamplingToppCall, SamplingToppOut};

/// Runs the operation.
pub fn run(call: &SamplingToppCall<'_>, mut out: SamplingToppOut<'_>) -> Result<(), KernelError> {
    let seed = scalar(call.seed_tensor, call.seed);
    let offset = scalar(call.offset_tensor, call.offset);
    for (number, row) in (0..).zip(Indices::new(&call.axes.rows_dims)) {
        let mut kept = candidates(&call.logits, row, call.axes.vocab, f64::from(call.temperature));
        if call.top_k != 0 {
            kept.truncate(usize::try_from(call.top_k).unwrap_or(usize::MAX));
        }
        let p = call.p_tensor.map_or(f64::from(call.p), |tensor| tensor.at(&row));
        kept.truncate(prefix(&kept, p));
        let [w0, w1, ..] = block_at(Stream::TopP, seed, offset, number);
        out.tokens.set_int(&row, choose(kept, uniform(w0, w1)));
    }
    Ok(())
}

/// How many of the sorted candidates are needed to reach the share `p` of their total weight.
fn prefix(sorted: &[Candidate], p: f64) -> usize {
    let all: f64 = sorted.iter().map(|candidate| candidate.weight).sum();
    let mut sum = 0.0;
    for (position, candidate) in sorted.iter().enumerate() {
        sum += candidate.weight;
        if sum >= p * all {
            return position + 1;
        }
    }
    sorted.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortest_prefix_reaching_p_is_kept() {
        let sorted: Vec<Candidate> =
            (0..).zip([4.0, 2.0, 1.0, 1.0, 0.0]).map(|(token, weight)| Candidate { token, weight }).collect();
        for (p, kept) in
            [(0.0, 1), (0.25, 1), (0.5, 1), (0.500001, 2), (0.75, 2), (0.76, 3), (0.875, 3), (1.0, 4)]
        {
            assert_eq!(prefix(&sorted, p), kept, "{p}");
        }
        assert_eq!(prefix(&[], 0.5), 0);
    }
}
