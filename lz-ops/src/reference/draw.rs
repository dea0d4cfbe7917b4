//! Token sampling: sorted candidates of a row, and the draw by weights. All in f64.

use std::cmp::Ordering;

use lz_core::tensor::{Dims, TensorView};

use crate::reference::index::with;

/// A candidate token and its unnormalized probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Its index in the vocabulary.
    pub token: i64,
    /// `exp((logit - largest) / temperature)`.
    pub weight: f64,
}

/// The candidates of one row of logits, sorted by descending logit, then by ascending index. Empty if no
/// logit is finite or +∞.
pub fn candidates(logits: &TensorView<'_>, row: Dims, vocab: i64, temperature: f64) -> Vec<Candidate> {
    let mut sorted: Vec<(i64, f64)> = (0..vocab)
        .map(|token| (token, logits.at(&with(row, token))))
        .filter(|(_, logit)| !logit.is_nan())
        .collect();
    // The sort is stable, so equal logits stay in index order.
    sorted.sort_by(|(_, left), (_, right)| right.partial_cmp(left).unwrap_or(Ordering::Equal));
    let Some(&(_, largest)) = sorted.first() else { return Vec::new() };
    if largest == f64::NEG_INFINITY {
        return Vec::new();
    }
    let weight = |logit: f64| {
        if largest == f64::INFINITY {
            if logit == f64::INFINITY { 1.0 } else { 0.0 }
        } else if logit == f64::NEG_INFINITY {
            0.0
        } else {
            ((logit - largest) / temperature).exp()
        }
    };
    sorted.into_iter().map(|(token, logit)| Candidate { token, weight: weight(logit) }).collect()
}

/// The token whose cumulative share of the weights, in index order, contains `u` in [0, 1); -1 if no weight
/// is positive.
pub fn choose(mut kept: Vec<Candidate>, u: f64) -> i64 {
    kept.sort_by_key(|candidate| candidate.token);
    let total: f64 = kept.iter().map(|candidate| candidate.weight).sum();
    let mut sum = 0.0;
    for candidate in &kept {
        sum += candidate.weight;
        if sum > u * total {
            return candidate.token;
        }
    }
    kept.iter().rev().find(|candidate| candidate.weight > 0.0).map_or(-1, |candidate| candidate.token)
}

/// A seed or offset: from the tensor if there is one, otherwise from the parameter.
pub fn scalar(tensor: Option<TensorView<'_>>, param: i64) -> i64 {
    tensor.map_or(param, |tensor| tensor.int_at(&[]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weighted(weights: &[f64]) -> Vec<Candidate> {
        (0..).zip(weights).map(|(token, &weight)| Candidate { token, weight }).collect()
    }

    #[test]
    fn first_cumulative_share_above_u_wins() {
        let weights = [0.0, 1.0, 0.0, 2.0, 1.0, 0.0];
        for (u, token) in [(0.0, 1), (0.249, 1), (0.25, 3), (0.749, 3), (0.75, 4), (0.999, 4)] {
            assert_eq!(choose(weighted(&weights), u), token, "{u}");
        }
        assert_eq!(choose(weighted(&[0.0, 0.0]), 0.5), -1);
        assert_eq!(choose(Vec::new(), 0.5), -1);
        assert_eq!(
            choose(weighted(&[f64::INFINITY, 1.0]), 0.5),
            1,
            "with an infinite total the last candidate wins"
        );
    }

    #[test]
    fn candidates_are_sorted_and_weighted() {
        let logits = [1.0f32, f32::NAN, 3.0, 1.0, f32::NEG_INFINITY, 3.0];
        let view = TensorView::from_slice(&logits, &[6]).unwrap();
        let found = candidates(&view, Dims::empty(), 6, 2.0);
        let tokens: Vec<i64> = found.iter().map(|candidate| candidate.token).collect();
        let weights: Vec<f64> = found.iter().map(|candidate| candidate.weight).collect();
        assert_eq!(tokens, [2, 5, 0, 3, 4]);
        let low = (-1f64).exp();
        assert_eq!(weights, [1.0, 1.0, low, low, 0.0]);
        let hot = candidates(&view, Dims::empty(), 6, f64::INFINITY);
        assert!(hot.iter().all(|candidate| candidate.weight == if candidate.token == 4 { 0.0 } else { 1.0 }));
    }

    #[test]
    fn infinite_logit_wins_and_empty_rows_have_no_candidates() {
        let logits = [f32::INFINITY, 5.0, f32::INFINITY];
        let view = TensorView::from_slice(&logits, &[3]).unwrap();
        let weights: Vec<(i64, f64)> = candidates(&view, Dims::empty(), 3, 1.0)
            .iter()
            .map(|candidate| (candidate.token, candidate.weight))
            .collect();
        assert_eq!(weights, [(0, 1.0), (2, 1.0), (1, 0.0)]);
        let no_finite = [f32::NAN, f32::NEG_INFINITY];
        let view = TensorView::from_slice(&no_finite, &[2]).unwrap();
        assert!(candidates(&view, Dims::empty(), 2, 1.0).is_empty());
    }
}
