//! Classes of characters, as the splitters need them. They are read from the tables of the regex library, so that a splitter
//! written by hand and the regular expression that it stands for know the same Unicode.

use std::sync::OnceLock;

use regex_syntax::hir::{Class, HirKind};

/// Letters that are upper or title case.
pub const UPPER: u8 = 1;
/// Letters that are lower case.
pub const LOWER: u8 = 2;
/// Letters without case, and modifiers.
pub const OTHER_LETTER: u8 = 4;
/// Combining marks.
pub const MARK: u8 = 8;
/// Numbers of any kind.
pub const NUMBER: u8 = 16;
/// White space.
pub const SPACE: u8 = 32;
/// Carriage return and line feed, which are white space as well.
pub const NEWLINE: u8 = 64;
/// What `\w` matches.
pub const WORD: u8 = 128;
/// Every letter.
pub const LETTER: u8 = UPPER | LOWER | OTHER_LETTER;

/// One byte a character.
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
    /// The table of this process.
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

    /// The character at a place of valid UTF-8: its classes and how many bytes it has; `(0, 0)` behind the end.
    #[inline]
    pub fn at(&self, text: &[u8], place: usize) -> (u8, usize) {
        match text.get(place) {
            None => (0, 0),
            Some(&byte) if byte < 0x80 => (self.of(u32::from(byte)), 1),
            Some(&byte) => {
                let rest =
                    |distance: usize| u32::from(text.get(place + distance).copied().unwrap_or(0) & 0x3f);
                let (character, length) = match byte {
                    0..0xe0 => (u32::from(byte & 0x1f) << 6 | rest(1), 2),
                    0xe0..0xf0 => (u32::from(byte & 0x0f) << 12 | rest(1) << 6 | rest(2), 3),
                    _ => (u32::from(byte & 0x07) << 18 | rest(1) << 12 | rest(2) << 6 | rest(3), 4),
                };
                (self.of(character), length)
            }
        }
    }
}
