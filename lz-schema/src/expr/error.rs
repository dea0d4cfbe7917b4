//! What can be wrong with an expression before it runs. Diagnostics add the file, the code and the underlining.

use std::fmt;

use super::ast::Span;
use super::value::{EnumType, Type};

/// One mistake in an expression and where it is.
#[derive(Debug, Clone, PartialEq)]
pub struct ExprError {
    /// What is wrong.
    pub kind: ExprErrorKind,
    /// Where, in bytes of the expression's text.
    pub span: Span,
}

/// What is wrong with an expression.
#[derive(Debug, Clone, PartialEq)]
pub enum ExprErrorKind {
    /// There is nothing but blanks.
    Empty,
    /// A character that no token begins with.
    UnexpectedCharacter {
        /// The character.
        character: char,
    },
    /// An operator of another language (`&&`, `!`, `=`), with the one of this language.
    ForeignOperator {
        /// What was written.
        found: &'static str,
        /// What to write.
        instead: &'static str,
    },
    /// A token where another was needed.
    UnexpectedToken {
        /// The token as written.
        found: String,
        /// What would have fitted.
        expected: &'static str,
    },
    /// The text ends too early.
    UnexpectedEnd {
        /// What would have fitted.
        expected: &'static str,
    },
    /// A parenthesis or bracket that is never closed.
    Unclosed {
        /// `(` or `[`.
        opening: char,
    },
    /// A string without its closing quote.
    UnterminatedString,
    /// Something that begins like a number and is none.
    BadNumber {
        /// The text.
        text: String,
    },
    /// An integer that 64 bits cannot hold, or a float that is infinite.
    NumberTooLarge {
        /// The text.
        text: String,
    },
    /// A list anywhere but to the right of `in`.
    MisplacedList,
    /// `in []`, which nothing satisfies.
    EmptyList,
    /// Parentheses and the like are nested deeper than the limit.
    NestingTooDeep {
        /// The limit.
        limit: usize,
    },
    /// More operands and operators than the limit.
    TooLarge {
        /// The limit.
        limit: usize,
    },
    /// A name that is no variable.
    UnknownName {
        /// The name.
        name: String,
        /// A variable with nearly that name.
        suggestion: Option<String>,
    },
    /// A function that does not exist.
    UnknownFunction {
        /// The name.
        name: String,
        /// A function with nearly that name.
        suggestion: Option<String>,
    },
    /// `given(name)` of something that is no optional input.
    UnknownInput {
        /// The name.
        name: String,
        /// An optional input with nearly that name.
        suggestion: Option<String>,
    },
    /// A case that the enum does not have.
    UnknownCase {
        /// The name.
        name: String,
        /// The cases that it has.
        cases: EnumType,
        /// A case with nearly that name.
        suggestion: Option<String>,
    },
    /// A quoted case where nothing says which enum it belongs to.
    CaseWithoutEnum {
        /// The case.
        text: String,
    },
    /// `given` of something that is not a bare name.
    GivenNeedsName,
    /// Too many or too few arguments.
    WrongArgumentCount {
        /// The function.
        function: &'static str,
        /// How many it takes.
        expected: &'static str,
        /// How many were given.
        found: usize,
    },
    /// A value of a type that does not fit its place.
    TypeMismatch {
        /// The place: an operator, a function, or the expression as a whole.
        place: String,
        /// The types that fit.
        expected: String,
        /// The type that was found.
        found: Type,
    },
    /// Two values that must have one type and do not.
    DifferentTypes {
        /// The operator between them.
        place: String,
        /// The type of the left one.
        left: Type,
        /// The type of the right one.
        right: Type,
    },
}

impl ExprErrorKind {
    /// The name to use instead, where one is near.
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

    /// Whether the text could not be read at all, as opposed to being read and found to make no sense.
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
                return write!(f, "`{found}` is no operator here; write `{instead}`");
            }
            ExprErrorKind::UnexpectedToken { found, expected } => {
                write!(f, "expected {expected}, found `{found}`")?;
            }
            ExprErrorKind::UnexpectedEnd { expected } => write!(f, "expected {expected}, but the text ends")?,
            ExprErrorKind::Unclosed { opening } => write!(f, "`{opening}` is never closed")?,
            ExprErrorKind::UnterminatedString => write!(f, "the string has no closing quote")?,
            ExprErrorKind::BadNumber { text } => write!(f, "`{text}` is not a number")?,
            ExprErrorKind::NumberTooLarge { text } => write!(f, "`{text}` does not fit into 64 bits")?,
            ExprErrorKind::MisplacedList => write!(f, "a list may stand only to the right of `in`")?,
            ExprErrorKind::EmptyList => write!(f, "nothing is in an empty list")?,
            ExprErrorKind::NestingTooDeep { limit } => {
                write!(f, "the expression nests deeper than the limit of {limit}")?;
            }
            ExprErrorKind::TooLarge { limit } => {
                write!(f, "the expression has more than {limit} operands and operators")?;
            }
            ExprErrorKind::UnknownName { name, .. } => write!(f, "unknown name `{name}`")?,
            ExprErrorKind::UnknownFunction { name, .. } => write!(f, "unknown function `{name}`")?,
            ExprErrorKind::UnknownInput { name, .. } => {
                write!(f, "`{name}` is no optional input, so `given` cannot ask for it")?;
            }
            ExprErrorKind::UnknownCase { name, cases, .. } => {
                write!(f, "unknown case `{name}`; the cases are {}", quoted(cases))?;
            }
            ExprErrorKind::CaseWithoutEnum { text } => {
                write!(f, "`{text:?}` names a case, but nothing here says of which enum")?;
            }
            ExprErrorKind::GivenNeedsName => write!(f, "`given` takes the bare name of an optional input")?,
            ExprErrorKind::WrongArgumentCount { function, expected, found } => {
                write!(f, "`{function}` takes {expected}, found {found}")?;
            }
            ExprErrorKind::TypeMismatch { place, expected, found } => {
                write!(f, "{place} needs {expected}, found {found}")?;
            }
            ExprErrorKind::DifferentTypes { place, left, right } => {
                write!(f, "{place} needs two values of one type, found {left} and {right}")?;
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
