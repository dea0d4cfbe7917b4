//! A byte trie of pieces: finds all pieces that a text begins with.

/// The library considers at most this many prefixes when it matches user-defined pieces.
const MAX_USER_DEFINED: usize = 64;
const NO_PIECE: u32 = u32::MAX;

/// A trie. The children of a node are contiguous and sorted by their bytes.
pub struct Trie {
    nodes: Vec<Node>,
    /// The byte of the edge to each node.
    labels: Vec<u8>,
}

#[derive(Clone, Copy)]
struct Node {
    first_child: u32,
    children: u16,
    piece: u32,
}

impl Trie {
    /// From distinct, nonempty texts with their ids.
    pub fn new(mut texts: Vec<(&[u8], u32)>) -> Trie {
        texts.sort_unstable();
        let root = Node { first_child: 0, children: 0, piece: NO_PIECE };
        let mut trie = Trie { nodes: vec![root], labels: vec![0] };
        // For each node, the range of texts that share its path, and the length of the path.
        let mut ranges = vec![(0, texts.len(), 0)];
        let mut number = 0;
        while let Some(&(mut start, end, depth)) = ranges.get(number) {
            if let Some((text, id)) = texts.get(start).filter(|_| start < end)
                && text.len() == depth
            {
                trie.nodes[number].piece = *id;
                start += 1;
            }
            trie.nodes[number].first_child = trie.nodes.len() as u32;
            while start < end {
                let label = texts[start].0[depth];
                let same = texts[start..end].partition_point(|(text, _)| text[depth] == label);
                trie.nodes.push(root);
                trie.labels.push(label);
                trie.nodes[number].children += 1;
                ranges.push((start, start + same, depth + 1));
                start += same;
            }
            number += 1;
        }
        trie
    }

    /// Calls `each` with the length and id of every piece that the text begins with, shortest first.
    #[inline]
    pub fn prefixes(&self, text: &[u8], mut each: impl FnMut(usize, u32)) {
        let mut node = self.nodes[0];
        for (length, byte) in (1..).zip(text) {
            let first = node.first_child as usize;
            let labels = &self.labels[first..first + usize::from(node.children)];
            let Some(child) = position(labels, *byte) else { return };
            node = self.nodes[first + child];
            if node.piece != NO_PIECE {
                each(length, node.piece);
            }
        }
    }

    /// The length of the longest user-defined piece that the text begins with.
    pub fn longest(&self, text: &[u8]) -> Option<usize> {
        if self.nodes.len() == 1 {
            return None;
        }
        let (mut found, mut longest) = (0, None);
        self.prefixes(text, |length, _| {
            found += 1;
            if found <= MAX_USER_DEFINED {
                longest = Some(length);
            }
        });
        longest
    }
}

/// The index of a label in a sorted list.
#[inline]
fn position(labels: &[u8], byte: u8) -> Option<usize> {
    if labels.len() <= 8 {
        labels.iter().position(|label| *label == byte)
    } else {
        labels.binary_search(&byte).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_every_piece_that_a_text_begins_with() {
        let words: [&[u8]; 5] = [b"a", b"abc", b"b", "é".as_bytes(), b"abd"];
        let trie = Trie::new(words.into_iter().zip(3..).collect());
        let prefixes = |text: &[u8]| {
            let mut found = Vec::new();
            trie.prefixes(text, |length, id| found.push((length, id)));
            found
        };
        assert_eq!(prefixes(b"abcd"), [(1, 3), (3, 4)]);
        assert_eq!(prefixes("éa".as_bytes()), [(2, 6)]);
        assert_eq!((prefixes(b"xa"), trie.longest(b"abdx"), trie.longest(b"x")), (vec![], Some(3), None));
        assert_eq!(Trie::new(Vec::new()).longest(b"a"), None);
    }
}
