//! Unit tests of the private parts of selection: hashes, stripes, the caches' bookkeeping, split sizes and score sums.

use std::collections::HashSet;

use lz_core::plan::Transforms;

use super::cache::{CellKey, DecisionCache, hash_text, hash_words, number};
use super::decide::{Decision, Workspace};
use super::guard::Guard;
use super::score::Score;
use super::split::parts;
use super::thread_cache::ThreadCacheSet;

fn decision(kernel: u32, guards: &[Guard]) -> Decision {
    Decision {
        kernel,
        position: 0,
        transforms: Transforms::NONE,
        workspace: Workspace::fixed(0),
        guards: guards.into(),
    }
}

fn key(hash: u64) -> CellKey {
    let mut key = CellKey::EMPTY;
    key.hash = hash;
    key
}

/// Collisions cost a probe each; tests of decisions cannot notice them.
#[test]
fn hashes_of_similar_texts_and_calls_are_distinct() {
    let texts = (0..200).flat_map(|number| {
        let letters = format!("{number}");
        [
            letters.clone(),
            format!("a{letters}"),
            format!("backend.kernel_{letters}"),
            format!("{letters}.suffix_x"),
        ]
    });
    let texts: HashSet<String> = texts.collect();
    let hashes: HashSet<u64> = texts.iter().map(|text| hash_text(text)).collect();
    assert_eq!(hashes.len(), texts.len());
    // The low bits and those from 32 on select slots.
    let calls = (0..64u64).flat_map(|a| (0..64u64).map(move |b| number(7, hash_words(&[a, b, 1]))));
    let calls: Vec<u64> = calls.collect();
    for shift in [0, 32] {
        let slots: HashSet<u64> = calls.iter().map(|hash| hash >> shift & 0xfff).collect();
        assert!(slots.len() > 2000, "4096 calls are in {} of 4096 slots", slots.len());
    }
}

/// With one lock for all cells this would not end.
#[test]
fn cells_of_other_stripes_are_decided_concurrently() {
    let cache = DecisionCache::new(4);
    let first = cache.decide_alone(&key(0));
    let second = cache.decide_alone(&key(1 << 60));
    drop((first, second));
}

#[test]
fn the_same_decision_is_inserted_once() {
    let cache = DecisionCache::new(8);
    let guard = Guard::Memory { position: 1, expect: true };
    for _ in 0..3 {
        assert_eq!(cache.insert(&key(5), &decision(1, &[])).map(|entry| entry.kernel), Some(1));
        assert_eq!(cache.insert(&key(5), &decision(2, &[guard])).map(|entry| entry.kernel), Some(2));
    }
    assert_eq!(cache.len(), 2, "one without and one with a guard");
}

#[test]
fn a_call_that_misses_twice_or_the_sixteenth_miss_is_inserted() {
    let mut set = ThreadCacheSet::empty();
    assert!(!set.should_insert(1) && set.should_insert(1));
    let mut set = ThreadCacheSet::empty();
    let inserted: Vec<u64> = (1..=16).filter(|call| set.should_insert(*call)).collect();
    assert_eq!(inserted, [16]);
}

#[test]
fn parts_cover_the_whole() {
    let counts = [(10, 3), (9, 3), (1, 3), (3, 3), (4, 3)].map(|(size, part)| parts(size, part));
    assert_eq!(counts, [4, 3, 1, 1, 2]);
}

#[test]
fn a_score_is_the_sum_of_its_terms() {
    let score = Score {
        priority: 1.0,
        policy: 2.0,
        perf: Some(4.0),
        jit: 8.0,
        reliability: 16.0,
        transform: 32.0,
        fusion: 64.0,
    };
    assert_eq!(score.total(), 127.0);
    assert_eq!(Score { perf: None, ..score }.total(), 123.0);
}
