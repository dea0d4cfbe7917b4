//! The exact cache: decisions keyed by all words of a call. A hit needs neither the cell nor the guards: both are functions of the
//! call.
//!
//! It belongs to one snapshot and entries are never changed or removed. It is small: a call whose two slots are occupied is not
//! inserted and is looked up by cell. This file is model-checked unmodified (`tests/suite/cache_model.rs`), so it imports its
//! primitives through `super::sync` and has its unit tests elsewhere.

use lz_core::fork;
use lz_core::plan::Transforms;

use super::sync::OnceLock;

/// The decision for one call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CachedDecision {
    /// Workspace in bytes.
    pub workspace: u64,
    /// The kernel's index in the registry.
    pub kernel: u32,
    pub transforms: Transforms,
}

/// A call, by the words that its decision can depend on, and its decision.
#[derive(Debug)]
struct ExactEntry {
    head: u64,
    words: Box<[u64]>,
    decision: CachedDecision,
}

impl ExactEntry {
    /// Whether the key matches. `words` are all words of the call; the key is a prefix of them, of the same length for all calls with
    /// this head. Compares word by word: a wide load would stall on store forwarding.
    #[inline(always)]
    fn matches(&self, head: u64, words: &[u64]) -> bool {
        self.head == head
            && self.words.len() <= words.len()
            && self.words.iter().zip(words).all(|(known, word)| known == word)
    }
}

/// Exact calls by hash, with two possible slots each.
#[derive(Debug)]
pub(crate) struct ExactCache(Box<[OnceLock<ExactEntry>]>);

impl ExactCache {
    /// A cache with this many slots, a power of two.
    pub fn new(slots: usize) -> ExactCache {
        ExactCache((0..slots).map(|_| OnceLock::new()).collect())
    }

    /// The decision for a call.
    #[inline(always)]
    pub fn find(&self, number: u64, head: u64, words: &[u64]) -> Option<CachedDecision> {
        let [first, second] = Self::numbers(number);
        match self.at(first, head, words) {
            Some(known) => Some(known.decision),
            None => self.find_second(second, head, words),
        }
    }

    #[cold]
    #[inline(never)]
    fn find_second(&self, second: usize, head: u64, words: &[u64]) -> Option<CachedDecision> {
        Some(self.at(second, head, words)?.decision)
    }

    #[inline(always)]
    fn at(&self, number: usize, head: u64, words: &[u64]) -> Option<&ExactEntry> {
        let known = self.slot(number)?.get()?;
        if known.matches(head, words) { Some(known) } else { None }
    }

    /// Inserts a decision if one of its slots is free. `words` are the key words only.
    pub fn insert(&self, number: u64, head: u64, words: &[u64], decision: CachedDecision) {
        let slots = Self::numbers(number).map(|number| self.slot(number));
        if let Some(free) = slots.into_iter().flatten().find(|slot| slot.get().is_none()) {
            let _inside = fork::hold();
            // On a race the first insert wins.
            let _ = free.set(ExactEntry { head, words: words.into(), decision });
        }
    }

    /// The two slot indices of a hash.
    #[inline(always)]
    fn numbers(number: u64) -> [usize; 2] {
        [number as usize, (number >> 32) as usize]
    }

    #[inline(always)]
    fn slot(&self, number: usize) -> Option<&OnceLock<ExactEntry>> {
        self.0.get(number & self.0.len().wrapping_sub(1))
    }
}
