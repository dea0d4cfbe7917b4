//! Arguments of any operation, in schema order: for inspection (`which`, `explain`) and for operations that
//! are loaded at run time. Catalog operations have generated code for their calls.

use lz_core::expr::Value;
use lz_core::{Arg, DType, OperationInfo, Reason, ReasonCode};
use lz_schema::diagnostics::nearest;
use lz_schema::model::{Cases, DTypeRef, Input, Kind, Operation, Param, ParamType};
use pyo3::Bound;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::call::Frame;
use crate::error::validation_error;
use crate::tensor::BorrowedTensor;
use crate::text;

/// An argument borrowed from Python for the duration of a call.
pub enum BorrowedArgument<'py> {
    /// Not given.
    Absent,
    /// A tensor.
    Tensor(BorrowedTensor),
    /// Strings.
    Texts(text::Texts<'py>),
    /// A tokenizer.
    Tokenizer(std::sync::Arc<lz_ops::tokenizer::Tokenizer>),
    /// A param.
    Value(Value),
}

/// Argument names in schema order: inputs, then params.
pub fn names(schema: &Operation) -> impl Iterator<Item = &str> {
    let inputs = schema.inputs.iter().map(|input| input.name.as_str());
    inputs.chain(schema.params.iter().map(|param| param.name.as_str()))
}

/// Indices of the inputs in the order of the function's signature: required inputs, then optional ones.
pub fn signature_order(schema: &Operation) -> Vec<usize> {
    let of = |optional: bool| {
        let matches = move |(_, input): &(usize, &Input)| input.optional.is_some() == optional;
        schema.inputs.iter().enumerate().filter(matches).map(|(at, _)| at)
    };
    of(false).chain(of(true)).collect()
}

/// Arguments in schema order, and `out=`.
pub type MatchedArguments<'py> = (Vec<Option<Bound<'py, PyAny>>>, Option<Bound<'py, PyAny>>);

/// Matches positional and keyword arguments to the schema.
pub fn match_arguments<'py>(
    py: Python<'py>,
    info: &OperationInfo,
    arguments: &Bound<'py, PyTuple>,
    keywords: Option<&Bound<'py, PyDict>>,
) -> PyResult<MatchedArguments<'py>> {
    let schema = info.schema();
    let mut objects: Vec<Option<Bound<'py, PyAny>>> = names(schema).map(|_| None).collect();
    let mut out = None;
    let positions = signature_order(schema);
    let unknown = |name: String| {
        let hint = match nearest(&name, names(schema)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("expected one of {}", names(schema).collect::<Vec<_>>().join(", ")),
        };
        let message = format!("{name}: the operation has no argument with this name; {hint}");
        validation_error(
            py,
            &info.name,
            Reason::new(ReasonCode::UnknownArgument).argument(&name).message(message),
        )
    };
    let multiple = |name: &str| {
        let function = info.name.replace('.', "_");
        PyTypeError::new_err(format!("{function}() got multiple values for argument '{name}'"))
    };
    for (number, object) in arguments.iter().enumerate() {
        let slot = positions.get(number).and_then(|&at| objects.get_mut(at));
        *slot.ok_or_else(|| unknown(format!("positional argument {}", number + 1)))? = Some(object);
    }
    for (name, object) in keywords.into_iter().flatten() {
        let name: String = name.extract()?;
        if name == "out" {
            out = Some(object);
            continue;
        }
        let at = names(schema).position(|known| known == name).ok_or_else(|| unknown(name.clone()))?;
        if objects[at].replace(object).is_some() {
            return Err(multiple(&name));
        }
    }
    let given = |object: Option<Bound<'py, PyAny>>| object.filter(|object| !object.is_none());
    Ok((objects.into_iter().map(given).collect(), given(out)))
}

/// Borrows each object as the kind that the schema declares.
pub fn borrow_arguments<'a, 'py>(
    frame: &mut Frame<'a, 'py>,
    objects: &'a [Option<Bound<'py, PyAny>>],
) -> PyResult<Vec<BorrowedArgument<'py>>> {
    let info = frame.operation;
    let schema: &'static Operation = info.schema();
    let mut borrowed = Vec::with_capacity(objects.len());
    for (at, object) in objects.iter().enumerate() {
        let Some(object) = object else {
            borrowed.push(BorrowedArgument::Absent);
            continue;
        };
        let given = Some(object.as_borrowed());
        borrowed.push(
            match (schema.inputs.get(at), schema.params.get(at.wrapping_sub(schema.inputs.len()))) {
                (Some(input), _) => match input.kind {
                    Kind::Tensor => {
                        let mut import = BorrowedTensor::EMPTY;
                        let (tensor, guard) = import.parts();
                        // SAFETY: the view describes the object's own memory; code that writes checks for
                        // read-only tensors first.
                        frame.tensor(&input.name, given, unsafe { tensor.description() }, guard)?;
                        BorrowedArgument::Tensor(import)
                    }
                    Kind::Text => BorrowedArgument::Texts(frame.texts(&input.name, given)?),
                    Kind::Tokenizer => BorrowedArgument::Tokenizer(frame.tokenizer(&input.name, given)?),
                },
                (None, Some(param)) => BorrowedArgument::Value(value(frame, param, object)?),
                (None, None) => BorrowedArgument::Absent,
            },
        );
    }
    // Libraries without a packed 4-bit float dtype pass bytes; the params determine which one is meant.
    for (at, input) in schema.inputs.iter().enumerate() {
        let Cases::By(param, dtypes) = &input.dtype else { continue };
        let Some(BorrowedArgument::Value(Value::Enum(case))) = borrowed.get(schema.inputs.len() + param)
        else {
            continue;
        };
        let packed = dtypes.get(*case as usize) == Some(&DTypeRef::Fixed(DType::F4E2M1x2));
        if let Some(BorrowedArgument::Tensor(import)) = borrowed.get_mut(at) {
            import.nibbles(packed);
        }
    }
    Ok(borrowed)
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

/// Strings of each argument, for the engine's string slices.
pub fn texts<'l>(borrowed: &'l [BorrowedArgument<'_>]) -> Vec<Vec<&'l str>> {
    borrowed
        .iter()
        .map(|one| if let BorrowedArgument::Texts(texts) = one { texts.as_strs() } else { Vec::new() })
        .collect()
}

/// Converts to engine arguments. Read-write inputs are passed as mutable, whether or not the kernel writes
/// them.
pub fn as_args<'l>(
    schema: &Operation,
    borrowed: &'l [BorrowedArgument<'_>],
    texts: &'l [Vec<&'l str>],
) -> Vec<Arg<'l>> {
    let pairs = borrowed.iter().zip(texts).enumerate();
    pairs
        .map(|(at, (one, texts))| match one {
            BorrowedArgument::Absent => Arg::Absent,
            BorrowedArgument::Tensor(import)
                if schema.inputs.get(at).is_some_and(|input| input.read_write) =>
            {
                Arg::TensorMut(import.duplicate())
            }
            BorrowedArgument::Tensor(import) => Arg::Tensor(import.view()),
            BorrowedArgument::Texts(_) => Arg::Text(texts),
            BorrowedArgument::Tokenizer(tokenizer) => Arg::Handle(&**tokenizer),
            BorrowedArgument::Value(value) => Arg::Value(*value),
        })
        .collect()
}
