//! Dynamic arguments of a primitive's kernel. A kernel may be called with any arguments: what does not fit its schema is an
//! error before anything is written.

use lz_core::expr::Value;
use lz_core::{Arg, KernelError, OutArg, Reason, ReasonCode, TensorMut, TensorView};

use crate::functions::Case;

/// The arguments of one call: inputs, then params.
#[derive(Clone, Copy)]
pub struct Call<'c, 'a> {
    args: &'c [Arg<'a>],
}

impl<'c, 'a> Call<'c, 'a> {
    /// Of these arguments.
    #[inline]
    pub fn new(args: &'c [Arg<'a>]) -> Call<'c, 'a> {
        Call { args }
    }

    /// A tensor on the host with sound metadata.
    #[inline]
    pub fn tensor(self, index: usize) -> Result<&'c TensorView<'c>, KernelError> {
        self.optional(index)?.ok_or_else(|| unexpected(index, "a tensor"))
    }

    /// A tensor on the host with sound metadata, or nothing.
    #[inline]
    pub fn optional(self, index: usize) -> Result<Option<&'c TensorView<'c>>, KernelError> {
        let view = match self.args.get(index) {
            Some(Arg::Tensor(view)) => view,
            Some(Arg::TensorMut(tensor)) => tensor.view(),
            Some(Arg::Absent) => return Ok(None),
            _ => return Err(unexpected(index, "a tensor")),
        };
        if view.is_sound() && view.device().is_host() { Ok(Some(view)) } else { Err(unsound(index)) }
    }

    /// A float param.
    #[inline]
    pub fn float(self, index: usize) -> Result<f64, KernelError> {
        match self.args.get(index) {
            Some(Arg::Value(Value::Float(value))) => Ok(*value),
            _ => Err(unexpected(index, "a float")),
        }
    }

    /// An integer param.
    #[inline]
    pub fn int(self, index: usize) -> Result<i64, KernelError> {
        match self.args.get(index) {
            Some(Arg::Value(Value::Int(value))) => Ok(*value),
            _ => Err(unexpected(index, "an int")),
        }
    }

    /// An integer param that is not negative.
    #[inline]
    pub fn size(self, index: usize) -> Result<usize, KernelError> {
        usize::try_from(self.int(index)?).map_err(|_| unexpected(index, "an int of at least 0"))
    }

    /// A bool param.
    #[inline]
    pub fn flag(self, index: usize) -> Result<bool, KernelError> {
        match self.args.get(index) {
            Some(Arg::Value(Value::Bool(value))) => Ok(*value),
            _ => Err(unexpected(index, "a bool")),
        }
    }

    /// An enum param.
    #[inline]
    pub fn case<C: Case>(self, index: usize) -> Result<C, KernelError> {
        match self.args.get(index) {
            Some(Arg::Value(Value::Enum(case))) => C::ALL.get(*case as usize).copied(),
            _ => None,
        }
        .ok_or_else(|| unexpected(index, "an enum case"))
    }
}

/// An output tensor on the host, with sound metadata and elements that do not overlap each other.
#[inline]
pub fn output<'o, 'a>(
    outputs: &'o mut [OutArg<'a>],
    index: usize,
) -> Result<&'o mut TensorMut<'a>, KernelError> {
    match outputs.get_mut(index) {
        Some(OutArg::Tensor(tensor))
            if tensor.is_sound()
                && tensor.device().is_host()
                && (tensor.is_contiguous() || !tensor.layout().overlaps_itself()) =>
        {
            Ok(tensor)
        }
        _ => Err(KernelError::failed(format!("output {index} is not a usable host tensor")).before_writing()),
    }
}

/// An error that names the argument and what was expected.
#[cold]
pub fn unexpected(index: usize, expected: &str) -> KernelError {
    KernelError::because(
        Reason::new(ReasonCode::ArgumentKind)
            .required(expected.to_owned())
            .message(format!("argument {index} must be {expected}")),
    )
    .before_writing()
}

#[cold]
fn unsound(index: usize) -> KernelError {
    KernelError::because(
        Reason::new(ReasonCode::StrideInvalid)
            .message(format!("argument {index} is not a host tensor with sound metadata")),
    )
    .before_writing()
}

/// The error of sizes or dtypes that do not fit each other.
#[cold]
pub fn mismatch(what: &str) -> KernelError {
    KernelError::because(Reason::new(ReasonCode::ShapeMismatch).message(what.to_owned())).before_writing()
}

/// The error of an index outside its dimension.
#[cold]
pub fn out_of_range(index: i64, size: i64) -> KernelError {
    KernelError::because(
        Reason::new(ReasonCode::IndexOutOfRange)
            .required(format!("{} to {}", -size, size - 1))
            .found(index.to_string())
            .message(format!("index {index} is out of range for a dimension of size {size}")),
    )
}

/// The error of an integer division by zero.
#[cold]
pub fn division_by_zero() -> KernelError {
    KernelError::because(
        Reason::new(ReasonCode::ValueOutOfRange)
            .required("a divisor other than 0".to_owned())
            .found("0".to_owned())
            .message("integer division by zero".to_owned()),
    )
}

/// The position of an index that may count from the end; `None` if it is outside the dimension.
#[inline(always)]
pub fn position(index: i64, size: i64) -> Option<i64> {
    let position = if index < 0 { index.wrapping_add(size) } else { index };
    (0..size).contains(&position).then_some(position)
}
