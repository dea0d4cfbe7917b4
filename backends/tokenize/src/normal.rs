//! Unicode's normal form C, by the tables that the definition itself uses, so that both know the same Unicode.

use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// Whether a text is certainly in normal form.
pub fn is_normal(text: &str) -> bool {
    // Below U+0300 nothing combines; the first byte of everything from there on is 0xcc or more.
    if text.bytes().all(|byte| byte < 0xcc) {
        return true;
    }
    text.chars().all(never_changes)
        || match is_nfc_quick(text.chars()) {
            IsNormalized::Yes => true,
            IsNormalized::No => false,
            IsNormalized::Maybe => text.chars().nfc().map(|(character, _)| character).eq(text.chars()),
        }
}

/// Scripts of which no character combines with a neighbour of these scripts.
fn never_changes(character: char) -> bool {
    matches!(character, '\0'..'\u{300}' | '\u{3000}'..='\u{3029}' | '\u{3041}'..='\u{3096}' | '\u{30a0}'..='\u{30ff}'
        | '\u{4e00}'..='\u{9fa5}' | '\u{ac00}'..='\u{d7a3}' | '\u{ff01}'..='\u{ff5e}')
}

/// The text in normal form.
pub fn normalized(text: &str) -> String {
    text.chars().nfc().map(|(character, _)| character).collect()
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
}
