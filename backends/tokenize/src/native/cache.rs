//! What words became, in tables of fixed size: one for short words, whose bytes are their own key, and one for longer ones, whose
//! bytes are kept beside it.

use super::vocabulary::hash;

/// Words of at most so many bytes have their bytes and their length in one number.
pub const SHORT: usize = 15;
/// Longer ones up to this length are remembered as well.
const LONG: usize = 96;
/// Short words that there is room for, as a power of two.
const SLOTS: u32 = 16;
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
    tokens: [u32; INLINE],
    count: u32,
}

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
    slots: Box<[Slot]>,
    long: Box<[LongSlot]>,
    /// Tokens of those that do not fit a slot.
    spilled: Vec<u32>,
    /// The bytes of longer words.
    words: Vec<u8>,
}

impl Cache {
    /// With nothing in it.
    pub fn new() -> Cache {
        let empty = Slot { key: 0, tokens: [0; INLINE], count: 0 };
        let empty_long = LongSlot { hash: 0, bytes: 0, length: 0, tokens: 0, count: 0 };
        Cache {
            slots: vec![empty; 1 << SLOTS].into_boxed_slice(),
            long: vec![empty_long; 1 << LONG_SLOTS].into_boxed_slice(),
            spilled: Vec::new(),
            words: Vec::new(),
        }
    }

    /// Adds the tokens of a word of at most [`SHORT`] bytes, from here or from `make`.
    #[inline(always)]
    pub fn short(&mut self, key: u128, out: &mut Vec<i32>, make: impl FnOnce(&mut Vec<u32>)) {
        let place = place_of(key);
        let slot = &self.slots[place];
        if slot.key == key {
            if slot.count == 1 {
                out.push(slot.tokens[0] as i32);
                return;
            }
            let count = slot.count as usize;
            if count <= INLINE {
                out.extend(slot.tokens[..count].iter().map(|token| *token as i32));
                return;
            }
            let start = slot.tokens[0] as usize;
            out.extend(self.spilled[start..start + count].iter().map(|token| *token as i32));
            return;
        }
        self.insert(place, key, out, make);
    }

    #[inline(never)]
    fn insert(&mut self, place: usize, key: u128, out: &mut Vec<i32>, make: impl FnOnce(&mut Vec<u32>)) {
        let (start, count) = self.made(out, make);
        let mut slot = Slot { key, tokens: [start as u32, 0, 0], count: count as u32 };
        if count <= INLINE {
            for (to, from) in slot.tokens.iter_mut().zip(&self.spilled[start..]) {
                *to = *from;
            }
            self.spilled.truncate(start);
        }
        self.slots[place] = slot;
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
            *self = Cache::new();
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
    let (low, high) = (key as u64, (key >> 64) as u64);
    let mixed = (low ^ high.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ high).wrapping_mul(0xd6e8_feb8_6659_fd93) >> (64 - SLOTS)) as usize
}

/// The bytes of a word and its length as one number; the word is `text[start..end]`, of 1 to [`SHORT`] bytes.
#[inline(always)]
pub fn key(text: &[u8], start: usize, end: usize) -> u128 {
    let length = end - start;
    debug_assert!((1..=SHORT).contains(&length));
    let bytes = match text.get(start..start + 16).and_then(|window| <[u8; 16]>::try_from(window).ok()) {
        Some(window) => u128::from_le_bytes(window) & (u128::MAX >> (128 - 8 * length)),
        None => {
            let mut window = [0; 16];
            window[..length].copy_from_slice(&text[start..end]);
            u128::from_le_bytes(window)
        }
    };
    bytes | (length as u128) << 120
}
