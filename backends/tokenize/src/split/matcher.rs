//! A backtracking matcher for the expressions of pretokenizers. Sets of characters are bits of a table, so that a character is
//! classified once, whatever the number of sets.

use regex_syntax::hir::ClassUnicode;

use super::char_sets::CharSets;
use super::expression::{Alternatives, Item, UNLIMITED};

/// A compiled expression.
pub struct Matcher {
    sets: CharSets,
    nodes: Vec<Node>,
    entry: usize,
    /// The sets that a match may begin with.
    first: u32,
    /// Whether no set contains a space or an ASCII letter.
    pub ignores_words: bool,
    /// Whether a match begins at every space that an ASCII letter follows, also if the text ends before that space.
    pub begins_at_spaces: bool,
}

/// A step of a match; `next` is the index of the following one.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    /// The match is complete.
    Accept,
    /// Between `min` and `max` characters of a set, as many as possible.
    Repeat {
        set: u32,
        min: u32,
        max: u32,
        next: usize,
        /// Whether a shorter repetition can only match if the longest does.
        exclusive: bool,
    },
    /// The first of several branches that leads to a match.
    Choice(Vec<usize>),
    /// Rejects a following character of the set.
    NotAhead { set: u32, next: usize },
}

impl Matcher {
    /// Compiles an expression; `None` if it can match the empty string or has too many sets.
    pub fn new(alternatives: &Alternatives) -> Option<Matcher> {
        let mut builder = Builder { sets: Vec::new(), nodes: vec![Node::Accept] };
        let entry = builder.choice(alternatives, ACCEPT)?;
        let Builder { sets, mut nodes } = builder;
        let analysis = Analysis { nodes: &nodes, sets: &sets };
        if analysis.accepts_empty(entry) {
            return None;
        }
        let exclusive: Vec<bool> = (0..nodes.len()).map(|node| analysis.is_exclusive(node)).collect();
        let begins_at_spaces = analysis.begins_at_spaces(entry);
        let first = analysis.first(entry);
        let ignores_words = !analysis.has_space(u32::MAX) && !analysis.has_letter(u32::MAX);
        for (node, found) in nodes.iter_mut().zip(exclusive) {
            if let Node::Repeat { exclusive, .. } = node {
                *exclusive = found;
            }
        }
        Some(Matcher { sets: CharSets::new(&sets), nodes, entry, first, ignores_words, begins_at_spaces })
    }

    /// Calls `each` with the start and end of every match in a text of valid UTF-8, from `start` on.
    #[inline]
    pub fn for_each(&self, text: &[u8], start: usize, mut each: impl FnMut(usize, usize)) {
        let mut position = start;
        loop {
            let (sets, length) = self.sets.at(text, position);
            if length == 0 {
                return;
            }
            let end = if sets & self.first == 0 { None } else { self.run(self.entry, text, position) };
            match end {
                Some(end) => {
                    each(position, end);
                    position = end;
                }
                None => position += length,
            }
        }
    }

    fn run(&self, mut node: usize, text: &[u8], mut position: usize) -> Option<usize> {
        loop {
            match &self.nodes[node] {
                Node::Accept => return Some(position),
                Node::NotAhead { set, next } => {
                    if self.sets.at(text, position).0 & set != 0 {
                        return None;
                    }
                    node = *next;
                }
                Node::Choice(branches) => {
                    let (last, others) = branches.split_last()?;
                    if let Some(end) = others.iter().find_map(|branch| self.run(*branch, text, position)) {
                        return Some(end);
                    }
                    node = *last;
                }
                Node::Repeat { set, min, max, next, exclusive } => {
                    let start = position;
                    let mut count = 0;
                    while count < *max {
                        let (sets, length) = self.sets.at(text, position);
                        if sets & set == 0 {
                            break;
                        }
                        position += length;
                        count += 1;
                    }
                    if count < *min {
                        return None;
                    }
                    if !*exclusive {
                        // Tries the longest repetition first, then shorter ones.
                        while count > *min {
                            if let Some(end) = self.run(*next, text, position) {
                                return Some(end);
                            }
                            position -= 1;
                            while position > start && text[position] & 0xc0 == 0x80 {
                                position -= 1;
                            }
                            count -= 1;
                        }
                    }
                    node = *next;
                }
            }
        }
    }
}

/// The index of [`Node::Accept`].
const ACCEPT: usize = 0;

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
        1u32.checked_shl(index as u32)
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
                    Node::Repeat { set: self.set(set)?, min: *min, max: *max, next, exclusive: false }
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

    /// Whether every text matches from `node`, also the empty one.
    fn always_matches(&self, node: usize) -> bool {
        match &self.nodes[node] {
            Node::Accept => true,
            Node::NotAhead { .. } => false,
            Node::Choice(branches) => branches.iter().any(|branch| self.always_matches(*branch)),
            // A repetition that backtracks ends with none.
            Node::Repeat { min, next, .. } => *min == 0 && self.always_matches(*next),
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

    /// Whether giving back characters of a repetition cannot help: what follows always matches, or needs a character that is not in
    /// the set.
    fn is_exclusive(&self, node: usize) -> bool {
        let Node::Repeat { set, next, .. } = &self.nodes[node] else { return false };
        self.always_matches(*next) || !self.accepts_empty(*next) && !self.intersects(*set, self.first(*next))
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
        let Node::Repeat { set, min: 1, max: UNLIMITED, next, .. } = self.nodes[trailing] else {
            return false;
        };
        let Node::NotAhead { set: ahead, next: ACCEPT } = self.nodes[next] else { return false };
        let same = Node::Repeat { set, min: 1, max: UNLIMITED, next: ACCEPT, exclusive: false };
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
            Node::Repeat { set, min, max, next, .. } => {
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
