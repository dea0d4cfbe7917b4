//! Character classes for the splitters. They are read from the tables of the regex library, so that a hand-written splitter and its
//! regular expression use the same Unicode version.

use std::sync::OnceLock;

use regex_syntax::hir::{Class, HirKind};

/// Uppercase and titlecase letters.
pub const UPPER: u8 = 1;
/// Lowercase letters.
pub const LOWER: u8 = 2;
/// Letters without case, and modifier letters.
pub const OTHER_LETTER: u8 = 4;
/// Combining marks.
pub const MARK: u8 = 8;
/// Numbers (`\p{N}`).
pub const NUMBER: u8 = 16;
/// Whitespace (`\s`).
pub const SPACE: u8 = 32;
/// Carriage return and line feed; they also have [`SPACE`].
pub const NEWLINE: u8 = 64;
/// Word characters (`\w`).
pub const WORD: u8 = 128;
/// Every letter.
pub const LETTER: u8 = UPPER | LOWER | OTHER_LETTER;

/// A table with the classes of every code point, one byte each.
pub struct Classes(Box<[u8]>);

const PATTERNS: [(&str, u8); 7] = [
    (r"[\p{Lu}\p{Lt}]", UPPER),
    (r"\p{Ll}", LOWER),
    (r"[\p{Lm}\p{Lo}]", OTHER_LETTER),
    (r"\p{M}", MARK),
    (r"\p{N}", NUMBER),
    (r"\s", SPACE),
    (r"\w", WORD),
];

impl Classes {
    /// The process-wide table.
    pub fn get() -> &'static Classes {
        static CLASSES: OnceLock<Classes> = OnceLock::new();
        CLASSES.get_or_init(Classes::read)
    }

    fn read() -> Classes {
        let mut table = vec![0u8; 0x11_0000].into_boxed_slice();
        for (pattern, class) in PATTERNS {
            let parsed = regex_syntax::parse(pattern);
            let Ok(HirKind::Class(Class::Unicode(ranges))) = parsed.map(regex_syntax::hir::Hir::into_kind)
            else {
                unreachable!("{pattern} is a class");
            };
            for range in ranges.ranges() {
                for slot in &mut table[range.start() as usize..=range.end() as usize] {
                    *slot |= class;
                }
            }
        }
        for newline in [b'\r', b'\n'] {
            table[usize::from(newline)] |= NEWLINE;
        }
        Classes(table)
    }

    /// The classes of a character.
    #[inline]
    pub fn of(&self, character: u32) -> u8 {
        self.0.get(character as usize).copied().unwrap_or(0)
    }

    /// The classes and the length in bytes of the character at a position of valid UTF-8; `(0, 0)` at the end.
    #[inline]
    pub fn at(&self, text: &[u8], position: usize) -> (u8, usize) {
        match text.get(position) {
            None => (0, 0),
            Some(&byte) if byte < 0x80 => (self.of(u32::from(byte)), 1),
            Some(_) => {
                let (character, length) = decode(text, position);
                (self.of(character), length)
            }
        }
    }
}

/// The code point and the length in bytes of the character that is not ASCII at a position of valid UTF-8.
#[inline]
pub fn decode(text: &[u8], position: usize) -> (u32, usize) {
    let byte = text[position];
    let rest = |distance: usize| u32::from(text.get(position + distance).copied().unwrap_or(0) & 0x3f);
    match byte {
        0..0xe0 => (u32::from(byte & 0x1f) << 6 | rest(1), 2),
        0xe0..0xf0 => (u32::from(byte & 0x0f) << 12 | rest(1) << 6 | rest(2), 3),
        _ => (u32::from(byte & 0x07) << 18 | rest(1) << 12 | rest(2) << 6 | rest(3), 4),
    }
}
