//! Splits a normalized text into words.

use std::sync::OnceLock;

use lz_core::{Reason, ReasonCode};
use serde_json::Value;
use unicode_categories::UnicodeCategories;

use super::normalizer::Spaces;
use crate::definition::{declined, flag, kind, shown};

/// The pretokenizer of one tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pretokenizer {
    /// Splits at whitespace and isolates punctuation.
    Bert,
    /// Every space begins a word.
    EverySpace(Prefix),
    /// The definition does not split, but the model permits splitting before runs of spaces.
    SpaceRuns(Prefix),
    /// Does not split.
    Whole(Prefix),
}

/// When a space is prepended to a text that does not begin with one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefix {
    /// Always.
    Always,
    /// Only at the start of the caller's text.
    First,
    /// Never.
    Never,
}

impl Pretokenizer {
    /// From the pretokenizer of a definition, with the representation of spaces; or the reason why it is not supported.
    pub fn new(value: &Value, splits_at_spaces: bool) -> Result<(Pretokenizer, Spaces), Reason> {
        let wrong = || {
            declined(
                ReasonCode::PretokenizerMismatch,
                "BertPreTokenizer, Metaspace, WhitespaceSplit with Metaspace, or none",
                shown(value),
            )
        };
        let whole = if splits_at_spaces { Pretokenizer::SpaceRuns } else { Pretokenizer::Whole };
        match kind(value) {
            "BertPreTokenizer" => Ok((Pretokenizer::Bert, Spaces::Plain)),
            "none" if value.is_null() => Ok((whole(Prefix::Never), Spaces::Metaspace)),
            // The normalizer has replaced all spaces, so this never splits.
            "Split" if value["pattern"]["String"] == " " => Ok((whole(Prefix::Never), Spaces::Metaspace)),
            "Metaspace" => {
                let prefix = prefix(value).ok_or_else(wrong)?;
                let split =
                    if flag(value, "split", true) { Pretokenizer::EverySpace(prefix) } else { whole(prefix) };
                Ok((split, Spaces::Metaspace))
            }
            "Sequence" => match value["pretokenizers"].as_array().map(Vec::as_slice) {
                Some([first, second]) if kind(first) == "WhitespaceSplit" && kind(second) == "Metaspace" => {
                    match prefix(second) {
                        Some(Prefix::Always) => {
                            Ok((Pretokenizer::EverySpace(Prefix::Always), Spaces::MetaspaceAnyWhitespace))
                        }
                        _ => Err(wrong()),
                    }
                }
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    }

    /// Whether a space is prepended to a part of a text that does not begin with one.
    pub fn prepends(&self, begins_text: bool) -> bool {
        match self {
            Pretokenizer::Bert => false,
            Pretokenizer::EverySpace(prefix)
            | Pretokenizer::SpaceRuns(prefix)
            | Pretokenizer::Whole(prefix) => match prefix {
                Prefix::Always => true,
                Prefix::First => begins_text,
                Prefix::Never => false,
            },
        }
    }

    /// Whether a text may be split before a position other than 0 without changing its words.
    #[inline]
    pub fn may_end(&self, text: &[u8], position: usize) -> bool {
        !matches!(self, Pretokenizer::Whole(_)) && text[position] == b' ' && text[position - 1] != b' '
    }

    /// Calls `each` with the start and end of every word of a text, from `from` on.
    #[inline]
    pub fn for_each(&self, text: &[u8], from: usize, mut each: impl FnMut(usize, usize)) {
        match self {
            Pretokenizer::Bert => bert(text, from, each),
            Pretokenizer::EverySpace(_) => {
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
            Pretokenizer::SpaceRuns(_) => {
                let mut start = from;
                while start < text.len() {
                    let spaces = text[start..].iter().take_while(|byte| **byte == b' ').count();
                    let rest = &text[start + spaces..];
                    let length = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
                    each(start, start + spaces + length);
                    start += spaces + length;
                }
            }
            Pretokenizer::Whole(_) if from < text.len() => each(from, text.len()),
            Pretokenizer::Whole(_) => {}
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
    let (mut start, mut position) = (from, from);
    while position < text.len() {
        let byte = text[position];
        let (class, width) =
            if byte < 0x80 { (ascii[usize::from(byte)], 1) } else { wide_class(&text[position..]) };
        if class != LETTER {
            if start < position {
                each(start, position);
            }
            if class == MARK {
                each(position, position + width);
            }
            start = position + width;
        }
        position += width;
    }
    if start < position {
        each(start, position);
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

/// The class and the length in bytes of the first character of a text.
fn wide_class(text: &[u8]) -> (u8, usize) {
    static PAGES: [OnceLock<Box<[u8; 256]>>; 0x1100] = [const { OnceLock::new() }; 0x1100];
    let width = text.iter().skip(1).take_while(|byte| **byte & 0xc0 == 0x80).count() + 1;
    let character = std::str::from_utf8(&text[..width]).ok().and_then(|text| text.chars().next());
    let number = character.map_or(0, |character| character as usize);
    let page = PAGES[number >> 8].get_or_init(|| {
        let first = (number & !255) as u32;
        Box::new(std::array::from_fn(|position| {
            char::from_u32(first + position as u32).map_or(LETTER, class)
        }))
    });
    (page[number & 255], width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(split: Pretokenizer, text: &str) -> Vec<&str> {
        let mut words = Vec::new();
        split.for_each(text.as_bytes(), 0, |start, end| words.push(&text[start..end]));
        words
    }

    #[test]
    fn words_are_split_and_may_end_positions_are_safe() {
        assert_eq!(words(Pretokenizer::Bert, " don't 東\u{3000}京。"), ["don", "'", "t", "東", "京", "。"]);
        assert_eq!(words(Pretokenizer::EverySpace(Prefix::Always), "a  b c "), ["a", " ", " b", " c", " "]);
        assert_eq!(words(Pretokenizer::SpaceRuns(Prefix::Never), "  a  b c "), ["  a", "  b", " c", " "]);
        assert_eq!(words(Pretokenizer::Whole(Prefix::Never), "a b"), ["a b"]);
        for split in [
            Pretokenizer::Bert,
            Pretokenizer::EverySpace(Prefix::First),
            Pretokenizer::SpaceRuns(Prefix::First),
            Pretokenizer::Whole(Prefix::First),
        ] {
            assert!(words(split, "").is_empty());
            let text = " one  two, three   four ";
            for position in (1..text.len()).filter(|position| split.may_end(text.as_bytes(), *position)) {
                let (before, after) = text.split_at(position);
                assert_eq!(
                    [words(split, before), words(split, after)].concat(),
                    words(split, text),
                    "{position}"
                );
            }
        }
    }
}
