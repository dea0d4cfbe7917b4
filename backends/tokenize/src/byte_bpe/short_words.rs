//! The vocabulary's words of up to 15 bytes, keyed as in the word cache, so that a first-seen word costs one cache miss, and
//! a word that is not in the vocabulary needs no comparison of strings.

use super::word_cache::{MAX_SHORT_BYTES, key, mix};
use crate::memory::OutOfMemory;
use crate::table::Table;

/// Words per bucket.
const WAYS: usize = 3;

/// Words with the same hash bits; one cache line. Key 0 marks an unused way; no word has it.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Bucket {
    keys: [u128; WAYS],
    /// The id of each way. The last one has the bits of the words for which no way was left.
    ids: [u32; WAYS + 1],
}

/// A hash table from words to ids. Words for which a bucket has no way left are not in it.
pub struct ShortWords {
    buckets: Table<Bucket>,
    /// The position of the hash bits that select a bucket.
    shift: u32,
}

/// Where the ids of a bucket say which words overflowed.
const OVERFLOWED: usize = WAYS;

const _: () = assert!(size_of::<Bucket>() == 64 && WAYS == 3);

impl ShortWords {
    /// From the words of the vocabulary and their ids; frequent words come first. Longer words are skipped. Of equal words the first
    /// counts.
    pub fn new<'a>(
        words: impl Iterator<Item = (&'a [u8], u32)>,
        count: usize,
    ) -> Result<ShortWords, OutOfMemory> {
        // About two words per bucket: most words fit, and most buckets prove that a word is absent.
        let bits = (count / 2).next_power_of_two().max(2).trailing_zeros();
        let empty = Bucket { keys: [0; WAYS], ids: [0; WAYS + 1] };
        let mut table = ShortWords { buckets: Table::filled(empty, 1 << bits)?, shift: u64::BITS - bits };
        for (word, id) in words.filter(|(word, _)| (1..=MAX_SHORT_BYTES).contains(&word.len())) {
            let key = key(word, 0, word.len());
            let hash = mix(key);
            let index = table.index(hash);
            let bucket = &mut table.buckets[index];
            match bucket.keys.iter().position(|known| *known == 0 || *known == key) {
                Some(way) if bucket.keys[way] == 0 => (bucket.keys[way], bucket.ids[way]) = (key, id),
                Some(_) => {}
                None => bucket.ids[OVERFLOWED] |= overflow_bit(hash),
            }
        }
        Ok(table)
    }

    #[inline(always)]
    fn index(&self, hash: u64) -> usize {
        (hash >> self.shift) as usize
    }

    #[inline(always)]
    fn bucket(&self, hash: u64) -> &Bucket {
        // SAFETY: the number of buckets is a power of two, and the shift leaves only as many bits of the hash.
        unsafe { self.buckets.get_unchecked(self.index(hash)) }
    }

    /// Loads the bucket of a word into the cache.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        crate::memory::prefetch(self.bucket(hash));
    }

    /// Whether the table has a word, by its key and hash, and its id. One probe without a branch.
    #[inline(always)]
    pub fn find(&self, key: u128, hash: u64) -> (bool, u32) {
        let Bucket { keys, ids } = self.bucket(hash);
        let [first, second, third] = keys.map(|known| known == key);
        let way = usize::from(second) | usize::from(third) << 1;
        (first | second | third, ids[way % ids.len()])
    }

    /// The same with one comparison of the whole bucket.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn find_avx512(&self, key: u128, hash: u64) -> (bool, u32) {
        use std::arch::x86_64::{
            __m128i, __m512i, _mm_loadu_si128, _mm512_broadcast_i32x4, _mm512_cmpeq_epi64_mask,
            _mm512_loadu_si512,
        };
        let bucket = self.bucket(hash);
        // SAFETY: the loads read the 64 bytes of the bucket and the 16 bytes of the key.
        let (bytes, key) = unsafe {
            let bytes = _mm512_loadu_si512(std::ptr::from_ref(bucket).cast::<__m512i>());
            (bytes, _mm_loadu_si128(std::ptr::from_ref(&key).cast::<__m128i>()))
        };
        // Two bits for each way, one for each half of its key.
        let halves = u32::from(_mm512_cmpeq_epi64_mask(bytes, _mm512_broadcast_i32x4(key)));
        let found = halves & halves >> 1 & 0b01_0101;
        let way = (found >> 2 | found >> 3) & 0b11;
        (found != 0, bucket.ids[way as usize])
    }

    /// Whether a word that the table does not have may be in the vocabulary: a word with its bit overflowed.
    #[inline(always)]
    pub fn overflowed(&self, hash: u64) -> bool {
        self.bucket(hash).ids[OVERFLOWED] & overflow_bit(hash) != 0
    }
}

/// The bit of a word for which a bucket has no way left. Bits in the middle of a hash are independent of those that select the bucket.
#[inline(always)]
fn overflow_bit(hash: u64) -> u32 {
    1 << ((hash >> 32) % 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_and_others_are_absent_or_unknown() {
        let words: Vec<String> = (0..20_000).map(|number| format!("{:x}", number * 7919)).collect();
        let long = "a word of more than fifteen bytes";
        let listed = words.iter().map(String::as_str).chain([words[3].as_str(), long]);
        let table =
            ShortWords::new(listed.zip(0..).map(|(word, id)| (word.as_bytes(), id)), words.len()).unwrap();
        let find = |word: &str| {
            let key = key(word.as_bytes(), 0, word.len());
            let found = table.find(key, mix(key));
            #[cfg(target_arch = "x86_64")]
            if crate::cpu_features::has_avx512() {
                // SAFETY: the processor has these instructions.
                let by_bucket = unsafe { table.find_avx512(key, mix(key)) };
                assert_eq!((by_bucket.0, if by_bucket.0 { by_bucket.1 } else { found.1 }), found);
            }
            found
        };
        let mut unknown = 0;
        for (word, id) in words.iter().zip(0..) {
            match find(word) {
                (true, found) => assert_eq!(found, id),
                (false, _) => {
                    unknown += 1;
                    let hash = mix(key(word.as_bytes(), 0, word.len()));
                    assert!(table.overflowed(hash), "{word}");
                }
            }
        }
        assert!(unknown < words.len() / 10, "{unknown}");
        for number in 0..20_000 {
            let word = format!("other{number}");
            assert!(!find(&word).0, "{word}");
        }
    }
}
