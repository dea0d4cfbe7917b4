//! Unit tests of the private parts of selection: hashes, stripes, the caches' bookkeeping, split sizes and score sums.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use lz_core::operation::OperationInfo;
use lz_core::plan::Transforms;

use super::cache::{CellKey, DecisionCache, hash_text, hash_words, number};
use super::decide::{Decision, Workspace};
use super::guard::Guard;
use super::score::Score;
use super::snapshot::WarmState;
use super::split::parts;
use super::split_axis::splittable_axis;
use super::thread_cache::{ThreadCacheSet, ThreadState};

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

/// A sampled call stands for the hits since the last sample and for itself.
#[test]
fn a_sampled_call_has_the_weight_of_the_hits_before_it() {
    let mut state = ThreadState::default();
    state.hit_budget = 10;
    assert_eq!(state.take_weight(), 1);
    state.hits = 5;
    assert_eq!([state.take_weight(), state.take_weight()], [6, 1]);
    state.hits = 9;
    assert_eq!(state.take_weight(), 5);
    state.renew_shared_budget();
    assert_eq!(state.hits, 9, "not used up");
    state.hits = 10;
    state.renew_shared_budget();
    assert_eq!(state.hits, 0);
    state.hits = 2;
    assert_eq!(state.take_weight(), 3, "the count of sampled hits restarts with that of hits");
}

#[test]
fn nothing_is_kept_about_replaced_kernels() {
    let operation = operation("x: { shape: [rows], dtype: T, doc: \"Input.\" }");
    let mut warm = WarmState::default();
    for kernel in ["a.x", "b.x"] {
        assert!(warm.add(operation, kernel, &[1]) && warm.add_captured(operation, kernel, &[2]));
    }
    warm.forget(|kernel| kernel == "a.x");
    let known =
        |kernel| (warm.contains(operation, kernel, &[1]), warm.can_be_captured(operation, kernel, &[2]));
    assert_eq!([known("a.x"), known("b.x")], [(false, false), (true, true)]);
}

/// An operation with one batch axis and these inputs.
fn operation(inputs: &str) -> &'static OperationInfo {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let schema = format!(
        r#"
operation: demo.cut_{number}
version: 1
summary: An operation with a batch.
doc: "output = first"
axes:
  rows:  {{ role: batch, {} select: ignored, fuzz: 1..4 }}
  width: {{ role: feature, select: exact, fuzz: [1, 2] }}
types: {{ T: [f32] }}
inputs:
  first: {{ shape: [{rows}, width], dtype: T, doc: "Input." }}
  {inputs}
outputs: {{ output: {{ shape: [{rows}, width], dtype: T }} }}
semantics: {{ nan: propagate }}
equivalence: {{ close: {{ f32: [1e-5, 1e-5] }} }}
workloads: {{ small: {{ rows: 1, width: 1, T: f32 }} }}
"#,
        if inputs.contains("rows...") { "pack: true," } else { "" },
        rows = if inputs.contains("rows...") { "rows..." } else { "rows" },
    );
    let schema =
        schema.replace("rows: 1,", if inputs.contains("rows...") { "rows: [1]," } else { "rows: 1," });
    match lz_core::dynamic::read_operation(&format!("demo/cut_{number}.yaml"), &schema) {
        Ok(operation) => operation,
        Err(error) => panic!("{error}\n{schema}"),
    }
}

/// Calls are divided along the batch only if every input can be divided with it, or is shared and only read.
#[test]
fn calls_are_split_if_every_input_can_be() {
    let is_split = |inputs: &str| splittable_axis(operation(inputs).schema()) == Some(0);
    for inputs in [
        "x: { shape: [rows], dtype: T, doc: \"Divided.\" }",
        "x: { shape: [width], dtype: T, doc: \"Shared.\" }",
        "x: { shape: [rows, width], dtype: T, optional: true, broadcast: true, doc: \"Divided or shared.\" }",
        "x: { shape: [rows..., width], dtype: T, doc: \"Divided.\" }",
        "x: { shape: [rows], dtype: i32, values: { between: [0, width] }, doc: \"Bounded by another axis.\" }",
        "x: { shape: [rows], dtype: i32, values: { index_into: width }, doc: \"Bounded by another axis.\" }",
        "x: { shape: [rows], dtype: T, access: read_write, doc: \"Changed with its item.\" }",
    ] {
        assert!(is_split(inputs), "{inputs}");
    }
    for inputs in [
        "x: { shape: [width, rows], dtype: T, doc: \"Divided in the second dimension.\" }",
        "x: { shape: [width], dtype: T, access: read_write, doc: \"Changed by every part.\" }",
        "x: { shape: [width], dtype: i32, values: { index_into: rows }, doc: \"Items of the whole batch.\" }",
        "x: { shape: [width], dtype: i32, values: { between: [0, rows] }, doc: \"Items of the whole batch.\" }",
        "x: { shape: [rows], dtype: i32, values: { between: [0, rows] }, doc: \"Items of the whole batch.\" }",
        "x: { shape: [rows + 1], dtype: i32, values: { indptr_of: width }, doc: \"One more than the batch.\" }",
        "x: { shape: [rows..., width], dtype: T, optional: true, broadcast: true, doc: \"Which rows is unknown.\" }",
    ] {
        assert!(!is_split(inputs), "{inputs}");
    }
}
