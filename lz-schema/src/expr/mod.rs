//! The one expression language: shapes, defaults, constraints, kernel limits and policy rules all speak it.
//!
//! The way of a text: [`parse`] gives an untyped tree ([`ast`]), [`check`] resolves its names against a [`Scope`]
//! and types it ([`Typed`]), and a back end runs it: [`Program`] here, Rust tokens in the generator. Both back ends
//! call the same plain functions of [`arith`], so that they cannot disagree about a division.
//!
//! Nothing here knows what a variable stands for (an axis, a parameter, a device property): that is the scope's
//! business. Nothing here knows YAML, files or diagnostics' rendering either.

pub mod arith;
pub mod ast;
mod check;
mod error;
mod limits;
mod parse;
mod program;
mod scope;
mod suggest;
mod token;
mod typed;
mod value;

pub use arith::EvalError;
pub use ast::{Expr, Span};
pub use check::{check, check_expecting};
pub use error::{ExprError, ExprErrorKind};
pub use limits::{Conjunct, CutPoints, Limit, Limits, limits};
pub use parse::parse;
pub use program::{Program, Slots};
pub use scope::{NamedVariable, Scope, Variable, VariableTable};
pub use typed::{Function, Node, NodeKind, Typed};
pub use value::{EnumType, Type, Value};

/// How deep parentheses, calls, lists, `not`, unary minus and `if` may nest. Recursion is bounded by it.
pub const MAX_NESTING: usize = 64;

/// How many operands and operators one expression may have. It bounds the height of trees that grow without nesting.
pub const MAX_NODES: usize = 512;
