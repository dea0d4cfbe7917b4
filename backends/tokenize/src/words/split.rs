//! Where words begin and end in a text that is normalised already.

use std::sync::OnceLock;

use lz_core::{Reason, ReasonCode};
use serde_json::Value;
use unicode_categories::UnicodeCategories;

use super::normal::Spaces;
use crate::definition::{declined, flag, kind, shown};

/// How texts are cut into words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Words between white space, and every punctuation mark a word of its own.
    Bert,
    /// Every space begins a word.
    EverySpace(Prefix),
    /// Not at all; but where the model cannot tell, spaces that follow something else begin a word.
    Spaces(Prefix),
    /// Not at all.
    Nowhere(Prefix),
}

/// Whether a text that does not begin with a space gets one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefix {
    /// Always.
    Always,
    /// Where it begins the caller's text.
    First,
    /// Never.
    Never,
}

impl Split {
    /// From a definition's pre-tokeniser and what the model allows, with what spaces mean then; or why it is none that is understood.
    pub fn new(value: &Value, cuts_at_spaces: bool) -> Result<(Split, Spaces), Reason> {
        let wrong = || {
            declined(
                ReasonCode::PretokenizerMismatch,
                "words as BERT or SentencePiece has them",
                shown(value),
            )
        };
        let whole = if cuts_at_spaces { Split::Spaces } else { Split::Nowhere };
        match kind(value) {
            "BertPreTokenizer" => Ok((Split::Bert, Spaces::Plain)),
            "none" if value.is_null() => Ok((whole(Prefix::Never), Spaces::Written)),
            // Spaces are written otherwise by then.
            "Split" if value["pattern"]["String"] == " " => Ok((whole(Prefix::Never), Spaces::Written)),
            "Metaspace" => {
                let prefix = prefix(value).ok_or_else(wrong)?;
                let split =
                    if flag(value, "split", true) { Split::EverySpace(prefix) } else { whole(prefix) };
                Ok((split, Spaces::Written))
            }
            "Sequence" => match value["pretokenizers"].as_array().map(Vec::as_slice) {
                Some([first, second]) if kind(first) == "WhitespaceSplit" && kind(second) == "Metaspace" => {
                    match prefix(second) {
                        Some(Prefix::Always) => Ok((Split::EverySpace(Prefix::Always), Spaces::Alike)),
                        _ => Err(wrong()),
                    }
                }
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    }

    /// Whether a space is put before a part of a text that has none.
    pub fn prepends(&self, begins_text: bool) -> bool {
        match self {
            Split::Bert => false,
            Split::EverySpace(prefix) | Split::Spaces(prefix) | Split::Nowhere(prefix) => match prefix {
                Prefix::Always => true,
                Prefix::First => begins_text,
                Prefix::Never => false,
            },
        }
    }

    /// Whether a text may be cut before a place that is not its first.
    #[inline]
    pub fn may_end(&self, text: &[u8], place: usize) -> bool {
        !matches!(self, Split::Nowhere(_)) && text[place] == b' ' && text[place - 1] != b' '
    }

    /// Calls `each` with where the words of a text begin and end, from `from` on.
    #[inline]
    pub fn for_each(&self, text: &[u8], from: usize, mut each: impl FnMut(usize, usize)) {
        match self {
            Split::Bert => bert(text, from, each),
            Split::EverySpace(_) => {
                let mut start = from;
                while start < text.len() {
                    let rest = &text[start + 1..];
                    let end = rest
                        .iter()
                        .position(|byte| *byte == b' ')
                        .map_or(text.len(), |length| start + 1 + length);
                    each(start, end);
                    start = end;
                }
            }
            Split::Spaces(_) => {
                let mut start = from;
                while start < text.len() {
                    let spaces = text[start..].iter().take_while(|byte| **byte == b' ').count();
                    let rest = &text[start + spaces..];
                    let length = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
                    each(start, start + spaces + length);
                    start += spaces + length;
                }
            }
            Split::Nowhere(_) if from < text.len() => each(from, text.len()),
            Split::Nowhere(_) => {}
        }
    }
}

fn prefix(value: &Value) -> Option<Prefix> {
    if value["replacement"] != "\u{2581}" {
        return None;
    }
    match (value["prepend_scheme"].as_str(), value["add_prefix_space"].as_bool()) {
        (_, Some(false)) | (Some("never"), _) => Some(Prefix::Never),
        (Some("first"), _) => Some(Prefix::First),
        (Some("always") | None, _) => Some(Prefix::Always),
        _ => None,
    }
}

const LETTER: u8 = 0;
const SPACE: u8 = 1;
const MARK: u8 = 2;

fn bert(text: &[u8], from: usize, mut each: impl FnMut(usize, usize)) {
    let ascii = ascii_classes();
    let (mut start, mut place) = (from, from);
    while place < text.len() {
        let byte = text[place];
        let (class, width) =
            if byte < 0x80 { (ascii[usize::from(byte)], 1) } else { wide_class(&text[place..]) };
        if class != LETTER {
            if start < place {
                each(start, place);
            }
            if class == MARK {
                each(place, place + width);
            }
            start = place + width;
        }
        place += width;
    }
    if start < place {
        each(start, place);
    }
}

fn ascii_classes() -> &'static [u8; 128] {
    static CLASSES: OnceLock<[u8; 128]> = OnceLock::new();
    CLASSES.get_or_init(|| std::array::from_fn(|byte| class(byte as u8 as char)))
}

fn class(character: char) -> u8 {
    if character.is_whitespace() {
        SPACE
    } else if character.is_ascii_punctuation() || character.is_punctuation() {
        MARK
    } else {
        LETTER
    }
}

/// The class of the character that a text begins with, and its width.
fn wide_class(text: &[u8]) -> (u8, usize) {
    static PAGES: [OnceLock<Box<[u8; 256]>>; 0x1100] = [const { OnceLock::new() }; 0x1100];
    let width = text.iter().skip(1).take_while(|byte| **byte & 0xc0 == 0x80).count() + 1;
    let character = std::str::from_utf8(&text[..width]).ok().and_then(|text| text.chars().next());
    let number = character.map_or(0, |character| character as usize);
    let page = PAGES[number >> 8].get_or_init(|| {
        let first = (number & !255) as u32;
        Box::new(std::array::from_fn(|place| char::from_u32(first + place as u32).map_or(LETTER, class)))
    });
    (page[number & 255], width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(split: Split, text: &str) -> Vec<&str> {
        let mut words = Vec::new();
        split.for_each(text.as_bytes(), 0, |start, end| words.push(&text[start..end]));
        words
    }

    #[test]
    fn words_are_cut() {
        assert_eq!(words(Split::Bert, " don't 東\u{3000}京。"), ["don", "'", "t", "東", "京", "。"]);
        assert_eq!(words(Split::EverySpace(Prefix::Always), "a  b c "), ["a", " ", " b", " c", " "]);
        assert_eq!(words(Split::Spaces(Prefix::Never), "  a  b c "), ["  a", "  b", " c", " "]);
        assert_eq!(words(Split::Nowhere(Prefix::Never), "a b"), ["a b"]);
        for split in [
            Split::Bert,
            Split::EverySpace(Prefix::First),
            Split::Spaces(Prefix::First),
            Split::Nowhere(Prefix::First),
        ] {
            assert!(words(split, "").is_empty());
            let text = " one  two, three   four ";
            for place in (1..text.len()).filter(|place| split.may_end(text.as_bytes(), *place)) {
                let (before, after) = text.split_at(place);
                assert_eq!(
                    [words(split, before), words(split, after)].concat(),
                    words(split, text),
                    "{place}"
                );
            }
        }
    }
}
