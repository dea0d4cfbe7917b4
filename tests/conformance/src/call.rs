//! A call that owns everything it passes, so that it can be drawn, changed, copied and run.

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
    /// Nothing.
    Absent,
    /// A tensor that is read.
    Tensor(OwnedTensor),
    /// A tensor that is changed in place.
    Written(OwnedTensor),
    /// Strings.
    Text(Vec<String>),
    /// A tokenizer.
    Handle(Arc<dyn Handle>),
    /// A param.
    Value(Value),
}

impl OwnedArg {
    /// The tensor behind it.
    pub fn tensor(&self) -> Option<&OwnedTensor> {
        match self {
            OwnedArg::Tensor(tensor) | OwnedArg::Written(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// The tensor behind it, to be changed.
    pub fn tensor_mut(&mut self) -> Option<&mut OwnedTensor> {
        match self {
            OwnedArg::Tensor(tensor) | OwnedArg::Written(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// Whether something is passed.
    pub fn is_given(&self) -> bool {
        !matches!(self, OwnedArg::Absent)
    }
}

/// One output.
#[derive(Clone)]
pub enum OwnedOut {
    /// Nothing.
    Absent,
    /// A tensor to fill.
    Tensor(OwnedTensor),
    /// What the kernel allocates.
    Dynamic(Option<Tensor>),
    /// What the kernel writes as strings.
    Text(Option<Vec<String>>),
}

/// A call with its outputs.
#[derive(Clone)]
pub struct OwnedCall {
    /// Inputs, then params.
    pub args: Vec<OwnedArg>,
    /// Outputs; an entry each, in the schema's order.
    pub outputs: Vec<OwnedOut>,
}

impl OwnedCall {
    /// Lends the call as dynamic arguments.
    pub fn lend<R>(&mut self, run: impl FnOnce(&mut [Arg<'_>], &mut [OutArg<'_>]) -> R) -> R {
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

    /// What the interpreter says of the inputs, and of the outputs too where asked.
    pub fn interpret(&mut self, operation: &Operation, with_outputs: bool) -> Result<Bound, Error> {
        self.lend(|args, outputs| {
            let outputs: Option<&[OutArg<'_>]> = if with_outputs { Some(outputs) } else { None };
            check_call(operation, args, outputs)
        })
    }
}

/// A tensor that is changed in place. The call is lent exclusively, so nobody else looks at the memory.
fn written(tensor: &OwnedTensor) -> TensorMut<'_> {
    let view: TensorView<'_> = tensor.view();
    // SAFETY: `lend` borrows the whole call exclusively, and hands each tensor out once.
    unsafe { TensorMut::from_raw(view.as_ptr().cast_mut(), *view.layout()) }
}

impl fmt::Debug for OwnedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, arg) in self.args.iter().enumerate() {
            match arg {
                OwnedArg::Absent => continue,
                OwnedArg::Tensor(tensor) => describe(f, place, "read", tensor)?,
                OwnedArg::Written(tensor) => describe(f, place, "read and written", tensor)?,
                OwnedArg::Text(texts) => writeln!(f, "  argument {place}: {texts:?}")?,
                OwnedArg::Handle(_) => writeln!(f, "  argument {place}: a handle")?,
                OwnedArg::Value(value) => writeln!(f, "  argument {place}: {value:?}")?,
            }
        }
        for (place, output) in self.outputs.iter().enumerate() {
            match output {
                OwnedOut::Absent => writeln!(f, "  output {place}: none")?,
                OwnedOut::Tensor(tensor) => describe(f, place, "output", tensor)?,
                OwnedOut::Dynamic(_) => writeln!(f, "  output {place}: dynamic")?,
                OwnedOut::Text(_) => writeln!(f, "  output {place}: text")?,
            }
        }
        Ok(())
    }
}

fn describe(f: &mut fmt::Formatter<'_>, place: usize, what: &str, tensor: &OwnedTensor) -> fmt::Result {
    let layout = tensor.layout();
    writeln!(
        f,
        "  {place} ({what}): {} {:?} strides {:?} on {} at {:#x} ({:?})",
        layout.dtype.long_name(),
        layout.shape,
        layout.strides,
        layout.place,
        tensor.address(),
        tensor.pattern()
    )
}
