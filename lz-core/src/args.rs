//! Dynamic arguments in the schema's order, for run-time operations, plugins and hosted kernels.

use std::any::Any;

use lz_schema::expr::Value;

use crate::tensor::{Tensor, TensorMut, TensorView};

/// An object that is neither tensor nor scalar (a tokenizer); selection depends on its digest only.
pub trait Handle: Send + Sync {
    /// SHA-256 of everything that can change a result.
    fn digest(&self) -> [u8; 32];
    /// The object, for kernels that know its type.
    fn as_any(&self) -> &dyn Any;
}

/// An argument. Inputs come first, then params, in the schema's order.
#[derive(Default)]
pub enum Arg<'a> {
    /// An absent optional input, or a param with its default.
    #[default]
    Absent,
    /// A tensor that is read.
    Tensor(TensorView<'a>),
    /// A tensor that is mutated in place.
    TensorMut(TensorMut<'a>),
    /// A batch of strings.
    Text(&'a [&'a str]),
    /// A handle.
    Handle(&'a dyn Handle),
    /// A param.
    Value(Value),
}

impl<'a> Arg<'a> {
    /// The tensor, read-only or writable.
    pub fn tensor(&self) -> Option<TensorView<'_>> {
        match self {
            Arg::Tensor(view) => Some(*view),
            Arg::TensorMut(tensor) => Some(tensor.as_view()),
            _ => None,
        }
    }

    /// Whether an argument was passed.
    pub fn is_given(&self) -> bool {
        !matches!(self, Arg::Absent)
    }

    /// Its kind, for messages.
    pub fn kind_name(&self) -> &'static str {
        match self {
            Arg::Absent => "nothing",
            Arg::Tensor(_) => "a tensor",
            Arg::TensorMut(_) => "a writable tensor",
            Arg::Text(_) => "a batch of strings",
            Arg::Handle(_) => "a handle",
            Arg::Value(Value::Int(_)) => "an int",
            Arg::Value(Value::Float(_)) => "a float",
            Arg::Value(Value::Bool(_)) => "a bool",
            Arg::Value(Value::Enum(_)) => "an enum case",
        }
    }

    /// Reborrows the argument for a shorter lifetime.
    pub fn reborrow(&mut self) -> Arg<'_> {
        match self {
            Arg::Absent => Arg::Absent,
            Arg::Tensor(view) => Arg::Tensor(*view),
            Arg::TensorMut(tensor) => Arg::TensorMut(tensor.reborrow()),
            Arg::Text(text) => Arg::Text(text),
            Arg::Handle(handle) => Arg::Handle(*handle),
            Arg::Value(value) => Arg::Value(*value),
        }
    }
}

/// An output argument.
#[derive(Default)]
pub enum OutArg<'a> {
    /// A conditional output that this call does not produce.
    #[default]
    Absent,
    /// A tensor to fill.
    Tensor(TensorMut<'a>),
    /// A tensor whose size the kernel determines.
    Dynamic(&'a mut Option<Tensor>),
    /// Strings that the kernel produces.
    Text(&'a mut Option<Vec<String>>),
}

impl OutArg<'_> {
    /// Reborrows the output for a shorter lifetime.
    pub fn reborrow(&mut self) -> OutArg<'_> {
        match self {
            OutArg::Absent => OutArg::Absent,
            OutArg::Tensor(tensor) => OutArg::Tensor(tensor.reborrow()),
            OutArg::Dynamic(slot) => OutArg::Dynamic(slot),
            OutArg::Text(slot) => OutArg::Text(slot),
        }
    }
}
