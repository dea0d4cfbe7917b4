//! Caches the ids of phrases: stretches of at least 512 bytes. Many texts share a prefix, such as a system prompt or the conversation
//! so far. A phrase is cached when it occurs for the second time, so that unique texts cost only a probe.

use crate::memory::{self, OutOfMemory};
use crate::vocabulary::hash;

/// Room that a result must have beyond one token per byte: ids are copied in groups of fixed size, which are truncated then.
pub const SLACK: usize = 32;
/// A phrase ends at the first permitted position after this many bytes.
const MIN_BYTES: usize = 512;
/// Longer phrases are not cached.
const MAX_PHRASE_BYTES: usize = 4096;
/// New phrases are computed together up to this many bytes, so that more cache misses overlap.
const MAX_COMPUTED_BYTES: usize = 1 << 14;
/// Log2 of the number of sets.
const SET_BITS: u32 = 14;
/// Maximum bytes of cached text; the cache is cleared beyond it.
const MAX_TOTAL_BYTES: usize = 1 << 23;
/// Maximum number of cached ids; the cache is cleared beyond it.
const MAX_TOTAL_IDS: usize = 1 << 21;

/// A phrase: offsets of its bytes and ids. Length 0 marks a phrase that occurred once (only its hash is known), or an empty slot.
#[derive(Clone, Copy, Default)]
struct Slot {
    hash: u64,
    bytes: u32,
    length: u32,
    ids: u32,
    count: u32,
}

/// The phrase cache of one tokenizer; used by one thread at a time.
#[derive(Default)]
pub struct PhraseCache {
    /// Two-way sets, newest first; allocated with the first phrase.
    sets: Vec<[Slot; 2]>,
    bytes: Vec<u8>,
    ids: Vec<i32>,
}

impl PhraseCache {
    /// Appends the ids of a text from `start` on. `may_end` returns whether a text may be split at a position without changing its ids;
    /// `compute` appends the ids between two positions, at most one per byte, and returns whether they may be cached.
    #[inline]
    pub fn encode(
        &mut self,
        text: &[u8],
        mut start: usize,
        out: &mut Vec<i32>,
        may_end: impl Fn(usize) -> bool,
        mut compute: impl FnMut(usize, usize, &mut Vec<i32>) -> Result<bool, OutOfMemory>,
    ) -> Result<(), OutOfMemory> {
        // New phrases from here on are computed together.
        let mut computed = start;
        let mut compute_reserved = |start: usize, end: usize, out: &mut Vec<i32>| {
            memory::reserve(out, end - start + SLACK)?;
            compute(start, end, out)
        };
        let mut next = self.next_phrase(text, start, &may_end)?;
        while let Some((end, hash)) = next {
            // Loads the set of the next phrase while this one is looked up.
            next = self.next_phrase(text, end, &may_end)?;
            let phrase = &text[start..end];
            let found = hash.and_then(|hash| self.find(hash));
            match found {
                None if end - computed < MAX_COMPUTED_BYTES => {}
                None => {
                    compute_reserved(computed, end, out)?;
                    computed = end;
                }
                Some((position, slot)) => {
                    if computed < start {
                        compute_reserved(computed, start, out)?;
                    }
                    let first = out.len();
                    if slot.length == 0 {
                        if compute_reserved(start, end, out)? {
                            self.insert(position, slot.hash, phrase, &out[first..])?;
                        }
                    } else if self.bytes[slot.bytes as usize..][..slot.length as usize] == *phrase {
                        memory::reserve(out, slot.count as usize)?;
                        out.extend_from_slice(&self.ids[slot.ids as usize..][..slot.count as usize]);
                    } else {
                        compute_reserved(start, end, out)?;
                    }
                    computed = end;
                }
            }
            start = end;
        }
        if computed < text.len() {
            compute_reserved(computed, text.len(), out)?;
        }
        Ok(())
    }

    /// The end of the phrase that begins at a position, and its hash unless it is too long; `None` if the text ends before.
    #[inline(always)]
    fn next_phrase(
        &mut self,
        text: &[u8],
        start: usize,
        may_end: &impl Fn(usize) -> bool,
    ) -> Result<Option<(usize, Option<u64>)>, OutOfMemory> {
        if text.len() <= start + MIN_BYTES {
            return Ok(None);
        }
        if self.sets.is_empty() {
            self.sets = memory::filled(Default::default(), 1 << SET_BITS)?;
        }
        let end = (start + MIN_BYTES..text.len()).find(|position| may_end(*position)).unwrap_or(text.len());
        if end - start > MAX_PHRASE_BYTES {
            return Ok(Some((end, None)));
        }
        let hash = hash(&text[start..end]);
        memory::prefetch(&self.sets[set_index(hash)]);
        Ok(Some((end, Some(hash))))
    }

    /// The set and slot of a phrase whose hash has occurred before. Otherwise the hash is added.
    fn find(&mut self, hash: u64) -> Option<(usize, Slot)> {
        let position = set_index(hash);
        let set = &mut self.sets[position];
        let found = set.iter().find(|slot| slot.hash == hash).map(|slot| (position, *slot));
        if found.is_none() {
            *set = [Slot { hash, ..Slot::default() }, set[0]];
        }
        found
    }

    fn insert(&mut self, position: usize, hash: u64, phrase: &[u8], ids: &[i32]) -> Result<(), OutOfMemory> {
        if self.bytes.len() + phrase.len() > MAX_TOTAL_BYTES || self.ids.len() + ids.len() > MAX_TOTAL_IDS {
            self.sets.fill(Default::default());
            (self.bytes, self.ids) = (Vec::new(), Vec::new());
        }
        memory::reserve(&mut self.bytes, phrase.len())?;
        memory::reserve(&mut self.ids, ids.len())?;
        let slot = Slot {
            hash,
            bytes: self.bytes.len() as u32,
            length: phrase.len() as u32,
            ids: self.ids.len() as u32,
            count: ids.len() as u32,
        };
        self.bytes.extend_from_slice(phrase);
        self.ids.extend_from_slice(ids);
        let set = &mut self.sets[position];
        match set.iter_mut().find(|other| other.hash == hash) {
            Some(other) => *other = slot,
            None => set[0] = slot,
        }
        Ok(())
    }
}

fn set_index(hash: u64) -> usize {
    (hash >> (64 - SET_BITS)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes with bytes as ids. Returns the ids and the number of computed ones.
    fn encode(phrases: &mut PhraseCache, text: &[u8]) -> (Vec<i32>, usize) {
        let (mut out, mut computed) = (vec![-1], 0);
        let encoded = phrases.encode(
            text,
            1,
            &mut out,
            |position| text[position] == b' ',
            |start, end, out| {
                computed += end - start;
                out.extend(text[start..end].iter().map(|byte| i32::from(*byte)));
                Ok(true)
            },
        );
        encoded.unwrap();
        (out, computed)
    }

    fn expected(text: &[u8]) -> Vec<i32> {
        [-1].into_iter().chain(text[1..].iter().map(|byte| i32::from(*byte))).collect()
    }

    #[test]
    fn a_phrase_hits_from_its_third_occurrence_on() {
        let mut phrases = PhraseCache::default();
        let words = |count: usize| (0..count).map(|word| format!(" word{word}")).collect::<String>();
        let (text, longer) = (words(3000), words(4000));
        let (text, longer) = (text.as_bytes(), longer.as_bytes());
        let found: Vec<usize> = (0..3)
            .map(|_| {
                let (ids, computed) = encode(&mut phrases, text);
                assert_eq!(ids, expected(text));
                computed
            })
            .collect();
        assert_eq!(found[..2], [text.len() - 1; 2]);
        assert!(found[2] <= MIN_BYTES, "{found:?}");
        // A text with the same prefix.
        let (ids, computed) = encode(&mut phrases, longer);
        assert_eq!(ids, expected(longer));
        assert!(computed < longer.len() - text.len() + 2 * MIN_BYTES, "{computed}");
    }

    #[test]
    fn phrases_that_may_not_be_cached_are_computed_again() {
        let mut phrases = PhraseCache::default();
        let text = b" never to be cached..".repeat(40);
        for _ in 0..3 {
            let mut computed = 0;
            let encoded = phrases.encode(
                &text,
                0,
                &mut Vec::new(),
                |position| text[position] == b' ',
                |start, end, out| {
                    computed += end - start;
                    out.push(1);
                    Ok(false)
                },
            );
            encoded.unwrap();
            assert_eq!(computed, text.len());
        }
        assert!(phrases.bytes.is_empty());
    }

    #[test]
    fn memory_is_bounded_and_long_phrases_are_not_cached() {
        let mut phrases = PhraseCache::default();
        for seed in 0..24usize {
            let text: Vec<u8> = (0..1 << 20)
                .map(|position| if position % 600 == 0 { b' ' } else { ((position * seed) >> 3) as u8 | 64 })
                .collect();
            for _ in 0..3 {
                assert!(encode(&mut phrases, &text).0 == expected(&text));
            }
            assert!(phrases.bytes.len() <= MAX_TOTAL_BYTES && phrases.ids.len() <= MAX_TOTAL_IDS);
        }
        let text = vec![b'x'; 3 * MAX_PHRASE_BYTES];
        for _ in 0..3 {
            assert_eq!(encode(&mut phrases, &text), (expected(&text), text.len() - 1));
        }
    }
}
