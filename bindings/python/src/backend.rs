//! Backends that Python hosts: their kernels as a descriptor describes them, and why one cannot be used.

use lz_core::descriptor::{self, Catalogue};
use lz_core::{Error, KernelEntry, OperationInfo, Reason, ReasonCode};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::engine::engine;
use crate::error::raise;
use crate::hosted::Hosted;
use crate::inspect::operation;
use crate::worker;

/// Registers the kernels of a backend, all or none: `functions` has one a kernel id, and a descriptor that names another
/// kernel is wrong. Gives id and operation of each.
#[pyfunction]
fn register_descriptor(
    py: Python<'_>,
    path: &str,
    text: &str,
    functions: &Bound<'_, PyDict>,
) -> PyResult<Vec<(String, String)>> {
    let registry = engine().registry();
    let catalogue = Catalogue::new(registry.operations().map(OperationInfo::schema));
    let read = descriptor::read(path, text, &catalogue).map_err(|error| raise(py, &error.into()))?;
    let mut entries = Vec::new();
    let mut registered = Vec::new();
    for spec in read.kernels {
        let Some(function) = functions.get_item(&spec.id)? else {
            let reason = Reason::new(ReasonCode::CapabilitiesMissing)
                .message(format!("the descriptor names {}, which the backend does not have", spec.id));
            let subject = path.to_owned();
            let message = reason.sentence();
            return Err(raise(py, &Error::Configuration { subject, message, reasons: vec![reason] }));
        };
        let info = operation(&spec.operation)?;
        if worker::is_isolated(py, &spec.backend)? {
            // Kernels of a device have nothing to do where no tensor of one can come.
            if worker::crosses(&spec) {
                registered.push((spec.id.clone(), spec.operation.clone()));
                entries.push(worker::remote_backend(py, spec, info)?);
            }
            continue;
        }
        let params = info.schema().params.iter().map(|param| param.name.as_str());
        let hosted = Hosted::new(&function, spec.writes_into_output, params)?;
        registered.push((spec.id.clone(), spec.operation.clone()));
        entries.push(KernelEntry::new(spec, hosted).of(info));
    }
    engine().register(entries).map_err(|error| raise(py, &error))?;
    Ok(registered)
}

/// Says why a backend cannot be used.
#[pyfunction]
fn disable_backend(backend: &str, message: &str) {
    let reason = Reason::new(ReasonCode::BackendImportFailed).message(message.to_owned());
    engine().disable_backend(backend, reason);
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(register_descriptor, module)?)?;
    module.add_function(wrap_pyfunction!(disable_backend, module)?)
}
