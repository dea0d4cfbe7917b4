//! Unicode's normal form C, by the tables that the definition itself uses, so that both know the same Unicode.

use std::borrow::Cow;
use std::ops::Range;

use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// Whether a text is in normal form.
pub fn is_normal(text: &str) -> bool {
    pieces(text).all(|piece| is_normal_piece(&text[piece]))
}

/// The text in normal form.
pub fn normalized(text: &str) -> Cow<'_, str> {
    let mut changed = String::new();
    let mut copied = 0;
    for piece in pieces(text).filter(|piece| !is_normal_piece(&text[piece.clone()])) {
        changed.push_str(&text[copied..piece.start]);
        changed.extend(text[piece.clone()].chars().nfc().map(|(character, _)| character));
        copied = piece.end;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    changed.push_str(&text[copied..]);
    Cow::Owned(changed)
}

/// The parts of a text that may not be in normal form: what is not ASCII, with the character before it. No character of ASCII
/// combines with what is before it, so that each part can be looked at by itself.
fn pieces(text: &str) -> impl Iterator<Item = Range<usize>> {
    let bytes = text.as_bytes();
    let mut end = 0;
    std::iter::from_fn(move || {
        // Below U+0300 nothing combines; the first byte of everything from there on is 0xcc or more.
        let first = end + bytes[end..].iter().position(|byte| *byte >= 0xcc)?;
        let start = bytes[end..first].iter().rposition(u8::is_ascii).map_or(end, |place| end + place);
        end = bytes[first..].iter().position(u8::is_ascii).map_or(bytes.len(), |place| first + place);
        Some(start..end)
    })
}

fn is_normal_piece(piece: &str) -> bool {
    piece.chars().all(never_changes)
        || match is_nfc_quick(piece.chars()) {
            IsNormalized::Yes => true,
            IsNormalized::No => false,
            IsNormalized::Maybe => piece.chars().nfc().map(|(character, _)| character).eq(piece.chars()),
        }
}

/// Scripts of which no character combines with a neighbour of these scripts.
fn never_changes(character: char) -> bool {
    matches!(character, '\0'..'\u{300}' | '\u{3000}'..='\u{3029}' | '\u{3041}'..='\u{3096}' | '\u{30a0}'..='\u{30ff}'
        | '\u{4e00}'..='\u{9fa5}' | '\u{ac00}'..='\u{d7a3}' | '\u{ff01}'..='\u{ff5e}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_changes_does_not_change() {
        for character in ('\0'..=char::MAX).filter(|character| never_changes(*character)) {
            let text = format!("a{character}가{character}か");
            assert_eq!(normalized(&text), text, "{character:?}");
        }
        assert!(!is_normal("e\u{301}") && is_normal("\u{e9} 東京 가"));
        assert_eq!(normalized("e\u{301}"), "\u{e9}");
    }
    #[test]
    fn pieces_are_normalised_as_the_whole_is() {
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
            assert_eq!(normalized(&text), whole, "{text:?}");
            assert_eq!(is_normal(&text), text == whole, "{text:?}");
        }
    }
}
