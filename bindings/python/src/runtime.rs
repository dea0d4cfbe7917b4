//! Operations loaded at run time: the same schema language, validation and kernel selection as the catalogue.

use std::path::PathBuf;

use lz_core::{OperationInfo, dynamic};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::dynamic_call::call;
use crate::engine::engine;
use crate::error::{is_no_kernel, raise};
use crate::plan::{PyPlan, Source};
use crate::selection::Selection;
use crate::split;

// An operation loaded at run time, as a function. A class docstring would hide those of the instances.
#[pyclass(name = "Operation", module = "layerzero", frozen)]
pub struct PyOperation {
    info: &'static OperationInfo,
}

#[pymethods]
impl PyOperation {
    /// The dotted name.
    #[getter]
    fn operation(&self) -> &str {
        &self.info.name
    }

    #[getter]
    fn __name__(&self) -> String {
        self.info.name.replace('.', "_")
    }

    #[getter]
    fn __doc__(&self) -> String {
        let schema = self.info.schema();
        format!("{}\n\n{}", schema.summary, schema.doc.trim_end())
    }

    fn __repr__(&self) -> String {
        format!("<operation {}>", self.info.name)
    }

    #[pyo3(signature = (*arguments, **keywords))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        arguments: &Bound<'py, PyTuple>,
        keywords: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        call(py, Selection::Select, self.info, arguments, keywords).or_else(|error| {
            if !is_no_kernel(py, &error) {
                return Err(error);
            }
            split::call(py, self.info, arguments, keywords)?.ok_or(error)
        })
    }

    /// Selects the kernel for calls like this one; see `plan` of catalogue operations.
    #[pyo3(signature = (*arguments, **keywords))]
    fn plan<'py>(
        &self,
        py: Python<'py>,
        arguments: &Bound<'py, PyTuple>,
        keywords: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<PyPlan> {
        PyPlan::make(Source::Read(self.info), |selection| call(py, selection, self.info, arguments, keywords))
    }
}

/// Reads an operation from the text of its schema and registers it with the engine.
#[pyfunction]
fn read_operation(path: &str, yaml: &str) -> PyResult<PyOperation> {
    Python::attach(|py| {
        let info = dynamic::read_operation(path, yaml).map_err(|error| raise(py, &error))?;
        engine()?.register_operations([info]).map_err(|error| raise(py, &error))?;
        Ok(PyOperation { info })
    })
}

/// The text of a regular file of bounded size.
#[pyfunction]
fn read_text_file(path: PathBuf) -> PyResult<String> {
    Ok(lz_files::read_text(&path, lz_files::MAX_TEXT_BYTES)?)
}

/// A complete example schema, the one that `cargo xtask new-op` writes.
#[pyfunction]
fn operation_template(name: &str) -> String {
    include_str!("../../../xtask/src/new_op/schema.yaml").replace("{name}", name).replace("{up}", "")
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(read_operation, module)?)?;
    module.add_function(wrap_pyfunction!(read_text_file, module)?)?;
    module.add_function(wrap_pyfunction!(operation_template, module)?)?;
    module.add_class::<PyOperation>()
}
