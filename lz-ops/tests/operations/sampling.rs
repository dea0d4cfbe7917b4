//! Sampling from logits: possible tokens, their distribution, and reproducibility by counters.

use half::f16;
use lz_core::{ReasonCode, TensorView};
use lz_ops::{SamplingTopk, SamplingTopp, sampling_topk, sampling_topp};

use crate::{values, view};

fn topk(logits: TensorView<'_>, k: i64, seed: i64, offset: i64) -> Vec<i32> {
    let args = SamplingTopk::new(logits, k).seed(seed).offset(offset);
    values(&sampling_topk(&crate::reference_engine(), args).unwrap().tokens)
}

fn topp(logits: TensorView<'_>, p: f32, offset: i64) -> Vec<i32> {
    let args = SamplingTopp::new(logits, p).seed(7).offset(offset);
    values(&sampling_topp(&crate::reference_engine(), args).unwrap().tokens)
}

/// Pearson's statistic of counts against probabilities.
pub fn chi_square(counts: &[u64], probabilities: &[f64]) -> f64 {
    let draws = counts.iter().sum::<u64>() as f64;
    counts
        .iter()
        .zip(probabilities)
        .map(|(&count, &probability)| (count as f64 - draws * probability).powi(2) / (draws * probability))
        .sum()
}

/// Counts the tokens of many draws; rows and offsets both advance the counter.
fn counts(draw: impl Fn(TensorView<'_>, i64) -> Vec<i32>, logits: &[f32]) -> Vec<u64> {
    const ROWS: usize = 64;
    let rows: Vec<f32> = logits.iter().copied().cycle().take(ROWS * logits.len()).collect();
    let mut counts = vec![0; logits.len()];
    for offset in 0..64 {
        for token in draw(view(&rows, &[ROWS as i64, logits.len() as i64]), offset) {
            counts[token as usize] += 1;
        }
    }
    counts
}

#[test]
fn draws_follow_the_softmax_of_kept_candidates() {
    let weights = [1.0f64, 2.0, 3.0, 4.0, 6.0];
    let logits = weights.map(|weight| weight.ln() as f32);
    let found = counts(|rows, offset| topk(rows, 4, 11, offset), &logits);
    assert_eq!(found[0], 0);
    // Three degrees of freedom: 30.7 is exceeded once in a million.
    let statistic = chi_square(&found[1..], &[2.0, 3.0, 4.0, 6.0].map(|weight| weight / 15.0));
    assert!(statistic < 30.7, "{statistic}: {found:?}");

    // 6 + 4 of 16 is 0.625: the third is needed for 0.7 and not for 0.6.
    let found = counts(|rows, offset| topp(rows, 0.7, offset), &logits);
    assert_eq!(found[..2], [0, 0]);
    let statistic = chi_square(&found[2..], &[3.0, 4.0, 6.0].map(|weight| weight / 13.0));
    assert!(statistic < 27.7, "{statistic}: {found:?}");
    let found = counts(|rows, offset| topp(rows, 0.6, offset), &logits);
    assert_eq!(found[..3], [0, 0, 0]);
    assert!(found[3] > 0 && found[4] > 0);
}

#[test]
fn same_counters_give_same_tokens() {
    let logits = [0.0f32; 4096];
    let logits = view(&logits, &[4, 1024]);
    let tokens = topk(logits, 1024, 1, 5);
    assert_eq!(tokens, topk(logits, 1024, 1, 5));
    assert_ne!(tokens, topk(logits, 1024, 2, 5));
    assert_ne!(tokens, topk(logits, 1024, 1, 6));
    assert!(tokens.windows(2).any(|pair| pair[0] != pair[1]), "rows draw on their own");
    // Key 0 and the counter 1 << 120 (stream 1, row 0, offset 0) give 0x910223a1 and 0x29946dd3, so u = 0.1624...; of 1024 equal
    // shares that is number 166.
    assert_eq!(topk(logits, 1024, 0, 0)[0], 166);
    let (seed, offset) = ([1i64], [5i64]);
    let args = SamplingTopk::new(logits, 1024)
        .seed(99)
        .offset(99)
        .seed_tensor(view(&seed, &[]))
        .offset_tensor(view(&offset, &[]));
    assert_eq!(values::<i32>(&sampling_topk(&crate::reference_engine(), args).unwrap().tokens), tokens);
}

#[test]
fn ties_keep_the_lowest_indices() {
    let logits = [1.0f32, 2.0, 2.0, 2.0, 0.0];
    let found = counts(|rows, offset| topk(rows, 2, 3, offset), &logits);
    assert!(found[1] > 0 && found[2] > 0);
    assert_eq!((found[0], found[3], found[4]), (0, 0, 0));
}

#[test]
fn per_row_k_and_p() {
    let logits = [3.0f32, 2.0, 1.0, 3.0, 2.0, 1.0];
    let logits = view(&logits, &[2, 3]);
    let ks = [1i32, 3];
    let mut seen = [false; 3];
    for offset in 0..200 {
        let args = SamplingTopk::new(logits, 2).k_tensor(view(&ks, &[2])).offset(offset);
        let tokens = values::<i32>(&sampling_topk(&crate::reference_engine(), args).unwrap().tokens);
        assert_eq!(tokens[0], 0);
        seen[tokens[1] as usize] = true;
    }
    assert_eq!(seen, [true; 3]);
    let ps = [0.0f32, 1.0];
    let mut seen = [false; 3];
    for offset in 0..200 {
        let args = SamplingTopp::new(logits, 0.5).p_tensor(view(&ps, &[2])).offset(offset);
        let tokens = values::<i32>(&sampling_topp(&crate::reference_engine(), args).unwrap().tokens);
        assert_eq!(tokens[0], 0, "0 keeps the likeliest alone");
        seen[tokens[1] as usize] = true;
    }
    assert_eq!(seen, [true; 3]);
}

#[test]
fn top_k_applies_before_top_p() {
    // Of the first two, the first has half; of all four it has only a quarter.
    let logits = [0.0f32; 4];
    for offset in 0..100 {
        let args = SamplingTopp::new(view(&logits, &[4]), 0.5).top_k(2).offset(offset);
        assert_eq!(values::<i32>(&sampling_topp(&crate::reference_engine(), args).unwrap().tokens), [0]);
    }
}

#[test]
fn rows_without_candidates_or_with_one() {
    let nan = f32::NAN;
    let low = f32::NEG_INFINITY;
    let logits = [nan, nan, nan, low, nan, low, nan, f32::INFINITY, 5.0, low, -3.0, nan];
    let logits = view(&logits, &[2, 2, 3]);
    for offset in 0..20 {
        assert_eq!(topk(logits, 3, 0, offset), [-1, -1, 1, 1]);
        assert_eq!(topp(logits, 1.0, offset), [-1, -1, 1, 1]);
    }
}

#[test]
fn temperature_sharpens_and_narrow_logits_are_read() {
    let logits = [1.0, 1.5].map(f16::from_f32);
    for offset in 0..100 {
        let args = SamplingTopk::new(view(&logits, &[2]), 2).temperature(1e-30).offset(offset);
        assert_eq!(values::<i32>(&sampling_topk(&crate::reference_engine(), args).unwrap().tokens), [1]);
    }
    let args = SamplingTopk::new(view(&logits, &[2]), 0).temperature(0.0);
    let error = sampling_topk(&crate::reference_engine(), args).unwrap_err();
    assert!(error.has(ReasonCode::ParamOutOfRange), "{error}");
}
