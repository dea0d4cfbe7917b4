//! Operations that are defined at run time, and the contexts of calls with dynamic arguments.
//!
//! Same language, checks and selection as generated code, without its types: [`crate::check`] binds the call, and the context is
//! packed by the schema's layout instead of generated stores.

use std::borrow::Cow;

use lz_schema::layout::{self, FieldKind as LayoutKind, context_layout};
use lz_schema::model::{Kind, Operation, ParamType, Select};

use crate::args::{Arg, OutArg};
use crate::check::Bound;
use crate::context::{self, Context, Extent, Field, FieldKind, Store};
use crate::error::Error;
use crate::operation::OperationInfo;
use crate::reason::{Reason, ReasonCode};
use crate::tensor::Device;

/// Reads an operation from its schema's text; `path` is its name in messages.
///
/// The operation is kept until the process ends. It cannot be a specialization.
pub fn read_operation(path: &str, yaml: &str) -> Result<&'static OperationInfo, Error> {
    read_operation_of(path, yaml, |_| None)
}

/// [`read_operation`] for an operation that may be a specialization: `find` returns its general operation.
pub fn read_operation_of(
    path: &str,
    yaml: &str,
    find: impl FnOnce(&str) -> Option<&'static OperationInfo>,
) -> Result<&'static OperationInfo, Error> {
    let reject = |message: String| Error::Configuration {
        subject: path.to_owned(),
        reasons: vec![Reason::new(ReasonCode::SchemaInvalid).message(message.clone())],
        message,
    };
    let mut general = None;
    let schema = lz_schema::load_one_of(path, yaml, crate::reason::catalog(), |name| {
        general = find(name);
        general.map(|general| (&*general.path, &*general.yaml))
    })
    .map_err(|report| reject(format!("the schema is invalid\n{report}")))?;
    let fields = fields(&schema).map_err(reject)?;
    Ok(OperationInfo::from_schema(schema, general, path, yaml, fields))
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
                LayoutKind::Statistic(param) => {
                    FieldKind::Statistic { bounds: statistic_bounds(operation, param).to_vec().into() }
                }
                LayoutKind::Given(_) => FieldKind::Given,
                LayoutKind::DType(_) => FieldKind::DType,
                LayoutKind::Strides(_) | LayoutKind::OutputStrides(_) => FieldKind::Strides,
                LayoutKind::Digest(_) => FieldKind::Digest,
                LayoutKind::Device => FieldKind::Device,
            };
            Field { name: Cow::Owned(field.name), kind, store: store(field.store) }
        })
        .collect())
}

fn statistic_bounds(operation: &Operation, param: usize) -> &[i64] {
    let statistic = operation.params.get(param).and_then(|param| param.statistic.as_ref());
    statistic.map_or(&[], |statistic| &statistic.bounds)
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
            LayoutKind::Axis(..) | LayoutKind::Param(_) | LayoutKind::Statistic(_) | LayoutKind::Given(_) => {
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
            LayoutKind::Device => {
                let first = operation
                    .inputs
                    .iter()
                    .position(|input| input.kind == Kind::Tensor && input.optional.is_none());
                let device =
                    first.and_then(|input| args[input].tensor()).map_or(Device::HOST, |view| view.device());
                context::device_bits(device)
            }
        };
        context.set(store(field.store), bits);
    }
    Ok(context)
}
