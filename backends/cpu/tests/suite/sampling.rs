//! Vocabularies of realistic size, checked against the reference: the same tokens, also where the fast paths
//! must fall back.

use lz_core::{DType, TensorView};
use lz_engine::Engine;
use lz_ops::*;

use lz_cpu::pool;

/// An engine with the reference kernels of all operations.
fn reference_engine() -> lz_engine::Engine {
    lz_engine::Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap()
}

fn floats(seed: u64, count: usize, spread: f32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| (0..6).map(|_| next()).sum::<f32>() * spread).collect()
}

/// Checks every CPU kernel, with one thread and with several: exactly the tokens of the reference.
macro_rules! check_tokens {
    ($operation:literal, $function:ident, $args:expr) => {{
        let expected = $function(&reference_engine(), $args).unwrap();
        for entry in lz_cpu::kernels().into_iter().filter(|entry| entry.spec.operation == $operation) {
            let (id, engine) = (entry.spec.id.clone(), Engine::new());
            engine.register([entry]).unwrap();
            for threads in [1, 3] {
                match pool::with_threads(threads, || $function(&engine, $args)) {
                    Ok(found) => assert_eq!(found.tokens.bytes(), expected.tokens.bytes(), "{id}"),
                    Err(error) => assert!(error.has(lz_core::ReasonCode::IsaUnsupported), "{id}: {error}"),
                }
            }
        }
    }};
}

const VOCAB: usize = 20_011;

#[test]
fn topk_matches_the_reference() {
    let (rows, spread) = (6, 2.0);
    let mut logits = floats(1, rows * VOCAB, spread);
    logits[5] = f32::NAN;
    logits[VOCAB..2 * VOCAB].fill(0.25);
    logits[2 * VOCAB + 77] = f32::INFINITY;
    logits[3 * VOCAB..4 * VOCAB].fill(f32::NEG_INFINITY);
    let view = TensorView::from_slice(&logits, &[rows as i64, VOCAB as i64]).unwrap();
    for (seed, k) in [(1, 1), (2, 17), (3, 50), (4, 3_000), (5, VOCAB as i64), (6, 1 << 40)] {
        check_tokens!("sampling.topk", sampling_topk, SamplingTopk::new(view, k).seed(seed));
    }
}

#[test]
fn topp_matches_the_reference() {
    for spread in [0.05, 1.0, 6.0] {
        let rows = 5;
        let mut logits = floats(2, rows * VOCAB, spread);
        // Equal logits, and equal weights.
        logits[VOCAB..2 * VOCAB].fill(0.25);
        logits[2 * VOCAB..2 * VOCAB + 500].fill(spread * 4.0);
        logits[3 * VOCAB + 11] = f32::NAN;
        let view = TensorView::from_slice(&logits, &[rows as i64, VOCAB as i64]).unwrap();
        for (seed, p) in [(1, 0.1), (2, 0.5), (3, 0.9), (4, 0.999), (5, 1.0)] {
            check_tokens!("sampling.topp", sampling_topp, SamplingTopp::new(view, p).seed(seed));
            let few = || SamplingTopp::new(view, p).top_k(20).temperature(0.6).seed(seed);
            check_tokens!("sampling.topp", sampling_topp, few());
        }
    }
}

#[test]
fn speculative_matches_the_reference() {
    let (batch, length) = (5i64, 3i64);
    let probabilities = |seed, count: i64| -> Vec<f32> {
        floats(seed, (batch * count) as usize * VOCAB, 1.0).iter().map(|x| x.exp()).collect()
    };
    let (draft, target) = (probabilities(3, length), probabilities(4, length + 1));
    let tokens: Vec<i32> = (0..(batch * length) as i32).map(|n| n * 1_333 % VOCAB as i32).collect();
    let draft = TensorView::from_slice(&draft, &[batch, length, VOCAB as i64]).unwrap();
    let target = TensorView::from_slice(&target, &[batch, length + 1, VOCAB as i64]).unwrap();
    let tokens = TensorView::from_slice(&tokens, &[batch, length]).unwrap();
    assert_eq!(tokens.dtype(), DType::I32);
    for seed in 0..6 {
        let args = || SamplingSpeculative::new(draft, tokens, target).seed(seed);
        check_tokens!("sampling.speculative", sampling_speculative, args());
    }
}
