//! Arguments of any operation, in the schema's order: for questions about a call, and for operations that were read at run
//! time. Operations of the catalogue have generated code for their calls.

use lz_core::expr::Value;
use lz_core::{Arg, DType, OperationInfo, Reason, ReasonCode};
use lz_schema::model::{Cases, DTypeRef, Input, Kind, Operation, Param, ParamType};
use pyo3::Bound;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::call::Frame;
use crate::error::refuse;
use crate::tensor::Import;
use crate::text;

/// An argument that Python lends for the time of a call.
pub enum Lent<'py> {
    /// Not given.
    Nothing,
    /// A tensor.
    Tensor(Import),
    /// Strings.
    Texts(text::Texts<'py>),
    /// A tokenizer.
    Tokenizer(std::sync::Arc<lz_ops::tokenizer::Tokenizer>),
    /// A param.
    Value(Value),
}

/// Names in the schema's order: inputs, then params.
pub fn names(schema: &Operation) -> impl Iterator<Item = &str> {
    let inputs = schema.inputs.iter().map(|input| input.name.as_str());
    inputs.chain(schema.params.iter().map(|param| param.name.as_str()))
}

/// Places of the inputs in the order of the function's signature: those that must be given, then those that may.
pub fn signature_order(schema: &Operation) -> Vec<usize> {
    let of = |optional: bool| {
        let matches = move |(_, input): &(usize, &Input)| input.optional.is_some() == optional;
        schema.inputs.iter().enumerate().filter(matches).map(|(at, _)| at)
    };
    of(false).chain(of(true)).collect()
}

/// Objects in the schema's order, and `out=`.
pub type Matched<'py> = (Vec<Option<Bound<'py, PyAny>>>, Option<Bound<'py, PyAny>>);

/// Puts arguments where they belong.
pub fn matched<'py>(
    py: Python<'py>,
    info: &OperationInfo,
    arguments: &Bound<'py, PyTuple>,
    keywords: Option<&Bound<'py, PyDict>>,
) -> PyResult<Matched<'py>> {
    let schema = info.schema();
    let mut objects: Vec<Option<Bound<'py, PyAny>>> = names(schema).map(|_| None).collect();
    let mut out = None;
    let positions = signature_order(schema);
    let unknown = |name: String| {
        let reason = Reason::new(ReasonCode::UnknownArgument).argument(&name).found(name.clone());
        refuse(py, &info.name, reason)
    };
    for (number, object) in arguments.iter().enumerate() {
        let place = positions.get(number).and_then(|&at| objects.get_mut(at));
        *place.ok_or_else(|| unknown(format!("positional argument {}", number + 1)))? = Some(object);
    }
    for (name, object) in keywords.into_iter().flatten() {
        let name: String = name.extract()?;
        if name == "out" {
            out = Some(object);
            continue;
        }
        let at = names(schema).position(|known| known == name).ok_or_else(|| unknown(name))?;
        objects[at] = Some(object);
    }
    let given = |object: Option<Bound<'py, PyAny>>| object.filter(|object| !object.is_none());
    Ok((objects.into_iter().map(given).collect(), given(out)))
}

/// Borrows each object as what the schema says it is.
pub fn lend<'a, 'py>(
    frame: &mut Frame<'a, 'py>,
    objects: &'a [Option<Bound<'py, PyAny>>],
) -> PyResult<Vec<Lent<'py>>> {
    let info = frame.operation;
    let schema: &'static Operation = info.schema();
    let mut lent = Vec::with_capacity(objects.len());
    for (at, object) in objects.iter().enumerate() {
        let Some(object) = object else {
            lent.push(Lent::Nothing);
            continue;
        };
        let given = Some(object.as_borrowed());
        lent.push(match (schema.inputs.get(at), schema.params.get(at.wrapping_sub(schema.inputs.len()))) {
            (Some(input), _) => match input.kind {
                Kind::Tensor => {
                    let mut import = Import::EMPTY;
                    let (tensor, hold) = import.parts();
                    // SAFETY: what is described is the object's own memory; who writes asks whether it may.
                    frame.tensor(&input.name, given, unsafe { tensor.description() }, hold)?;
                    Lent::Tensor(import)
                }
                Kind::Text => Lent::Texts(frame.texts(&input.name, given)?),
                Kind::Tokenizer => Lent::Tokenizer(frame.tokenizer(&input.name, given)?),
            },
            (None, Some(param)) => Lent::Value(value(frame, param, object)?),
            (None, None) => Lent::Nothing,
        });
    }
    // Libraries without pairs of 4-bit floats have bytes there; which is meant is known once the params are.
    for (at, input) in schema.inputs.iter().enumerate() {
        let Cases::By(param, dtypes) = &input.dtype else { continue };
        let Some(Lent::Value(Value::Enum(case))) = lent.get(schema.inputs.len() + param) else { continue };
        let packed = dtypes.get(*case as usize) == Some(&DTypeRef::Fixed(DType::F4E2M1x2));
        if let Some(Lent::Tensor(import)) = lent.get_mut(at) {
            import.nibbles(packed);
        }
    }
    Ok(lent)
}

fn value(frame: &Frame<'_, '_>, param: &'static Param, object: &Bound<'_, PyAny>) -> PyResult<Value> {
    let given = Some(object.as_borrowed());
    let name = param.name.as_str();
    Ok(match &param.ty {
        ParamType::Int => Value::Int(frame.int(name, given)?.unwrap_or_default()),
        ParamType::F32 | ParamType::F64 => Value::Float(frame.float(name, given)?.unwrap_or_default()),
        ParamType::Bool => Value::Bool(frame.bool(name, given)?.unwrap_or_default()),
        ParamType::Enum(cases) => {
            let cases: Vec<&str> = cases.iter().map(String::as_str).collect();
            Value::Enum(frame.case(name, &cases, given)?.unwrap_or_default())
        }
    })
}

/// Strings of each argument, to be borrowed from.
pub fn texts<'l>(lent: &'l [Lent<'_>]) -> Vec<Vec<&'l str>> {
    lent.iter().map(|one| if let Lent::Texts(texts) = one { texts.as_strs() } else { Vec::new() }).collect()
}

/// As the engine takes them. What is changed in place looks writable, whether or not it will be written.
pub fn as_args<'l>(schema: &Operation, lent: &'l [Lent<'_>], texts: &'l [Vec<&'l str>]) -> Vec<Arg<'l>> {
    let pairs = lent.iter().zip(texts).enumerate();
    pairs
        .map(|(at, (one, texts))| match one {
            Lent::Nothing => Arg::Absent,
            Lent::Tensor(import) if schema.inputs.get(at).is_some_and(|input| input.read_write) => {
                Arg::TensorMut(import.lend())
            }
            Lent::Tensor(import) => Arg::Tensor(import.view()),
            Lent::Texts(_) => Arg::Text(texts),
            Lent::Tokenizer(tokenizer) => Arg::Handle(&**tokenizer),
            Lent::Value(value) => Arg::Value(*value),
        })
        .collect()
}
