//! Errors of parsing and type checking. Diagnostics add the file, the code and the source excerpt.

use std::fmt;

use super::ast::Span;
use super::value::{EnumType, Type};

/// One error in an expression, with its location.
#[derive(Debug, Clone, PartialEq)]
pub struct ExprError {
    /// The kind of error.
    pub kind: ExprErrorKind,
    /// The location, in bytes of the expression's text.
    pub span: Span,
}

/// The kind of an error in an expression.
#[derive(Debug, Clone, PartialEq)]
pub enum ExprErrorKind {
    /// The text is empty or only whitespace.
    Empty,
    /// A character that is not the start of a token.
    UnexpectedCharacter {
        /// The character.
        character: char,
    },
    /// An operator of another language (`&&`, `!`, `=`), with its equivalent.
    ForeignOperator {
        /// The operator in the text.
        found: &'static str,
        /// The equivalent operator.
        instead: &'static str,
    },
    /// An unexpected token.
    UnexpectedToken {
        /// The token as written.
        found: String,
        /// What was expected.
        expected: &'static str,
    },
    /// The text ends too early.
    UnexpectedEnd {
        /// What was expected.
        expected: &'static str,
    },
    /// A parenthesis or bracket that is never closed.
    Unclosed {
        /// `(` or `[`.
        opening: char,
    },
    /// A string without its closing quote.
    UnterminatedString,
    /// A malformed number.
    BadNumber {
        /// The text.
        text: String,
    },
    /// An integer that 64 bits cannot hold, or a float that is infinite.
    NumberTooLarge {
        /// The text.
        text: String,
    },
    /// A list that is not the right operand of `in`.
    MisplacedList,
    /// `in []`, which is always false.
    EmptyList,
    /// Nesting exceeds the limit.
    NestingTooDeep {
        /// The limit.
        limit: usize,
    },
    /// More operands and operators than the limit.
    TooLarge {
        /// The limit.
        limit: usize,
    },
    /// An unknown variable.
    UnknownName {
        /// The name.
        name: String,
        /// A variable with a similar name.
        suggestion: Option<String>,
    },
    /// A function that does not exist.
    UnknownFunction {
        /// The name.
        name: String,
        /// A function with a similar name.
        suggestion: Option<String>,
    },
    /// `given(name)` with a name that is not an optional input.
    UnknownInput {
        /// The name.
        name: String,
        /// An optional input with a similar name.
        suggestion: Option<String>,
    },
    /// A case that the enum does not have.
    UnknownCase {
        /// The name.
        name: String,
        /// The cases that it has.
        cases: EnumType,
        /// A case with a similar name.
        suggestion: Option<String>,
    },
    /// A quoted case whose enum cannot be inferred.
    CaseWithoutEnum {
        /// The case.
        text: String,
    },
    /// The argument of `given` is not a bare name.
    GivenNeedsName,
    /// Wrong number of arguments.
    WrongArgumentCount {
        /// The function.
        function: &'static str,
        /// The expected number.
        expected: &'static str,
        /// The actual number.
        found: usize,
    },
    /// A value has the wrong type.
    TypeMismatch {
        /// The context: an operator, a function, or the expression as a whole.
        context: String,
        /// The expected types.
        expected: String,
        /// The actual type.
        found: Type,
    },
    /// Two operands have different types.
    DifferentTypes {
        /// The operator between them.
        context: String,
        /// The type of the left one.
        left: Type,
        /// The type of the right one.
        right: Type,
    },
}

impl ExprErrorKind {
    /// A similar name to use instead, if there is one.
    pub fn suggestion(&self) -> Option<&str> {
        match self {
            ExprErrorKind::UnknownName { suggestion, .. }
            | ExprErrorKind::UnknownFunction { suggestion, .. }
            | ExprErrorKind::UnknownInput { suggestion, .. }
            | ExprErrorKind::UnknownCase { suggestion, .. } => suggestion.as_deref(),
            ExprErrorKind::ForeignOperator { instead, .. } => Some(instead),
            _ => None,
        }
    }

    /// Whether this is a syntax error, as opposed to an error of name resolution or types.
    pub fn is_syntax(&self) -> bool {
        !matches!(
            self,
            ExprErrorKind::UnknownName { .. }
                | ExprErrorKind::UnknownFunction { .. }
                | ExprErrorKind::UnknownInput { .. }
                | ExprErrorKind::UnknownCase { .. }
                | ExprErrorKind::CaseWithoutEnum { .. }
                | ExprErrorKind::GivenNeedsName
                | ExprErrorKind::WrongArgumentCount { .. }
                | ExprErrorKind::TypeMismatch { .. }
                | ExprErrorKind::DifferentTypes { .. }
        )
    }
}

impl fmt::Display for ExprErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExprErrorKind::Empty => write!(f, "the expression is empty")?,
            ExprErrorKind::UnexpectedCharacter { character } => {
                write!(f, "unexpected character {character:?}")?;
            }
            ExprErrorKind::ForeignOperator { found, instead } => {
                return write!(f, "`{found}` is not an operator; write `{instead}`");
            }
            ExprErrorKind::UnexpectedToken { found, expected } => {
                write!(f, "expected {expected}, found `{found}`")?;
            }
            ExprErrorKind::UnexpectedEnd { expected } => write!(f, "expected {expected}, but the text ends")?,
            ExprErrorKind::Unclosed { opening } => write!(f, "`{opening}` is never closed")?,
            ExprErrorKind::UnterminatedString => write!(f, "the string has no closing quote")?,
            ExprErrorKind::BadNumber { text } => write!(f, "`{text}` is not a number")?,
            ExprErrorKind::NumberTooLarge { text } => write!(f, "`{text}` does not fit into 64 bits")?,
            ExprErrorKind::MisplacedList => write!(f, "a list is allowed only as the right operand of `in`")?,
            ExprErrorKind::EmptyList => write!(f, "an empty list contains nothing")?,
            ExprErrorKind::NestingTooDeep { limit } => {
                write!(f, "the expression exceeds the nesting limit of {limit}")?;
            }
            ExprErrorKind::TooLarge { limit } => {
                write!(f, "the expression has more than {limit} operands and operators")?;
            }
            ExprErrorKind::UnknownName { name, .. } => write!(f, "unknown name `{name}`")?,
            ExprErrorKind::UnknownFunction { name, .. } => write!(f, "unknown function `{name}`")?,
            ExprErrorKind::UnknownInput { name, .. } => {
                write!(f, "`{name}` is not an optional input, so it cannot be used with `given`")?;
            }
            ExprErrorKind::UnknownCase { name, cases, .. } => {
                write!(f, "unknown case `{name}`; expected one of {}", quoted(cases))?;
            }
            ExprErrorKind::CaseWithoutEnum { text } => {
                write!(f, "cannot infer the enum of case `{text:?}`")?;
            }
            ExprErrorKind::GivenNeedsName => write!(f, "`given` takes the bare name of an optional input")?,
            ExprErrorKind::WrongArgumentCount { function, expected, found } => {
                write!(f, "`{function}` takes {expected}, found {found}")?;
            }
            ExprErrorKind::TypeMismatch { context, expected, found } => {
                write!(f, "{context} requires {expected}, found {found}")?;
            }
            ExprErrorKind::DifferentTypes { context, left, right } => {
                write!(f, "{context} requires two values of the same type, found {left} and {right}")?;
            }
        }
        match self.suggestion() {
            Some(name) => write!(f, "; did you mean `{name}`?"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ExprError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(formatter)
    }
}

impl std::error::Error for ExprError {}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
