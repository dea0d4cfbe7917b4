//! Patterns as data: shapes of expressions with captured operands and numbers.
//!
//! A pattern is matched from its result down. Operands of sums and products match in any order; a product matches in any grouping. A name
//! that is captured twice must be the same node or number.

use super::query;
use super::rewriter::Rewriter;
use crate::graph::{Graph, NodeId};

/// A number in a pattern.
#[derive(Debug, Clone, Copy)]
pub enum Number {
    /// This number, up to the rounding of f32 constants.
    Is(f64),
    /// Any number.
    Capture(&'static str),
}

/// An expression to match.
#[derive(Debug, Clone)]
pub enum Pattern {
    /// Any node.
    Capture(&'static str),
    /// A function of `primitive.unary`.
    Unary(&'static str, Box<Pattern>),
    /// A function of `primitive.activation` without constants of its own.
    Activation(&'static str, Box<Pattern>),
    /// A function of two tensors; `add`, `mul`, `minimum` and `maximum` in any order.
    Binary(&'static str, Box<[Pattern; 2]>),
    /// A function of `primitive.reduce`.
    Reduce(&'static str, Box<Pattern>),
    /// A sum with a number.
    Plus(Box<Pattern>, Number),
    /// A number times tensors, in any order and grouping, quotients by numbers included.
    Product(Number, Vec<Pattern>),
    /// A power: `pow`, `square`, or a product of equal factors.
    Power(Box<Pattern>, u32),
    /// `[rows]` as `[rows, 1]`, then repeated to `[rows, n]`, with functions of one element in between.
    Across(Box<Pattern>),
    /// `[rows]` as `[rows, 1]`.
    Column(Box<Pattern>),
    /// Any of these.
    Either(Vec<Pattern>),
}

/// `function(x)`.
pub fn unary(function: &'static str, x: Pattern) -> Pattern {
    Pattern::Unary(function, Box::new(x))
}

/// `function(a, b)`.
pub fn binary(function: &'static str, a: Pattern, b: Pattern) -> Pattern {
    Pattern::Binary(function, Box::new([a, b]))
}

/// `x + number`.
pub fn plus(x: Pattern, number: Number) -> Pattern {
    Pattern::Plus(Box::new(x), number)
}

/// `factor * a * b * ...`.
pub fn product(factor: f64, factors: impl Into<Vec<Pattern>>) -> Pattern {
    Pattern::Product(Number::Is(factor), factors.into())
}

/// `x^exponent`.
pub fn power(x: Pattern, exponent: u32) -> Pattern {
    Pattern::Power(Box::new(x), exponent)
}

/// A captured node.
pub fn capture(name: &'static str) -> Pattern {
    Pattern::Capture(name)
}

/// What a match found.
#[derive(Debug, Clone, Default)]
pub struct Match {
    nodes: Vec<(&'static str, NodeId)>,
    numbers: Vec<(&'static str, f64)>,
    /// Matched nodes below the root that were not captured.
    pub interior: Vec<NodeId>,
}

impl Match {
    /// A captured node.
    pub fn node(&self, name: &str) -> Option<NodeId> {
        self.nodes.iter().find(|(known, _)| *known == name).map(|(_, id)| *id)
    }

    /// A captured number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.numbers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    fn bind(&mut self, name: &'static str, id: NodeId) -> bool {
        match self.node(name) {
            Some(known) => known == id,
            None => {
                self.nodes.push((name, id));
                true
            }
        }
    }

    fn accepts(&mut self, number: Number, value: f64) -> bool {
        match number {
            Number::Is(expected) => close(expected, value),
            Number::Capture(name) => match self.number(name) {
                Some(known) => known == value,
                None => {
                    self.numbers.push((name, value));
                    true
                }
            },
        }
    }
}

/// Equal up to the rounding of constants to f32 and of their products.
fn close(expected: f64, value: f64) -> bool {
    (expected - value).abs() <= 1e-6 * expected.abs()
}

impl Pattern {
    /// Matches the expression whose result is `root`, if nothing outside of it uses its intermediate results.
    pub fn find(&self, rewriter: &Rewriter<'_>, root: NodeId) -> Option<Match> {
        let mut found = Match::default();
        if !self.matches(rewriter, root, &mut found) {
            return None;
        }
        found.interior.retain(|id| *id != root);
        rewriter.contains_all_uses(root, &found.interior).then_some(found)
    }

    fn matches(&self, rewriter: &Rewriter<'_>, id: NodeId, found: &mut Match) -> bool {
        let graph = rewriter.graph();
        if let Pattern::Capture(name) = self {
            return found.bind(name, id);
        }
        if let Pattern::Either(all) = self {
            return all.iter().any(|one| attempt(found, |found| one.matches(rewriter, id, found)));
        }
        found.interior.push(id);
        match self {
            Pattern::Capture(_) | Pattern::Either(_) => false,
            Pattern::Unary(function, x) => query::unary(graph, id)
                .is_some_and(|(name, input)| name == *function && x.matches(rewriter, input, found)),
            Pattern::Activation(function, x) => super::activations::plain(graph, id)
                .is_some_and(|(name, input)| name == *function && x.matches(rewriter, input, found)),
            Pattern::Reduce(function, x) => {
                query::calls(graph, id, "primitive.reduce")
                    && query::case(graph, id, "function") == Some(function)
                    && graph.node(id).input(0).is_some_and(|input| x.matches(rewriter, input, found))
            }
            Pattern::Binary(function, operands) => {
                let Some((a, b)) = query::binary_of(graph, id, function) else { return false };
                let [first, second] = operands.as_ref();
                let mut both = |a, b| {
                    attempt(found, |found| {
                        first.matches(rewriter, a, found) && second.matches(rewriter, b, found)
                    })
                };
                let commutes = matches!(*function, "add" | "mul" | "minimum" | "maximum");
                both(a, b) || (commutes && both(b, a))
            }
            Pattern::Plus(x, number) => query::shifted(graph, id).is_some_and(|(input, value)| {
                found.accepts(*number, value) && x.matches(rewriter, input, found)
            }),
            Pattern::Power(x, exponent) => match base(graph, id, *exponent, &mut found.interior) {
                Some(input) => x.matches(rewriter, input, found),
                None => false,
            },
            Pattern::Product(number, patterns) => {
                let mut coefficient = 1.0;
                let mut factors = Vec::new();
                flatten(rewriter, id, true, &mut coefficient, &mut factors, &mut found.interior);
                factors.len() == patterns.len()
                    && found.accepts(*number, coefficient)
                    && assign(rewriter, patterns, &factors, found)
            }
            Pattern::Column(x) => query::reshape(graph, id)
                .is_some_and(|input| is_column(graph, input, id) && x.matches(rewriter, input, found)),
            Pattern::Across(x) => query::expand(graph, id).is_some_and(|input| {
                let (from, to) = (&graph.node(input).shape, &graph.node(id).shape);
                let rows = from.len().checked_sub(1);
                rows.is_some_and(|rows| {
                    from.len() == to.len() && from[rows].is(1) && from[..rows] == to[..rows]
                }) && x.matches(rewriter, input, found)
            }),
        }
    }
}

/// Undoes captures if it does not succeed.
fn attempt(found: &mut Match, with: impl FnOnce(&mut Match) -> bool) -> bool {
    let before = found.clone();
    let succeeds = with(found);
    if !succeeds {
        *found = before;
    }
    succeeds
}

fn is_column(graph: &Graph, from: NodeId, to: NodeId) -> bool {
    match graph.node(to).shape.split_last() {
        Some((last, rows)) => last.is(1) && graph.node(from).shape == rows,
        None => false,
    }
}

/// The base of a power with this exponent.
fn base(graph: &Graph, id: NodeId, exponent: u32, interior: &mut Vec<NodeId>) -> Option<NodeId> {
    if let Some(with) = query::with_scalar(graph, id) {
        let fits = with.function == "pow" && !with.reversed && with.value == f64::from(exponent);
        return fits.then_some(with.x);
    }
    if let Some((function, x)) = query::unary(graph, id) {
        return (function == "square" && exponent == 2).then_some(x);
    }
    let (a, b) = query::binary_of(graph, id, "mul")?;
    if exponent == 2 {
        return (a == b).then_some(a);
    }
    // `x * x^(n-1)` in either order.
    for (x, rest) in [(a, b), (b, a)] {
        let mut inner = vec![rest];
        if base(graph, rest, exponent - 1, &mut inner) == Some(x) {
            interior.extend(inner);
            return Some(x);
        }
    }
    None
}

/// The factors of a product. Products that something else uses as well are factors themselves.
fn flatten(
    rewriter: &Rewriter<'_>,
    id: NodeId,
    is_root: bool,
    coefficient: &mut f64,
    factors: &mut Vec<NodeId>,
    interior: &mut Vec<NodeId>,
) {
    let graph = rewriter.graph();
    if is_root || rewriter.uses(id) == 1 {
        if let Some((x, factor)) = query::scaled(graph, id) {
            *coefficient *= factor;
            interior.push(id);
            return flatten(rewriter, x, false, coefficient, factors, interior);
        }
        if let Some((a, b)) = query::binary_of(graph, id, "mul").filter(|(a, b)| a != b) {
            interior.push(id);
            flatten(rewriter, a, false, coefficient, factors, interior);
            return flatten(rewriter, b, false, coefficient, factors, interior);
        }
    }
    factors.push(id);
}

/// Matches every pattern with another factor.
fn assign(rewriter: &Rewriter<'_>, patterns: &[Pattern], factors: &[NodeId], found: &mut Match) -> bool {
    let Some((first, rest)) = patterns.split_first() else { return factors.is_empty() };
    (0..factors.len()).any(|index| {
        let mut others = factors.to_vec();
        let factor = others.remove(index);
        attempt(found, |found| {
            first.matches(rewriter, factor, found) && assign(rewriter, rest, &others, found)
        })
    })
}
