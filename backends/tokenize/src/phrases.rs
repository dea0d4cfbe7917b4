//! What longer stretches of text became. Many texts begin as others did: with what an assistant is told before all, or with the
//! conversation so far. What was met twice is kept, so that texts that never come again cost no more than a look.

use crate::native::vocabulary::hash;

/// A phrase ends at the first place after so many bytes at which it may.
const LENGTH: usize = 512;
/// A longer one is not kept.
const LONGEST: usize = 4096;
/// Sets of phrases, as a power of two.
const SETS: u32 = 14;
/// Bytes of text that are kept, before everything is forgotten.
const MOST_BYTES: usize = 1 << 23;
/// And ids.
const MOST_IDS: usize = 1 << 21;

/// A phrase that was met: where its bytes and ids lie. A length of 0 is one that was met once, or none.
#[derive(Clone, Copy, Default)]
struct Slot {
    hash: u64,
    bytes: u32,
    length: u32,
    ids: u32,
    count: u32,
}

/// Remembered phrases of one tokenizer, for one thread at a time.
#[derive(Default)]
pub struct Phrases {
    /// Two that may be at the same place, the newer one first; none before the first phrase.
    sets: Vec<[Slot; 2]>,
    bytes: Vec<u8>,
    ids: Vec<i32>,
}

impl Phrases {
    /// Adds the ids of a text from `start` on. `may_end` says whether what is before a place, from where a phrase may end as well, has
    /// ids of its own; `make` adds the ids between two places, and says whether they are to be remembered.
    #[inline]
    pub fn encode(
        &mut self,
        text: &[u8],
        mut start: usize,
        out: &mut Vec<i32>,
        may_end: impl Fn(usize) -> bool,
        mut make: impl FnMut(usize, usize, &mut Vec<i32>) -> bool,
    ) {
        while text.len() > start + LENGTH {
            let end = (start + LENGTH..text.len()).find(|place| may_end(*place)).unwrap_or(text.len());
            if end - start > LONGEST {
                make(start, end, out);
            } else {
                self.phrase(&text[start..end], out, |out| make(start, end, out));
            }
            start = end;
        }
        if start < text.len() {
            make(start, text.len(), out);
        }
    }

    fn phrase(&mut self, phrase: &[u8], out: &mut Vec<i32>, make: impl FnOnce(&mut Vec<i32>) -> bool) {
        if self.sets.is_empty() {
            self.sets = vec![Default::default(); 1 << SETS];
        }
        let hash = hash(phrase);
        let place = (hash >> (64 - SETS)) as usize;
        let set = &mut self.sets[place];
        let Some(way) = set.iter().position(|slot| slot.hash == hash) else {
            *set = [Slot { hash, ..Slot::default() }, set[0]];
            make(out);
            return;
        };
        let slot = set[way];
        let first = out.len();
        if slot.length == 0 {
            if make(out) {
                self.keep(place, hash, phrase, &out[first..]);
            }
        } else if self.bytes[slot.bytes as usize..][..slot.length as usize] == *phrase {
            out.extend_from_slice(&self.ids[slot.ids as usize..][..slot.count as usize]);
        } else {
            make(out);
        }
    }

    fn keep(&mut self, place: usize, hash: u64, phrase: &[u8], ids: &[i32]) {
        if self.bytes.len() + phrase.len() > MOST_BYTES || self.ids.len() + ids.len() > MOST_IDS {
            *self = Phrases { sets: vec![Default::default(); 1 << SETS], ..Phrases::default() };
        }
        let slot = Slot {
            hash,
            bytes: self.bytes.len() as u32,
            length: phrase.len() as u32,
            ids: self.ids.len() as u32,
            count: ids.len() as u32,
        };
        self.bytes.extend_from_slice(phrase);
        self.ids.extend_from_slice(ids);
        let set = &mut self.sets[place];
        match set.iter_mut().find(|other| other.hash == hash) {
            Some(other) => *other = slot,
            None => set[0] = slot,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids are bytes; returns them and how many were made.
    fn encode(phrases: &mut Phrases, text: &[u8]) -> (Vec<i32>, usize) {
        let (mut out, mut made) = (vec![-1], 0);
        phrases.encode(
            text,
            1,
            &mut out,
            |place| text[place] == b' ',
            |start, end, out| {
                made += end - start;
                out.extend(text[start..end].iter().map(|byte| i32::from(*byte)));
                true
            },
        );
        (out, made)
    }

    fn wanted(text: &[u8]) -> Vec<i32> {
        [-1].into_iter().chain(text[1..].iter().map(|byte| i32::from(*byte))).collect()
    }

    #[test]
    fn what_was_met_twice_is_not_made_again() {
        let mut phrases = Phrases::default();
        let words = |count: usize| (0..count).map(|word| format!(" word{word}")).collect::<String>();
        let (text, longer) = (words(3000), words(4000));
        let (text, longer) = (text.as_bytes(), longer.as_bytes());
        let found: Vec<usize> = (0..3)
            .map(|_| {
                let (ids, made) = encode(&mut phrases, text);
                assert_eq!(ids, wanted(text));
                made
            })
            .collect();
        assert_eq!(found[..2], [text.len() - 1; 2]);
        assert!(found[2] <= LENGTH, "{found:?}");
        // What begins as it did and goes on otherwise.
        let (ids, made) = encode(&mut phrases, longer);
        assert_eq!(ids, wanted(longer));
        assert!(made < longer.len() - text.len() + 2 * LENGTH, "{made}");
    }

    #[test]
    fn nothing_is_kept_that_is_not_to_be() {
        let mut phrases = Phrases::default();
        let text = b" not to be remembered".repeat(40);
        for _ in 0..3 {
            let mut made = 0;
            phrases.encode(
                &text,
                0,
                &mut Vec::new(),
                |place| text[place] == b' ',
                |start, end, out| {
                    made += end - start;
                    out.push(1);
                    false
                },
            );
            assert_eq!(made, text.len());
        }
        assert!(phrases.bytes.is_empty());
    }

    #[test]
    fn memory_has_a_bound_and_spaces_may_be_missing() {
        let mut phrases = Phrases::default();
        for seed in 0..24usize {
            let text: Vec<u8> = (0..1 << 20)
                .map(|place| if place % 600 == 0 { b' ' } else { ((place * seed) >> 3) as u8 | 64 })
                .collect();
            for _ in 0..3 {
                assert!(encode(&mut phrases, &text).0 == wanted(&text));
            }
            assert!(phrases.bytes.len() <= MOST_BYTES && phrases.ids.len() <= MOST_IDS);
        }
        let text = vec![b'x'; 3 * LONGEST];
        for _ in 0..3 {
            assert_eq!(encode(&mut phrases, &text), (wanted(&text), text.len() - 1));
        }
    }
}
