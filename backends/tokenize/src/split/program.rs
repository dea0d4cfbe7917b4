//! The program of a pretokenizer's expression, from which `automaton` builds a table, and what can be said about its matches.

use regex_syntax::hir::ClassUnicode;

use super::expression::{Alternatives, Item, UNLIMITED};

/// A compiled expression.
pub struct Program {
    /// The sets of characters; a node refers to one by its bit.
    pub sets: Vec<ClassUnicode>,
    /// The steps of a match.
    pub nodes: Vec<Node>,
    /// The index of the first step.
    pub entry: usize,
    /// Whether no set contains a space or an ASCII letter.
    pub ignores_words: bool,
    /// Whether a match begins at every space that an ASCII letter follows, also if the text ends before that space.
    pub begins_at_spaces: bool,
}

/// A step of a match; `next` is the index of the following one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// The match is complete.
    Accept,
    /// Between `min` and `max` characters of a set, as many as possible.
    Repeat {
        /// The bit of the set.
        set: u32,
        /// Minimum number of characters.
        min: u32,
        /// Maximum number of characters.
        max: u32,
        /// The step after it.
        next: usize,
    },
    /// The first of several branches that leads to a match.
    Choice(Vec<usize>),
    /// Rejects a following character of the set.
    NotAhead {
        /// The bit of the set.
        set: u32,
        /// The step after it.
        next: usize,
    },
}

/// The index of [`Node::Accept`].
pub const ACCEPT: usize = 0;
/// Maximum number of sets, one bit each. One bit is left for the characters that end a text (`Automaton::new`).
const MAX_SETS: usize = 31;

impl Program {
    /// Compiles an expression; `None` if it can match the empty string or has too many sets.
    pub fn new(alternatives: &Alternatives) -> Option<Program> {
        let mut builder = Builder { sets: Vec::new(), nodes: vec![Node::Accept] };
        let entry = builder.choice(alternatives, ACCEPT)?;
        let Builder { sets, nodes } = builder;
        let analysis = Analysis { nodes: &nodes, sets: &sets };
        if analysis.accepts_empty(entry) {
            return None;
        }
        let begins_at_spaces = analysis.begins_at_spaces(entry);
        let ignores_words = !analysis.has_space(u32::MAX) && !analysis.has_letter(u32::MAX);
        Some(Program { sets, nodes, entry, ignores_words, begins_at_spaces })
    }

    /// The set and the maximum length, if a match is any run of characters of one set.
    pub fn run_of_one_set(&self) -> Option<(&ClassUnicode, u32)> {
        match (&self.nodes[self.entry], self.sets.as_slice()) {
            (Node::Repeat { min: 1, max, next: ACCEPT, .. }, [set]) => Some((set, *max)),
            _ => None,
        }
    }
}

struct Builder {
    sets: Vec<ClassUnicode>,
    nodes: Vec<Node>,
}

impl Builder {
    fn node(&mut self, node: Node) -> usize {
        match self.nodes.iter().position(|known| *known == node) {
            Some(known) => known,
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        }
    }

    /// The bit of a set; `None` if there is none left.
    fn set(&mut self, set: &ClassUnicode) -> Option<u32> {
        let index = self.sets.iter().position(|known| known == set).unwrap_or_else(|| {
            self.sets.push(set.clone());
            self.sets.len() - 1
        });
        (index < MAX_SETS).then(|| 1 << index)
    }

    fn choice(&mut self, alternatives: &Alternatives, next: usize) -> Option<usize> {
        let branches: Option<Vec<usize>> =
            alternatives.iter().map(|items| self.sequence(items, next)).collect();
        let branches = branches?;
        Some(match branches.as_slice() {
            [only] => *only,
            _ => self.node(Node::Choice(branches)),
        })
    }

    fn sequence(&mut self, items: &[Item], next: usize) -> Option<usize> {
        items.iter().rev().try_fold(next, |next, item| {
            let node = match item {
                Item::Group(alternatives) => return self.choice(alternatives, next),
                Item::NotAhead(set) => Node::NotAhead { set: self.set(set)?, next },
                Item::Repeat { set, min, max } => {
                    Node::Repeat { set: self.set(set)?, min: *min, max: *max, next }
                }
            };
            Some(self.node(node))
        })
    }
}

/// Which characters can begin or follow a part of an expression.
struct Analysis<'a> {
    nodes: &'a [Node],
    sets: &'a [ClassUnicode],
}

impl Analysis<'_> {
    /// The sets whose characters a match from `node` may begin with.
    fn first(&self, node: usize) -> u32 {
        match &self.nodes[node] {
            Node::Accept => 0,
            Node::NotAhead { next, .. } => self.first(*next),
            Node::Choice(branches) => branches.iter().fold(0, |sets, branch| sets | self.first(*branch)),
            Node::Repeat { set, min, next, .. } => set | if *min == 0 { self.first(*next) } else { 0 },
        }
    }

    /// Whether a match may be complete at `node` without another character.
    fn accepts_empty(&self, node: usize) -> bool {
        match &self.nodes[node] {
            Node::Accept => true,
            Node::NotAhead { next, .. } => self.accepts_empty(*next),
            Node::Choice(branches) => branches.iter().any(|branch| self.accepts_empty(*branch)),
            Node::Repeat { min, next, .. } => *min == 0 && self.accepts_empty(*next),
        }
    }

    fn intersects(&self, one: u32, others: u32) -> bool {
        let of = |sets: u32| self.sets.iter().enumerate().filter(move |(index, _)| sets >> *index & 1 != 0);
        of(one).any(|(_, left)| {
            of(others).any(|(_, right)| {
                let mut both = left.clone();
                both.intersect(right);
                !both.ranges().is_empty()
            })
        })
    }

    fn contains(&self, sets: u32, mut accepted: impl FnMut(char) -> bool) -> bool {
        let ranges = self.sets.iter().enumerate().filter(|(index, _)| sets >> *index & 1 != 0);
        let mut ranges = ranges.flat_map(|(_, set)| set.ranges());
        ranges.any(|range| (range.start()..=range.end().min('\x7f')).any(&mut accepted))
    }

    fn has_space(&self, sets: u32) -> bool {
        self.contains(sets, |character| character == ' ')
    }

    fn has_letter(&self, sets: u32) -> bool {
        self.contains(sets, |character| character.is_ascii_alphabetic())
    }

    /// Whether a match begins at every space before an ASCII letter, regardless of the text before it, and whether the matches before
    /// it stay the same if the text ends there. The last alternatives must be `\s+(?!\S)` and `\s+`: one of them matches at every
    /// space, and the second only single ones. No other match may extend over such a space: a space inside of a match is never followed
    /// by a letter and never its last character.
    fn begins_at_spaces(&self, entry: usize) -> bool {
        let Node::Choice(branches) = &self.nodes[entry] else { return false };
        let [others @ .., any] = branches.as_slice() else { return false };
        others.last().is_some_and(|trailing| self.is_trailing_space(*trailing, *any))
            && others.iter().all(|branch| self.stops_before_spaces(*branch, true, &mut Vec::new()))
    }

    /// Whether two nodes are `\s+(?!\S)` and `\s+`, for some set with the space and a set of other characters with all letters.
    fn is_trailing_space(&self, trailing: usize, any: usize) -> bool {
        let Node::Repeat { set, min: 1, max: UNLIMITED, next } = self.nodes[trailing] else {
            return false;
        };
        let Node::NotAhead { set: ahead, next: ACCEPT } = self.nodes[next] else { return false };
        let same = Node::Repeat { set, min: 1, max: UNLIMITED, next: ACCEPT };
        self.nodes[any] == same
            && self.has_space(set)
            && !self.intersects(set, ahead)
            && self.has_all_letters(ahead)
    }

    fn has_all_letters(&self, sets: u32) -> bool {
        ('a'..='z').chain('A'..='Z').all(|letter| self.contains(sets, |character| character == letter))
    }

    /// Whether no match from `node` extends over a space before a letter. `is_first` if no character was matched before.
    fn stops_before_spaces(&self, node: usize, is_first: bool, seen: &mut Vec<(usize, bool)>) -> bool {
        if seen.contains(&(node, is_first)) {
            return true;
        }
        seen.push((node, is_first));
        match &self.nodes[node] {
            Node::Accept => true,
            // The end of the text must count as the space that was there.
            Node::NotAhead { set, next } => {
                !self.has_space(*set) && self.stops_before_spaces(*next, is_first, seen)
            }
            Node::Choice(branches) => {
                branches.iter().all(|branch| self.stops_before_spaces(*branch, is_first, seen))
            }
            Node::Repeat { set, min, max, next } => {
                let inside = self.has_space(*set) && (!is_first || *max > 1);
                let letter_follows = *max > 1 && self.has_letter(*set) || self.has_letter(self.first(*next));
                if inside && (letter_follows || self.ends_before_letter(*next)) {
                    return false;
                }
                // With no characters of this set, the next node may be the first.
                (*min > 0 || self.stops_before_spaces(*next, is_first, seen))
                    && self.stops_before_spaces(*next, false, seen)
            }
        }
    }

    /// Whether a match may be complete at `node` if a letter follows.
    fn ends_before_letter(&self, node: usize) -> bool {
        match &self.nodes[node] {
            Node::Accept => true,
            Node::NotAhead { set, next } => !self.has_all_letters(*set) && self.ends_before_letter(*next),
            Node::Choice(branches) => branches.iter().any(|branch| self.ends_before_letter(*branch)),
            Node::Repeat { min, next, .. } => *min == 0 && self.ends_before_letter(*next),
        }
    }
}
