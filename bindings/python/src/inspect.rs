//! Kernel selection without running a kernel: `which` and `explain`, for any operation or alias and for any device.
//!
//! Inspection is not performance-critical, so one function with dynamic arguments serves all operations.

use lz_core::{Context, OperationInfo, ReasonCode, check, dynamic, synthetic};
use lz_engine::{Engine, Explanation};
use lz_schema::model::{Alias, Constant, Operation, ParamType};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::arguments::{BorrowedArgument, as_args, borrow_arguments, match_arguments, texts};
use crate::call::Frame;
use crate::engine::engine;
use crate::error::raise;
use crate::selection::Selection;
use crate::simulate::{self, DescribedBackend};

/// The operation of this name.
pub fn operation(name: &str) -> PyResult<&'static OperationInfo> {
    engine()?.registry().find_operation(name).map_err(|error| Python::attach(|py| raise(py, &error)))
}

/// The error for an unknown name, with the nearest operation or alias.
#[cold]
fn unknown(name: &str) -> PyErr {
    match engine() {
        Ok(engine) => Python::attach(|py| raise(py, &engine.registry().unknown_operation(name))),
        Err(error) => error,
    }
}

/// The error for an attribute of `layerzero.ops` that is no operation, with the nearest function.
#[pyfunction]
fn unknown_function(py: Python<'_>, name: &str) -> PyErr {
    let functions: Vec<String> = match engine() {
        Ok(engine) => engine.registry().operations().map(|info| info.name.replace('.', "_")).collect(),
        Err(error) => return error,
    };
    raise(py, &lz_core::Error::unknown_operation(name, functions.iter().map(String::as_str)))
}

/// An operation that a name stands for, and the alias if the name is one.
pub type Target = (&'static OperationInfo, Option<&'static Alias>);

/// The operations that a name stands for: one, or all that have it as an alias.
pub fn targets(name: &str) -> PyResult<Vec<Target>> {
    let registry = engine()?.registry();
    if let Some(info) = registry.operation(name) {
        return Ok(vec![(info, None)]);
    }
    let found: Vec<Target> = registry
        .operations()
        .filter_map(|info| Some((info, Some(info.schema().aliases.iter().find(|alias| alias.name == name)?))))
        .collect();
    if found.is_empty() { Err(unknown(name)) } else { Ok(found) }
}

/// The params that an alias fixes, as Python values.
pub fn fixed<'py>(
    py: Python<'py>,
    schema: &'static Operation,
    alias: &Alias,
) -> PyResult<Vec<(&'static str, Bound<'py, PyAny>)>> {
    let mut all = Vec::new();
    for (param, constant) in &alias.fixes {
        let Some(param) = schema.params.get(*param) else { continue };
        let value = match (constant, &param.ty) {
            (Constant::Int(value), _) => value.into_pyobject(py)?.into_any(),
            (Constant::Float(value), _) => value.into_pyobject(py)?.into_any(),
            (Constant::Bool(value), _) => value.into_pyobject(py)?.to_owned().into_any(),
            (Constant::Enum(case), ParamType::Enum(cases)) => {
                cases.get(*case as usize).into_pyobject(py)?.into_any()
            }
            (Constant::Enum(_), _) => continue,
        };
        all.push((param.name.as_str(), value));
    }
    Ok(all)
}

/// The operation and the context of a call that is described but not made. Of the operations of an alias, the first that accepts
/// the call.
pub fn described_call<'py>(
    py: Python<'py>,
    name: &str,
    arguments: &Bound<'py, PyTuple>,
    keywords: Option<&Bound<'py, PyDict>>,
) -> PyResult<(&'static OperationInfo, Context)> {
    let mut first = None;
    for (info, alias) in targets(name)? {
        let keywords = match (alias, keywords) {
            (None, given) => given.cloned(),
            (Some(alias), given) => {
                let all = given.map_or_else(|| Ok(PyDict::new(py)), |given| given.copy())?;
                for (param, value) in fixed(py, info.schema(), alias)? {
                    all.set_item(param, value)?;
                }
                Some(all)
            }
        };
        match context(py, info, arguments, keywords.as_ref()) {
            Ok(context) => return Ok((info, context)),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.unwrap_or_else(|| unknown(name)))
}

/// The context of a call that is described but not made.
pub fn context<'py>(
    py: Python<'py>,
    info: &'static OperationInfo,
    arguments: &Bound<'py, PyTuple>,
    keywords: Option<&Bound<'py, PyDict>>,
) -> PyResult<Context> {
    let schema = info.schema();
    let (objects, _) = match_arguments(py, info, arguments, keywords)?;
    let mut frame = Frame::new(py, info, Selection::Select);
    let borrowed = borrow_arguments(&mut frame, &objects)?;
    let strings = texts(&borrowed);
    let args = as_args(schema, &borrowed, &strings);
    let bound = check::check_call(schema, &args, None).map_err(|error| raise(py, &error))?;
    dynamic::context(schema, &bound, &args, None).map_err(|error| raise(py, &error))
}

/// The bytes of values that the operation allows, for each tensor of integers whose values it restricts. Empty if the call is
/// invalid for another reason, which the call itself reports.
#[pyfunction]
#[pyo3(signature = (operation_name, /, **keywords))]
fn valid_integers<'py>(
    py: Python<'py>,
    operation_name: &str,
    keywords: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    for (info, alias) in targets(operation_name)? {
        let schema = info.schema();
        let all = keywords.map_or_else(|| Ok(PyDict::new(py)), |given| given.copy())?;
        if let Some(alias) = alias {
            for (param, value) in fixed(py, schema, alias)? {
                all.set_item(param, value)?;
            }
        }
        let (objects, _) = match_arguments(py, info, &PyTuple::empty(py), Some(&all))?;
        let mut frame = Frame::new(py, info, Selection::Select);
        let borrowed = borrow_arguments(&mut frame, &objects)?;
        let strings = texts(&borrowed);
        let args = as_args(schema, &borrowed, &strings);
        let Ok(bound) = check::check_planned_call(schema, &args, None) else { continue };
        for (at, (input, argument)) in schema.inputs.iter().zip(&borrowed).enumerate() {
            let BorrowedArgument::Tensor(tensor) = argument else { continue };
            let view = tensor.view();
            let values = synthetic::valid_integers(schema, at, &bound, view.shape(), view.dtype());
            if let Some(values) = values {
                found.set_item(&input.name, PyBytes::new(py, values.bytes()))?;
            }
        }
        break;
    }
    Ok(found)
}

/// The engine of this process, or one with this device and these backends.
pub fn engine_for(py: Python<'_>, device: Option<&str>, backends: Vec<DescribedBackend>) -> PyResult<Engine> {
    match device {
        None => engine().cloned(),
        Some(name) => simulate::engine_on(py, engine()?, simulate::device(name)?, backends),
    }
}

/// The selected kernel, its score, its workspace and its fallbacks.
#[pyfunction]
#[pyo3(signature = (operation_name, device, backends, /, *args, **keywords))]
fn which<'py>(
    py: Python<'py>,
    operation_name: &str,
    device: Option<&str>,
    backends: Vec<DescribedBackend>,
    args: &Bound<'py, PyTuple>,
    keywords: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyDict>> {
    let (info, context) = described_call(py, operation_name, args, keywords)?;
    let engine = engine_for(py, device, backends)?;
    // Checking tokenizer kernels takes long.
    let plan = py.detach(|| engine.which(info, &context)).map_err(|error| raise(py, &error))?;
    let answer = PyDict::new(py);
    answer.set_item("kernel_id", plan.kernel)?;
    answer.set_item("score", plan.score)?;
    answer.set_item("workspace_bytes", plan.workspace_bytes)?;
    answer.set_item("fallbacks", plan.fallbacks)?;
    Ok(answer)
}

/// Every candidate with its score or its rejection reasons; prints as a table, `.to_dict()` for programs.
#[pyfunction]
#[pyo3(signature = (operation_name, device, backends, /, *args, **keywords))]
fn explain<'py>(
    py: Python<'py>,
    operation_name: &str,
    device: Option<&str>,
    backends: Vec<DescribedBackend>,
    args: &Bound<'py, PyTuple>,
    keywords: Option<&Bound<'py, PyDict>>,
) -> PyResult<PyExplanation> {
    let (info, context) = described_call(py, operation_name, args, keywords)?;
    let explanation = if device.is_some() {
        let engine = engine_for(py, device, backends)?;
        py.detach(|| engine.explain(info, &context))
    } else {
        let engine = engine()?;
        let mut own = py.detach(|| engine.explain(info, &context));
        add_missing(py, engine, info, &context, backends, &mut own)?;
        own
    };
    let json = serde_json::to_string(&explanation).map_err(|error| {
        PyValueError::new_err(format!("the explanation cannot be written as JSON: {error}"))
    })?;
    Ok(PyExplanation { text: explanation.to_string(), json })
}

/// Adds the kernels of backends that are not installed and are for the device of the call.
fn add_missing(
    py: Python<'_>,
    engine: &Engine,
    info: &'static OperationInfo,
    context: &Context,
    backends: Vec<DescribedBackend>,
    explanation: &mut Explanation,
) -> PyResult<()> {
    let Some(device) = explanation.device.as_ref().filter(|_| !backends.is_empty()) else { return Ok(()) };
    // No backend describes kernels for a device that is not probed.
    let Ok(device) = simulate::device(&device.place) else { return Ok(()) };
    let simulated = simulate::engine_on(py, engine, device, backends)?;
    let other = py.detach(|| simulated.explain(info, context));
    let has = |reasons: &[lz_engine::explain::ReasonLine], code: ReasonCode| {
        reasons.iter().any(|reason| reason.code == code.as_str())
    };
    explanation.candidates.extend(other.candidates.into_iter().filter(|candidate| {
        has(&candidate.reasons, ReasonCode::NotInstalled)
            && !has(&candidate.reasons, ReasonCode::PlatformMismatch)
    }));
    Ok(())
}

/// Why a kernel is selected.
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

/// The operations that a name stands for, each with the params that an alias fixes.
#[pyfunction]
fn operation_targets<'py>(py: Python<'py>, name: &str) -> PyResult<Vec<(&'static str, Bound<'py, PyDict>)>> {
    let mut all = Vec::new();
    for (info, alias) in targets(name)? {
        let params = PyDict::new(py);
        if let Some(alias) = alias {
            for (param, value) in fixed(py, info.schema(), alias)? {
                params.set_item(param, value)?;
            }
        }
        all.push((info.name.as_ref(), params));
    }
    Ok(all)
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(which, module)?)?;
    module.add_function(wrap_pyfunction!(explain, module)?)?;
    module.add_function(wrap_pyfunction!(valid_integers, module)?)?;
    module.add_function(wrap_pyfunction!(unknown_function, module)?)?;
    module.add_function(wrap_pyfunction!(operation_targets, module)?)?;
    module.add_class::<PyExplanation>()
}
