//! What would be chosen and why, for arguments of any operation. Nothing here runs a kernel.
//!
//! Inspection is not on the way of a call, so it goes through dynamic arguments: one function for all operations.

use lz_core::expr::Value;
use lz_core::{Arg, Context, OperationInfo, Reason, ReasonCode, check, dynamic};
use lz_schema::model::{Kind, Operation, Param, ParamType};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::call::Frame;
use crate::engine::engine;
use crate::error::{raise, refuse};
use crate::tensor::Import;
use crate::text;

/// The operation of this name.
pub fn operation(name: &str) -> PyResult<&'static OperationInfo> {
    lz_ops::OPERATIONS.into_iter().find(|operation| operation.name == name).ok_or_else(|| {
        let names = lz_ops::OPERATIONS.iter().map(|operation| operation.name.as_ref());
        let hint =
            lz_schema::diagnostics::nearest(name, names).map(|near| format!("; did you mean {near:?}?"));
        PyKeyError::new_err(format!("there is no operation {name:?}{}", hint.unwrap_or_default()))
    })
}

/// An argument that Python lends for the time of an inspection.
enum Lent {
    Nothing,
    Tensor(Import),
    Texts(text::Texts),
    Tokenizer(std::sync::Arc<lz_ops::tokenizer::Tokenizer>),
    Value(Value),
}

/// The context of a call that is not made.
fn context(
    py: Python<'_>,
    info: &'static OperationInfo,
    args: &Bound<'_, PyTuple>,
    keywords: Option<&Bound<'_, PyDict>>,
) -> PyResult<Context> {
    let schema = info.schema();
    let mut lent = Vec::new();
    for (object, name) in matched(py, info, args, keywords)?.iter().zip(argument_names(schema)) {
        lent.push(match object {
            Some(object) => lend(py, info, name, object)?,
            None => Lent::Nothing,
        });
    }
    let texts: Vec<Vec<&str>> = lent
        .iter()
        .map(|one| if let Lent::Texts(texts) = one { texts.as_strs() } else { Vec::new() })
        .collect();
    let arguments: Vec<Arg<'_>> = lent
        .iter()
        .zip(&texts)
        .enumerate()
        .map(|(position, (one, texts))| match one {
            Lent::Nothing => Arg::Absent,
            Lent::Tensor(import) if schema.inputs[position].read_write => {
                // What is changed in place must be writable; nothing is run, so a description of it is enough.
                Arg::TensorMut(import.described())
            }
            Lent::Tensor(import) => Arg::Tensor(import.view()),
            Lent::Texts(_) => Arg::Text(texts),
            Lent::Tokenizer(tokenizer) => Arg::Handle(&**tokenizer),
            Lent::Value(value) => Arg::Value(*value),
        })
        .collect();
    let bound = check::check_call(schema, &arguments, None).map_err(|error| raise(py, &error))?;
    dynamic::context(schema, &bound, &arguments, None).map_err(|error| raise(py, &error))
}

/// Names in the schema's order: inputs, then params.
fn argument_names(schema: &Operation) -> impl Iterator<Item = &str> {
    schema
        .inputs
        .iter()
        .map(|input| input.name.as_str())
        .chain(schema.params.iter().map(|param| param.name.as_str()))
}

/// Arguments in the schema's order. Positions follow the function's signature: inputs that must be given, then those that may.
fn matched<'py>(
    py: Python<'py>,
    info: &OperationInfo,
    args: &Bound<'py, PyTuple>,
    keywords: Option<&Bound<'py, PyDict>>,
) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
    let schema = info.schema();
    let mut objects: Vec<Option<Bound<'py, PyAny>>> = argument_names(schema).map(|_| None).collect();
    let order = |optional: bool| {
        schema
            .inputs
            .iter()
            .enumerate()
            .filter(move |(_, input)| input.optional.is_some() == optional)
            .map(|(at, _)| at)
    };
    let positions: Vec<usize> = order(false).chain(order(true)).collect();
    let unknown = |name: String| {
        let reason = Reason::new(ReasonCode::UnknownArgument).argument(&name).found(name.clone());
        refuse(py, &info.name, reason)
    };
    for (number, object) in args.iter().enumerate() {
        let place = positions.get(number).and_then(|&at| objects.get_mut(at));
        *place.ok_or_else(|| unknown(format!("positional argument {}", number + 1)))? = Some(object);
    }
    for (name, object) in keywords.into_iter().flatten() {
        let name: String = name.extract()?;
        let at = argument_names(schema).position(|known| known == name).ok_or_else(|| unknown(name))?;
        objects[at] = Some(object);
    }
    Ok(objects.into_iter().map(|object| object.filter(|object| !object.is_none())).collect())
}

fn lend(
    py: Python<'_>,
    info: &'static OperationInfo,
    name: &str,
    object: &Bound<'_, PyAny>,
) -> PyResult<Lent> {
    let schema = info.schema();
    if let Some(input) = schema.inputs.iter().find(|input| input.name == name) {
        return Ok(match input.kind {
            Kind::Tensor => Lent::Tensor(Frame::new(py, info).borrow(name, object.as_borrowed())?),
            Kind::Text => Lent::Texts(text::Texts::new(&info.name, name, object)?),
            Kind::Tokenizer => Lent::Tokenizer(text::tokenizer(&info.name, name, object)?),
        });
    }
    match schema.params.iter().find(|param| param.name == name) {
        Some(param) => Ok(Lent::Value(value(py, info, param, object)?)),
        None => Ok(Lent::Nothing),
    }
}

fn value(
    py: Python<'_>,
    info: &'static OperationInfo,
    param: &Param,
    object: &Bound<'_, PyAny>,
) -> PyResult<Value> {
    Ok(match &param.ty {
        ParamType::Int => Value::Int(object.extract()?),
        ParamType::F32 | ParamType::F64 => Value::Float(object.extract()?),
        ParamType::Bool => Value::Bool(object.extract()?),
        ParamType::Enum(cases) => {
            let names: Vec<&str> = cases.iter().map(String::as_str).collect();
            let case = Frame::new(py, info).case(&param.name, &names, Some(object.as_borrowed()))?;
            Value::Enum(case.unwrap_or_default())
        }
    })
}

/// The kernel that would run, its score, its workspace and who is next if it fails.
#[pyfunction]
#[pyo3(signature = (operation_name, /, *args, **keywords))]
fn which<'py>(
    py: Python<'py>,
    operation_name: &str,
    args: &Bound<'py, PyTuple>,
    keywords: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyDict>> {
    let info = operation(operation_name)?;
    let context = context(py, info, args, keywords)?;
    let plan = engine().which(info, &context).map_err(|error| raise(py, &error))?;
    let answer = PyDict::new(py);
    answer.set_item("kernel_id", plan.kernel)?;
    answer.set_item("score", plan.score)?;
    answer.set_item("workspace_bytes", plan.workspace_bytes)?;
    answer.set_item("fallbacks", plan.fallbacks)?;
    Ok(answer)
}

/// Every candidate with its score or its reasons; prints as a table, `.to_dict()` for machines.
#[pyfunction]
#[pyo3(signature = (operation_name, /, *args, **keywords))]
fn explain<'py>(
    py: Python<'py>,
    operation_name: &str,
    args: &Bound<'py, PyTuple>,
    keywords: Option<&Bound<'py, PyDict>>,
) -> PyResult<PyExplanation> {
    let info = operation(operation_name)?;
    let context = context(py, info, args, keywords)?;
    let explanation = engine().explain(info, &context);
    let json = serde_json::to_string(&explanation).map_err(|error| {
        PyValueError::new_err(format!("the explanation cannot be written as JSON: {error}"))
    })?;
    Ok(PyExplanation { text: explanation.to_string(), json })
}

/// Why a kernel would be chosen.
#[pyclass(name = "Explanation", module = "layerzero", frozen)]
pub struct PyExplanation {
    text: String,
    json: String,
}

#[pymethods]
impl PyExplanation {
    fn __str__(&self) -> &str {
        &self.text
    }

    fn __repr__(&self) -> &str {
        &self.text
    }

    /// The same as plain dictionaries and lists.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("json")?.call_method1("loads", (&self.json,))
    }
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(which, module)?)?;
    module.add_function(wrap_pyfunction!(explain, module)?)?;
    module.add_class::<PyExplanation>()
}
