//! `attention.state.merge`: partial results over disjoint keys merge to the result over all keys.

use lz_ops::{AttentionStateMerge, attention_state_merge};

use crate::support::{AttentionResult, Problem, engine, view};

fn merge(v: &[f32], s: &[f32], leading: &[i64], states: i64, heads: i64, dim: i64) -> AttentionResult {
    let shape = |behind: &[i64]| -> Vec<i64> { leading.iter().chain(behind).copied().collect() };
    let args =
        AttentionStateMerge::new(view(v, &shape(&[states, heads, dim])), view(s, &shape(&[states, heads])));
    let result = attention_state_merge(engine(), args).unwrap();
    assert_eq!(result.output.shape(), shape(&[heads, dim]));
    AttentionResult::of(&result.output, Some(&result.lse))
}

#[test]
fn two_states_by_hand() {
    // The weights e^0 : e^ln 3 are 1 : 3.
    let found = merge(&[4.0, 8.0], &[0.0, 3f32.ln()], &[], 2, 1, 1);
    found.assert_matches(&AttentionResult { output: vec![7.0], lse: vec![4f64.ln()] });
}

#[test]
fn split_keys_merge_to_the_whole() {
    let whole = Problem::new([1, 3, 7, 2, 1, 4, 3], 601);
    let expected = whole.gqa(|args| args.causal(true));
    // Split the keys at 0, 2, 2 and 5; the second part is empty, and causality masks whole parts for early
    // queries.
    let parts: Vec<AttentionResult> = [(0, 2), (2, 2), (2, 5), (5, 7)]
        .iter()
        .map(|&(start, end)| {
            let part = Problem {
                keys: end - start,
                k: whole.k[start * 4..end * 4].to_vec(),
                v: whole.v[start * 3..end * 3].to_vec(),
                ..whole.clone()
            };
            part.gqa(|args| args.causal(true).causal_offset(4 - start as i64))
        })
        .collect();
    let (mut v, mut s) = (Vec::new(), Vec::new());
    for i in 0..3 {
        for part in &parts {
            v.extend(part.output[i * 6..][..6].iter().map(|&number| number as f32));
            s.extend(part.lse[i * 2..][..2].iter().map(|&number| number as f32));
        }
    }
    assert!(s.contains(&f32::NEG_INFINITY));
    merge(&v, &s, &[3], 4, 2, 3).assert_matches(&expected);
    merge(&v, &s, &[1, 3, 1], 4, 2, 3).assert_matches(&expected);
}

#[test]
fn states_without_keys_are_ignored() {
    let masked = f32::NEG_INFINITY;
    merge(&[f32::NAN, 5.0], &[masked, 2.0], &[], 2, 1, 1)
        .assert_matches(&AttentionResult { output: vec![5.0], lse: vec![2.0] });
    let nothing = AttentionResult { output: vec![0.0], lse: vec![f64::NEG_INFINITY] };
    merge(&[f32::NAN, 1.0], &[masked, masked], &[], 2, 1, 1).assert_matches(&nothing);
    merge(&[], &[], &[], 0, 1, 1).assert_matches(&nothing);
    merge(&[], &[], &[0], 3, 1, 1).assert_matches(&AttentionResult::default());
}

#[test]
fn nan_or_infinite_lse_makes_the_result_nan() {
    for bad in [f32::NAN, f32::INFINITY] {
        let found = merge(&[1.0, 2.0], &[0.0, bad], &[], 2, 1, 1);
        assert!(found.output[0].is_nan() && found.lse[0].is_nan());
    }
    // A NaN in a value affects only its feature.
    let found = merge(&[1.0, f32::NAN, 1.0, 1.0], &[0.0, 0.0], &[], 2, 1, 2);
    assert!(found.output[0] == 1.0 && found.output[1].is_nan() && found.lse[0].is_finite());
}

#[test]
fn large_lse_does_not_overflow() {
    merge(&[2.0, 4.0], &[1e30, 1e30], &[], 2, 1, 1)
        .assert_matches(&AttentionResult { output: vec![3.0], lse: vec![f64::from(1e30f32)] });
}
