//! Operations that are defined at run time, and calls with dynamic arguments.
//!
//! Same language, checks and selection as generated code, without its types: [`crate::check`] binds the call, and the context is
//! packed by the schema's layout instead of generated stores.

use std::borrow::Cow;

use lz_schema::layout::{self, FieldKind as LayoutKind, context_layout};
use lz_schema::model::{Kind, Operation, ParamType, Select};

use crate::args::{Arg, OutArg};
use crate::check::{self, Bound, OutputSpec};
use crate::context::{self, Context, Extent, Field, FieldKind, Store};
use crate::engine::Engine;
use crate::error::Error;
use crate::operation::OperationInfo;
use crate::reason::{Reason, ReasonCode};
use crate::tensor::{Place, Tensor};

/// Reads an operation from its schema's text; `path` is its name in messages.
///
/// The operation is kept until the process ends.
pub fn read_operation(path: &str, yaml: &str) -> Result<&'static OperationInfo, Error> {
    let reject = |message: String| Error::Configuration {
        subject: path.to_owned(),
        reasons: vec![Reason::new(ReasonCode::SchemaInvalid).message(message.clone())],
        message,
    };
    let schema = lz_schema::set::load_one(path, yaml, crate::reason::catalogue())
        .map_err(|report| reject(format!("the schema is invalid\n{report}")))?;
    let fields = fields(&schema).map_err(reject)?;
    Ok(OperationInfo::from_schema(schema, path, yaml, fields))
}

/// The fields of an operation's contexts, as in generated code.
pub fn fields(operation: &Operation) -> Result<Vec<Field>, String> {
    let fields = context_layout(operation)?;
    Ok(fields
        .into_iter()
        .map(|field| {
            let kind = match field.kind {
                LayoutKind::Axis(_, Select::Exact) => FieldKind::Axis { buckets: None },
                LayoutKind::Axis(_, Select::Ignored) => FieldKind::Axis { buckets: Some(Cow::Borrowed(&[])) },
                LayoutKind::Axis(_, Select::Bucket(bounds)) => {
                    FieldKind::Axis { buckets: Some(Cow::Owned(bounds)) }
                }
                LayoutKind::Param(param) => match &operation.params[param].ty {
                    ParamType::Int => FieldKind::Int,
                    ParamType::F32 | ParamType::F64 => FieldKind::Float,
                    ParamType::Bool => FieldKind::Bool,
                    ParamType::Enum(cases) => {
                        FieldKind::Enum(cases.iter().cloned().map(Cow::Owned).collect())
                    }
                },
                LayoutKind::Given(_) => FieldKind::Given,
                LayoutKind::DType(_) => FieldKind::DType,
                LayoutKind::Strides(_) | LayoutKind::OutputStrides(_) => FieldKind::Strides,
                LayoutKind::Digest(_) => FieldKind::Digest,
                LayoutKind::Place => FieldKind::Place,
            };
            Field { name: Cow::Owned(field.name), kind, store: store(field.store) }
        })
        .collect())
}

fn store(store: layout::Store) -> Store {
    match store {
        layout::Store::Flag { word, shift, bits } => {
            Store::Flag { word: word as u8, shift: shift as u8, bits: bits as u8 }
        }
        layout::Store::Axis(axis) => Store::Axis(axis as u8),
        layout::Store::Scalar(scalar) => Store::Scalar(scalar as u8),
    }
}

/// The context of a bound call; without `outputs`, as if they were allocated.
pub fn context(
    operation: &Operation,
    bound: &Bound,
    args: &[Arg<'_>],
    outputs: Option<&[OutArg<'_>]>,
) -> Result<Context, Error> {
    let layout = context_layout(operation).map_err(|message| Error::Configuration {
        subject: operation.name.clone(),
        reasons: vec![Reason::new(ReasonCode::SchemaInvalid).message(message.clone())],
        message,
    })?;
    let mut context = Context::blank(Extent::of(layout.iter().map(|field| store(field.store))));
    for (slot, field) in layout.iter().enumerate() {
        let bits = match &field.kind {
            LayoutKind::Axis(..) | LayoutKind::Param(_) | LayoutKind::Given(_) => {
                match bound.values.get(slot) {
                    Some(lz_schema::expr::Value::Int(value)) => *value as u64,
                    Some(lz_schema::expr::Value::Float(value)) => value.to_bits(),
                    Some(lz_schema::expr::Value::Bool(value)) => u64::from(*value),
                    Some(lz_schema::expr::Value::Enum(case)) => u64::from(*case),
                    None => 0,
                }
            }
            LayoutKind::DType(variable) => bound.types[*variable].map_or(0, |dtype| dtype as u64),
            LayoutKind::Strides(input) => {
                args[*input].tensor().map_or(0, |view| context::stride_class(&view))
            }
            LayoutKind::OutputStrides(output) => match outputs.and_then(|outputs| outputs.get(*output)) {
                Some(OutArg::Tensor(tensor)) => context::stride_class(&tensor.as_view()),
                _ => context::FRESH_OUTPUT,
            },
            LayoutKind::Digest(input) => match &args[*input] {
                Arg::Handle(handle) => context::digest_bits(&handle.digest()),
                _ => 0,
            },
            LayoutKind::Place => {
                let first = operation
                    .inputs
                    .iter()
                    .position(|input| input.kind == Kind::Tensor && input.optional.is_none());
                let place =
                    first.and_then(|input| args[input].tensor()).map_or(Place::HOST, |view| view.place());
                context::place_bits(place)
            }
        };
        context.set(store(field.store), bits);
    }
    Ok(context)
}

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
        .dispatch(operation, &context, &mut |entry, run| entry.kernel.run(args, outputs, run))
        .or_else(|error| crate::split::or_split(engine, operation, error, args, outputs))
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
