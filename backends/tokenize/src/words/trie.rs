//! A byte trie of the vocabulary: finds all tokens that a text begins with, shortest first.

use rustc_hash::FxHashMap;

/// The root node.
pub const ROOT: u32 = 0;

/// Set in the index of a node at which a token ends.
const HAS_TOKEN: u32 = 1 << 31;
const EMPTY: u64 = u64::MAX;

/// A trie whose edges are in one hash table with open addressing. An edge is its parent node, its byte and its child node.
pub struct Trie {
    edges: Box<[u64]>,
    shift: u32,
    /// The token of each node, if one ends there.
    tokens: Vec<u32>,
}

impl Trie {
    /// From tokens with their ids. A repeated token has its last id.
    pub fn new<'a>(tokens: impl IntoIterator<Item = (&'a [u8], u32)>) -> Trie {
        let mut edges: FxHashMap<(u32, u8), u32> = FxHashMap::default();
        let mut ids: Vec<Option<u32>> = vec![None];
        for (token, id) in tokens {
            let mut node = ROOT;
            for byte in token {
                node = *edges.entry((node, *byte)).or_insert_with(|| {
                    ids.push(None);
                    ids.len() as u32 - 1
                });
            }
            ids[node as usize] = Some(id);
        }
        let size = (edges.len() * 2).next_power_of_two().max(16);
        let (mut table, shift) = (vec![EMPTY; size].into_boxed_slice(), 64 - size.trailing_zeros());
        for ((from, byte), to) in edges {
            let marked = if ids[to as usize].is_some() { to | HAS_TOKEN } else { to };
            let expected = key(from, byte);
            let mut slot = slot_of(expected, shift);
            while table[slot] != EMPTY {
                slot = (slot + 1) & (size - 1);
            }
            table[slot] = u64::from(expected) << 32 | u64::from(marked);
        }
        Trie { edges: table, shift, tokens: ids.into_iter().map(Option::unwrap_or_default).collect() }
    }

    /// The child of a node, with [`HAS_TOKEN`] if a token ends there.
    #[inline]
    fn child(&self, node: u32, byte: u8) -> Option<u32> {
        let expected = key(node, byte);
        let mut slot = slot_of(expected, self.shift);
        loop {
            let found = self.edges[slot];
            if (found >> 32) as u32 == expected && found != EMPTY {
                return Some(found as u32);
            }
            if found == EMPTY {
                return None;
            }
            slot = (slot + 1) & (self.edges.len() - 1);
        }
    }

    /// The node of a byte string.
    pub fn node(&self, bytes: &[u8]) -> Option<u32> {
        bytes.iter().try_fold(ROOT, |node, byte| Some(self.child(node, *byte)? & !HAS_TOKEN))
    }

    /// Calls `each` with the length and id of every token that continues from a node with a prefix of `text`, shortest first.
    #[inline]
    pub fn prefixes(&self, mut node: u32, text: &[u8], mut each: impl FnMut(usize, u32)) {
        for (length, byte) in (1..).zip(text) {
            let Some(next) = self.child(node, *byte) else { return };
            node = next & !HAS_TOKEN;
            if next & HAS_TOKEN != 0 {
                each(length, self.tokens[node as usize]);
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

/// There are fewer than 2^24 nodes, because vocabularies are limited to [`super::MAX_VOCABULARY_BYTES`].
#[inline]
fn key(node: u32, byte: u8) -> u32 {
    node << 8 | u32::from(byte)
}

#[inline]
fn slot_of(key: u32, shift: u32) -> usize {
    (u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_tokens_that_a_text_begins_with() {
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
        let inner = trie.node(b"ab").unwrap();
        let mut found = Vec::new();
        trie.prefixes(inner, b"c", |length, id| found.push((length, id)));
        assert_eq!((found, trie.node(b"x")), (vec![(1, 4)], None));
    }
}
