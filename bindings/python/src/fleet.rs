//! Measurements and decisions of several machines: comparing and merging databases, signatures, device types, adopted decisions.

use std::collections::BTreeMap;
use std::path::PathBuf;

use lz_core::device::DeviceSpec;
use lz_engine::freeze::AdoptableDecision;
use lz_perfdb::{DiffOptions, MergeReport, Side, device_type, fleet_file};
use lz_plugin::signing;
use pyo3::exceptions::{PyOSError, PyPermissionError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::engine::engine;
use crate::error::raise;
use crate::prepare::database;

/// The differences between two environments as JSON, with the sizes of each bucket in words.
#[pyfunction]
fn perfdb_diff(
    py: Python<'_>,
    before: &str,
    after: &str,
    threshold: f64,
    deviations: f64,
) -> PyResult<String> {
    let side = |text: &str| Side::parse(text).map_err(PyValueError::new_err);
    let (before, after) = (side(before)?, side(after)?);
    let options = DiffOptions { threshold, deviations };
    let found = py.detach(|| lz_perfdb::diff(&before, &after, options));
    let mut found = found.map_err(|error| PyOSError::new_err(error.to_string()))?;
    let registry = engine()?.registry();
    for call in &mut found.calls {
        if let Some(operation) = registry.operation(&call.operation) {
            call.shape = lz_serve::bucket_text(operation, &call.bucket);
        }
    }
    serde_json::to_string(&found).map_err(|error| PyValueError::new_err(error.to_string()))
}

fn report(merged: MergeReport) -> (usize, usize, usize) {
    (merged.measurements, merged.combined, merged.health)
}

/// Merges databases into one. Returns the numbers of measurements, of those with several origins, and of health rows.
#[pyfunction]
fn perfdb_merge(py: Python<'_>, into: PathBuf, files: Vec<PathBuf>) -> PyResult<(usize, usize, usize)> {
    let merged = py.detach(|| lz_perfdb::merge(&into, &files, &BTreeMap::new()));
    merged.map(report).map_err(|error| PyOSError::new_err(error.to_string()))
}

/// Merges the measurements of this machine into a file under the types of their devices, so that all machines with such devices can use
/// them.
#[pyfunction]
fn perfdb_publish(py: Python<'_>, into: PathBuf) -> PyResult<(usize, usize, usize)> {
    let own = database()?.path().to_owned();
    let merged = py.detach(|| {
        let found = lz_device::discover();
        let names = found.devices.iter().map(|device| (device.uuid.clone(), device_type(device)));
        lz_perfdb::merge(&into, &[own], &names.collect())
    });
    merged.map(report).map_err(|error| PyOSError::new_err(error.to_string()))
}

/// The file with measurements of other machines that the engine reads.
#[pyfunction]
fn perfdb_fleet_file() -> PyResult<PathBuf> {
    Ok(fleet_file(database()?.path()))
}

/// Uses a database of other machines from now on: checks it, and moves it to the file that the engine reads. Returns the number of
/// measurements.
#[pyfunction]
fn perfdb_use_fleet(py: Python<'_>, path: PathBuf) -> PyResult<u64> {
    let own = database()?.path().to_owned();
    let count = py.detach(|| lz_perfdb::replace_fleet_file(&own, &path));
    engine()?.refresh_evidence();
    count.map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Reads the measurements again, after a change of the file with those of other machines.
#[pyfunction]
fn perfdb_refresh() -> PyResult<()> {
    engine()?.refresh_evidence();
    Ok(())
}

/// The devices of this machine: platform, index, type, hardware signature.
#[pyfunction]
fn device_types(py: Python<'_>) -> Vec<(&'static str, u32, String, String)> {
    let found = py.detach(lz_device::discover);
    let row = |device: &DeviceSpec| {
        (device.platform().name(), device.index, device_type(device), device.hardware_signature())
    };
    found.devices.iter().map(row).collect()
}

fn refused(error: signing::SigningError) -> PyErr {
    match error {
        signing::SigningError::Untrusted { .. } | signing::SigningError::NoTrustedKeys => {
            PyPermissionError::new_err(error.to_string())
        }
        other => PyValueError::new_err(other.to_string()),
    }
}

/// Creates a private key; returns the public one.
#[pyfunction]
fn create_signing_key(path: PathBuf) -> PyResult<String> {
    signing::create_key(&path).map_err(refused)
}

/// The public key of a private key.
#[pyfunction]
fn public_signing_key(path: PathBuf) -> PyResult<String> {
    signing::public_key(&path).map_err(refused)
}

/// Signs bytes with the private key in a file.
#[pyfunction]
fn sign<'py>(py: Python<'py>, data: &[u8], key: PathBuf) -> PyResult<Bound<'py, PyBytes>> {
    signing::sign(data, &key).map(|signature| PyBytes::new(py, &signature)).map_err(refused)
}

/// Raises unless one of these public keys signed the bytes.
#[pyfunction]
fn verify_signature(data: &[u8], signature: &[u8], keys: Vec<String>) -> PyResult<()> {
    signing::verify(data, signature, &keys).map_err(refused)
}

/// The recorded decisions as rules: operation, condition, kernel, precedence.
#[pyfunction]
fn adoptable_decisions() -> PyResult<Vec<(String, String, String, u32)>> {
    let row = |one: AdoptableDecision| (one.operation, one.condition, one.kernel, one.precedence);
    Ok(engine()?.adoptable_decisions().into_iter().map(row).collect())
}

/// Adopts decisions of another process instead of those adopted before.
#[pyfunction]
fn adopt_decisions(py: Python<'_>, decisions: Vec<(String, String, String, u32)>) -> PyResult<()> {
    let one = |(operation, condition, kernel, precedence)| AdoptableDecision {
        operation,
        condition,
        kernel,
        precedence,
    };
    let decisions: Vec<AdoptableDecision> = decisions.into_iter().map(one).collect();
    engine()?.adopt_decisions(&decisions).map_err(|error| raise(py, &error))
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(perfdb_diff, module)?)?;
    module.add_function(wrap_pyfunction!(perfdb_merge, module)?)?;
    module.add_function(wrap_pyfunction!(perfdb_publish, module)?)?;
    module.add_function(wrap_pyfunction!(perfdb_fleet_file, module)?)?;
    module.add_function(wrap_pyfunction!(perfdb_use_fleet, module)?)?;
    module.add_function(wrap_pyfunction!(perfdb_refresh, module)?)?;
    module.add_function(wrap_pyfunction!(device_types, module)?)?;
    module.add_function(wrap_pyfunction!(create_signing_key, module)?)?;
    module.add_function(wrap_pyfunction!(public_signing_key, module)?)?;
    module.add_function(wrap_pyfunction!(sign, module)?)?;
    module.add_function(wrap_pyfunction!(verify_signature, module)?)?;
    module.add_function(wrap_pyfunction!(adoptable_decisions, module)?)?;
    module.add_function(wrap_pyfunction!(adopt_decisions, module)?)
}
