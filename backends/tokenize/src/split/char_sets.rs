//! Sets of characters as bits of one table.

use regex_syntax::hir::ClassUnicode;

/// The sets that each character is in, in pages of 256 characters. Pages whose characters are all in the same sets are shared.
pub struct CharSets {
    ascii: [u32; 128],
    pages: Vec<[u32; PAGE]>,
    page_of: Box<[u16; PAGES]>,
}

const PAGE: usize = 256;
const PAGES: usize = 0x11_0000 / PAGE;

impl CharSets {
    /// From at most 32 sets; the bit of a set is its index.
    pub fn new(sets: &[ClassUnicode]) -> CharSets {
        // The sets of all characters of a page, and the page if characters differ.
        let mut all = [0u32; PAGES];
        let mut own: Vec<Option<Box<[u32; PAGE]>>> = vec![None; PAGES];
        for (index, set) in sets.iter().enumerate() {
            let bit = 1 << index;
            for range in set.ranges() {
                let (start, end) = (range.start() as usize, range.end() as usize);
                for page in start / PAGE..=end / PAGE {
                    let first = start.max(page * PAGE) - page * PAGE;
                    let last = end.min(page * PAGE + PAGE - 1) - page * PAGE;
                    if (first, last) == (0, PAGE - 1) && own[page].is_none() {
                        all[page] |= bit;
                        continue;
                    }
                    let own = own[page].get_or_insert_with(|| Box::new([all[page]; PAGE]));
                    own[first..=last].iter_mut().for_each(|sets| *sets |= bit);
                }
            }
        }
        let mut pages: Vec<[u32; PAGE]> = Vec::new();
        let mut uniform: Vec<(u32, u16)> = Vec::new();
        let mut page_of = Box::new([0u16; PAGES]);
        for (page, own) in own.into_iter().enumerate() {
            let next = pages.len() as u16;
            page_of[page] = match (own, uniform.iter().find(|(sets, _)| *sets == all[page])) {
                (None, Some((_, known))) => *known,
                (None, None) => {
                    uniform.push((all[page], next));
                    pages.push([all[page]; PAGE]);
                    next
                }
                (Some(own), _) => {
                    pages.push(*own);
                    next
                }
            };
        }
        let ascii = std::array::from_fn(|byte| pages[usize::from(page_of[0])][byte]);
        CharSets { ascii, pages, page_of }
    }

    /// The sets of a character.
    #[inline]
    fn of(&self, character: u32) -> u32 {
        match self.page_of.get(character as usize / PAGE) {
            Some(page) => self.pages[usize::from(*page)][character as usize % PAGE],
            None => 0,
        }
    }

    /// The sets and the length in bytes of the character at a position of valid UTF-8; `(0, 0)` at the end.
    #[inline]
    pub fn at(&self, text: &[u8], position: usize) -> (u32, usize) {
        match text.get(position) {
            None => (0, 0),
            Some(&byte) if byte < 0x80 => (self.ascii[usize::from(byte)], 1),
            Some(_) => {
                let (character, length) = crate::unicode::decode(text, position);
                (self.of(character), length)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use regex_syntax::hir::{Class, HirKind};

    use super::*;

    #[test]
    fn every_character_is_in_the_sets_that_contain_it() {
        let of = |pattern: &str| match regex_syntax::parse(pattern).unwrap().into_kind() {
            HirKind::Class(Class::Unicode(set)) => set,
            other => panic!("{pattern}: {other:?}"),
        };
        let sets =
            [r"\p{L}", r"\s", r"[^\r\n\p{L}\p{N}]", r"\S", "[一-龥]", r"[\x{10fffe}-\x{10ffff}]"].map(of);
        let table = CharSets::new(&sets);
        let mut buffer = [0; 4];
        for character in '\0'..=char::MAX {
            let text = character.encode_utf8(&mut buffer);
            let (found, length) = table.at(text.as_bytes(), 0);
            assert_eq!(length, text.len());
            for (index, set) in sets.iter().enumerate() {
                let expected = set.ranges().binary_search_by(|range| {
                    if range.end() < character {
                        std::cmp::Ordering::Less
                    } else if range.start() > character {
                        std::cmp::Ordering::Greater
                    } else {
                        std::cmp::Ordering::Equal
                    }
                });
                assert_eq!(found >> index & 1 == 1, expected.is_ok(), "{character:?} in set {index}");
            }
        }
        assert_eq!(table.at(b"", 0), (0, 0));
        assert!(table.pages.len() < 800, "{} pages", table.pages.len());
    }
}
