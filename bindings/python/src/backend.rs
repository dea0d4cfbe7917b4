//! Backends hosted in Python: registering their kernels from a descriptor, and disabling a backend with a
//! reason.

use lz_core::descriptor::{self, Catalog};
use lz_core::{Error, KernelEntry, OperationInfo, Reason, ReasonCode};
use lz_worker::settings::Origin;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::engine::engine;
use crate::error::raise;
use crate::inspect::operation;
use crate::jit;
use crate::python_kernel::PythonKernel;
use crate::worker;

/// Registers the kernels of a backend, all or none. `functions` maps each kernel id to its function; a
/// descriptor that names another kernel is an error. `compile` compiles kernels marked `jit`, outside of
/// calls. A backend that is not LayerZero's own passes its entry point. With `reference` the kernels are the
/// reference kernels of their operations on their platform. Returns id and operation of each kernel.
#[pyfunction]
#[pyo3(signature = (path, text, functions, compile = None, entry_point = None, reference = false))]
fn register_descriptor(
    py: Python<'_>,
    path: &str,
    text: &str,
    functions: &Bound<'_, PyDict>,
    compile: Option<&Bound<'_, PyAny>>,
    entry_point: Option<&str>,
    reference: bool,
) -> PyResult<Vec<(String, String)>> {
    let registry = engine()?.registry();
    let catalog = Catalog::new(registry.operations().map(OperationInfo::schema));
    let read = descriptor::read(path, text, &catalog).map_err(|error| raise(py, &error.into()))?;
    if entry_point.is_some() {
        worker::refuse_reserved(py, path, &read.backend)?;
    }
    let origin = entry_point.map_or(Origin::BuiltIn, Origin::EntryPoint);
    let mut entries = Vec::new();
    let mut registered = Vec::new();
    for mut spec in read.kernels {
        spec.reference = reference;
        let Some(function) = functions.get_item(&spec.id)? else {
            let reason = Reason::new(ReasonCode::CapabilitiesMissing).message(format!(
                "the descriptor names kernel {}, but the backend has no such function",
                spec.id
            ));
            let subject = path.to_owned();
            let message = reason.sentence();
            return Err(raise(py, &Error::Configuration { subject, message, reasons: vec![reason] }));
        };
        let info = operation(&spec.operation)?;
        if worker::is_isolated(py, origin, &spec.backend)? {
            // Worker processes take host tensors only, so device kernels are skipped.
            if worker::supports_worker(&spec) {
                registered.push((spec.id.clone(), spec.operation.clone()));
                entries.push(worker::remote_backend(py, entry_point, spec, info)?);
            }
            continue;
        }
        let params = info.schema().kernel_params().map(|param| param.name.as_str());
        let hosted = PythonKernel::new(&function, spec.writes_into_output, params)?;
        registered.push((spec.id.clone(), spec.operation.clone()));
        let compiler = compile
            .filter(|_| spec.jit)
            .map(|function| jit::Compiler { function: function.clone().unbind() });
        let entry = KernelEntry::new(spec, hosted).of(info);
        entries.push(match compiler {
            Some(compiler) => {
                jit::ensure_queue(engine()?);
                entry.compiled_by(compiler)
            }
            None => entry,
        });
    }
    engine()?.register(entries).map_err(|error| raise(py, &error))?;
    Ok(registered)
}

/// Disables a backend with a reason; the default code means that it could not be imported.
#[pyfunction]
#[pyo3(signature = (backend, message, code = "BACKEND_IMPORT_FAILED"))]
fn disable_backend(backend: &str, message: &str, code: &str) -> PyResult<()> {
    let known = ReasonCode::parse(code)
        .ok_or_else(|| PyValueError::new_err(format!("unknown reason code {code:?}")))?;
    engine()?.disable_backend(backend, Reason::new(known).message(message.to_owned()));
    Ok(())
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(register_descriptor, module)?)?;
    module.add_function(wrap_pyfunction!(disable_backend, module)?)
}
