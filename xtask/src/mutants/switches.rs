//! Writes mutants into a source file, each behind a switch, so that one build has all of them.
//!
//! An expression `a + b` becomes `(if mutant(7) { a - b } else { a + b })`. A branch has the original text of its operands: one mutant
//! is active at a time. So all changes are insertions, which nest like the expressions do.

use std::ops::Range;

use anyhow::{Context, Result};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::list::{Genre, Mutant, Position};

/// A mutant with its number; numbers start at 1.
pub type Numbered<'m> = (u32, &'m Mutant);

/// A source file with switches.
#[derive(Debug, Default)]
pub struct Inserted {
    pub text: String,
    /// Mutants whose change the language forbids.
    pub forbidden: Vec<u32>,
    /// Mutants of constants, which the compiler evaluates.
    pub constant: Vec<u32>,
}

/// Writes all mutants that can be switched.
pub fn insert(source: &str, mutants: &[Numbered<'_>]) -> Result<Inserted> {
    let file = syn::parse_file(source).context("parsing")?;
    let mut places = Places::default();
    places.visit_file(&file);
    let (mut insertions, mut inserted) = (Vec::new(), Inserted::default());
    for &(number, mutant) in mutants {
        let span = offset(source, mutant.start)..offset(source, mutant.end);
        match places.of(mutant.genre, &span) {
            _ if places.constants.iter().any(|one| one.contains(&span.start)) => {
                inserted.constant.push(number);
            }
            Some(Place::Body(block)) if mutant.returns_impl => {
                let place = Place::IteratorBody(block);
                insertions.extend(place.insertions(source, number, &span, &mutant.replacement));
            }
            Some(place) => insertions.extend(place.insertions(source, number, &span, &mutant.replacement)),
            None => inserted.forbidden.push(number),
        }
    }
    insertions.sort_by_key(|insertion| insertion.order);
    let mut at = 0;
    for insertion in insertions {
        let before = source.get(at..insertion.order.at).context("a place inside a character")?;
        inserted.text.push_str(before);
        inserted.text.push_str(&insertion.text);
        at = insertion.order.at;
    }
    inserted.text.push_str(source.get(at..).unwrap_or_default());
    Ok(inserted)
}

/// The part of a changed text that belongs to one mutant.
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    pub number: u32,
    /// The changed code; otherwise the switch before it.
    pub is_change: bool,
}

/// The innermost part of a changed text that contains a range.
pub fn part_of(text: &str, range: &Range<usize>) -> Option<Part> {
    let before = text.get(..range.start)?;
    let mut closed = Vec::new();
    for (at, _) in before.match_indices("/*").collect::<Vec<_>>().into_iter().rev() {
        let marker = before.get(at + 2..)?.split("*/").next()?;
        let (kind, digits) = marker.split_at_checked(1)?;
        let Ok(number) = digits.parse::<u32>() else { continue };
        match kind {
            ">" | ")" => closed.push((number, kind == ">")),
            "<" | "(" => {
                let is_change = kind == "<";
                match closed.iter().position(|one| *one == (number, is_change)) {
                    Some(position) => drop(closed.remove(position)),
                    None => return Some(Part { number, is_change }),
                }
            }
            _ => {}
        }
    }
    None
}

/// The lines of the match whose value is on this line; empty if there is none.
pub fn lines_of_match(source: &str, line: usize) -> Result<Range<usize>> {
    struct Matches {
        line: usize,
        found: Range<usize>,
    }
    impl<'ast> Visit<'ast> for Matches {
        fn visit_expr_match(&mut self, expression: &'ast syn::ExprMatch) {
            if expression.expr.span().start().line == self.line {
                let span = expression.span();
                self.found = span.start().line..span.end().line + 1;
            }
            visit::visit_expr_match(self, expression);
        }
    }
    let mut matches = Matches { line, found: 0..0 };
    matches.visit_file(&syn::parse_file(source).context("parsing")?);
    Ok(matches.found)
}

fn switch(number: u32) -> String {
    format!("/*({number}*/::lz_core::mutant({number})/*){number}*/")
}

fn change(number: u32, text: &str) -> String {
    format!("/*<{number}*/{text}/*>{number}*/")
}

/// The order of insertions: by place; at one place what ends there comes first, inner before outer, and then what starts there, outer
/// before inner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Order {
    at: usize,
    starts: bool,
    /// Smaller is inserted earlier.
    rank: (isize, isize),
}

#[derive(Debug)]
struct Insertion {
    order: Order,
    text: String,
}

/// What a mutant is wrapped around.
#[derive(Debug, Clone)]
enum Place {
    Expression(Range<usize>),
    /// A compound assignment, which has no value.
    Assignment(Range<usize>),
    /// The inside of a function's block.
    Body(Range<usize>),
    /// The inside of the block of a function that returns an `impl Iterator`: both branches must have one type.
    IteratorBody(Range<usize>),
    /// The pattern of a match arm, and its guard.
    Arm {
        arm: Range<usize>,
        pattern: Range<usize>,
        guard: Option<Range<usize>>,
    },
}

impl Place {
    fn insertions(
        &self,
        source: &str,
        number: u32,
        span: &Range<usize>,
        replacement: &str,
    ) -> Vec<Insertion> {
        let around = |range: &Range<usize>, is_outer: bool, before: String, after: &str| {
            let (start, end) = (range.start as isize, range.end as isize);
            // Several mutants of one range nest by their numbers.
            let depth = if is_outer { -1 } else { number as isize };
            vec![
                Insertion {
                    order: Order { at: range.start, starts: true, rank: (-end, depth) },
                    text: before,
                },
                Insertion {
                    order: Order { at: range.end, starts: false, rank: (-start, -depth) },
                    text: after.to_owned(),
                },
            ]
        };
        let changed = |range: &Range<usize>| {
            let part = |from, to| source.get(from..to).unwrap_or_default();
            change(number, &[part(range.start, span.start), replacement, part(span.end, range.end)].concat())
        };
        match self {
            Place::Expression(range) => {
                let before = format!("(if {} {{ {} }} else {{ ", switch(number), changed(range));
                around(range, false, before, " })")
            }
            Place::Assignment(range) => {
                let before = format!("{{ if {} {{ {} }} else {{ ", switch(number), changed(range));
                around(range, false, before, " } }")
            }
            Place::Body(block) => {
                let text = format!(
                    " if {} {{ return {}; }} ",
                    switch(number),
                    change(number, &format!("{{ {replacement} }}"))
                );
                let rank = (isize::MIN, number as isize);
                vec![Insertion { order: Order { at: block.start, starts: true, rank }, text }]
            }
            Place::IteratorBody(block) => {
                let changed = change(number, &format!("{{ {replacement} }}"));
                let before = format!(
                    " if {} {{ ::lz_core::Either::Changed({changed}) }} else {{ ::lz_core::Either::Original({{ ",
                    switch(number)
                );
                around(block, false, before, " }) } ")
            }
            Place::Arm { pattern, guard: None, .. } => {
                let order = Order { at: pattern.end, starts: false, rank: (0, 0) };
                vec![Insertion { order, text: format!(" if !{}", switch(number)) }]
            }
            Place::Arm { guard: Some(guard), .. } => {
                around(guard, true, format!("!{} && (", switch(number)), ")")
            }
        }
    }
}

/// Where mutants can be, by genre.
#[derive(Default)]
struct Places {
    /// Operators with the expression around them.
    operators: Vec<(Range<usize>, Place)>,
    bodies: Vec<Range<usize>>,
    arms: Vec<Place>,
    guards: Vec<Range<usize>>,
    structs: Vec<Range<usize>>,
    constants: Vec<Range<usize>>,
    /// The chain of `&&` and `||` whose operand is visited next.
    chain: Option<Range<usize>>,
}

impl Places {
    fn of(&self, genre: Genre, span: &Range<usize>) -> Option<Place> {
        let innermost = |ranges: &[Range<usize>]| {
            let around = ranges.iter().filter(|range| range.start <= span.start && span.end <= range.end);
            around.min_by_key(|range| range.len()).cloned()
        };
        match genre {
            Genre::BinaryOperator | Genre::UnaryOperator => {
                let place = self.operators.iter().find(|(operator, _)| operator.start == span.start);
                place.map(|(_, place)| place.clone())
            }
            Genre::FnValue => innermost(&self.bodies).map(Place::Body),
            Genre::StructField => innermost(&self.structs).map(Place::Expression),
            Genre::MatchArmGuard => {
                self.guards.iter().find(|guard| *guard == span).cloned().map(Place::Expression)
            }
            Genre::MatchArm => {
                let is_it =
                    |place: &&Place| matches!(place, Place::Arm { arm, .. } if arm.start == span.start);
                self.arms.iter().find(is_it).cloned()
            }
        }
    }

    fn body(&mut self, block: &syn::Block) {
        let range = block.span().byte_range();
        self.bodies.push(range.start + 1..range.end.saturating_sub(1));
    }
}

fn is_logical(operator: &syn::BinOp) -> bool {
    matches!(operator, syn::BinOp::And(_) | syn::BinOp::Or(_))
}

/// Whether an operand is a `let` of a chain, which no other operator may join.
fn has_let(expression: &syn::Expr) -> bool {
    match expression {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Places {
    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        let (range, operator) = (binary.span().byte_range(), binary.op.span().byte_range());
        use syn::BinOp::*;
        let is_assignment = matches!(
            binary.op,
            AddAssign(_)
                | SubAssign(_)
                | MulAssign(_)
                | DivAssign(_)
                | RemAssign(_)
                | BitXorAssign(_)
                | BitAndAssign(_)
                | BitOrAssign(_)
                | ShlAssign(_)
                | ShrAssign(_)
        );
        // `a && b && c` with a mutant is `a || b && c`, and not `(a || b) && c`: the branch has the whole chain.
        let range = self.chain.take().filter(|_| is_logical(&binary.op)).unwrap_or(range);
        let is_free = !has_let(&binary.left) && !has_let(&binary.right);
        if is_free {
            let place = if is_assignment {
                Place::Assignment(range.clone())
            } else {
                Place::Expression(range.clone())
            };
            self.operators.push((operator, place));
        }
        for operand in [&binary.left, &binary.right] {
            self.chain = (is_free && is_logical(&binary.op)).then(|| range.clone());
            if !matches!(&**operand, syn::Expr::Binary(inner) if is_logical(&inner.op)) {
                self.chain = None;
            }
            self.visit_expr(operand);
        }
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        self.operators.push((unary.op.span().byte_range(), Place::Expression(unary.span().byte_range())));
        visit::visit_expr_unary(self, unary);
    }

    fn visit_expr_struct(&mut self, expression: &'ast syn::ExprStruct) {
        self.structs.push(expression.span().byte_range());
        visit::visit_expr_struct(self, expression);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        let (pattern, guard) = match &arm.pat {
            syn::Pat::Guard(guarded) => (&*guarded.pat, Some(guarded.guard.span().byte_range())),
            pattern => (pattern, None),
        };
        let pattern = pattern.span().byte_range();
        self.guards.extend(guard.clone());
        self.arms.push(Place::Arm { arm: arm.span().byte_range(), pattern, guard });
        visit::visit_arm(self, arm);
    }

    fn visit_item_const(&mut self, constant: &'ast syn::ItemConst) {
        self.constants.push(constant.expr.span().byte_range());
        visit::visit_item_const(self, constant);
    }

    fn visit_impl_item_const(&mut self, constant: &'ast syn::ImplItemConst) {
        self.constants.push(constant.expr.span().byte_range());
        visit::visit_impl_item_const(self, constant);
    }

    fn visit_item_static(&mut self, constant: &'ast syn::ItemStatic) {
        self.constants.push(constant.expr.span().byte_range());
        visit::visit_item_static(self, constant);
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.body(&function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.body(&function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.body(block);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

/// The byte offset of a position.
fn offset(source: &str, position: Position) -> usize {
    let before: usize = source.split_inclusive('\n').take(position.line - 1).map(str::len).sum();
    let line = source.get(before..).unwrap_or_default();
    before + line.char_indices().nth(position.column - 1).map_or(line.len(), |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
fn decide(a: i32, b: &mut i32) -> bool {
    *b += a;
    match a {
        1 => true,
        2 if !(a + 1 == *b) => false,
        _ => S { x: 1, ..S::new() }.is_it(),
    }
}
";

    fn mutant(genre: Genre, line: usize, columns: Range<usize>, replacement: &str) -> Mutant {
        Mutant {
            name: String::new(),
            package: String::new(),
            file: String::new(),
            genre,
            start: Position { line, column: columns.start },
            end: Position { line, column: columns.end },
            replacement: replacement.to_owned(),
            returns_impl: false,
        }
    }

    /// Without the markers, which would make the expected texts unreadable.
    fn plain(text: &str) -> String {
        let (mut plain, mut rest) = (String::new(), text);
        while let Some((before, after)) = rest.split_once("/*") {
            plain.push_str(before);
            rest = after.split_once("*/").expect("a comment ends").1;
        }
        (plain + rest).replace("::lz_core::mutant", "m")
    }

    #[test]
    fn mutants_nest_like_their_expressions() {
        let mutants = [
            mutant(Genre::FnValue, 2, 5..13, "true"),
            mutant(Genre::BinaryOperator, 2, 8..10, "-="),
            mutant(Genre::MatchArm, 4, 9..19, ""),
            mutant(Genre::MatchArm, 5, 9..37, ""),
            mutant(Genre::MatchArmGuard, 5, 14..28, "true"),
            mutant(Genre::UnaryOperator, 5, 14..15, ""),
            mutant(Genre::BinaryOperator, 5, 22..24, "!="),
            mutant(Genre::BinaryOperator, 5, 18..19, "-"),
            mutant(Genre::StructField, 6, 18..23, ""),
        ];
        let numbered: Vec<Numbered<'_>> = (1..).zip(&mutants).collect();
        let Inserted { text, forbidden, .. } = insert(SOURCE, &numbered).unwrap();
        assert!(forbidden.is_empty());
        let expected = "\
fn decide(a: i32, b: &mut i32) -> bool { if m(1) { return { true }; } 
    { if m(2) { *b -= a } else { *b += a } };
    match a {
        1 if !m(3) => true,
        2 if !m(4) && ((if m(5) { true } else { (if m(6) { (a + 1 == *b) } else { !((if m(7) { a + 1 != *b } else { (if m(8) { a - 1 } else { a + 1 }) == *b })) }) })) => false,
        _ => (if m(9) { S {  ..S::new() } } else { S { x: 1, ..S::new() } }).is_it(),
    }
}
";
        assert_eq!(plain(&text), expected);
        syn::parse_file(&text).expect("the text is Rust");
        // An error is attributed to the innermost mutant.
        let part = |needle: &str| {
            let at = text.find(needle).unwrap();
            part_of(&text, &(at..at + 1)).map(|part| (part.number, part.is_change))
        };
        assert_eq!(part("a - 1"), Some((8, true)));
        assert_eq!(part("::lz_core::mutant(8)"), Some((8, false)));
        assert_eq!(part("*b -= a"), Some((2, true)));
        assert_eq!(part("match a"), None);
    }

    #[test]
    fn iterators_of_both_branches_have_one_type() {
        let source = "fn f() -> impl Iterator<Item = u8> {\n    some()\n}\n";
        let mut mutant = mutant(Genre::FnValue, 2, 5..11, "::std::iter::empty()");
        mutant.returns_impl = true;
        let Inserted { text, .. } = insert(source, &[(1, &mutant), (2, &mutant)]).unwrap();
        let expected = "{ if m(1) { ::lz_core::Either::Changed({ ::std::iter::empty() }) } else { ::lz_core::Either::Original({  \
                        if m(2) { ::lz_core::Either::Changed({ ::std::iter::empty() }) } else { ::lz_core::Either::Original({ \n    \
                        some()\n }) }  }) } }";
        assert!(plain(&text).contains(expected), "{}", plain(&text));
        syn::parse_file(&text).expect("the text is Rust");
    }

    #[test]
    fn a_match_is_found_by_the_line_of_its_value() {
        assert_eq!(lines_of_match(SOURCE, 3).unwrap(), 3..8);
        assert_eq!(lines_of_match(SOURCE, 4).unwrap(), 0..0);
    }

    #[test]
    fn a_chain_with_let_has_no_switch() {
        let source = "fn f() {\n    if a && let Some(b) = c && b == 1 {}\n}\n";
        let mutants =
            [mutant(Genre::BinaryOperator, 2, 10..12, "||"), mutant(Genre::BinaryOperator, 2, 34..36, "!=")];
        let numbered: Vec<Numbered<'_>> = (1..).zip(&mutants).collect();
        let Inserted { text, forbidden, .. } = insert(source, &numbered).unwrap();
        assert_eq!(forbidden, [1]);
        assert!(plain(&text).contains("c && (if m(2) { b != 1 } else { b == 1 }) {}"), "{text}");
    }

    #[test]
    fn a_mutant_of_a_chain_has_the_precedence_of_its_operators() {
        let source = "fn f() {\n    a && b && c || (d && e)\n}\n";
        let mutants =
            [mutant(Genre::BinaryOperator, 2, 7..9, "||"), mutant(Genre::BinaryOperator, 2, 23..25, "||")];
        let numbered: Vec<Numbered<'_>> = (1..).zip(&mutants).collect();
        let Inserted { text, .. } = insert(source, &numbered).unwrap();
        let expected = "(if m(1) { a || b && c || (d && e) } else { a && b && c || ((if m(2) { d || e } else { d && e })) })";
        assert!(plain(&text).contains(expected), "{}", plain(&text));
    }

    #[test]
    fn constants_have_no_switch() {
        let source = "const A: u8 = 1 << 2;\nconst fn f() -> u8 {\n    1 << 2\n}\n";
        let mutants =
            [mutant(Genre::BinaryOperator, 1, 17..19, ">>"), mutant(Genre::BinaryOperator, 3, 7..9, ">>")];
        let numbered: Vec<Numbered<'_>> = (1..).zip(&mutants).collect();
        let Inserted { text, constant, .. } = insert(source, &numbered).unwrap();
        assert_eq!(constant, [1]);
        assert!(plain(&text).contains("(if m(2) { 1 >> 2 } else { 1 << 2 })"), "{text}");
    }
}
