//! The exact cache: decisions keyed by all words of a call. A hit needs neither the cell nor the guards: both are functions of the
//! call.
//!
//! It belongs to one snapshot and entries are never changed or removed. It is small: a call whose two slots are occupied is not
//! inserted and is looked up by cell.

use std::sync::OnceLock;

use crate::plan::Transforms;

/// The decision for one call.
#[derive(Debug, Clone, Copy)]
    /// Workspace in bytes.
    /// Scratch memory in bytes.
    pub workspace: u64,
    /// The kernel's index in the registry.
    pub kernel: u32,
    pub transforms: Transforms,
}

/// A call, by the words that its decision can depend on, and its decision.
#[derive(Debug)]
struct KnownCall {
    head: u64,
    words: Box<[u64]>,
    settled: Settled,
}

impl KnownCall {
    /// Whether the key matches. `words` are all words of the call; the key is a prefix of them, of the same length for all calls with
    /// this head. Compares word by word: a wide load would stall on store forwarding.
    #[inline(always)]
    fn is_of(&self, head: u64, words: &[u64]) -> bool {
        self.head == head
            && self.words.len() <= words.len()
            && self.words.iter().zip(words).all(|(known, word)| known == word)
    }
}

/// Exact calls by hash, with two possible slots each.
#[derive(Debug)]
pub(crate) struct KnownCalls(Box<[OnceLock<KnownCall>]>);

impl KnownCalls {
    /// A cache with this many slots, a power of two.
    pub fn new(places: usize) -> KnownCalls {
        KnownCalls((0..places).map(|_| OnceLock::new()).collect())
    }

    /// The decision for a call.
    #[inline(always)]
    pub fn find(&self, number: u64, head: u64, words: &[u64]) -> Option<Settled> {
        let [first, second] = Self::numbers(number);
        match self.at(first, head, words) {
            Some(known) => Some(known.settled),
            None => self.find_second(second, head, words),
        }
    }

    #[cold]
    #[inline(never)]
    fn find_second(&self, second: usize, head: u64, words: &[u64]) -> Option<Settled> {
        Some(self.at(second, head, words)?.settled)
    }

    #[inline(always)]
    fn at(&self, number: usize, head: u64, words: &[u64]) -> Option<&KnownCall> {
        let known = self.place(number)?.get()?;
        if known.is_of(head, words) { Some(known) } else { None }
    }

    /// Inserts a decision if one of its slots is free. `words` are the key words only.
    pub fn keep(&self, number: u64, head: u64, words: &[u64], settled: Settled) {
        let places = Self::numbers(number).map(|number| self.place(number));
        if let Some(free) = places.into_iter().flatten().find(|place| place.get().is_none()) {
            // On a race the first insert wins.
            let _ = free.set(KnownCall { head, words: words.into(), settled });
        }
    }

    /// The two slot indices of a hash.
    #[inline(always)]
    fn numbers(number: u64) -> [usize; 2] {
        [number as usize, (number >> 32) as usize]
    }

    #[inline(always)]
    fn place(&self, number: usize) -> Option<&OnceLock<KnownCall>> {
        self.0.get(number & self.0.len().wrapping_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(kernel: u32) -> Settled {
        Settled { workspace: 0, kernel, transforms: Transforms::NONE }
    }

    #[test]
    fn a_call_is_found_by_all_of_its_words_alone() {
        let calls = KnownCalls::new(4);
        calls.keep(1, 7, &[1, 2], to(3));
        let kernel = |head, words: &[u64]| calls.find(1, head, words).map(|settled| settled.kernel);
        assert_eq!(kernel(7, &[1, 2]), Some(3));
        for (head, words) in [(8, &[1, 2][..]), (7, &[1, 3]), (7, &[1]), (7, &[])] {
            assert_eq!(kernel(head, words), None);
        }
    }

    #[test]
    fn words_that_do_not_tell_are_not_looked_at() {
        let calls = KnownCalls::new(4);
        calls.keep(1, 7, &[1, 2], to(3));
        assert_eq!(calls.find(1, 7, &[1, 2, 9]).map(|settled| settled.kernel), Some(3));
    }

    #[test]
    fn two_calls_share_a_number_and_a_third_is_not_kept() {
        let calls = KnownCalls::new(4);
        let number = 1 << 32 | 2;
        for word in 0..3 {
            calls.keep(number, 0, &[word], to(word as u32));
        }
        let found = |word| calls.find(number, 0, &[word]).map(|settled| settled.kernel);
        assert_eq!([found(0), found(1), found(2)], [Some(0), Some(1), None]);
    }

    #[test]
    fn no_places_keep_nothing() {
        let calls = KnownCalls::new(0);
        calls.keep(5, 0, &[], to(0));
        assert!(calls.find(5, 0, &[]).is_none());
    }
}
