//! The types and values of the expression language.

use std::fmt;
use std::sync::Arc;

/// The case names of an enum, in order; a value is the index of its case. Enums with the same cases are equal.
pub type EnumType = Arc<[String]>;

/// The type of an expression.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Type {
    /// A signed 64-bit integer.
    Int,
    /// A 64-bit float.
    Float,
    /// True or false.
    Bool,
    /// One of the named cases.
    Enum(EnumType),
}

impl Type {
    /// The enum with these cases.
    pub fn enumeration<Case: Into<String>>(cases: impl IntoIterator<Item = Case>) -> Type {
        Type::Enum(cases.into_iter().map(Into::into).collect())
    }

    /// Whether the type is numeric: supports arithmetic and ordering.
    pub fn is_numeric(&self) -> bool {
        matches!(self, Type::Int | Type::Float)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Int => formatter.write_str("int"),
            Type::Float => formatter.write_str("float"),
            Type::Bool => formatter.write_str("bool"),
            Type::Enum(cases) => write!(formatter, "enum ({})", cases.join(", ")),
        }
    }
}

/// The value of a variable or of an expression.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// The index of an enum's case.
    Enum(u32),
}

impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Int(value) => write!(formatter, "{value}"),
            Value::Float(value) => write!(formatter, "{value:?}"),
            Value::Bool(value) => write!(formatter, "{value}"),
            Value::Enum(case) => write!(formatter, "case {case}"),
        }
    }
}
