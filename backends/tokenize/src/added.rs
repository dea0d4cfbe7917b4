//! Added tokens, cut out of a text before anything else is done to it.

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use lz_core::{Reason, ReasonCode};

use crate::definition::Added;
use crate::unicode::{Classes, SPACE, WORD};

/// Finds added tokens: the leftmost first, of several at one place the longest.
pub struct Cutter {
    automaton: AhoCorasick,
    tokens: Vec<Added>,
}

/// Tokens of more bytes than this become no DFA, whose states take up to a kilobyte for each of them.
const MAX_DFA_BYTES: usize = 1 << 14;

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment {
    /// Text between added tokens.
    Text {
        /// Where it begins.
        start: usize,
        /// Where it ends.
        end: usize,
    },
    /// An added token, with the white space that belongs to it.
    Token {
        /// Its id.
        id: u32,
        /// Where it begins.
        start: usize,
        /// Where it ends.
        end: usize,
    },
}

impl Cutter {
    /// For these tokens; `None` if there are none.
    pub fn new(tokens: Vec<Added>) -> Result<Option<Cutter>, Reason> {
        if tokens.is_empty() {
            return Ok(None);
        }
        let bytes: usize = tokens.iter().map(|token| token.content.len()).sum();
        let built = AhoCorasick::builder()
            .kind((bytes > MAX_DFA_BYTES).then_some(AhoCorasickKind::ContiguousNFA))
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|token| token.content.as_bytes()));
        let automaton =
            built.map_err(|error| Reason::new(ReasonCode::AddedTokensMismatch).message(error.to_string()))?;
        Ok(Some(Cutter { automaton, tokens }))
    }

    /// Calls `each` with the segments of a text, in order; segments of text are not empty.
    pub fn for_each(&self, text: &str, mut each: impl FnMut(Segment)) {
        let mut done = 0;
        for found in self.automaton.find_iter(text.as_bytes()) {
            let Some(token) = self.tokens.get(found.pattern().as_usize()) else { continue };
            if token.is_text {
                continue;
            }
            let (mut start, mut end) = (found.start(), found.end());
            if token.single_word && (word_ends(text, start) || word_begins(text, end)) {
                continue;
            }
            if token.strips_left {
                start = text[..start].trim_end_matches(is_space).len().max(done);
            }
            if token.strips_right {
                end += text[end..].len() - text[end..].trim_start_matches(is_space).len();
            }
            if done < start {
                each(Segment::Text { start: done, end: start });
            }
            each(Segment::Token { id: token.id, start, end });
            done = end;
        }
        if done < text.len() {
            each(Segment::Text { start: done, end: text.len() });
        }
    }
}

fn is_space(character: char) -> bool {
    Classes::get().of(character as u32) & SPACE != 0
}

fn word_ends(text: &str, place: usize) -> bool {
    text[..place].chars().next_back().is_some_and(|last| Classes::get().of(last as u32) & WORD != 0)
}

fn word_begins(text: &str, place: usize) -> bool {
    text[place..].chars().next().is_some_and(|first| Classes::get().of(first as u32) & WORD != 0)
}
