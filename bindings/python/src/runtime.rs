//! Operations loaded at run time: the same schema language, validation and kernel selection as the catalog.

use std::path::PathBuf;

use lz_core::{OperationInfo, dynamic};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::dynamic_call::call;
use crate::engine::engine;
use crate::error::{is_no_kernel, raise, system_error};
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

    /// Selects the kernel for calls like this one; see `plan` of catalog operations.
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

/// Reads an operation from the text of its schema and registers it with the engine. An operation with the same text is kept
/// as it is, with its kernels; another one is replaced if `replace` is set.
#[pyfunction]
fn read_operation(py: Python<'_>, path: &str, yaml: &str, replace: bool) -> PyResult<PyOperation> {
    let info = dynamic::read_operation(path, yaml).map_err(|error| raise(py, &error))?;
    let engine = engine()?;
    let known = engine.registry().operation(&info.name);
    known.map_or(Ok(()), |known| refuse_catalog(py, known))?;
    match known {
        Some(known) if known.yaml == info.yaml => return Ok(PyOperation { info: known }),
        Some(_) if replace => engine.replace_operation(info),
        _ => engine.register_operations([info]),
    }
    .map_err(|error| raise(py, &error))?;
    Ok(PyOperation { info })
}

/// Refuses to change an operation of the catalog or a primitive of graphs: generated code and compiled models rely on them.
fn refuse_catalog(py: Python<'_>, info: &'static OperationInfo) -> PyResult<()> {
    let mut built_in = lz_ops::OPERATIONS.iter().copied().chain(lz_primitives::all().iter().copied());
    if !built_in.any(|known| std::ptr::eq(known, info)) {
        return Ok(());
    }
    let message = "it belongs to the catalog and can neither be replaced nor unregistered";
    let error = lz_core::Error::Configuration {
        subject: info.name.to_string(),
        reasons: vec![
            lz_core::Reason::new(lz_core::ReasonCode::OperationVersionMismatch)
                .message(format!("{}: {message}", info.name)),
        ],
        message: message.to_owned(),
    };
    Err(raise(py, &error))
}

/// Unregisters an operation and its kernels.
#[pyfunction]
fn unregister_operation(py: Python<'_>, name: &str) -> PyResult<()> {
    refuse_catalog(py, crate::inspect::operation(name)?)?;
    engine()?.unregister_operation(name).map_err(|error| raise(py, &error))
}

/// Converts a FlashInfer-Bench definition: the operation's name, its schema, what was assumed, and its inputs as pairs of the
/// definition's name and the schema's, which is `None` for an input that the schema does not have.
#[pyfunction]
fn import_definition(text: &str, file: &str) -> PyResult<ImportedDefinition> {
    let imported =
        lz_interchange::import(text, file).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok((imported.operation, imported.yaml, imported.notes, imported.inputs, imported.in_place_outputs))
}

type ImportedDefinition = (String, String, Vec<String>, Vec<(String, Option<String>)>, Vec<String>);

/// The text of a regular file of bounded size.
#[pyfunction]
fn read_text_file(path: PathBuf) -> PyResult<String> {
    lz_files::read_text(&path, lz_files::MAX_TEXT_BYTES).map_err(|error| system_error(path.display(), &error))
}

/// The steps of a checked score expression (`lz_core::score_mod::ScoreMod::steps`), for kernels in Python.
#[pyfunction]
fn score_mod_steps(text: &[u8], parameters: i64) -> PyResult<Vec<(&'static str, f64)>> {
    let view = lz_core::TensorView::from_slice(text, &[text.len() as i64])
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    match lz_core::score_mod::ScoreMod::of(&view, parameters) {
        Ok(expression) => Ok(expression.steps()),
        Err(reason) => Err(PyValueError::new_err(format!("score_mod{}", reason.sentence()))),
    }
}

/// A complete example schema, the one that `cargo xtask new-op` writes, for a file outside the repository.
#[pyfunction]
fn operation_template(name: &str) -> String {
    lz_schema::template::schema(name, None)
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(read_operation, module)?)?;
    module.add_function(wrap_pyfunction!(unregister_operation, module)?)?;
    module.add_function(wrap_pyfunction!(import_definition, module)?)?;
    module.add_function(wrap_pyfunction!(read_text_file, module)?)?;
    module.add_function(wrap_pyfunction!(score_mod_steps, module)?)?;
    module.add_function(wrap_pyfunction!(operation_template, module)?)?;
    module.add_class::<PyOperation>()
}
