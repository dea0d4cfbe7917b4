//! A deterministic automaton for the expression of a pretokenizer: one table lookup per character.
//!
//! A state is the ordered list of the steps that a match may take next, in the order in which a backtracking matcher would try them. The
//! end of a match is detected with the character after it, or with the end of the text, so that a lookahead is an ordinary transition.
//! Nothing here depends on what becomes of the matches.

use regex_syntax::hir::ClassUnicode;
use rustc_hash::FxHashMap;

use super::ascii_window::AsciiWindow;
use super::char_sets::{CharClasses, Text};
use super::expression::UNLIMITED;
use super::program::{ACCEPT, Node, Program};

/// The automaton of one expression.
pub struct Automaton {
    classes: CharClasses,
    /// The transitions of a text that ends with its last byte.
    whole: Table,
    /// The transitions of a text that also ends before every character of a set.
    bounded: Table,
}

/// Rows of transitions, one row for each state and one entry for each class. An entry is the row of the next state, with flags.
struct Table {
    entries: Vec<u32>,
    /// Whether each class ends the text.
    ends: Vec<bool>,
}

/// A match ends before this character.
const MATCH: u32 = 1 << 31;
/// No other match is possible from here on.
const LAST: u32 = 1 << 30;
/// Set with [`MATCH`] and [`LAST`]: the row is the state after this character, which is the first of the next match.
const RESTART: u32 = 1 << 29;
/// The next state does not change with lowercase ASCII letters.
const SKIP_LOWER: u32 = 1 << 28;
/// The next state does not change with ASCII letters.
const SKIP_LETTERS: u32 = 1 << 27;
const ROW: u32 = SKIP_LETTERS - 1;

/// Maximum number of states.
const MAX_STATES: usize = 512;
/// Maximum number of steps that are examined to build the automaton, so that a definition cannot make loading slow.
const MAX_WORK: usize = 1 << 22;

/// The row of the first state.
const START: usize = 0;

impl Automaton {
    /// Builds the automaton of a program; `None` if it is too large. `bounds` are the characters at which [`Automaton::bounded`] stops.
    pub fn new(program: &Program, bounds: &ClassUnicode, text: Text) -> Option<Automaton> {
        let mut sets = program.sets.clone();
        sets.push(bounds.clone());
        let classes = CharClasses::new(&sets, text)?;
        let whole = Determinizer { program, work: 0 }.table(&classes)?;
        let bound = 1 << program.sets.len();
        let bounded = whole.stopping_at(&classes, |class| classes.sets()[class] & bound != 0);
        let mut automaton = Automaton { classes, whole, bounded };
        automaton.whole.add_shortcuts(&automaton.classes);
        automaton.bounded.add_shortcuts(&automaton.classes);
        Some(automaton)
    }

    /// Calls `each` with the start and end of every match in a text of valid UTF-8, from `start` on.
    #[inline]
    pub fn whole(&self, text: &[u8], start: usize, each: impl FnMut(usize, usize)) {
        self.run(&self.whole, text, start, each);
    }

    /// The same up to the first of the `bounds`. Returns its position, or the end of the text.
    #[inline]
    pub fn bounded(&self, text: &[u8], start: usize, each: impl FnMut(usize, usize)) -> usize {
        self.run(&self.bounded, text, start, each)
    }

    #[inline(always)]
    fn run(&self, table: &Table, text: &[u8], start: usize, mut each: impl FnMut(usize, usize)) -> usize {
        // The match begins at `begin`; it ends at `last` at least, if that is greater.
        let (mut begin, mut last, mut position, mut row) = (start, start, start, START);
        loop {
            let (class, length) = self.classes.at(text, position);
            let entry = table.entries[row + class];
            if entry & RESTART != 0 {
                each(begin, position);
                (begin, last) = (position, position);
            } else {
                if entry & MATCH != 0 {
                    last = position;
                }
                if entry & LAST != 0 {
                    if last > begin {
                        each(begin, last);
                        begin = last;
                    } else {
                        // No match begins here.
                        let (class, length) = self.classes.at(text, begin);
                        if table.ends[class] {
                            return begin;
                        }
                        begin += length;
                    }
                    (last, position, row) = (begin, begin, START);
                    continue;
                }
            }
            row = (entry & ROW) as usize;
            position += length;
            if entry & (SKIP_LOWER | SKIP_LETTERS) != 0
                && let Some(window) = AsciiWindow::at(text, position)
            {
                position +=
                    if entry & SKIP_LETTERS != 0 { window.letters(0).length } else { window.lowercase() };
            }
        }
    }
}

impl Table {
    /// The same transitions, but characters of some classes end the text.
    fn stopping_at(&self, classes: &CharClasses, is_bound: impl Fn(usize) -> bool) -> Table {
        let stride = classes.end() + 1;
        let ends: Vec<bool> = (0..stride).map(|class| class == classes.end() || is_bound(class)).collect();
        let mut entries = self.entries.clone();
        for row in entries.chunks_exact_mut(stride) {
            let end = row[classes.end()];
            row.iter_mut().zip(&ends).filter(|(_, ends)| **ends).for_each(|(entry, _)| *entry = end);
        }
        Table { entries, ends }
    }

    /// Adds the flags that save lookups: [`RESTART`] and the skipped letters.
    fn add_shortcuts(&mut self, classes: &CharClasses) {
        let stride = classes.end() + 1;
        let first: Vec<u32> = self.entries[..stride].to_vec();
        let loops_on = |entries: &[u32], row: usize, mut letters: std::ops::RangeInclusive<u8>| {
            letters.all(|letter| entries[row + classes.of_ascii(letter)] == row as u32)
        };
        let skips: Vec<u32> = (0..self.entries.len() / stride)
            .map(|state| {
                let row = state * stride;
                if !loops_on(&self.entries, row, b'a'..=b'z') {
                    0
                } else if loops_on(&self.entries, row, b'A'..=b'Z') {
                    SKIP_LETTERS
                } else {
                    SKIP_LOWER
                }
            })
            .collect();
        for (index, entry) in self.entries.iter_mut().enumerate() {
            let begins = first[index % stride];
            if *entry & (MATCH | LAST) == MATCH | LAST && begins & LAST == 0 {
                *entry = MATCH | LAST | RESTART | begins;
            }
            if *entry & (LAST | RESTART) != LAST {
                *entry |= skips[(*entry & ROW) as usize / stride];
            }
        }
    }
}

/// A step that a match may take next: a node, and the number of characters that a repetition has matched.
type Step = (usize, u32);

struct Determinizer<'a> {
    program: &'a Program,
    work: usize,
}

impl Determinizer<'_> {
    /// The transitions of all states.
    fn table(&mut self, classes: &CharClasses) -> Option<Table> {
        let stride = classes.end() + 1;
        let mut first = Vec::new();
        self.add(self.program.entry, 0, &mut first);
        let mut states = vec![first.clone()];
        let mut numbers = FxHashMap::from_iter([(first, 0)]);
        let mut entries = Vec::new();
        while let Some(steps) = states.get(entries.len() / stride).cloned() {
            for class in 0..stride {
                let mut next = Vec::new();
                let matched = self.advance(&steps, classes.sets().get(class).copied(), &mut next)?;
                // A match that is longer follows in any case if the next state is complete.
                let superseded = next.last() == Some(&(ACCEPT, 0));
                let flags = if matched && !superseded { MATCH } else { 0 };
                if next.is_empty() {
                    entries.push(flags | LAST);
                    continue;
                }
                let number = *numbers.entry(next).or_insert_with_key(|next| {
                    states.push(next.clone());
                    states.len() - 1
                });
                entries.push(flags | (number * stride) as u32);
            }
            if states.len() > MAX_STATES {
                return None;
            }
        }
        let ends = (0..stride).map(|class| class == classes.end()).collect();
        Some(Table { entries, ends })
    }

    /// Takes the steps that a character of some sets permits; `None` for the end of the text. Returns whether a match ends before it: the
    /// steps that were preferred to that match are in `next`, the others are dropped. `None` if the automaton is too large.
    fn advance(&mut self, steps: &[Step], sets: Option<u32>, next: &mut Vec<Step>) -> Option<bool> {
        for &(node, count) in steps {
            self.work += 1 + next.len();
            if self.work > MAX_WORK {
                return None;
            }
            match &self.program.nodes[node] {
                Node::Accept => return Some(true),
                Node::Repeat { set, .. } => {
                    if sets.unwrap_or(0) & set != 0 {
                        self.add(node, count + 1, next);
                    }
                }
                Node::NotAhead { set, next: after } => {
                    let mut inner = Vec::new();
                    if sets.unwrap_or(0) & set == 0 {
                        self.add(*after, 0, &mut inner);
                    }
                    if self.advance(&inner, sets, next)? {
                        return Some(true);
                    }
                }
                // `add` resolves choices.
                Node::Choice(_) => {}
            }
        }
        Some(false)
    }

    /// Adds the steps from a node on, unless they are known or a complete match is preferred to them.
    fn add(&self, node: usize, count: u32, steps: &mut Vec<Step>) {
        if steps.last() == Some(&(ACCEPT, 0)) {
            return;
        }
        match &self.program.nodes[node] {
            Node::Choice(branches) => branches.iter().for_each(|branch| self.add(*branch, 0, steps)),
            Node::Accept | Node::NotAhead { .. } => {
                if !steps.contains(&(node, 0)) {
                    steps.push((node, 0));
                }
            }
            Node::Repeat { min, max, next, .. } => {
                // Beyond the minimum, the count of an unlimited repetition does not matter.
                let count = if *max == UNLIMITED { count.min(*min) } else { count };
                if count < *max {
                    if steps.contains(&(node, count)) {
                        return;
                    }
                    steps.push((node, count));
                }
                if count >= *min {
                    self.add(*next, 0, steps);
                }
            }
        }
    }
}
