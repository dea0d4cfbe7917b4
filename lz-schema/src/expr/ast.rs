//! The untyped syntax tree that the parser produces, with spans.

use std::fmt;

/// A range of byte offsets into the text of an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// The range from `start` up to, but without, `end`.
    pub fn new(start: usize, end: usize) -> Span {
        Span { start, end }
    }

    /// The smallest range that covers both.
    pub fn to(self, other: Span) -> Span {
        Span { start: self.start.min(other.start), end: self.end.max(other.end) }
    }

    /// The part of `text` that the range covers; empty when the range is not inside the text.
    pub fn of(self, text: &str) -> &str {
        text.get(self.start..self.end).unwrap_or("")
    }
}

/// One node of the untyped tree.
#[derive(Debug, Clone, PartialEq)]
pub struct Expr {
    /// Its kind.
    pub kind: ExprKind,
    /// Its span in the text.
    pub span: Span,
}

/// The kind of a node of the untyped tree.
#[derive(Debug, Clone, PartialEq)]
pub enum ExprKind {
    /// An integer literal.
    Int(i64),
    /// A float literal.
    Float(f64),
    /// `true` or `false`.
    Bool(bool),
    /// A quoted enum case.
    Text(String),
    /// A variable or a bare enum case; resolved with the scope.
    Name(String),
    /// `-operand`
    Negate(Box<Expr>),
    /// `not operand`
    Not(Box<Expr>),
    /// `left operator right`
    Arithmetic {
        /// Which one.
        operator: Arithmetic,
        /// The left operand.
        left: Box<Expr>,
        /// The right operand.
        right: Box<Expr>,
    },
    /// `left and right`, `left or right`
    Logic {
        /// Which one.
        operator: Logic,
        /// The left operand.
        left: Box<Expr>,
        /// The right operand, evaluated only if the left one does not determine the result.
        right: Box<Expr>,
    },
    /// `first < second <= third in [..]`: a chain of comparisons, joined by `and`.
    Compare {
        /// The leftmost operand.
        first: Box<Expr>,
        /// Each operator with its right operand.
        links: Vec<Link>,
    },
    /// `then if condition else otherwise`
    Conditional {
        /// The value when the condition holds.
        then: Box<Expr>,
        /// The condition.
        condition: Box<Expr>,
        /// The value when it does not.
        otherwise: Box<Expr>,
    },
    /// `function(arguments)`
    Call {
        /// The function's name.
        function: String,
        /// The span of the name.
        function_span: Span,
        /// The arguments.
        arguments: Vec<Expr>,
    },
}

/// One link of a chain of comparisons.
#[derive(Debug, Clone, PartialEq)]
pub enum Link {
    /// `operator operand`
    Compare {
        /// Which comparison.
        operator: Comparison,
        /// The right operand.
        operand: Expr,
    },
    /// `in [items]` or `not in [items]`
    Member {
        /// Whether it is `not in`.
        negated: bool,
        /// The items.
        items: Vec<Expr>,
        /// The span of the list, including brackets.
        span: Span,
    },
}

/// An arithmetic operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `/`, always a float
    Divide,
    /// `//`, rounds down
    FloorDivide,
    /// `%`, takes the sign of the divisor
    Modulo,
}

/// A comparison operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
}

impl Comparison {
    /// Whether it is an ordering, which only numbers have.
    pub fn is_ordering(self) -> bool {
        !matches!(self, Comparison::Equal | Comparison::NotEqual)
    }

    /// The equivalent comparison with exchanged operands.
    pub fn mirrored(self) -> Comparison {
        match self {
            Comparison::Less => Comparison::Greater,
            Comparison::LessOrEqual => Comparison::GreaterOrEqual,
            Comparison::Greater => Comparison::Less,
            Comparison::GreaterOrEqual => Comparison::LessOrEqual,
            Comparison::Equal | Comparison::NotEqual => self,
        }
    }
}

/// `and` or `or`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Logic {
    /// `and`
    And,
    /// `or`
    Or,
}

impl fmt::Display for Arithmetic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Arithmetic::Add => "+",
            Arithmetic::Subtract => "-",
            Arithmetic::Multiply => "*",
            Arithmetic::Divide => "/",
            Arithmetic::FloorDivide => "//",
            Arithmetic::Modulo => "%",
        })
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Comparison::Equal => "==",
            Comparison::NotEqual => "!=",
            Comparison::Less => "<",
            Comparison::LessOrEqual => "<=",
            Comparison::Greater => ">",
            Comparison::GreaterOrEqual => ">=",
        })
    }
}

impl fmt::Display for Logic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Logic::And => "and",
            Logic::Or => "or",
        })
    }
}
