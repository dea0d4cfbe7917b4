//! A call that owns all of its arguments, so that it can be drawn, modified, copied and run.

use std::fmt;
use std::sync::Arc;

use lz_core::check::{Bound, check_call};
use lz_core::expr::Value;
use lz_core::tensor::{TensorMut, TensorView};
use lz_core::{Arg, Error, Handle, OutArg, Tensor};
use lz_schema::model::Operation;

use crate::memory::OwnedTensor;

/// One argument.
#[derive(Clone)]
pub enum OwnedArg {
    /// Absent.
    Absent,
    /// A read-only tensor.
    Tensor(OwnedTensor),
    /// A read-write tensor.
    Written(OwnedTensor),
    /// Strings.
    Text(Vec<String>),
    /// A tokenizer.
    Handle(Arc<dyn Handle>),
    /// A param.
    Value(Value),
}

impl OwnedArg {
    /// The tensor, if it is one.
    pub fn tensor(&self) -> Option<&OwnedTensor> {
        match self {
            OwnedArg::Tensor(tensor) | OwnedArg::Written(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// The tensor, mutable.
    pub fn tensor_mut(&mut self) -> Option<&mut OwnedTensor> {
        match self {
            OwnedArg::Tensor(tensor) | OwnedArg::Written(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// Whether an argument is given.
    pub fn is_given(&self) -> bool {
        !matches!(self, OwnedArg::Absent)
    }
}

/// One output.
#[derive(Clone)]
pub enum OwnedOut {
    /// Absent.
    Absent,
    /// A tensor to fill.
    Tensor(OwnedTensor),
    /// Allocated by the kernel.
    Dynamic(Option<Tensor>),
    /// Strings written by the kernel.
    Text(Option<Vec<String>>),
}

/// A call with its outputs.
#[derive(Clone)]
pub struct OwnedCall {
    /// Inputs, then params.
    pub args: Vec<OwnedArg>,
    /// Outputs, in the schema's order.
    pub outputs: Vec<OwnedOut>,
}

impl OwnedCall {
    /// Passes the call as borrowed dynamic arguments.
    pub fn with_args<R>(&mut self, run: impl FnOnce(&mut [Arg<'_>], &mut [OutArg<'_>]) -> R) -> R {
        let texts: Vec<Vec<&str>> = self
            .args
            .iter()
            .map(|arg| match arg {
                OwnedArg::Text(texts) => texts.iter().map(String::as_str).collect(),
                _ => Vec::new(),
            })
            .collect();
        let mut args: Vec<Arg<'_>> = self
            .args
            .iter()
            .zip(&texts)
            .map(|(arg, texts)| match arg {
                OwnedArg::Absent => Arg::Absent,
                OwnedArg::Tensor(tensor) => Arg::Tensor(tensor.view()),
                OwnedArg::Written(tensor) => Arg::TensorMut(written(tensor)),
                OwnedArg::Text(_) => Arg::Text(texts),
                OwnedArg::Handle(handle) => Arg::Handle(&**handle),
                OwnedArg::Value(value) => Arg::Value(*value),
            })
            .collect();
        let mut outputs: Vec<OutArg<'_>> = self
            .outputs
            .iter_mut()
            .map(|output| match output {
                OwnedOut::Absent => OutArg::Absent,
                OwnedOut::Tensor(tensor) => OutArg::Tensor(tensor.view_mut()),
                OwnedOut::Dynamic(slot) => OutArg::Dynamic(slot),
                OwnedOut::Text(slot) => OutArg::Text(slot),
            })
            .collect();
        run(&mut args, &mut outputs)
    }

    /// Copies everything that a kernel writes from an equal call, so that the same tensors can be used for the next run.
    pub fn restore(&mut self, from: &OwnedCall) {
        for (arg, original) in self.args.iter_mut().zip(&from.args) {
            if let (OwnedArg::Written(tensor), OwnedArg::Written(original)) = (arg, original) {
                tensor.bytes_mut().copy_from_slice(original.bytes());
            }
        }
        for (output, original) in self.outputs.iter_mut().zip(&from.outputs) {
            match (output, original) {
                (OwnedOut::Tensor(tensor), OwnedOut::Tensor(original)) => {
                    tensor.bytes_mut().copy_from_slice(original.bytes());
                }
                (output, original) => output.clone_from(original),
            }
        }
    }

    /// Result of the interpreted check of the inputs, and of the outputs if `with_outputs`.
    pub fn interpret(&mut self, operation: &Operation, with_outputs: bool) -> Result<Bound, Error> {
        self.with_args(|args, outputs| {
            let outputs: Option<&[OutArg<'_>]> = if with_outputs { Some(outputs) } else { None };
            check_call(operation, args, outputs)
        })
    }
}

/// A read-write tensor. The call is borrowed exclusively, so nothing else accesses the memory.
fn written(tensor: &OwnedTensor) -> TensorMut<'_> {
    let view: TensorView<'_> = tensor.view();
    // SAFETY: `with_args` borrows the whole call exclusively, and passes each tensor once.
    unsafe { TensorMut::from_raw(view.as_ptr().cast_mut(), *view.layout()) }
}

impl fmt::Debug for OwnedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, arg) in self.args.iter().enumerate() {
            match arg {
                OwnedArg::Absent => continue,
                OwnedArg::Tensor(tensor) => describe(f, index, "read", tensor)?,
                OwnedArg::Written(tensor) => describe(f, index, "read and written", tensor)?,
                OwnedArg::Text(texts) => writeln!(f, "  argument {index}: {texts:?}")?,
                OwnedArg::Handle(_) => writeln!(f, "  argument {index}: a handle")?,
                OwnedArg::Value(value) => writeln!(f, "  argument {index}: {value:?}")?,
            }
        }
        for (index, output) in self.outputs.iter().enumerate() {
            match output {
                OwnedOut::Absent => writeln!(f, "  output {index}: none")?,
                OwnedOut::Tensor(tensor) => describe(f, index, "output", tensor)?,
                OwnedOut::Dynamic(_) => writeln!(f, "  output {index}: dynamic")?,
                OwnedOut::Text(_) => writeln!(f, "  output {index}: text")?,
            }
        }
        Ok(())
    }
}

fn describe(f: &mut fmt::Formatter<'_>, index: usize, what: &str, tensor: &OwnedTensor) -> fmt::Result {
    let layout = tensor.layout();
    writeln!(
        f,
        "  {index} ({what}): {} {:?} strides {:?} on {} at {:#x} ({:?})",
        layout.dtype.long_name(),
        layout.shape,
        layout.strides,
        layout.device,
        tensor.address(),
        tensor.pattern()
    )
}
