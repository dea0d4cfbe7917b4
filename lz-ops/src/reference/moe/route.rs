//! Reference of `moe.route`: scores in f64, groups and experts sorted by score.

use std::cmp::Ordering;

use lz_core::KernelError;
use lz_core::tensor::{Dims, Indices};

use crate::reference::index::with;
use crate::{MoeRouteCall, MoeRouteGroupScore, MoeRouteOut, MoeRouteScoring};

/// Runs the operation.
pub fn run(call: &MoeRouteCall<'_>, mut out: MoeRouteOut<'_>) -> Result<(), KernelError> {
    for row in Indices::new(&call.axes.rows_dims) {
        let logits: Vec<f64> = (0..call.axes.experts).map(|e| call.logits.at(&with(row, e))).collect();
        let numerators = numerators(&logits, call.scoring);
        let total = total(&numerators, call.scoring);
        let choice: Vec<f64> = match call.bias {
            None => logits,
            Some(bias) => (0..).zip(&numerators).map(|(e, a)| a / total + bias.at(&[e])).collect(),
        };
        let mut chosen = best(&choice, (0..choice.len()).filter(|&e| is_allowed(call, &choice, e)).collect());
        chosen.truncate(usize::try_from(call.top_k).unwrap_or(0));
        let sum: f64 = chosen.iter().map(|&e| numerators[e]).sum();
        let denominator = if call.renormalize { sum } else { total };
        for (slot, e) in (0..).zip(chosen) {
            let share = if denominator == 0.0 { 0.0 } else { numerators[e] / denominator };
            let index: Dims = with(row, slot);
            out.weights.set(&index, f64::from(call.scale) * share);
            out.indices.set_int(&index, e as i64);
        }
    }
    Ok(())
}

/// The scores without their common denominator.
pub fn numerators(logits: &[f64], scoring: MoeRouteScoring) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let score = |&logit: &f64| match scoring {
        MoeRouteScoring::Softmax => (logit - largest).exp(),
        MoeRouteScoring::Sigmoid => 1.0 / (1.0 + (-logit).exp()),
    };
    logits.iter().map(score).collect()
}

/// The common denominator of the scores.
pub fn total(numerators: &[f64], scoring: MoeRouteScoring) -> f64 {
    match scoring {
        MoeRouteScoring::Softmax => numerators.iter().sum(),
        MoeRouteScoring::Sigmoid => 1.0,
    }
}

/// Whether a is chosen before b, if b has the larger index: larger scores first, NaN last.
pub fn order(a: f64, b: f64) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Greater,
        (false, true) => Ordering::Less,
        (false, false) => b.partial_cmp(&a).unwrap_or(Ordering::Equal),
    }
}

/// Sorts indices by their scores. The sort is stable, so equal scores stay in index order.
fn best(scores: &[f64], mut indices: Vec<usize>) -> Vec<usize> {
    indices.sort_by(|&a, &b| order(scores[a], scores[b]));
    indices
}

/// Whether the group of an expert is among the best ones.
fn is_allowed(call: &MoeRouteCall<'_>, choice: &[f64], expert: usize) -> bool {
    let size = choice.len() / usize::try_from(call.groups).unwrap_or(1).max(1);
    let scores: Vec<f64> =
        choice.chunks(size.max(1)).map(|group| group_score(group, call.group_score)).collect();
    let allowed = best(&scores, (0..scores.len()).collect());
    allowed
        .iter()
        .take(usize::try_from(call.top_groups).unwrap_or(0))
        .any(|&group| group == expert / size.max(1))
}

/// The score of a group of experts.
pub fn group_score(group: &[f64], score: MoeRouteGroupScore) -> f64 {
    let (mut first, mut second) = (f64::NAN, f64::NAN);
    for &value in group {
        if order(value, first) == Ordering::Less {
            (first, second) = (value, first);
        } else if order(value, second) == Ordering::Less {
            second = value;
        }
    }
    match score {
        MoeRouteGroupScore::Top1 => first,
        MoeRouteGroupScore::Top2Sum if group.len() == 1 => first,
        MoeRouteGroupScore::Top2Sum => first + second,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_scores() {
        use MoeRouteGroupScore::{Top1, Top2Sum};
        assert_eq!(group_score(&[1.0, 4.0, 3.0], Top1), 4.0);
        assert_eq!(group_score(&[1.0, 4.0, 3.0], Top2Sum), 7.0);
        assert_eq!(group_score(&[f64::NAN, 4.0, 4.0], Top2Sum), 8.0);
        assert_eq!(group_score(&[2.0], Top2Sum), 2.0);
        assert!(group_score(&[f64::NAN, 2.0], Top2Sum).is_nan());
    }

    #[test]
    fn nan_is_ordered_last_and_equal_scores_by_index() {
        assert_eq!(best(&[1.0, f64::NAN, 3.0, 3.0, f64::NEG_INFINITY], vec![0, 1, 2, 3, 4]), [2, 3, 0, 4, 1]);
    }
}
