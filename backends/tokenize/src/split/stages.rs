//! The splitter of a tokenizer: a hand-written one for a well-known expression, or several stages, each of which splits the pieces of the
//! stage before it.

use std::sync::OnceLock;

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};
use unicode_categories::UnicodeCategories;

use super::Pattern;
use super::ascii_block::{self, Rules, Sink};
use super::automaton::Automaton;
use super::char_blocks::CharTable;
use super::char_sets::{CharClasses, Text};
use super::expression::{self, Alternatives, Item, UNLIMITED};
use super::program::Program;

/// The splitter of one tokenizer.
pub enum Splitter {
    /// Hand-written.
    Known(Pattern),
    /// Compiled from the definition.
    Compiled(Stages),
}

/// Several stages.
pub struct Stages {
    /// The first stages, if each isolates runs of one set of characters and no character is in two of the sets.
    runs: Option<Box<Runs>>,
    /// The following stages. The first of them stops before the characters of `runs`, so that all of these are one pass over the text.
    stages: Vec<Stage>,
    /// Whether a piece begins at every space before an ASCII letter.
    begins_at_spaces: bool,
    /// How text is split in blocks, if that is known.
    ascii: Option<Rules>,
}

/// Stages that isolate runs of characters of one set each.
struct Runs {
    /// The sets, one bit for each run.
    classes: CharClasses,
    /// Maximum number of characters of each run.
    max: Vec<u32>,
}

/// Splits a text at the matches of an expression.
pub struct Stage {
    program: Program,
    automaton: Automaton,
    text: Text,
    /// Whether matches are pieces; they are dropped otherwise.
    keeps_matches: bool,
    /// Whether the text between matches is a piece; it is dropped otherwise.
    keeps_gaps: bool,
}

impl Stage {
    /// Splits at the matches of an expression; `None` if it is not supported.
    pub fn of_expression(
        expression: &str,
        keeps_matches: bool,
        keeps_gaps: bool,
        text: Text,
    ) -> Option<Stage> {
        Stage::new(&expression::parse(expression)?, keeps_matches, keeps_gaps, text)
    }

    /// Isolates digits: each, or runs of them.
    pub fn digits(individual: bool, text: Text) -> Option<Stage> {
        static DIGITS: OnceLock<ClassUnicode> = OnceLock::new();
        let set = DIGITS.get_or_init(|| set_of(char::is_numeric));
        Stage::runs(set, if individual { 1 } else { UNLIMITED }, text)
    }

    /// Isolates punctuation: each character, or runs of them.
    pub fn punctuation(individual: bool, text: Text) -> Option<Stage> {
        static PUNCTUATION: OnceLock<ClassUnicode> = OnceLock::new();
        let set = PUNCTUATION.get_or_init(|| {
            set_of(|character: char| character.is_ascii_punctuation() || character.is_punctuation())
        });
        Stage::runs(set, if individual { 1 } else { UNLIMITED }, text)
    }

    fn runs(set: &ClassUnicode, max: u32, text: Text) -> Option<Stage> {
        Stage::new(&vec![vec![Item::Repeat { set: set.clone(), min: 1, max }]], true, true, text)
    }

    fn new(alternatives: &Alternatives, keeps_matches: bool, keeps_gaps: bool, text: Text) -> Option<Stage> {
        let program = Program::new(alternatives)?;
        let automaton = Automaton::new(&program, &ClassUnicode::empty(), text)?;
        Some(Stage { program, automaton, text, keeps_matches, keeps_gaps })
    }
}

/// The set of the characters for which a predicate holds.
fn set_of(is: impl Fn(char) -> bool) -> ClassUnicode {
    let characters = ('\0'..=char::MAX).filter(|character| is(*character));
    ClassUnicode::new(characters.map(|character| ClassUnicodeRange::new(character, character)))
}

impl From<Vec<Stage>> for Stages {
    fn from(mut stages: Vec<Stage>) -> Stages {
        // Stages before must leave spaces and letters together.
        let inert = |stage: &&Stage| stage.program.ignores_words && stage.keeps_gaps;
        let skipped = stages.iter().take_while(inert).count();
        let begins_at_spaces = stages.get(skipped).is_some_and(|stage| {
            stage.program.begins_at_spaces && stage.keeps_matches && stage.text == Text::Characters
        });
        let runs = combine(&mut stages).map(Box::new);
        Stages { runs, stages, begins_at_spaces, ascii: None }
    }
}

/// Removes the first stages that only isolate runs, and lets the stage after them stop before these; `None` if that is not possible.
fn combine(stages: &mut Vec<Stage>) -> Option<Runs> {
    let (mut sets, mut max) = (Vec::new(), Vec::new());
    let mut bounds = ClassUnicode::empty();
    let isolates = |stage: &&Stage| stage.keeps_matches && stage.keeps_gaps && stage.text == Text::Characters;
    for stage in stages.iter().take_while(isolates) {
        let Some((set, most)) = stage.program.run_of_one_set() else { break };
        let mut both = bounds.clone();
        both.intersect(set);
        if !both.ranges().is_empty() {
            break;
        }
        bounds.union(set);
        sets.push(set.clone());
        max.push(most);
    }
    let main = stages.get_mut(sets.len()).filter(|main| !sets.is_empty() && main.text == Text::Characters)?;
    let classes = CharClasses::new(&sets, Text::Characters)?;
    main.automaton = Automaton::new(&main.program, &bounds, Text::Characters)?;
    stages.drain(..sets.len());
    Some(Runs { classes, max })
}

impl Runs {
    /// The end of the run that begins at a position.
    fn end(&self, text: &[u8], start: usize) -> usize {
        let sets_at = |position: usize| {
            let (class, length) = self.classes.at(text, position);
            (self.classes.sets().get(class).copied().unwrap_or(0), length)
        };
        let (set, mut position) = (sets_at(start).0, start);
        let max = self.max.get(set.trailing_zeros() as usize).copied().unwrap_or(0);
        for _ in 0..max {
            let (sets, length) = sets_at(position);
            if sets & set == 0 {
                break;
            }
            position += length;
        }
        position
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
    pub fn for_each(&self, text: &str, mut each: impl FnMut(usize, usize)) {
        self.between(text, 0, text.len(), &mut each);
    }

    /// The same for the pieces between two positions: the ends of the text, or positions for which [`Splitter::begins_piece`] holds.
    #[inline]
    pub fn between(&self, text: &str, start: usize, end: usize, sink: &mut impl Sink) {
        match self {
            Splitter::Known(pattern) => pattern.between(text, start, end, sink),
            Splitter::Compiled(stages) => stages.between(text.as_bytes(), start, end, sink),
        }
    }

    /// Whether a piece begins at a position regardless of the text before it.
    #[inline]
    pub fn begins_piece(&self, text: &str, position: usize) -> bool {
        match self {
            Splitter::Known(_) => Pattern::begins_piece(text, position),
            Splitter::Compiled(stages) => stages.begins_piece(text.as_bytes(), position),
        }
    }
}

impl Stages {
    /// Stages whose text is split in blocks. The rules must be those of the expressions of the stages.
    pub fn with_ascii_rules(self, rules: Option<Rules>) -> Stages {
        Stages { ascii: rules.filter(|_| self.begins_at_spaces), ..self }
    }

    /// Whether a piece begins at a position regardless of the text before it.
    #[inline(always)]
    fn begins_piece(&self, text: &[u8], position: usize) -> bool {
        self.begins_at_spaces
            && text[position] == b' '
            && text.get(position + 1).is_some_and(u8::is_ascii_alphabetic)
    }

    /// Splits the text between two positions at which pieces begin.
    #[inline]
    fn between(&self, text: &[u8], start: usize, end: usize, sink: &mut impl Sink) {
        match self.ascii {
            // The masks of other architectures are computed byte by byte, which is slower.
            Some(rules) if cfg!(target_arch = "x86_64") => {
                let table = CharTable::get(rules);
                let others = |start, sink: &mut _| self.until_space(text, start, end, table, sink);
                ascii_block::walk(ascii_block::Part { text, start, end, rules }, others, sink);
            }
            _ => self.split(&text[..end], start, &mut |start, end| sink.piece(start, end)),
        }
    }

    /// Splits up to a position at which a piece certainly begins, and returns it: a space before a letter.
    fn until_space(
        &self,
        text: &[u8],
        start: usize,
        last: usize,
        table: &CharTable,
        sink: &mut impl Sink,
    ) -> usize {
        let begins =
            |position: &usize| text[*position] == b' ' && table.is_letter(&text[..last], *position + 1);
        let end = (start + 1..last).find(begins).unwrap_or(last);
        self.split(&text[..end], start, &mut |start, end| sink.piece(start, end));
        end
    }

    /// Splits a text from `start` on.
    fn split(&self, text: &[u8], mut start: usize, each: &mut impl FnMut(usize, usize)) {
        let (Some(runs), Some((stage, rest))) = (&self.runs, self.stages.split_first()) else {
            return split(&self.stages, text, start, each);
        };
        loop {
            let mut done = start;
            let bound = stage.automaton.bounded(text, start, |from, to| {
                stage.matched(rest, text, (done, from, to), each);
                done = to;
            });
            if stage.keeps_gaps && done < bound {
                split(rest, &text[..bound], done, each);
            }
            if bound == text.len() {
                return;
            }
            start = runs.end(text, bound);
            debug_assert!(start > bound, "a run begins at every bound");
            split(&self.stages, &text[..start], bound, each);
        }
    }
}

impl Stage {
    /// Splits the text between two matches, and a match, as the stages after this one do.
    #[inline(always)]
    fn matched(
        &self,
        rest: &[Stage],
        text: &[u8],
        (done, from, to): (usize, usize, usize),
        each: &mut impl FnMut(usize, usize),
    ) {
        if self.keeps_gaps && done < from {
            split(rest, &text[..from], done, each);
        }
        if self.keeps_matches {
            if rest.is_empty() {
                each(from, to);
            } else {
                split(rest, &text[..to], from, each);
            }
        }
    }
}

/// Splits a text from `start` on.
fn split(stages: &[Stage], text: &[u8], start: usize, each: &mut impl FnMut(usize, usize)) {
    let Some((stage, rest)) = stages.split_first() else {
        if start < text.len() {
            each(start, text.len());
        }
        return;
    };
    let mut done = start;
    stage.automaton.whole(text, start, |from, to| {
        stage.matched(rest, text, (done, from, to), each);
        done = to;
    });
    if stage.keeps_gaps && done < text.len() {
        split(rest, text, done, each);
    }
}
