//! Calls as they were made, each with what was decided for it. A call that comes again need not find its cell, nor look again
//! at what the decision hangs on: both depend on nothing but the call.
//!
//! They belong to one world, like its decisions, and are never changed or removed. They are few: a call that finds its places
//! taken is not kept, and goes by its cell.

use std::sync::OnceLock;

use lz_core::plan::Transforms;

/// What was decided for one call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settled {
    /// Scratch memory in bytes.
    pub workspace: u64,
    /// The kernel's index in the registry.
    pub kernel: u32,
    pub transforms: Transforms,
}

/// A call, by the words that its decision can depend on, and what was decided for it.
#[derive(Debug)]
struct KnownCall {
    head: u64,
    words: Box<[u64]>,
    settled: Settled,
}

impl KnownCall {
    /// Whether it is this call, of which all words are given. Calls with the same head have words that tell in the same places.
    /// Word by word, because a wide comparison would have to wait for the stores that have just made the call.
    #[inline(always)]
    fn is_of(&self, head: u64, words: &[u64]) -> bool {
        self.head == head
            && self.words.len() <= words.len()
            && self.words.iter().zip(words).all(|(known, word)| known == word)
    }
}

/// Calls by their numbers, two places each.
#[derive(Debug)]
pub(crate) struct KnownCalls(Box<[OnceLock<KnownCall>]>);

impl KnownCalls {
    /// With so many places, a power of two.
    pub fn new(places: usize) -> KnownCalls {
        KnownCalls((0..places).map(|_| OnceLock::new()).collect())
    }

    /// What was decided for a call.
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

    /// Keeps what was decided for a call, of which the words that tell are given, if one of its places is free.
    pub fn keep(&self, number: u64, head: u64, words: &[u64], settled: Settled) {
        let places = Self::numbers(number).map(|number| self.place(number));
        if let Some(free) = places.into_iter().flatten().find(|place| place.get().is_none()) {
            // Whoever was quicker stays.
            let _ = free.set(KnownCall { head, words: words.into(), settled });
        }
    }

    /// Where a call is looked for, first and then.
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
