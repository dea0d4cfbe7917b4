//! Classes of the characters of a block that are not ASCII, as bit masks over its bytes.

use std::sync::OnceLock;

use regex_syntax::hir::{Class, HirKind};

use super::DEEPSEEK_HAN;
use super::ascii_block::{Rules, WIDTH};

/// The classes of the characters below U+10000 as some rules see them.
pub struct CharTable(Box<[u8; CHARACTERS]>);

const CHARACTERS: usize = 1 << 16;

/// A letter.
const LETTER: u8 = 1;
/// An uppercase letter, if the rules depend on case.
const UPPERCASE: u8 = 2;
/// A letter that is separated from others, as digits are.
const ISOLATED: u8 = 4;
/// Set for each character of which blocks know what it is; a known character that is no letter is a symbol. Whitespace and numbers that
/// are not ASCII are unknown.
const KNOWN: u8 = 8;

/// Bit masks of the characters of a block that are not ASCII. All bytes of a character have its bits.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CharMasks {
    pub letters: u64,
    pub uppercase: u64,
    pub isolated: u64,
    /// The bytes of known characters after the first byte of each.
    pub continuations: u64,
    /// The first byte of the first unknown character.
    pub unknown: u64,
}

impl CharTable {
    /// The process-wide table for some rules.
    pub fn get(rules: Rules) -> &'static CharTable {
        static TABLES: [OnceLock<CharTable>; 3] = [const { OnceLock::new() }; 3];
        let [letters, cased, isolated] = &TABLES;
        if rules.isolates_digits {
            // The first set that has a character counts.
            isolated.get_or_init(|| {
                CharTable::new(&[
                    (&format!(r"[{}&&[\p{{L}}\p{{M}}]]", han()), KNOWN | LETTER | ISOLATED),
                    (han(), 0),
                    (r"[\p{L}\p{M}]", KNOWN | LETTER),
                    (r"[\p{P}\p{S}]", KNOWN),
                ])
            })
        } else if rules.cased {
            cased.get_or_init(|| {
                CharTable::new(&[
                    (r"\p{Ll}", KNOWN | LETTER),
                    (r"[\p{Lu}\p{Lt}]", KNOWN | LETTER | UPPERCASE),
                    (r"[^\s\p{L}\p{M}\p{N}]", KNOWN),
                ])
            })
        } else {
            letters.get_or_init(|| CharTable::new(&[(r"\p{L}", KNOWN | LETTER), (r"[^\s\p{L}\p{N}]", KNOWN)]))
        }
    }

    /// From sets and the class of each; the first set that has a character counts. Characters in no set are unknown.
    fn new(sets: &[(&str, u8)]) -> CharTable {
        let mut classes = vec![0; CHARACTERS].into_boxed_slice();
        for (pattern, class) in sets.iter().rev() {
            let parsed = regex_syntax::parse(pattern);
            let Ok(HirKind::Class(Class::Unicode(set))) = parsed.map(regex_syntax::hir::Hir::into_kind)
            else {
                unreachable!("{pattern} is a set of characters");
            };
            for range in set.ranges() {
                let (first, last) = (range.start() as usize, range.end() as usize);
                if first < CHARACTERS {
                    classes[first..=last.min(CHARACTERS - 1)].fill(*class);
                }
            }
        }
        classes.try_into().map(CharTable).unwrap_or_else(|_| unreachable!("there are {CHARACTERS} classes"))
    }

    /// Whether the character at a position of valid UTF-8 is a letter that is not isolated.
    #[inline]
    pub fn is_letter(&self, text: &[u8], position: usize) -> bool {
        let character = match text.get(position) {
            None => return false,
            Some(&byte) if byte < 0x80 => return byte.is_ascii_alphabetic(),
            Some(_) => crate::unicode::decode(text, position).0,
        };
        self.0.get(character as usize).is_some_and(|class| class & (LETTER | ISOLATED) == LETTER)
    }

    /// The masks of a block, given the first byte of each character that is not ASCII.
    #[inline(always)]
    pub fn masks(&self, bytes: &[u8; WIDTH], mut first_bytes: u64) -> CharMasks {
        let mut masks = CharMasks::default();
        let at = |position: usize| u32::from(bytes[position % WIDTH] & 0x3f);
        while first_bytes != 0 {
            let position = first_bytes.trailing_zeros() as usize;
            first_bytes &= first_bytes - 1;
            let byte = bytes[position % WIDTH];
            let two = u32::from(byte & 0x1f) << 6 | at(position + 1);
            let (character, length) =
                if byte < 0xe0 { (two, 2) } else { ((two & 0x3ff) << 6 | at(position + 2), 3) };
            let class = self.0[character as usize % CHARACTERS];
            // Longer characters, and those that continue after the block, are unknown.
            if class == 0 || byte >= 0xf0 || position + length > WIDTH {
                masks.unknown = 1 << position;
                break;
            }
            let first = 1u64 << position;
            let others = (first << (length - 1) | first << 1) & !first;
            let all = first | others;
            let if_set = |bit: u8| if class & bit != 0 { all } else { 0 };
            masks.letters |= if_set(LETTER);
            masks.uppercase |= if_set(UPPERCASE);
            masks.isolated |= if_set(ISOLATED);
            masks.continuations |= others;
        }
        masks
    }
}

/// [`DEEPSEEK_HAN`] without the repetition.
fn han() -> &'static str {
    DEEPSEEK_HAN.trim_end_matches('+')
}
