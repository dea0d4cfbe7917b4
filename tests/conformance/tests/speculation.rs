//! Drafting and verifying with the same seed and offset gives tokens with the target model's distribution.
//!
//! Each operation may be correct and the composition still wrong: if both used the same random numbers,
//! acceptance would depend on the draft.

use lz_core::{KernelEntry, TensorView};
use lz_engine::Engine;
use lz_ops::{
    SamplingSpeculative, SamplingTopk, SamplingTopp, sampling_speculative, sampling_topk, sampling_topp,
};

const VOCAB: usize = 5;
const REQUESTS: usize = 20_000;
/// Critical chi-square value for four degrees of freedom at the schemas' significance of 1e-6.
const CRITICAL: f64 = 33.4;

const DRAFT: [f32; VOCAB] = [0.4, 0.3, 0.2, 0.06, 0.04];
/// The draft distribution after top-k with k = 3, or top-p with p = 0.85.
const KEPT: [f32; VOCAB] = [4.0 / 9.0, 3.0 / 9.0, 2.0 / 9.0, 0.0, 0.0];
const TARGET: [f32; VOCAB] = [0.1, 0.35, 0.25, 0.2, 0.1];
const NEXT: [f32; VOCAB] = [0.3, 0.1, 0.1, 0.3, 0.2];

/// One engine per runnable kernel of the operation.
fn engines(operation: &str) -> Vec<(String, Engine)> {
    let of_operation = |entry: &&KernelEntry| entry.spec.operation == operation;
    let kernels: Vec<_> = lz_test_kernels::runnable().iter().filter(of_operation).collect();
    assert!(kernels.len() >= 2, "{operation} has a reference and at least one kernel of the host");
    let alone = |entry: &KernelEntry| {
        let engine = Engine::new();
        engine.register([entry.clone()]).unwrap_or_else(|error| panic!("{error}"));
        (entry.spec.id.clone(), engine)
    };
    kernels.into_iter().map(alone).collect()
}

fn repeated(rows: &[[f32; VOCAB]]) -> Vec<f32> {
    rows.iter().flatten().copied().collect::<Vec<f32>>().repeat(REQUESTS)
}

/// Logits of two positions per request, numbered by top-k and top-p like a draft and its next position in
/// verification.
const POSITIONS: [i64; 3] = [REQUESTS as i64, 2, VOCAB as i64];

fn draft_logits() -> Vec<f32> {
    repeated(&[DRAFT.map(f32::ln); 2])
}

fn chi_square(counts: &[u32; VOCAB], expected: &[f32; VOCAB]) -> f64 {
    let total = f64::from(counts.iter().sum::<u32>());
    let term = |(&count, &share): (&u32, &f32)| {
        let expected_count = total * f64::from(share);
        (f64::from(count) - expected_count).powi(2) / expected_count
    };
    counts.iter().zip(expected).map(term).sum()
}

/// Verifies the drafts of the first position with every kernel, at the default seed and offset.
fn verify(drafter: &str, drawn: &[i32]) {
    let drafts: Vec<i32> = drawn.iter().copied().step_by(2).collect();
    let (draft_probs, target_probs) = (repeated(&[KEPT]), repeated(&[TARGET, NEXT]));
    let requests = REQUESTS as i64;
    let draft = TensorView::from_slice(&draft_probs, &[requests, 1, VOCAB as i64]).unwrap();
    let target = TensorView::from_slice(&target_probs, &[requests, 2, VOCAB as i64]).unwrap();
    let tokens = TensorView::from_slice(&drafts, &[requests, 1]).unwrap();
    for (verifier, engine) in engines("sampling.speculative") {
        let result = sampling_speculative(&engine, SamplingSpeculative::new(draft, tokens, target)).unwrap();
        let (mut first, mut second) = ([0; VOCAB], [0; VOCAB]);
        for request in result.tokens.view().as_slice::<i32>().unwrap().chunks_exact(2) {
            first[request[0] as usize] += 1;
            if let Ok(token) = usize::try_from(request[1]) {
                second[token] += 1;
            }
        }
        for (position, counts, expected) in [("first", first, TARGET), ("second", second, NEXT)] {
            let statistic = chi_square(&counts, &expected);
            assert!(
                statistic < CRITICAL,
                "{drafter} verified by {verifier}: {position} tokens {counts:?} are not distributed as {expected:?} \
                 (chi-square {statistic:.1})"
            );
        }
    }
}

#[test]
fn top_k_draft_and_verification_draw_independently() {
    let logits = draft_logits();
    let logits = TensorView::from_slice(&logits, &POSITIONS).unwrap();
    for (drafter, engine) in engines("sampling.topk") {
        let drafts = sampling_topk(&engine, SamplingTopk::new(logits, 3)).unwrap();
        verify(&drafter, drafts.tokens.view().as_slice::<i32>().unwrap());
    }
}

#[test]
fn top_p_draft_and_verification_draw_independently() {
    let logits = draft_logits();
    let logits = TensorView::from_slice(&logits, &POSITIONS).unwrap();
    for (drafter, engine) in engines("sampling.topp") {
        let drafts = sampling_topp(&engine, SamplingTopp::new(logits, 0.85)).unwrap();
        verify(&drafter, drafts.tokens.view().as_slice::<i32>().unwrap());
    }
}

/// Calls with different offsets use different draws, and a row's draw does not depend on the number of rows.
#[test]
fn draws_are_indexed_by_offset_and_row() {
    let logits = repeated(&[TARGET.map(f32::ln)]);
    let draw = |engine: &Engine, rows: usize, offset: i64| -> Vec<i32> {
        let logits = TensorView::from_slice(&logits[..rows * VOCAB], &[rows as i64, VOCAB as i64]).unwrap();
        let result = sampling_topk(engine, SamplingTopk::new(logits, 5).offset(offset)).unwrap();
        result.tokens.view().as_slice::<i32>().unwrap().to_vec()
    };
    // Probability that two independent tokens are equal.
    let equal: f64 = TARGET.iter().map(|&share| f64::from(share).powi(2)).sum();
    let deviation = (REQUESTS as f64 * equal * (1.0 - equal)).sqrt();
    for (kernel, engine) in engines("sampling.topk") {
        let all = draw(&engine, REQUESTS, 7);
        assert_eq!(all[..33], draw(&engine, 33, 7)[..], "{kernel}");
        let next = draw(&engine, REQUESTS, 8);
        // If rows shared a counter with adjacent rows at the next offset, all tokens would be equal.
        for shift in [0, 1] {
            for (left, right) in [(&all[shift..], &next[..]), (&all[..], &next[shift..])] {
                let same = left.iter().zip(right).filter(|(left, right)| left == right).count() as f64;
                let off = (same - (REQUESTS - shift) as f64 * equal).abs() / deviation;
                assert!(off < 5.5, "{kernel}: {same} of {REQUESTS} tokens are equal at shift {shift}");
            }
        }
    }
}
