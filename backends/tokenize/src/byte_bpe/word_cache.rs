//! Caches the tokens of words in two tables of fixed size: short words, whose bytes are the key, and longer words, which are hashed
//! and compared with a stored copy.

use std::ops::Range;

use crate::memory::{self, OutOfMemory};
use crate::phrase_cache::SLACK;
use crate::table::Table;
use crate::vocabulary::hash;

/// Words of up to this many bytes are keyed by their bytes and length in a `u128`.
pub const MAX_SHORT_BYTES: usize = 15;
/// Words longer than this are not cached.
const MAX_LONG_BYTES: usize = 96;
/// Log2 of the number of sets for short words.
const SET_BITS: u32 = 15;
/// Log2 of the number of slots for longer words.
const LONG_SLOT_BITS: u32 = 15;
/// Maximum number of spilled tokens; [`WordCache::limit`] clears the cache beyond it.
const MAX_SPILLED_TOKENS: usize = 1 << 20;
/// Maximum bytes of longer words; [`WordCache::limit`] clears the cache beyond it.
const MAX_WORD_BYTES_TOTAL: usize = 1 << 22;
/// Tokens that fit into a slot.
const INLINE_TOKENS: usize = 3;
const _: () = assert!(INLINE_TOKENS <= SLACK);

/// The tokens of a word: the tokens themselves, or the position of the first one elsewhere.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Tokens {
    tokens: [i32; INLINE_TOKENS],
    count: u32,
}

/// A short word and its tokens. Key 0 marks an empty slot; no word has it, because the key includes the length.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
struct Slot {
    key: u128,
    tokens: Tokens,
}

/// A two-way set, newest first. It fills one cache line, so that both ways cost one cache miss at most.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Set([Slot; 2]);

/// A longer word: offsets of its bytes in `words` and its tokens in `spilled`. Length 0 marks an empty slot.
#[derive(Clone, Copy)]
struct LongSlot {
    hash: u64,
    bytes: u32,
    length: u32,
    tokens: u32,
    count: u32,
}

/// The word cache of one tokenizer; used by one thread at a time.
pub struct WordCache {
    sets: Table<Set>,
    long: Box<[LongSlot]>,
    /// Tokens of longer words and of short words with more than [`INLINE_TOKENS`] tokens.
    spilled: Vec<u32>,
    /// The bytes of longer words.
    words: Vec<u8>,
}

const EMPTY_SET: Set = Set([Slot { key: 0, tokens: Tokens::NONE }; 2]);
const EMPTY_LONG: LongSlot = LongSlot { hash: 0, bytes: 0, length: 0, tokens: 0, count: 0 };

/// All results have room for one token per byte of the word, and [`SLACK`]; computed tokens have room for one per byte.
impl WordCache {
    /// An empty cache.
    pub fn new() -> Result<WordCache, OutOfMemory> {
        Ok(WordCache {
            sets: Table::filled(EMPTY_SET, 1 << SET_BITS)?,
            long: memory::filled(EMPTY_LONG, 1 << LONG_SLOT_BITS)?.into_boxed_slice(),
            spilled: Vec::new(),
            words: Vec::new(),
        })
    }

    /// Removes all words.
    fn clear(&mut self) {
        self.sets.fill(EMPTY_SET);
        self.long.fill(EMPTY_LONG);
        (self.spilled, self.words) = (Vec::new(), Vec::new());
    }

    /// Appends the tokens of a word of at most [`MAX_SHORT_BYTES`] bytes; calls `compute` on a cache miss.
    #[inline(always)]
    pub fn short(
        &mut self,
        key: u128,
        out: &mut Vec<i32>,
        compute: impl FnOnce(&mut Vec<u32>) -> Result<(), OutOfMemory>,
    ) -> Result<(), OutOfMemory> {
        let hash = mix(key);
        let (found, tokens) = self.find(key, hash);
        if !found {
            return self.compute_short(key, hash, out, compute);
        }
        self.append(tokens, out);
        Ok(())
    }

    /// Loads the set of a word into the cache.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        memory::prefetch(&self.sets[set_index(hash)]);
    }

    /// Whether a word is cached, and its tokens, without a branch. The tokens are valid until [`WordCache::limit`].
    #[inline(always)]
    pub fn find(&self, key: u128, hash: u64) -> (bool, Tokens) {
        let Set(slots) = &self.sets[set_index(hash)];
        let second = slots[1].key == key;
        ((slots[0].key == key) | second, slots[usize::from(second)].tokens)
    }

    /// Writes the tokens of a short word, which are not in place. There is room for them.
    #[inline(always)]
    pub fn write_spilled(&self, tokens: Tokens, out: &mut [i32]) {
        for (to, token) in out.iter_mut().zip(&self.spilled[tokens.elsewhere()]) {
            *to = *token as i32;
        }
    }

    /// Appends the tokens of a short word.
    #[inline(always)]
    pub fn append(&self, tokens: Tokens, out: &mut Vec<i32>) {
        if tokens.are_inline() {
            // Copies the whole slot and truncates: no branch on the number of tokens.
            out.extend_from_slice(&tokens.tokens);
            out.truncate(out.len() - (INLINE_TOKENS - tokens.count()));
        } else {
            out.extend(self.spilled[tokens.elsewhere()].iter().map(|token| *token as i32));
        }
    }

    #[inline(never)]
    fn compute_short(
        &mut self,
        key: u128,
        hash: u64,
        out: &mut Vec<i32>,
        compute: impl FnOnce(&mut Vec<u32>) -> Result<(), OutOfMemory>,
    ) -> Result<(), OutOfMemory> {
        self.limit();
        let (start, count) = self.compute_spilled(MAX_SHORT_BYTES, out, compute)?;
        let tokens = Tokens::new(&out[out.len() - count..], start);
        if tokens.are_inline() {
            self.spilled.truncate(start);
        }
        self.replace(Slot { key, tokens }, hash);
        Ok(())
    }

    /// Inserts a word; its set keeps the newer one of the others.
    #[inline(always)]
    fn replace(&mut self, slot: Slot, hash: u64) {
        let Set(slots) = &mut self.sets[set_index(hash)];
        *slots = [slot, slots[0]];
    }

    /// Caches the tokens of a word of at most [`MAX_SHORT_BYTES`] bytes, unless they are cached.
    pub fn insert(&mut self, key: u128, hash: u64, tokens: &[i32]) -> Result<Tokens, OutOfMemory> {
        let (found, cached) = self.find(key, hash);
        if found {
            return Ok(cached);
        }
        let inserted = Tokens::new(tokens, self.spilled.len());
        if !inserted.are_inline() {
            memory::reserve(&mut self.spilled, tokens.len())?;
            self.spilled.extend(tokens.iter().map(|token| *token as u32));
        }
        self.replace(Slot { key, tokens: inserted }, hash);
        Ok(inserted)
    }

    /// Appends the tokens of a longer word, if it is cached. Returns its hash otherwise, for [`WordCache::insert_long`].
    pub fn find_long(&self, word: &[u8], out: &mut Vec<i32>) -> Result<(), u64> {
        let hash = hash(word);
        let slot = self.long[(hash >> (64 - LONG_SLOT_BITS)) as usize];
        let bytes = slot.bytes as usize..(slot.bytes + slot.length) as usize;
        if slot.hash != hash || &self.words[bytes] != word {
            return Err(hash);
        }
        let tokens = &self.spilled[slot.tokens as usize..(slot.tokens + slot.count) as usize];
        out.extend(tokens.iter().map(|token| *token as i32));
        Ok(())
    }

    /// Caches the tokens of a longer word, unless it is too long. The caller calls [`WordCache::limit`].
    pub fn insert_long(&mut self, word: &[u8], hash: u64, tokens: &[i32]) -> Result<(), OutOfMemory> {
        if word.len() > MAX_LONG_BYTES {
            return Ok(());
        }
        memory::reserve(&mut self.words, word.len())?;
        memory::reserve(&mut self.spilled, tokens.len())?;
        let slot = LongSlot {
            hash,
            bytes: self.words.len() as u32,
            length: word.len() as u32,
            tokens: self.spilled.len() as u32,
            count: tokens.len() as u32,
        };
        self.words.extend_from_slice(word);
        self.spilled.extend(tokens.iter().map(|token| *token as u32));
        self.long[(hash >> (64 - LONG_SLOT_BITS)) as usize] = slot;
        Ok(())
    }

    /// Appends the tokens of a longer word; calls `compute` on a cache miss. The caller calls [`WordCache::limit`].
    pub fn long(
        &mut self,
        word: &[u8],
        out: &mut Vec<i32>,
        compute: impl FnOnce(&mut Vec<u32>) -> Result<(), OutOfMemory>,
    ) -> Result<(), OutOfMemory> {
        let Err(hash) = self.find_long(word, out) else { return Ok(()) };
        let (first, mut tokens) = (out.len(), memory::with_capacity(word.len())?);
        compute(&mut tokens)?;
        out.extend(tokens.iter().map(|token| *token as i32));
        self.insert_long(word, hash, &out[first..])
    }

    /// Clears the cache if it has too many spilled tokens or bytes.
    #[inline(always)]
    pub fn limit(&mut self) {
        if self.spilled.len() > MAX_SPILLED_TOKENS || self.words.len() > MAX_WORD_BYTES_TOTAL {
            self.clear();
        }
    }

    /// Appends the computed tokens of a word of at most `length` bytes to `spilled` and to the result. Returns their offset and count.
    fn compute_spilled(
        &mut self,
        length: usize,
        out: &mut Vec<i32>,
        compute: impl FnOnce(&mut Vec<u32>) -> Result<(), OutOfMemory>,
    ) -> Result<(usize, usize), OutOfMemory> {
        let start = self.spilled.len();
        memory::reserve(&mut self.spilled, length)?;
        compute(&mut self.spilled)?;
        let tokens = &self.spilled[start..];
        out.extend(tokens.iter().map(|token| *token as i32));
        Ok((start, tokens.len()))
    }
}

impl Tokens {
    /// No tokens.
    pub const NONE: Tokens = Tokens { tokens: [0; INLINE_TOKENS], count: 0 };

    /// The tokens of a word, or the position of the first one elsewhere if they are too many.
    pub fn new(tokens: &[i32], start: usize) -> Tokens {
        let position = |index| if index == 0 { start as i32 } else { 0 };
        let are_inline = tokens.len() <= INLINE_TOKENS;
        let token =
            |index| if are_inline { tokens.get(index).copied().unwrap_or(0) } else { position(index) };
        Tokens { tokens: std::array::from_fn(token), count: tokens.len() as u32 }
    }

    /// The number of tokens.
    #[inline(always)]
    pub fn count(self) -> usize {
        self.count as usize
    }

    /// Whether the tokens are in place.
    #[inline(always)]
    pub fn are_inline(self) -> bool {
        self.count() <= INLINE_TOKENS
    }

    /// The positions of tokens that are not in place.
    #[inline(always)]
    pub fn elsewhere(self) -> Range<usize> {
        let start = self.tokens[0] as usize;
        start..start + self.count()
    }

    /// Writes tokens that are in place. There is room for [`INLINE_TOKENS`].
    #[inline(always)]
    pub fn write(self, out: &mut [i32]) {
        out[..INLINE_TOKENS].copy_from_slice(&self.tokens);
    }
}

#[inline(always)]
fn set_index(hash: u64) -> usize {
    (hash >> (u64::BITS - SET_BITS)) as usize
}

/// The factors of both halves of a key.
const FACTORS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93];

/// The hash of a key. Its high bits are well mixed.
#[inline(always)]
pub fn mix(key: u128) -> u64 {
    let (low, high) = (key as u64, (key >> 64) as u64);
    low.wrapping_mul(FACTORS[0]).wrapping_add(high.wrapping_mul(FACTORS[1]))
}

/// [`mix`] of four keys, in both lanes of each.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub fn mix_avx512(keys: std::arch::x86_64::__m512i) -> std::arch::x86_64::__m512i {
    use std::arch::x86_64::*;
    let [low, high] = FACTORS.map(|factor| factor as i64);
    let products = _mm512_mullo_epi64(keys, _mm512_setr_epi64(low, high, low, high, low, high, low, high));
    _mm512_add_epi64(products, _mm512_permutex_epi64::<0b10_11_00_01>(products))
}

/// Added to the key of a part of a word, whose tokens can differ from those of an equal word. No other key has this bit but [`LONG_KEY`].
pub const PART: u128 = 1 << 124;

/// The key of a word of more than [`MAX_SHORT_BYTES`] bytes. No shorter word has it: the top byte of a key is the length.
pub const LONG_KEY: u128 = u128::MAX;

/// The key of the word `text[start..end]` of 1 to [`MAX_SHORT_BYTES`] bytes: its bytes, and its length in the top byte.
#[inline(always)]
pub fn key(text: &[u8], start: usize, end: usize) -> u128 {
    debug_assert!((1..=MAX_SHORT_BYTES).contains(&(end - start)));
    any_key(text, start, end)
}

/// The key of a word of any length, without a branch on it; [`LONG_KEY`] if it has more than [`MAX_SHORT_BYTES`] bytes.
#[inline(always)]
pub fn any_key(text: &[u8], start: usize, end: usize) -> u128 {
    /// The bytes of a word of each length, and what is added to them.
    const MASKS: [(u128, u128); MAX_SHORT_BYTES + 2] = {
        let mut masks = [(0, LONG_KEY); MAX_SHORT_BYTES + 2];
        let mut length = 1;
        while length <= MAX_SHORT_BYTES {
            masks[length] = (u128::MAX >> (128 - 8 * length), (length as u128) << 120);
            length += 1;
        }
        masks
    };
    let length = (end - start).min(MAX_SHORT_BYTES + 1);
    let window = if start < text.len().saturating_sub(15) {
        // SAFETY: there are 16 bytes from `start` on.
        u128::from_le_bytes(unsafe { text.as_ptr().add(start).cast::<[u8; 16]>().read_unaligned() })
    } else {
        last_window(text, start)
    };
    let (mask, tag) = MASKS[length];
    window & mask | tag
}

/// Fewer than 16 bytes at the end of a text, followed by zeros.
#[cold]
fn last_window(text: &[u8], start: usize) -> u128 {
    let mut window = [0; 16];
    for (to, from) in window.iter_mut().zip(&text[start..]) {
        *to = *from;
    }
    u128::from_le_bytes(window)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A word and its tokens: one for each byte, at most seven.
    fn word(number: usize) -> (String, Vec<u32>) {
        let text = format!("{number}{}", "x".repeat(number % 23));
        let count = text.len().min(7) as u32;
        (text, (0..count).map(|token| token + number as u32).collect())
    }

    #[test]
    fn cached_and_computed_tokens_are_equal() {
        let mut cache = WordCache::new().unwrap();
        let mut misses = [0; 3];
        for (pass, numbers) in [0..150_000, 149_000..150_000, 149_000..150_000].into_iter().enumerate() {
            for number in numbers {
                let (text, tokens) = word(number);
                let mut compute = |to: &mut Vec<u32>| {
                    misses[pass] += 1;
                    to.extend(&tokens);
                    Ok(())
                };
                let mut out = vec![-7];
                if text.len() <= MAX_SHORT_BYTES {
                    cache.short(key(text.as_bytes(), 0, text.len()), &mut out, &mut compute).unwrap();
                } else {
                    cache.limit();
                    cache.long(text.as_bytes(), &mut out, &mut compute).unwrap();
                }
                let expected: Vec<i32> =
                    [-7].into_iter().chain(tokens.iter().map(|token| *token as i32)).collect();
                assert_eq!(out, expected, "{text}");
            }
        }
        // The most recent words hit, except those evicted from their set.
        assert!(misses[0] == 150_000 && misses[1] < 100 && misses[2] < 100, "{misses:?}");
    }

    #[test]
    fn key_does_not_depend_on_bytes_after_the_word() {
        let text = b"one two three four five";
        assert_eq!(key(text, 4, 7), key(b"two", 0, 3));
        assert_ne!(key(text, 4, 7), key(b"two\0", 0, 4));
        assert_eq!(key(text, 3, 18), key(b" two three four more", 0, 15));
        for (start, end) in [(0, 16), (3, 19), (4, 20), (0, text.len())] {
            assert_eq!(any_key(text, start, end), LONG_KEY);
        }
    }
}
