//! Parses the regular expressions of pretokenizers into a small syntax tree. Character classes are read by `regex-syntax`, whose tables
//! the definition uses too. Anything with another meaning in the definition's engine is rejected: lookbehind, anchors, lazy and
//! possessive repetitions, captures that repeat, flags for the whole expression.

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind};

/// The alternatives of an expression, in order of preference.
pub type Alternatives = Vec<Vec<Item>>;

/// An item of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// Between `min` and `max` characters of a set, as many as possible.
    Repeat {
        /// The set.
        set: ClassUnicode,
        /// Minimum number of characters.
        min: u32,
        /// Maximum number of characters.
        max: u32,
    },
    /// One of several sequences.
    Group(Alternatives),
    /// The next character, if there is one, is not in the set: `(?!…)`.
    NotAhead(ClassUnicode),
}

/// Bound of an unlimited repetition.
pub const UNLIMITED: u32 = u32::MAX;
/// A repeated group is expanded into at most this many copies.
const MAX_COPIES: u32 = 8;
/// Maximum number of items, with all copies.
const MAX_ITEMS: usize = 256;

/// Parses an expression; `None` if it is not supported.
pub fn parse(expression: &str) -> Option<Alternatives> {
    let alternatives = top_level(expression)?;
    let parsed: Alternatives = alternatives
        .into_iter()
        .map(sequence_of)
        .collect::<Option<Vec<_>>>()?
        .into_iter()
        .flatten()
        .collect();
    (count(&parsed) <= MAX_ITEMS).then_some(parsed)
}

fn count(alternatives: &Alternatives) -> usize {
    let item = |item: &Item| match item {
        Item::Group(inner) => 1 + count(inner),
        _ => 1,
    };
    alternatives.iter().flatten().map(item).sum()
}

/// Splits an expression at the `|` outside of groups and classes.
fn top_level(expression: &str) -> Option<Vec<&str>> {
    let (mut parts, mut start, mut groups, mut classes) = (Vec::new(), 0, 0u32, 0u32);
    // Whether the character before was a repetition, or opened a group.
    let (mut after_repetition, mut after_opening) = (false, false);
    let mut characters = expression.char_indices();
    while let Some((position, character)) = characters.next() {
        let (mut repetition, mut opening) = (false, false);
        match character {
            '\\' => {
                let (_, escaped) = characters.next()?;
                // The braces of a property or a code point are not a repetition.
                if matches!(escaped, 'p' | 'P' | 'x' | 'u') && characters.as_str().starts_with('{') {
                    characters.find(|(_, end)| *end == '}')?;
                }
            }
            '[' => classes += 1,
            ']' if classes > 0 => classes -= 1,
            _ if classes > 0 => {}
            '(' => {
                groups += 1;
                opening = true;
            }
            ')' => groups = groups.checked_sub(1)?,
            '|' if groups == 0 => {
                parts.push(&expression[start..position]);
                start = position + 1;
            }
            // `a++`, `a?+` and `a{1,2}+` are possessive in the definition's engine, `a+?` is lazy.
            '+' | '?' if after_repetition => return None,
            // `(?` begins a group with options.
            '+' | '*' | '?' | '}' => repetition = !after_opening,
            _ => {}
        }
        (after_repetition, after_opening) = (repetition, opening);
    }
    parts.push(&expression[start..]);
    (groups == 0 && classes == 0).then_some(parts)
}

/// Parses one alternative, which may end with a negative lookahead at one class.
fn sequence_of(text: &str) -> Option<Alternatives> {
    let (text, ahead) = match text.find("(?!") {
        None => (text, None),
        Some(position) => {
            let inner = text[position + 3..].strip_suffix(')')?;
            let [one] = parse_hir(inner)?.try_into().ok()?;
            let [Item::Repeat { set, min: 1, max: 1 }] = <[Item; 1]>::try_from(one).ok()? else {
                return None;
            };
            (&text[..position], Some(set))
        }
    };
    let mut parsed = parse_hir(text)?;
    if let Some(set) = ahead {
        parsed.iter_mut().for_each(|sequence| sequence.push(Item::NotAhead(set.clone())));
    }
    Some(parsed)
}

fn parse_hir(text: &str) -> Option<Alternatives> {
    // Of the groups with options, only `(?:` and `(?i:` end where they do in every engine.
    let known = |(position, _): (usize, &str)| {
        ["(?:", "(?i:"].iter().any(|known| text[position..].starts_with(known))
    };
    if !text.match_indices("(?").all(known) {
        return None;
    }
    alternatives(&regex_syntax::parse(text).ok()?)
}

fn alternatives(hir: &Hir) -> Option<Alternatives> {
    match hir.kind() {
        HirKind::Alternation(parts) => {
            let parts: Option<Vec<Alternatives>> = parts.iter().map(alternatives).collect();
            Some(parts?.into_iter().flatten().collect())
        }
        HirKind::Capture(capture) => alternatives(&capture.sub),
        _ => Some(vec![sequence(hir)?]),
    }
}

fn sequence(hir: &Hir) -> Option<Vec<Item>> {
    match hir.kind() {
        HirKind::Empty => Some(Vec::new()),
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).ok()?;
            let one = |character| Item::Repeat {
                set: ClassUnicode::new([ClassUnicodeRange::new(character, character)]),
                min: 1,
                max: 1,
            };
            Some(text.chars().map(one).collect())
        }
        HirKind::Class(class) => Some(vec![Item::Repeat { set: unicode(class)?, min: 1, max: 1 }]),
        HirKind::Concat(parts) => {
            let parts: Option<Vec<Vec<Item>>> = parts.iter().map(sequence).collect();
            Some(parts?.into_iter().flatten().collect())
        }
        HirKind::Alternation(_) => Some(vec![Item::Group(alternatives(hir)?)]),
        HirKind::Capture(capture) => sequence(&capture.sub),
        HirKind::Repetition(repetition) => {
            if !repetition.greedy {
                return None;
            }
            let max = repetition.max.unwrap_or(UNLIMITED);
            let inner = sequence(&repetition.sub)?;
            if let [Item::Repeat { set, min: 1, max: 1 }] = inner.as_slice() {
                return Some(vec![Item::Repeat { set: set.clone(), min: repetition.min, max }]);
            }
            // A repeated group is written out: `(ab){1,2}` is `ab(ab|)`.
            if max > MAX_COPIES {
                return None;
            }
            let mut rest = Vec::new();
            for _ in repetition.min..max {
                let taken = inner.iter().cloned().chain(rest).collect();
                rest = vec![Item::Group(vec![taken, Vec::new()])];
            }
            let required = (0..repetition.min).flat_map(|_| inner.iter().cloned());
            Some(required.chain(rest).collect())
        }
        HirKind::Look(_) => None,
    }
}

fn unicode(class: &Class) -> Option<ClassUnicode> {
    match class {
        Class::Unicode(set) => Some(set.clone()),
        Class::Bytes(set) => set.to_unicode_class(),
    }
}
