//! Backends that Python hosts: their kernels as a descriptor describes them, and why one cannot be used.

use lz_core::descriptor::{self, Catalogue};
use lz_core::{Error, KernelEntry, OperationInfo, Reason, ReasonCode};
use lz_worker::settings::Origin;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::engine::engine;
use crate::error::raise;
use crate::hosted::Hosted;
use crate::inspect::operation;
use crate::jit;
use crate::worker;

/// Registers the kernels of a backend, all or none: `functions` has one a kernel id, and a descriptor that names another
/// kernel is wrong. `compile` compiles those that say `jit`, outside of calls. A backend that is not LayerZero's own comes with
/// its entry point. With `reference` the kernels are the references of their operations on their platform. Gives id and operation
/// of each.
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
    let catalogue = Catalogue::new(registry.operations().map(OperationInfo::schema));
    let read = descriptor::read(path, text, &catalogue).map_err(|error| raise(py, &error.into()))?;
    if entry_point.is_some() {
        worker::refuse_reserved(py, path, &read.backend)?;
    }
    let origin = entry_point.map_or(Origin::BuiltIn, Origin::EntryPoint);
    let mut entries = Vec::new();
    let mut registered = Vec::new();
    for mut spec in read.kernels {
        spec.reference = reference;
        let Some(function) = functions.get_item(&spec.id)? else {
            let reason = Reason::new(ReasonCode::CapabilitiesMissing)
                .message(format!("the descriptor names {}, which the backend does not have", spec.id));
            let subject = path.to_owned();
            let message = reason.sentence();
            return Err(raise(py, &Error::Configuration { subject, message, reasons: vec![reason] }));
        };
        let info = operation(&spec.operation)?;
        if worker::is_isolated(py, origin, &spec.backend)? {
            // Kernels of a device have nothing to do where no tensor of one can come.
            if worker::crosses(&spec) {
                registered.push((spec.id.clone(), spec.operation.clone()));
                entries.push(worker::remote_backend(py, entry_point, spec, info)?);
            }
            continue;
        }
        let params = info.schema().params.iter().map(|param| param.name.as_str());
        let hosted = Hosted::new(&function, spec.writes_into_output, params)?;
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

/// Says why a backend cannot be used: it cannot be imported, unless another code says what it is.
#[pyfunction]
#[pyo3(signature = (backend, message, code = "BACKEND_IMPORT_FAILED"))]
fn disable_backend(backend: &str, message: &str, code: &str) -> PyResult<()> {
    let known = ReasonCode::parse(code)
        .ok_or_else(|| PyValueError::new_err(format!("{code:?} is not a reason code of layerzero")))?;
    engine()?.disable_backend(backend, Reason::new(known).message(message.to_owned()));
    Ok(())
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(register_descriptor, module)?)?;
    module.add_function(wrap_pyfunction!(disable_backend, module)?)
}
