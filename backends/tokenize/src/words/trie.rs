//! Tokens as paths of bytes: which of them begin at a place of a text, the shortest first.

use rustc_hash::FxHashMap;

/// The place before any byte.
pub const ROOT: u32 = 0;

/// A place to which a token leads has this bit in its number.
const TOKEN: u32 = 1 << 31;
const EMPTY: u64 = u64::MAX;

/// Places and the bytes between them, in open addressing: a step is the place it starts from, its byte, and the place it leads to.
pub struct Trie {
    steps: Box<[u64]>,
    shift: u32,
    /// The token of each place, where there is one.
    tokens: Vec<u32>,
}

impl Trie {
    /// Of tokens with their ids. A token that is there twice has its last id.
    pub fn new<'a>(tokens: impl IntoIterator<Item = (&'a [u8], u32)>) -> Trie {
        let mut steps: FxHashMap<(u32, u8), u32> = FxHashMap::default();
        let mut ids: Vec<Option<u32>> = vec![None];
        for (token, id) in tokens {
            let mut place = ROOT;
            for byte in token {
                place = *steps.entry((place, *byte)).or_insert_with(|| {
                    ids.push(None);
                    ids.len() as u32 - 1
                });
            }
            ids[place as usize] = Some(id);
        }
        let size = (steps.len() * 2).next_power_of_two().max(16);
        let (mut table, shift) = (vec![EMPTY; size].into_boxed_slice(), 64 - size.trailing_zeros());
        for ((from, byte), to) in steps {
            let marked = if ids[to as usize].is_some() { to | TOKEN } else { to };
            let wanted = key(from, byte);
            let mut slot = slot_of(wanted, shift);
            while table[slot] != EMPTY {
                slot = (slot + 1) & (size - 1);
            }
            table[slot] = u64::from(wanted) << 32 | u64::from(marked);
        }
        Trie { steps: table, shift, tokens: ids.into_iter().map(Option::unwrap_or_default).collect() }
    }

    /// Where a byte leads from a place, marked if a token ends there.
    #[inline]
    fn step(&self, place: u32, byte: u8) -> Option<u32> {
        let wanted = key(place, byte);
        let mut slot = slot_of(wanted, self.shift);
        loop {
            let found = self.steps[slot];
            if (found >> 32) as u32 == wanted && found != EMPTY {
                return Some(found as u32);
            }
            if found == EMPTY {
                return None;
            }
            slot = (slot + 1) & (self.steps.len() - 1);
        }
    }

    /// The place that some bytes lead to.
    pub fn place(&self, bytes: &[u8]) -> Option<u32> {
        bytes.iter().try_fold(ROOT, |place, byte| Some(self.step(place, *byte)? & !TOKEN))
    }

    /// Calls `each` with the length and the id of every token that `text` continues a place with, the shortest first.
    #[inline]
    pub fn prefixes(&self, mut place: u32, text: &[u8], mut each: impl FnMut(usize, u32)) {
        for (length, byte) in (1..).zip(text) {
            let Some(next) = self.step(place, *byte) else { return };
            place = next & !TOKEN;
            if next & TOKEN != 0 {
                each(length, self.tokens[place as usize]);
            }
        }
    }

    /// The id of exactly these bytes.
    pub fn find(&self, bytes: &[u8]) -> Option<u32> {
        let mut found = None;
        self.prefixes(ROOT, bytes, |length, id| found = (length == bytes.len()).then_some(id));
        found
    }
}

/// Places are fewer than 2^24: [`super::MOST_BYTES`] holds vocabularies to it.
#[inline]
fn key(place: u32, byte: u8) -> u32 {
    place << 8 | u32::from(byte)
}

#[inline]
fn slot_of(key: u32, shift: u32) -> usize {
    (u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_begins_a_text() {
        let tokens: [(&[u8], u32); 5] = [(b"a", 3), (b"abc", 4), (b"b", 5), ("é".as_bytes(), 6), (b"a", 7)];
        let trie = Trie::new(tokens);
        let prefixes = |text: &[u8]| {
            let mut found = Vec::new();
            trie.prefixes(ROOT, text, |length, id| found.push((length, id)));
            found
        };
        assert_eq!(prefixes(b"abcd"), [(1, 7), (3, 4)]);
        assert_eq!(prefixes("éa".as_bytes()), [(2, 6)]);
        assert_eq!(prefixes(b"xa"), []);
        assert_eq!(
            (trie.find(b"abc"), trie.find(b"ab"), trie.find(b"abcd"), trie.find(b"")),
            (Some(4), None, None, None)
        );
        let inner = trie.place(b"ab").unwrap();
        let mut found = Vec::new();
        trie.prefixes(inner, b"c", |length, id| found.push((length, id)));
        assert_eq!((found, trie.place(b"x")), (vec![(1, 4)], None));
    }
}
