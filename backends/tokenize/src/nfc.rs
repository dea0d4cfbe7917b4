//! Unicode normalization form C (NFC), with the same Unicode tables as the definition.

use std::borrow::Cow;
use std::ops::Range;

use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// Whether a text is in NFC.
pub fn is_nfc(text: &str) -> bool {
    parts(text).all(|part| is_nfc_part(&text[part]))
}

/// Returns the text in NFC.
pub fn to_nfc(text: &str) -> Cow<'_, str> {
    let mut changed = String::new();
    let mut copied = 0;
    for part in parts(text).filter(|part| !is_nfc_part(&text[part.clone()])) {
        changed.push_str(&text[copied..part.start]);
        changed.extend(text[part.clone()].chars().nfc().map(|(character, _)| character));
        copied = part.end;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    changed.push_str(&text[copied..]);
    Cow::Owned(changed)
}

/// The parts of a text that may not be in NFC: non-ASCII runs, each with the character before it. ASCII characters never combine with
/// the character before them, so each part can be normalized separately.
fn parts(text: &str) -> impl Iterator<Item = Range<usize>> {
    let bytes = text.as_bytes();
    let mut end = 0;
    std::iter::from_fn(move || {
        // Nothing below U+0300 combines; characters from U+0300 on begin with a byte of at least 0xcc.
        let first = end + bytes[end..].iter().position(|byte| *byte >= 0xcc)?;
        let start = bytes[end..first].iter().rposition(u8::is_ascii).map_or(end, |position| end + position);
        end = bytes[first..].iter().position(u8::is_ascii).map_or(bytes.len(), |position| first + position);
        Some(start..end)
    })
}

fn is_nfc_part(part: &str) -> bool {
    part.chars().all(never_changes)
        || match is_nfc_quick(part.chars()) {
            IsNormalized::Yes => true,
            IsNormalized::No => false,
            IsNormalized::Maybe => part.chars().nfc().map(|(character, _)| character).eq(part.chars()),
        }
}

/// Whether a character is in a range whose characters never combine with each other.
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
            assert_eq!(to_nfc(&text), text, "{character:?}");
        }
        assert!(!is_nfc("e\u{301}") && is_nfc("\u{e9} 東京 가"));
        assert_eq!(to_nfc("e\u{301}"), "\u{e9}");
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
        ];
        let mut state = 1u64;
        for length in (0..12).cycle().take(60_000) {
            let mut text = String::new();
            for _ in 0..length {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                text.push_str(some[(state >> 33) as usize % some.len()]);
            }
            let whole: String = text.chars().nfc().map(|(character, _)| character).collect();
            assert_eq!(to_nfc(&text), whole, "{text:?}");
            assert_eq!(is_nfc(&text), text == whole, "{text:?}");
        }
    }
}
