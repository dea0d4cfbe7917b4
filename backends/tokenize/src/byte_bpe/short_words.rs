//! The vocabulary's words of up to 15 bytes, keyed as in the word cache, so that a first-seen word costs one cache miss, and
//! a word that is not in the vocabulary needs no comparison of strings.

use super::word_cache::{MAX_SHORT_BYTES, key, mix};

/// Words per bucket.
const WAYS: usize = 3;

/// Words with the same hash bits; one cache line. Key 0 marks an unused way.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Bucket {
    keys: [u128; WAYS],
    ids: [u32; WAYS],
    /// Whether a word had no way left.
    overflowed: bool,
}

/// A hash table from words to ids. Words for which a bucket has no way left are not in it.
pub struct ShortWords {
    buckets: Box<[Bucket]>,
    /// The position of the hash bits that select a bucket.
    shift: u32,
}

/// The result of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The id of the word.
    Id(u32),
    /// The word is not in the vocabulary.
    Absent,
    /// The bucket overflowed, so that the word may be in the vocabulary.
    Unknown,
}

impl ShortWords {
    /// From the words of the vocabulary and their ids; frequent words come first. Longer words are skipped. Of equal words the first
    /// counts.
    pub fn new<'a>(words: impl Iterator<Item = (&'a [u8], u32)>, count: usize) -> ShortWords {
        // About two words per bucket: most words fit, and most buckets prove that a word is absent.
        let bits = (count / 2).next_power_of_two().max(2).trailing_zeros();
        let empty = Bucket { keys: [0; WAYS], ids: [0; WAYS], overflowed: false };
        let mut table =
            ShortWords { buckets: vec![empty; 1 << bits].into_boxed_slice(), shift: u64::BITS - bits };
        for (word, id) in words.filter(|(word, _)| (1..=MAX_SHORT_BYTES).contains(&word.len())) {
            let key = key(word, 0, word.len());
            let index = table.index(mix(key));
            let bucket = &mut table.buckets[index];
            match bucket.keys.iter().position(|known| *known == 0 || *known == key) {
                Some(way) if bucket.keys[way] == 0 => (bucket.keys[way], bucket.ids[way]) = (key, id),
                Some(_) => {}
                None => bucket.overflowed = true,
            }
        }
        table
    }

    #[inline(always)]
    fn index(&self, hash: u64) -> usize {
        (hash >> self.shift) as usize
    }

    /// Loads the bucket of a word into the cache.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        super::word_cache::prefetch(&self.buckets[self.index(hash)]);
    }

    /// Looks up a word by its key and hash.
    #[inline(always)]
    pub fn find(&self, key: u128, hash: u64) -> Found {
        let bucket = &self.buckets[self.index(hash)];
        match bucket.keys.iter().position(|known| *known == key) {
            Some(way) => Found::Id(bucket.ids[way]),
            None if bucket.overflowed => Found::Unknown,
            None => Found::Absent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_and_others_are_absent_or_unknown() {
        let words: Vec<String> = (0..20_000).map(|number| format!("{:x}", number * 7919)).collect();
        let long = "a word of more than fifteen bytes";
        let listed = words.iter().map(String::as_str).chain([words[3].as_str(), long]);
        let table = ShortWords::new(listed.zip(0..).map(|(word, id)| (word.as_bytes(), id)), words.len());
        let find = |word: &str| {
            let key = key(word.as_bytes(), 0, word.len());
            table.find(key, mix(key))
        };
        let mut unknown = 0;
        for (word, id) in words.iter().zip(0..) {
            match find(word) {
                Found::Id(found) => assert_eq!(found, id),
                Found::Unknown => unknown += 1,
                Found::Absent => panic!("{word}"),
            }
        }
        assert!(unknown < words.len() / 10, "{unknown}");
        let others =
            (0..20_000).map(|number| find(&format!("other{number}"))).filter(|found| *found == Found::Absent);
        assert!(others.count() > 10_000);
    }
}
