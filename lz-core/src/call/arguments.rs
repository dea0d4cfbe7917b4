//! Conversion between typed arguments and dynamic ones.

use crate::args::{Arg, Handle};
use crate::expr::Value;
use crate::tensor::{TensorMut, TensorView};

/// Reads one dynamic argument as the type that the operation declares.
pub trait FromArg<'a>: Sized {
    /// `None` if the argument is of another kind, or absent and required.
    fn from_arg(arg: &'a mut Arg<'_>) -> Option<Self>;
}

impl<'a> FromArg<'a> for TensorView<'a> {
    fn from_arg(arg: &'a mut Arg<'_>) -> Option<TensorView<'a>> {
        match arg {
            Arg::Tensor(view) => Some(*view),
            Arg::TensorMut(tensor) => Some(tensor.as_view()),
            _ => None,
        }
    }
}

impl<'a> FromArg<'a> for TensorMut<'a> {
    fn from_arg(arg: &'a mut Arg<'_>) -> Option<TensorMut<'a>> {
        match arg {
            Arg::TensorMut(tensor) => Some(tensor.reborrow()),
            _ => None,
        }
    }
}

impl<'a> FromArg<'a> for &'a [&'a str] {
    fn from_arg(arg: &'a mut Arg<'_>) -> Option<&'a [&'a str]> {
        match arg {
            Arg::Text(texts) => Some(texts),
            _ => None,
        }
    }
}

impl<'a> FromArg<'a> for &'a dyn Handle {
    fn from_arg(arg: &'a mut Arg<'_>) -> Option<&'a dyn Handle> {
        match arg {
            Arg::Handle(handle) => Some(*handle),
            _ => None,
        }
    }
}

impl FromArg<'_> for i64 {
    fn from_arg(arg: &mut Arg<'_>) -> Option<i64> {
        match arg {
            Arg::Value(Value::Int(value)) => Some(*value),
            _ => None,
        }
    }
}

impl FromArg<'_> for f64 {
    fn from_arg(arg: &mut Arg<'_>) -> Option<f64> {
        match arg {
            Arg::Value(Value::Float(value)) => Some(*value),
            Arg::Value(Value::Int(value)) => Some(*value as f64),
            _ => None,
        }
    }
}

impl FromArg<'_> for f32 {
    fn from_arg(arg: &mut Arg<'_>) -> Option<f32> {
        match arg {
            Arg::Value(Value::Float(value)) => Some(*value as f32),
            Arg::Value(Value::Int(value)) => Some(*value as f32),
            _ => None,
        }
    }
}

impl FromArg<'_> for bool {
    fn from_arg(arg: &mut Arg<'_>) -> Option<bool> {
        match arg {
            Arg::Value(Value::Bool(value)) => Some(*value),
            _ => None,
        }
    }
}

/// Only an absent argument is `None` inside: one of the wrong kind does not become the default.
impl<'a, T: FromArg<'a>> FromArg<'a> for Option<T> {
    fn from_arg(arg: &'a mut Arg<'_>) -> Option<Option<T>> {
        match arg {
            Arg::Absent => Some(None),
            given => T::from_arg(given).map(Some),
        }
    }
}

/// Converts a typed argument into a dynamic one.
pub trait ToArg {
    /// The same argument for as long as the original is borrowed.
    fn to_arg(&self) -> Arg<'_>;
}

impl ToArg for TensorView<'_> {
    fn to_arg(&self) -> Arg<'_> {
        Arg::Tensor(*self)
    }
}

impl ToArg for TensorMut<'_> {
    fn to_arg(&self) -> Arg<'_> {
        // SAFETY: the arguments of a call are not read while a kernel writes through this view of a tensor that is changed in
        // place: the kernel alone has it.
        Arg::TensorMut(unsafe { self.duplicate() })
    }
}

impl<'a> ToArg for &'a [&'a str] {
    fn to_arg(&self) -> Arg<'_> {
        Arg::Text(self)
    }
}

impl<'a> ToArg for &'a (dyn Handle + 'a) {
    fn to_arg(&self) -> Arg<'_> {
        Arg::Handle(*self)
    }
}

impl ToArg for i64 {
    fn to_arg(&self) -> Arg<'_> {
        Arg::Value(Value::Int(*self))
    }
}

impl ToArg for f64 {
    fn to_arg(&self) -> Arg<'_> {
        Arg::Value(Value::Float(*self))
    }
}

impl ToArg for f32 {
    fn to_arg(&self) -> Arg<'_> {
        Arg::Value(Value::Float(f64::from(*self)))
    }
}

impl ToArg for bool {
    fn to_arg(&self) -> Arg<'_> {
        Arg::Value(Value::Bool(*self))
    }
}

impl<T: ToArg> ToArg for Option<T> {
    fn to_arg(&self) -> Arg<'_> {
        self.as_ref().map_or(Arg::Absent, ToArg::to_arg)
    }
}
