//! Finds positions of a text that no token crosses: merges never cross them, so the text on each side can be merged alone. Between
//! characters that are not ASCII there are many, because few sequences of them are in a vocabulary.

/// The bytes around the character boundaries inside of tokens: up to two on each side.
pub struct Boundaries {
    /// For the byte before and the byte after a boundary: which contexts tokens have there ([`ALWAYS`], …).
    flags: Box<[u8; 1 << 16]>,
    /// A Bloom filter of the contexts, with one hash.
    contexts: Box<[u64]>,
    /// The position of the bits of a hash that select a bit of the filter.
    shift: u32,
}

/// A token has one byte on each side: every such boundary may be inside of it.
const ALWAYS: u8 = 1;
/// A token has one byte before the boundary and at least two after it.
const ONE_BEFORE: u8 = 2;
/// A token has at least two bytes before the boundary and one after it.
const ONE_AFTER: u8 = 4;
/// A token has at least two bytes on both sides.
const TWO: u8 = 8;

/// Bits of the filter for each context, at least.
const BITS_PER_CONTEXT: usize = 8;

impl Boundaries {
    /// The boundaries inside of the tokens of a vocabulary.
    pub fn new(tokens: &[Vec<u8>]) -> Boundaries {
        let mut contexts = Vec::new();
        let mut flags = vec![0u8; 1 << 16];
        for token in tokens.iter().filter(|token| !token.is_ascii()) {
            for position in (1..token.len()).filter(|position| is_boundary(token, *position)) {
                let (before, after) = (position.min(2), (token.len() - position).min(2));
                flags[pair(token, position)] |= flag(before, after);
                if (before, after) != (1, 1) {
                    contexts.push(context(token, position, before, after));
                }
            }
        }
        contexts.sort_unstable();
        contexts.dedup();
        let bits = (contexts.len() * BITS_PER_CONTEXT).next_power_of_two().max(u64::BITS as usize);
        let mut boundaries = Boundaries {
            flags: flags.try_into().unwrap_or_else(|_| unreachable!("there is one for each pair of bytes")),
            contexts: vec![0; bits / u64::BITS as usize].into_boxed_slice(),
            shift: u64::BITS - bits.trailing_zeros(),
        };
        for context in contexts {
            let (word, bit) = boundaries.bit(context);
            boundaries.contexts[word] |= bit;
        }
        boundaries
    }

    /// The first position after `start` that no token crosses, next to a character that is not ASCII.
    #[inline]
    pub fn next(&self, text: &[u8], start: usize) -> Option<usize> {
        (start + 1..text.len())
            .find(|position| is_boundary(text, *position) && !self.may_be_crossed(text, *position))
    }

    /// Whether there may be a token with the bytes around a boundary.
    #[inline(always)]
    fn may_be_crossed(&self, text: &[u8], position: usize) -> bool {
        let flags = self.flags[pair(text, position)];
        let (two_before, two_after) = (position >= 2, text.len() - position >= 2);
        flags & ALWAYS != 0
            || flags & TWO != 0 && two_before && two_after && self.has(context(text, position, 2, 2))
            || flags & ONE_BEFORE != 0 && two_after && self.has(context(text, position, 1, 2))
            || flags & ONE_AFTER != 0 && two_before && self.has(context(text, position, 2, 1))
    }

    #[inline(always)]
    fn has(&self, context: u64) -> bool {
        let (word, bit) = self.bit(context);
        self.contexts[word] & bit != 0
    }

    /// The word and the bit of a context in the filter.
    #[inline(always)]
    fn bit(&self, context: u64) -> (usize, u64) {
        let bit = (context.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize;
        (bit / u64::BITS as usize, 1 << (bit % u64::BITS as usize))
    }
}

/// Whether a character begins at a position, and it or the one before it is not ASCII.
#[inline(always)]
fn is_boundary(text: &[u8], position: usize) -> bool {
    text[position] & 0xc0 != 0x80 && (text[position - 1] | text[position]) >= 0x80
}

/// The bytes before and after a position.
#[inline(always)]
fn pair(text: &[u8], position: usize) -> usize {
    usize::from(text[position - 1]) << 8 | usize::from(text[position])
}

fn flag(before: usize, after: usize) -> u8 {
    match (before, after) {
        (1, 1) => ALWAYS,
        (1, _) => ONE_BEFORE,
        (_, 1) => ONE_AFTER,
        _ => TWO,
    }
}

/// Up to two bytes on each side of a position as one number, with their count.
#[inline(always)]
fn context(text: &[u8], position: usize, before: usize, after: usize) -> u64 {
    let byte = |is_there: bool, index: usize| if is_there { u64::from(text[index]) } else { 0 };
    let second_before = byte(before == 2, position.wrapping_sub(2));
    let second_after = byte(after == 2, position + 1);
    let count = (before << 1 | after) as u64;
    count << 32 | second_before << 24 | second_after << 16 | pair(text, position) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn crossed(tokens: &[Vec<u8>], text: &[u8], position: usize) -> bool {
        tokens.iter().any(|token| {
            (1..token.len()).any(|inside| {
                let start = position.checked_sub(inside);
                start.is_some_and(|start| text[start..].starts_with(token))
            })
        })
    }

    proptest! {
        #[test]
        fn no_token_crosses_a_position_that_is_found(
            tokens in prop::collection::vec(prop::string::string_regex("[aé世界 ]{1,4}").unwrap(), 0..12),
            cuts in prop::collection::vec((0usize..4, 0usize..4), 12),
            text in prop::string::string_regex("[abéö世界 ]{1,20}").unwrap(),
        ) {
            // Tokens may begin and end inside of characters.
            let tokens: Vec<Vec<u8>> = tokens.iter().zip(cuts).map(|(token, (first, last))| {
                let token = token.as_bytes();
                let first = first.min(token.len() - 1);
                token[first..token.len().saturating_sub(last).max(first + 1)].to_vec()
            }).collect();
            let boundaries = Boundaries::new(&tokens);
            let (text, mut start) = (text.as_bytes(), 0);
            while let Some(position) = boundaries.next(text, start) {
                prop_assert!(position > start && text[position] & 0xc0 != 0x80);
                prop_assert!(!crossed(&tokens, text, position), "{tokens:?} at {position}");
                start = position;
            }
        }
    }

    #[test]
    fn unknown_neighbors_are_separated() {
        let tokens = ["é", "世界", " 世", "世é"].map(|token| token.as_bytes().to_vec());
        let boundaries = Boundaries::new(&tokens);
        let positions = |text: &str| {
            let next = |start: &usize| boundaries.next(text.as_bytes(), *start);
            std::iter::successors(next(&0), next).collect::<Vec<_>>()
        };
        assert!(positions("世界").is_empty());
        assert_eq!(positions("界世世界 é a"), [3, 6, 12, 13, 15]);
        assert_eq!(positions(" 世éa"), [6]);
    }
}
