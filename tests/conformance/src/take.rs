//! Dynamic outputs as typed ones, for generated code. `Err` means that the typed form cannot state what was given.

use lz_core::{OutArg, Tensor, TensorMut};

/// The typed form has no room for this.
#[derive(Debug)]
pub struct Untyped;

/// A tensor to fill, or nothing.
pub fn tensor<'a>(place: Option<&'a mut OutArg<'_>>) -> Result<Option<TensorMut<'a>>, Untyped> {
    match place {
        Some(OutArg::Tensor(tensor)) => Ok(Some(tensor.reborrow())),
        Some(OutArg::Absent) => Ok(None),
        _ => Err(Untyped),
    }
}

/// A place for what the kernel allocates, or nothing.
pub fn dynamic<'a>(place: Option<&'a mut OutArg<'_>>) -> Result<Option<&'a mut Option<Tensor>>, Untyped> {
    match place {
        Some(OutArg::Dynamic(slot)) => Ok(Some(slot)),
        Some(OutArg::Absent) => Ok(None),
        _ => Err(Untyped),
    }
}

/// A place for strings, or nothing.
pub fn text<'a>(place: Option<&'a mut OutArg<'_>>) -> Result<Option<&'a mut Option<Vec<String>>>, Untyped> {
    match place {
        Some(OutArg::Text(slot)) => Ok(Some(slot)),
        Some(OutArg::Absent) => Ok(None),
        _ => Err(Untyped),
    }
}
