//! Speculative sampling: acceptance and rejection, and that the result follows the target distribution.

use lz_ops::{SamplingSpeculative, sampling_speculative};

use crate::sampling::chi_square;
use crate::{values, view};

/// Runs one request; returns its tokens and the number of accepted draft tokens.
fn verify(draft: &[f32], tokens: &[i32], target: &[f32], vocab: i64, offset: i64) -> (Vec<i32>, i32) {
    let draft_len = tokens.len() as i64;
    let args = SamplingSpeculative::new(
        view(draft, &[1, draft_len, vocab]),
        view(tokens, &[1, draft_len]),
        view(target, &[1, draft_len + 1, vocab]),
    )
    .seed(3)
    .offset(offset);
    let result = sampling_speculative(&crate::reference_engine(), args).unwrap();
    (values(&result.tokens), values::<i32>(&result.accepted)[0])
}

#[test]
fn equal_models_accept_everything() {
    let draft = [0.2f32, 0.8, 0.6, 0.4];
    let target = [0.2f32, 0.8, 0.6, 0.4, 0.0, 1.0];
    for offset in 0..200 {
        assert_eq!(verify(&draft, &[0, 0], &target, 2, offset), (vec![0, 0, 1], 2));
    }
}

#[test]
fn disjoint_models_accept_nothing() {
    let draft = [1.0f32, 0.0, 1.0, 0.0];
    let target = [0.0f32, 1.0, 0.0, 1.0, 1.0, 0.0];
    for offset in 0..200 {
        assert_eq!(verify(&draft, &[0, 0], &target, 2, offset), (vec![1, -1, -1], 0));
    }
}

#[test]
fn first_token_follows_the_target_distribution() {
    let draft = [0.7f32, 0.2, 0.1];
    let target = [0.2f32, 0.3, 0.5, 1.0, 0.0, 0.0];
    let mut counts = [0u64; 3];
    let mut accepted = 0;
    let draws = 8000;
    for offset in 0..draws {
        // The draft's tokens, distributed exactly by its probabilities.
        let token = match offset % 10 {
            0..7 => 0,
            7..9 => 1,
            _ => 2,
        };
        let (tokens, kept) = verify(&draft, &[token], &target, 3, offset);
        counts[tokens[0] as usize] += 1;
        accepted += i64::from(kept);
        assert_eq!(tokens[1], if kept == 1 { 0 } else { -1 });
    }
    let statistic = chi_square(&counts, &[0.2, 0.3, 0.5]);
    assert!(statistic < 27.7, "{statistic}: {counts:?}");
    // Accepted with probability Σ min(p, q) = 0.2 + 0.2 + 0.1.
    let rate = accepted as f64 / draws as f64;
    assert!((rate - 0.5).abs() < 0.03, "{rate}");
}

#[test]
fn empty_residual_falls_back_to_target_then_to_none() {
    // p ≤ q everywhere and p = 0 for the draft's token: the residual p - q is empty, so p is used.
    let found = verify(&[0.5, 0.5], &[0], &[0.0, 0.25, 1.0, 0.0], 2, 0);
    assert_eq!(found, (vec![1, -1], 0));
    let found = verify(&[0.5, 0.5], &[0], &[0.0, 0.0, 1.0, 0.0], 2, 0);
    assert_eq!(found, (vec![-1, -1], 0));
    let found = verify(&[0.5, 0.5], &[0], &[f32::NAN, -1.0, 1.0, 0.0], 2, 0);
    assert_eq!(found, (vec![-1, -1], 0), "NaN and negative probabilities count as 0");
}

#[test]
fn empty_draft_is_plain_sampling() {
    let (draft, tokens): ([f32; 0], [i32; 0]) = ([], []);
    let mut counts = [0u64; 2];
    for offset in 0..2000 {
        // Weights need not sum to 1.
        let (tokens, accepted) = verify(&draft, &tokens, &[6.0, 2.0], 2, offset);
        assert_eq!((tokens.len(), accepted), (1, 0));
        counts[tokens[0] as usize] += 1;
    }
    let statistic = chi_square(&counts, &[0.75, 0.25]);
    assert!(statistic < 24.0, "{statistic}: {counts:?}");
}

#[test]
fn requests_draw_independently() {
    let batch = 64;
    let target: Vec<f32> = vec![0.5; 2 * batch];
    let args = SamplingSpeculative::new(
        view::<f32>(&[], &[batch as i64, 0, 2]),
        view::<i32>(&[], &[batch as i64, 0]),
        view(&target, &[batch as i64, 1, 2]),
    );
    let tokens = values::<i32>(&sampling_speculative(&crate::reference_engine(), args).unwrap().tokens);
    assert!(tokens.contains(&0) && tokens.contains(&1), "{tokens:?}");
}
