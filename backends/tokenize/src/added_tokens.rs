//! Splits a text at added tokens, before normalization and pretokenization.

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use lz_core::{Reason, ReasonCode};

use crate::definition::AddedToken;
use crate::unicode::{Classes, SPACE, WORD};

/// Finds added tokens with an Aho-Corasick automaton: leftmost match first, longest at equal positions.
pub struct AddedTokenSplitter {
    automaton: AhoCorasick,
    tokens: Vec<AddedToken>,
}

/// Above this total of token bytes the automaton is an NFA: a DFA takes up to 1 KiB per state.
const MAX_DFA_BYTES: usize = 1 << 14;

/// A segment of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment {
    /// Text between added tokens.
    Text {
        /// Start offset.
        start: usize,
        /// End offset (exclusive).
        end: usize,
    },
    /// An added token, including the whitespace that `lstrip` and `rstrip` assign to it.
    Token {
        /// Token id.
        id: u32,
        /// Start offset.
        start: usize,
        /// End offset (exclusive).
        end: usize,
    },
}

impl AddedTokenSplitter {
    /// Builds the automaton; `None` without tokens.
    pub fn new(tokens: Vec<AddedToken>) -> Result<Option<AddedTokenSplitter>, Reason> {
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
        Ok(Some(AddedTokenSplitter { automaton, tokens }))
    }

    /// Calls `each` with the segments of a text in order, up to the first error. Text segments are never empty.
    pub fn try_for_each<E>(
        &self,
        text: &str,
        mut each: impl FnMut(Segment) -> Result<(), E>,
    ) -> Result<(), E> {
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
                each(Segment::Text { start: done, end: start })?;
            }
            each(Segment::Token { id: token.id, start, end })?;
            done = end;
        }
        if done < text.len() {
            each(Segment::Text { start: done, end: text.len() })?;
        }
        Ok(())
    }
}

fn is_space(character: char) -> bool {
    Classes::get().of(character as u32) & SPACE != 0
}

fn word_ends(text: &str, position: usize) -> bool {
    text[..position].chars().next_back().is_some_and(|last| Classes::get().of(last as u32) & WORD != 0)
}

fn word_begins(text: &str, position: usize) -> bool {
    text[position..].chars().next().is_some_and(|first| Classes::get().of(first as u32) & WORD != 0)
}
