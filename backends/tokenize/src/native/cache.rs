//! What words became, in tables of fixed size: one for short words, whose bytes are their own key, and one for longer ones, whose
//! bytes are kept beside it.

use super::vocabulary::hash;

/// Words of at most so many bytes have their bytes and their length in one number.
pub const SHORT: usize = 15;
/// Longer ones up to this length are remembered as well.
const LONG: usize = 96;
/// Sets of short words, as a power of two.
const SETS: u32 = 15;
/// Longer words that there is room for, as a power of two.
const LONG_SLOTS: u32 = 15;
/// Tokens that are kept for long words and for those of many tokens, before everything is forgotten.
const MOST: usize = 1 << 20;
/// Bytes that are kept of longer words, before everything is forgotten.
const MOST_BYTES: usize = 1 << 22;
/// Tokens that fit a slot.
const INLINE: usize = 3;

/// A word and what it became. A key of 0 is an empty slot: every word has a length.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
struct Slot {
    key: u128,
    tokens: [i32; INLINE],
    count: u32,
}

/// Two words that may be at the same place, the newer one first: a line of the processor's cache, so that both cost one look.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Set([Slot; 2]);

/// A longer word and what it became: where its bytes and its tokens lie. A length of 0 is an empty slot.
#[derive(Clone, Copy)]
struct LongSlot {
    hash: u64,
    bytes: u32,
    length: u32,
    tokens: u32,
    count: u32,
}

/// Remembered words of one tokenizer, for one thread at a time.
pub struct Cache {
    sets: Box<[Set]>,
    long: Box<[LongSlot]>,
    /// Tokens of those that do not fit a slot.
    spilled: Vec<u32>,
    /// The bytes of longer words.
    words: Vec<u8>,
}

impl Default for Cache {
    /// With nothing in it.
    fn default() -> Cache {
        let empty = Slot { key: 0, tokens: [0; INLINE], count: 0 };
        let empty_long = LongSlot { hash: 0, bytes: 0, length: 0, tokens: 0, count: 0 };
        Cache {
            sets: vec![Set([empty; 2]); 1 << SETS].into_boxed_slice(),
            long: vec![empty_long; 1 << LONG_SLOTS].into_boxed_slice(),
            spilled: Vec::new(),
            words: Vec::new(),
        }
    }
}

impl Cache {
    /// Adds the tokens of a word of at most [`SHORT`] bytes, from here or from `make`.
    #[inline(always)]
    pub fn short(&mut self, key: u128, out: &mut Vec<i32>, make: impl FnOnce(&mut Vec<u32>)) {
        let place = place_of(key);
        let Set(slots) = &self.sets[place];
        let slot = &slots[usize::from(slots[1].key == key)];
        if slot.key != key {
            return self.insert(place, key, out, make);
        }
        let count = slot.count as usize;
        if count <= INLINE {
            // As many as there is room for and then the rest away: whatever the number, the way is the same.
            out.extend_from_slice(&slot.tokens);
            out.truncate(out.len() - (INLINE - count));
            return;
        }
        let start = slot.tokens[0] as usize;
        out.extend(self.spilled[start..start + count].iter().map(|token| *token as i32));
    }

    #[inline(never)]
    fn insert(&mut self, place: usize, key: u128, out: &mut Vec<i32>, make: impl FnOnce(&mut Vec<u32>)) {
        let (start, count) = self.made(out, make);
        let mut slot = Slot { key, tokens: [start as i32, 0, 0], count: count as u32 };
        if count <= INLINE {
            for (to, from) in slot.tokens.iter_mut().zip(&self.spilled[start..]) {
                *to = *from as i32;
            }
            self.spilled.truncate(start);
        }
        let Set(slots) = &mut self.sets[place];
        *slots = [slot, slots[0]];
    }

    /// Adds the tokens of a longer word.
    pub fn long(&mut self, word: &[u8], out: &mut Vec<i32>, make: impl FnOnce(&mut Vec<u32>)) {
        if word.len() > LONG {
            let (start, _) = self.made(out, make);
            self.spilled.truncate(start);
            return;
        }
        let hash = hash(word);
        let place = (hash >> (64 - LONG_SLOTS)) as usize;
        let slot = self.long[place];
        let bytes = slot.bytes as usize..(slot.bytes + slot.length) as usize;
        if slot.hash == hash && &self.words[bytes] == word {
            let tokens = &self.spilled[slot.tokens as usize..(slot.tokens + slot.count) as usize];
            out.extend(tokens.iter().map(|token| *token as i32));
            return;
        }
        let (tokens, count) = self.made(out, make);
        let bytes = self.words.len() as u32;
        self.words.extend_from_slice(word);
        let length = word.len() as u32;
        self.long[place] = LongSlot { hash, bytes, length, tokens: tokens as u32, count: count as u32 };
    }

    /// Makes tokens at the end of what is spilled, and adds them to the result.
    fn made(&mut self, out: &mut Vec<i32>, make: impl FnOnce(&mut Vec<u32>)) -> (usize, usize) {
        if self.spilled.len() > MOST || self.words.len() > MOST_BYTES {
            *self = Cache::default();
        }
        let start = self.spilled.len();
        make(&mut self.spilled);
        let made = &self.spilled[start..];
        out.extend(made.iter().map(|token| *token as i32));
        (start, made.len())
    }
}

#[inline(always)]
fn place_of(key: u128) -> usize {
    // The second factor is never 0: no word is as long as its first byte would say.
    let (low, high) = (key as u64 ^ 0x9e37_79b9_7f4a_7c15, (key >> 64) as u64 ^ 0xd6e8_feb8_6659_fd93);
    let product = u128::from(low) * u128::from(high);
    ((product as u64 ^ (product >> 64) as u64) >> (64 - SETS)) as usize
}

/// The bytes of a word and its length as one number; the word is `text[start..end]`, of 1 to [`SHORT`] bytes.
#[inline(always)]
pub fn key(text: &[u8], start: usize, end: usize) -> u128 {
    const MASKS: [u128; SHORT + 1] = {
        let mut masks = [0; SHORT + 1];
        let mut length = 1;
        while length <= SHORT {
            masks[length] = u128::MAX >> (128 - 8 * length);
            length += 1;
        }
        masks
    };
    let length = end - start;
    debug_assert!((1..=SHORT).contains(&length));
    let bytes = match text.get(start..start + 16).and_then(|window| <[u8; 16]>::try_from(window).ok()) {
        Some(window) => u128::from_le_bytes(window) & MASKS[length],
        None => {
            let mut window = [0; 16];
            window[..length].copy_from_slice(&text[start..end]);
            u128::from_le_bytes(window)
        }
    };
    bytes | (length as u128) << 120
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of all lengths, more of them than there is room for, and their tokens: as many as the word has bytes, up to seven.
    fn word(number: usize) -> (String, Vec<u32>) {
        let text = format!("{number}{}", "x".repeat(number % 23));
        let count = text.len().min(7) as u32;
        (text, (0..count).map(|token| token + number as u32).collect())
    }

    #[test]
    fn whatever_is_remembered_the_tokens_are_the_same() {
        let mut cache = Cache::default();
        let mut made = [0; 3];
        for (pass, numbers) in [0..150_000, 149_000..150_000, 149_000..150_000].into_iter().enumerate() {
            for number in numbers {
                let (text, tokens) = word(number);
                let mut make = |to: &mut Vec<u32>| {
                    made[pass] += 1;
                    to.extend(&tokens);
                };
                let mut out = vec![-7];
                if text.len() <= SHORT {
                    cache.short(key(text.as_bytes(), 0, text.len()), &mut out, &mut make);
                } else {
                    cache.long(text.as_bytes(), &mut out, &mut make);
                }
                let wanted: Vec<i32> =
                    [-7].into_iter().chain(tokens.iter().map(|token| *token as i32)).collect();
                assert_eq!(out, wanted, "{text}");
            }
        }
        // What came last is there still, but for what fell into the same place.
        assert!(made[0] == 150_000 && made[1] < 100 && made[2] < 100, "{made:?}");
    }

    #[test]
    fn what_is_behind_a_word_is_no_part_of_its_key() {
        let text = b"one two three four five";
        assert_eq!(key(text, 4, 7), key(b"two", 0, 3));
        assert_ne!(key(text, 4, 7), key(b"two\0", 0, 4));
        assert_eq!(key(text, 3, 18), key(b" two three four more", 0, 15));
    }
}
