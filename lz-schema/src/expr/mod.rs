//! The expression language of shapes, defaults, constraints, kernel limits and policy rules.
//!
//! [`parse`] produces an untyped tree ([`ast`]), [`check`] resolves its names in a [`Scope`] and type-checks it ([`Typed`]), and
//! a back end evaluates it: [`Program`] here, generated Rust in the generator. Both back ends call the functions of [`arith`],
//! so that their results agree.
//!
//! The scope defines the meaning of variables (axes, parameters, device properties). This module does not depend on YAML,
//! files or the rendering of diagnostics.

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

/// Maximum nesting depth of parentheses, calls, lists, `not`, unary minus and `if`. Bounds recursion.
pub const MAX_NESTING: usize = 64;

/// Maximum number of operands and operators of an expression. Bounds the height of trees that grow without nesting.
pub const MAX_NODES: usize = 512;
