//! Unit tests of the exact cache.

use lz_core::plan::Transforms;

use super::exact_cache::{CachedDecision, ExactCache};

fn to(kernel: u32) -> CachedDecision {
    CachedDecision { workspace: 0, kernel, transforms: Transforms::NONE }
}

#[test]
fn lookup_compares_all_key_words() {
    let calls = ExactCache::new(4);
    calls.insert(1, 7, &[1, 2], to(3));
    let kernel = |head, words: &[u64]| calls.find(1, head, words).map(|decision| decision.kernel);
    assert_eq!(kernel(7, &[1, 2]), Some(3));
    for (head, words) in [(8, &[1, 2][..]), (7, &[1, 3]), (7, &[1]), (7, &[])] {
        assert_eq!(kernel(head, words), None);
    }
}

#[test]
fn lookup_ignores_words_beyond_the_key() {
    let calls = ExactCache::new(4);
    calls.insert(1, 7, &[1, 2], to(3));
    assert_eq!(calls.find(1, 7, &[1, 2, 9]).map(|decision| decision.kernel), Some(3));
}

#[test]
fn third_call_with_the_same_hash_is_not_inserted() {
    let calls = ExactCache::new(4);
    let number = 1 << 32 | 2;
    for word in 0..3 {
        calls.insert(number, 0, &[word], to(word as u32));
    }
    let found = |word| calls.find(number, 0, &[word]).map(|decision| decision.kernel);
    assert_eq!([found(0), found(1), found(2)], [Some(0), Some(1), None]);
}

#[test]
fn empty_cache_inserts_nothing() {
    let calls = ExactCache::new(0);
    calls.insert(5, 0, &[], to(0));
    assert!(calls.find(5, 0, &[]).is_none());
}

#[test]
fn the_upper_half_of_the_hash_selects_the_second_slot() {
    let calls = ExactCache::new(4);
    for word in 0..2 {
        calls.insert(1 << 32, 0, &[word], to(word as u32));
    }
    let found = |word| calls.find(1 << 32, 0, &[word]).map(|decision| decision.kernel);
    assert_eq!([found(0), found(1)], [Some(0), Some(1)]);
}
