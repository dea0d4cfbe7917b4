//! The splitter of a tokenizer: a hand-written one for a well-known expression, or several stages, each of which splits the pieces of the
//! stage before it.

use std::sync::OnceLock;

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};
use unicode_categories::UnicodeCategories;

use super::Pattern;
use super::expression::{self, Alternatives, Item, UNLIMITED};
use super::matcher::Matcher;

/// The splitter of one tokenizer.
pub enum Splitter {
    /// Hand-written.
    Known(Pattern),
    /// Compiled from the definition.
    Compiled(Stages),
}

/// Several stages.
pub struct Stages {
    stages: Vec<Stage>,
    /// Whether a piece begins at every space before an ASCII letter.
    begins_at_spaces: bool,
}

/// Splits a text at the matches of an expression.
pub struct Stage {
    matcher: Matcher,
    /// Whether matches are pieces; they are dropped otherwise.
    keeps_matches: bool,
    /// Whether the text between matches is a piece; it is dropped otherwise.
    keeps_gaps: bool,
}

impl Stage {
    /// Splits at the matches of an expression; `None` if it is not supported.
    pub fn of_expression(expression: &str, keeps_matches: bool, keeps_gaps: bool) -> Option<Stage> {
        Stage::new(&expression::parse(expression)?, keeps_matches, keeps_gaps)
    }

    /// Isolates digits: each, or runs of them.
    pub fn digits(individual: bool) -> Option<Stage> {
        static DIGITS: OnceLock<ClassUnicode> = OnceLock::new();
        let set = DIGITS.get_or_init(|| set_of(char::is_numeric));
        Stage::runs(set, if individual { 1 } else { UNLIMITED })
    }

    /// Isolates punctuation: each character, or runs of them.
    pub fn punctuation(individual: bool) -> Option<Stage> {
        static PUNCTUATION: OnceLock<ClassUnicode> = OnceLock::new();
        let set = PUNCTUATION.get_or_init(|| {
            set_of(|character: char| character.is_ascii_punctuation() || character.is_punctuation())
        });
        Stage::runs(set, if individual { 1 } else { UNLIMITED })
    }

    fn runs(set: &ClassUnicode, max: u32) -> Option<Stage> {
        Stage::new(&vec![vec![Item::Repeat { set: set.clone(), min: 1, max }]], true, true)
    }

    fn new(alternatives: &Alternatives, keeps_matches: bool, keeps_gaps: bool) -> Option<Stage> {
        Some(Stage { matcher: Matcher::new(alternatives)?, keeps_matches, keeps_gaps })
    }
}

/// The set of the characters for which a predicate holds.
fn set_of(is: impl Fn(char) -> bool) -> ClassUnicode {
    let characters = ('\0'..=char::MAX).filter(|character| is(*character));
    ClassUnicode::new(characters.map(|character| ClassUnicodeRange::new(character, character)))
}

impl From<Vec<Stage>> for Stages {
    fn from(stages: Vec<Stage>) -> Stages {
        // Stages before must leave spaces and letters together.
        let inert = |stage: &&Stage| stage.matcher.ignores_words && stage.keeps_gaps;
        let skipped = stages.iter().take_while(inert).count();
        let begins_at_spaces =
            stages.get(skipped).is_some_and(|stage| stage.matcher.begins_at_spaces && stage.keeps_matches);
        Stages { stages, begins_at_spaces }
    }
}

impl Splitter {
    /// The hand-written splitter, if it is one.
    pub fn known(&self) -> Option<Pattern> {
        match self {
            Splitter::Known(pattern) => Some(*pattern),
            Splitter::Compiled(_) => None,
        }
    }

    /// Calls `each` with the start and end of every piece of a text, in order.
    #[inline]
    pub fn for_each(&self, text: &str, each: impl FnMut(usize, usize)) {
        self.between(text, 0, text.len(), each);
    }

    /// The same for the pieces between two positions: the ends of the text, or positions for which [`Splitter::begins_piece`] holds.
    #[inline]
    pub fn between(&self, text: &str, start: usize, end: usize, mut each: impl FnMut(usize, usize)) {
        match self {
            Splitter::Known(pattern) => pattern.between(text, start, end, each),
            Splitter::Compiled(stages) => {
                split(&stages.stages, &text.as_bytes()[..end], start, &mut each);
            }
        }
    }

    /// Whether a piece begins at a position regardless of the text before it.
    #[inline]
    pub fn begins_piece(&self, text: &str, position: usize) -> bool {
        match self {
            Splitter::Known(_) => Pattern::begins_piece(text, position),
            Splitter::Compiled(stages) => {
                let text = text.as_bytes();
                stages.begins_at_spaces
                    && text[position] == b' '
                    && text.get(position + 1).is_some_and(u8::is_ascii_alphabetic)
            }
        }
    }
}

fn split(stages: &[Stage], text: &[u8], start: usize, each: &mut impl FnMut(usize, usize)) {
    let Some((stage, rest)) = stages.split_first() else {
        if start < text.len() {
            each(start, text.len());
        }
        return;
    };
    let mut done = start;
    stage.matcher.for_each(text, start, |from, to| {
        if stage.keeps_gaps && done < from {
            split(rest, &text[..from], done, each);
        }
        if stage.keeps_matches {
            split(rest, &text[..to], from, each);
        }
        done = to;
    });
    if stage.keeps_gaps && done < text.len() {
        split(rest, text, done, each);
    }
}
