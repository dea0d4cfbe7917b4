//! The Unicode normalization forms NFC and NFKC, with the same Unicode tables as the definition.

use std::borrow::Cow;
use std::ops::Range;

use crate::memory::{self, OutOfMemory};
use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization, is_nfc_quick, is_nfkc_quick};

/// A normalization form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Canonical composition.
    Nfc,
    /// Compatibility composition.
    Nfkc,
}

impl Form {
    /// Whether a text is in this form.
    pub fn holds(self, text: &str) -> bool {
        self.parts(text).all(|part| self.holds_for_part(&text[part]))
    }

    /// Returns the text in this form.
    pub fn apply(self, text: &str) -> Result<Cow<'_, str>, OutOfMemory> {
        let mut changed = String::new();
        let mut copied = 0;
        for part in self.parts(text).filter(|part| !self.holds_for_part(&text[part.clone()])) {
            memory::reserve_text(&mut changed, part.end - copied)?;
            changed.push_str(&text[copied..part.start]);
            self.append(&text[part.clone()], &mut changed)?;
            copied = part.end;
        }
        if copied == 0 {
            return Ok(Cow::Borrowed(text));
        }
        memory::reserve_text(&mut changed, text.len() - copied)?;
        changed.push_str(&text[copied..]);
        Ok(Cow::Owned(changed))
    }

    fn append(self, part: &str, to: &mut String) -> Result<(), OutOfMemory> {
        match self {
            Form::Nfc => memory::extend_text(to, part.chars().nfc().map(|(character, _)| character)),
            Form::Nfkc => memory::extend_text(to, part.chars().nfkc().map(|(character, _)| character)),
        }
    }

    /// The parts of a text that may change: non-ASCII runs, each with the character before it. ASCII characters never combine with the
    /// character before them, so each part can be normalized separately.
    fn parts(self, text: &str) -> impl Iterator<Item = Range<usize>> {
        // The first bytes of characters that change or combine: nothing below U+0300 combines, and those characters begin with a byte
        // of at least 0xcc; NFKC also replaces characters from U+00A0 on, which begin with 0xc2.
        let lowest = match self {
            Form::Nfc => 0xcc,
            Form::Nfkc => 0xc2,
        };
        let bytes = text.as_bytes();
        let mut end = 0;
        std::iter::from_fn(move || {
            let first = end + bytes[end..].iter().position(|byte| *byte >= lowest)?;
            let start =
                bytes[end..first].iter().rposition(u8::is_ascii).map_or(end, |position| end + position);
            end =
                bytes[first..].iter().position(u8::is_ascii).map_or(bytes.len(), |position| first + position);
            Some(start..end)
        })
    }

    fn holds_for_part(self, part: &str) -> bool {
        let quick = match self {
            Form::Nfc if part.chars().all(never_changes) => return true,
            Form::Nfc => is_nfc_quick(part.chars()),
            Form::Nfkc => is_nfkc_quick(part.chars()),
        };
        match quick {
            IsNormalized::Yes => true,
            IsNormalized::No => false,
            IsNormalized::Maybe => {
                let mut rest = part.chars();
                let is_next = |(character, _): (char, _)| rest.next() == Some(character);
                let starts = match self {
                    Form::Nfc => part.chars().nfc().all(is_next),
                    Form::Nfkc => part.chars().nfkc().all(is_next),
                };
                starts && rest.next().is_none()
            }
        }
    }
}

/// Whether NFC leaves a character unchanged, in a range whose characters never combine with each other.
fn never_changes(character: char) -> bool {
    matches!(character, '\0'..'\u{300}' | '\u{3000}'..='\u{3029}' | '\u{3041}'..='\u{3096}' | '\u{30a0}'..='\u{30ff}'
        | '\u{4e00}'..='\u{9fa5}' | '\u{ac00}'..='\u{d7a3}' | '\u{ff01}'..='\u{ff5e}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_never_combine_are_unchanged() {
        for character in ('\0'..=char::MAX).filter(|character| never_changes(*character)) {
            let text = format!("a{character}가{character}か");
            assert_eq!(Form::Nfc.apply(&text).unwrap(), text, "{character:?}");
        }
        assert!(!Form::Nfc.holds("e\u{301}") && Form::Nfc.holds("\u{e9} 東京 가"));
        assert_eq!(Form::Nfc.apply("e\u{301}").unwrap(), "\u{e9}");
        assert!(Form::Nfc.holds("ﬁ\u{a0}") && !Form::Nfkc.holds("a\u{a0}"));
        assert_eq!(Form::Nfkc.apply("ﬁ x\u{a0}１２ e\u{301} ½").unwrap(), "fi x 12 \u{e9} 1\u{2044}2");
    }
    #[test]
    fn normalizing_parts_equals_normalizing_the_whole_text() {
        let some = [
            "a",
            " ",
            "e",
            "\u{e9}",
            "\u{301}",
            "\u{323}",
            "\u{345}",
            "\u{1100}",
            "\u{1161}",
            "\u{11a8}",
            "가",
            "東",
            "\u{212b}",
            "\u{9c7}",
            "\u{9be}",
            "ж",
            "\u{306}",
            "\u{1d15f}",
            "\u{f73}",
            "\u{fb1d}",
            "\u{a0}",
            "ﬁ",
            "²",
            "\u{ff9e}",
            "ｶ",
            "\u{3131}",
        ];
        let mut state = 1u64;
        for length in (0..12).cycle().take(60_000) {
            let mut text = String::new();
            for _ in 0..length {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                text.push_str(some[(state >> 33) as usize % some.len()]);
            }
            let nfc: String = text.chars().nfc().map(|(character, _)| character).collect();
            let nfkc: String = text.chars().nfkc().map(|(character, _)| character).collect();
            for (form, whole) in [(Form::Nfc, nfc), (Form::Nfkc, nfkc)] {
                assert_eq!(form.apply(&text).unwrap(), whole, "{form:?} of {text:?}");
                assert_eq!(form.holds(&text), text == whole, "{form:?} of {text:?}");
            }
        }
    }
}
