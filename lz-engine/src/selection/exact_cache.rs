//! The exact cache: decisions keyed by all words of a call. A hit needs neither the cell nor the guards: both are functions of the
//! call.
//!
//! It belongs to one snapshot and entries are never changed or removed. It is small: a call whose two slots are occupied is not
//! inserted and is looked up by cell.

use std::sync::OnceLock;

use lz_core::plan::Transforms;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
