//! Calls with dynamic arguments of any operation, whole or in parts.
//!
//! The same checks and the same selection as generated code, without its types. See [`lz_core::dynamic`] for how operations
//! are read at run time.

mod dispatch;
pub mod split;

use lz_core::args::{Arg, OutArg};
use lz_core::check::{self, OutputSpec};
use lz_core::error::Error;
use lz_core::operation::OperationInfo;
use lz_core::tensor::Tensor;

pub use lz_core::dynamic::{context, fields, read_operation};

use crate::engine::Engine;

/// Calls an operation with dynamic arguments (inputs, then params) and the caller's outputs.
pub fn call_into(
    engine: &Engine,
    operation: &'static OperationInfo,
    args: &mut [Arg<'_>],
    outputs: &mut [OutArg<'_>],
) -> Result<(), Error> {
    let schema = operation.schema();
    let bound = check::check_call(schema, args, Some(outputs))?;
    let context = context(schema, &bound, args, Some(outputs))?;
    // Kernels receive every param, so that none computes its own default.
    for (param, arg) in args.iter_mut().skip(schema.inputs.len()).enumerate() {
        if let Some(value) = bound.values.get(schema.axes.len() + param) {
            *arg = Arg::Value(*value);
        }
    }
    engine
        .dispatch(operation, &context, &mut |entry, run| entry.run(args, outputs, run))
        .or_else(|error| split::or_split(engine, operation, error, args, outputs))
}

/// A result of a dynamic call.
#[derive(Debug)]
pub enum Output {
    /// This call does not produce it.
    Absent,
    /// A host tensor.
    Tensor(Tensor),
    /// Strings.
    Text(Vec<String>),
}

/// Calls an operation with dynamic arguments; results are allocated in host memory.
pub fn call(
    engine: &Engine,
    operation: &'static OperationInfo,
    args: &mut [Arg<'_>],
) -> Result<Vec<Output>, Error> {
    let schema = operation.schema();
    let bound = check::check_call(schema, args, None)?;
    let specs = check::infer_outputs(schema, &bound)
        .map_err(|reason| Error::Validation { operation: schema.name.clone(), reasons: vec![reason] })?;
    let mut tensors: Vec<Option<Tensor>> = Vec::with_capacity(specs.len());
    for spec in &specs {
        tensors.push(match spec {
            OutputSpec::Tensor(sizes, dtype) => Some(check::allocate(operation, Some((*sizes, *dtype)))?),
            _ => None,
        });
    }
    let mut texts: Vec<Option<Vec<String>>> = specs.iter().map(|_| None).collect();
    let mut out_args: Vec<OutArg<'_>> = specs
        .iter()
        .zip(tensors.iter_mut().zip(&mut texts))
        .map(|(spec, (tensor, text))| match (spec, tensor) {
            (OutputSpec::Absent, _) => OutArg::Absent,
            (OutputSpec::Text, _) => OutArg::Text(text),
            (OutputSpec::Tensor(..), Some(tensor)) => OutArg::Tensor(tensor.view_mut()),
            (_, tensor) => OutArg::Dynamic(tensor),
        })
        .collect();
    call_into(engine, operation, args, &mut out_args)?;
    drop(out_args);
    let mut results = Vec::with_capacity(specs.len());
    for ((spec, output), (tensor, text)) in
        specs.iter().zip(&schema.outputs).zip(tensors.into_iter().zip(texts))
    {
        results.push(match spec {
            OutputSpec::Absent => Output::Absent,
            OutputSpec::Text => Output::Text(check::produced(operation, &output.name, text)?),
            _ => Output::Tensor(check::produced(operation, &output.name, tensor)?),
        });
    }
    Ok(results)
}
