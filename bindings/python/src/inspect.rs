//! Kernel selection without running a kernel: `which` and `explain`, for any operation.
//!
//! Inspection is not performance-critical, so one function with dynamic arguments serves all operations.

use lz_core::{Context, OperationInfo, check, dynamic};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arguments::{as_args, borrow_arguments, match_arguments, texts};
use crate::call::Frame;
use crate::engine::engine;
use crate::error::raise;
use crate::selection::Selection;

/// The operation of this name.
pub fn operation(name: &str) -> PyResult<&'static OperationInfo> {
    let registry = engine()?.registry();
    registry.operation(name).ok_or_else(|| {
        let names = registry.operations().map(|operation| operation.name.as_ref());
        let hint =
            lz_schema::diagnostics::nearest(name, names).map(|near| format!("; did you mean {near:?}?"));
        PyKeyError::new_err(format!("unknown operation {name:?}{}", hint.unwrap_or_default()))
    })
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

/// The selected kernel, its score, its workspace and its fallbacks.
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
    let engine = engine()?;
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
#[pyo3(signature = (operation_name, /, *args, **keywords))]
fn explain<'py>(
    py: Python<'py>,
    operation_name: &str,
    args: &Bound<'py, PyTuple>,
    keywords: Option<&Bound<'py, PyDict>>,
) -> PyResult<PyExplanation> {
    let info = operation(operation_name)?;
    let context = context(py, info, args, keywords)?;
    let engine = engine()?;
    let explanation = py.detach(|| engine.explain(info, &context));
    let json = serde_json::to_string(&explanation).map_err(|error| {
        PyValueError::new_err(format!("the explanation cannot be written as JSON: {error}"))
    })?;
    Ok(PyExplanation { text: explanation.to_string(), json })
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

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(which, module)?)?;
    module.add_function(wrap_pyfunction!(explain, module)?)?;
    module.add_class::<PyExplanation>()
}
