//! Converts dynamic outputs to typed ones, for generated code. `Err` means that the typed form cannot
//! represent them.

use lz_core::{OutArg, Tensor, TensorMut};

/// The typed form cannot represent this output.
#[derive(Debug)]
pub struct Untyped;

/// A tensor to fill, or none.
pub fn tensor<'a>(output: Option<&'a mut OutArg<'_>>) -> Result<Option<TensorMut<'a>>, Untyped> {
    match output {
        Some(OutArg::Tensor(tensor)) => Ok(Some(tensor.reborrow())),
        Some(OutArg::Absent) => Ok(None),
        _ => Err(Untyped),
    }
}

/// An output that the kernel allocates, or none.
pub fn dynamic<'a>(output: Option<&'a mut OutArg<'_>>) -> Result<Option<&'a mut Option<Tensor>>, Untyped> {
    match output {
        Some(OutArg::Dynamic(slot)) => Ok(Some(slot)),
        Some(OutArg::Absent) => Ok(None),
        _ => Err(Untyped),
    }
}

/// A text output, or none.
pub fn text<'a>(output: Option<&'a mut OutArg<'_>>) -> Result<Option<&'a mut Option<Vec<String>>>, Untyped> {
    match output {
        Some(OutArg::Text(slot)) => Ok(Some(slot)),
        Some(OutArg::Absent) => Ok(None),
        _ => Err(Untyped),
    }
}
