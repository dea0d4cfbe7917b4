//! Classes of characters: characters of the same class are in the same sets.

use regex_syntax::hir::ClassUnicode;

/// What an expression sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Text {
    /// The characters of the text.
    Characters,
    /// The characters of the byte alphabet that its bytes are written with, as after a byte-level pretokenizer.
    ByteAlphabet,
}

/// The class of each character, in pages of 256 characters. Pages whose characters are all of the same class are shared.
pub struct CharClasses {
    /// The classes of bytes that are a character: ASCII, or all with [`Text::ByteAlphabet`].
    bytes: [u8; 256],
    text: Text,
    pages: Vec<[u8; PAGE]>,
    page_of: Box<[u16; PAGES]>,
    /// The sets of each class.
    sets: Vec<u32>,
}

/// Maximum number of classes; the value is left for [`CharClasses::end`].
const MAX_CLASSES: usize = 255;

const PAGE: usize = 256;
const PAGES: usize = 0x11_0000 / PAGE;

impl CharClasses {
    /// From at most 32 sets; the bit of a set is its index. `None` if there are too many classes.
    pub fn new(sets: &[ClassUnicode], text: Text) -> Option<CharClasses> {
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
        let mut of_class: Vec<u32> = Vec::new();
        let mut class_of = |sets: u32| {
            let class = of_class.iter().position(|known| *known == sets).unwrap_or_else(|| {
                of_class.push(sets);
                of_class.len() - 1
            });
            u8::try_from(class).ok().filter(|_| class < MAX_CLASSES)
        };
        let mut pages: Vec<[u8; PAGE]> = Vec::new();
        let mut uniform: Vec<(u32, u16)> = Vec::new();
        let mut page_of = Box::new([0u16; PAGES]);
        for (page, own) in own.into_iter().enumerate() {
            let next = pages.len() as u16;
            page_of[page] = match (own, uniform.iter().find(|(sets, _)| *sets == all[page])) {
                (None, Some((_, known))) => *known,
                (None, None) => {
                    uniform.push((all[page], next));
                    pages.push([class_of(all[page])?; PAGE]);
                    next
                }
                (Some(own), _) => {
                    let mut classes = [0; PAGE];
                    // Neighbors are mostly of the same class.
                    let (mut last, mut last_class) = (own[0], class_of(own[0])?);
                    for (class, sets) in classes.iter_mut().zip(*own) {
                        if sets != last {
                            (last, last_class) = (sets, class_of(sets)?);
                        }
                        *class = last_class;
                    }
                    pages.push(classes);
                    next
                }
            };
        }
        let mut classes = CharClasses { bytes: [0; 256], text, pages, page_of, sets: of_class };
        for byte in 0..=255u8 {
            let character = match text {
                Text::Characters => u32::from(byte),
                Text::ByteAlphabet => u32::from(crate::byte_alphabet::character_of(byte)),
            };
            classes.bytes[usize::from(byte)] = classes.of(character) as u8;
        }
        Some(classes)
    }

    /// The sets of each class.
    pub fn sets(&self) -> &[u32] {
        &self.sets
    }

    /// The class of the end of the text, which no character has.
    pub fn end(&self) -> usize {
        self.sets.len()
    }

    /// The class of an ASCII character.
    pub fn of_ascii(&self, byte: u8) -> usize {
        usize::from(self.bytes[usize::from(byte)])
    }

    #[inline]
    fn of(&self, character: u32) -> usize {
        match self.page_of.get(character as usize / PAGE) {
            Some(page) => usize::from(self.pages[usize::from(*page)][character as usize % PAGE]),
            None => self.end(),
        }
    }

    /// The class and the length in bytes of the character at a position of valid UTF-8; length 0 at the end.
    #[inline(always)]
    pub fn at(&self, text: &[u8], position: usize) -> (usize, usize) {
        match text.get(position) {
            Some(&byte) if byte < 0x80 || self.text == Text::ByteAlphabet => {
                (usize::from(self.bytes[usize::from(byte)]), 1)
            }
            Some(_) => {
                let (character, length) = crate::unicode::decode(text, position);
                (self.of(character), length)
            }
            None => (self.end(), 0),
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
        let classes = CharClasses::new(&sets, Text::Characters).unwrap();
        let mut buffer = [0; 4];
        for character in '\0'..=char::MAX {
            let text = character.encode_utf8(&mut buffer);
            let (class, length) = classes.at(text.as_bytes(), 0);
            assert_eq!(length, text.len());
            let found = classes.sets()[class];
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
        assert_eq!(classes.at(b"", 0), (classes.end(), 0));
        assert_eq!(classes.of_ascii(b'x'), classes.at(b"x", 0).0);
        assert!(classes.pages.len() < 800, "{} pages", classes.pages.len());
    }
}
