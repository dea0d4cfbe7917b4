//! The page of the engine: a server on a loopback address, and the same as one file.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use lz_serve::{Server, Source};
use pyo3::prelude::*;

use crate::engine::engine;
use crate::error::system_error;

/// What is served: the engine of this process, with the measurements of a file if one is given, and up to two lockfiles.
fn source(perfdb: Option<PathBuf>, lockfiles: &[PathBuf]) -> PyResult<Source> {
    let mut source = Source::new(engine()?.clone());
    if let Some(path) = perfdb {
        source = source.with_perfdb(&path)?;
    }
    if let [expected, rest @ ..] = lockfiles {
        source = source.with_lockfiles(expected, rest.first().map(PathBuf::as_path))?;
    }
    Ok(source)
}

/// A running server.
#[pyclass(name = "PageServer", module = "layerzero._native", frozen)]
struct PyServer {
    url: String,
    server: Mutex<Server>,
}

#[pymethods]
impl PyServer {
    #[getter]
    fn url(&self) -> &str {
        &self.url
    }

    #[getter]
    fn port(&self) -> u16 {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).address().port()
    }

    fn is_open(&self) -> bool {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).is_open()
    }

    fn close(&self, py: Python<'_>) {
        // A request that is being answered may wait for the interpreter.
        py.detach(|| self.server.lock().unwrap_or_else(PoisonError::into_inner).close());
    }
}

/// Starts a server.
#[pyfunction]
#[pyo3(signature = (port, perfdb = None, lockfiles = Vec::new()))]
fn serve(py: Python<'_>, port: u16, perfdb: Option<PathBuf>, lockfiles: Vec<PathBuf>) -> PyResult<PyServer> {
    let source = source(perfdb, &lockfiles)?;
    let server = py.detach(|| lz_serve::serve(source, port));
    let server = server.map_err(|error| system_error(format!("port {port} of 127.0.0.1"), &error))?;
    Ok(PyServer { url: server.url().to_owned(), server: Mutex::new(server) })
}

/// The page as the text of one file.
#[pyfunction]
#[pyo3(signature = (perfdb = None, lockfiles = Vec::new()))]
fn report_html(py: Python<'_>, perfdb: Option<PathBuf>, lockfiles: Vec<PathBuf>) -> PyResult<String> {
    let source = source(perfdb, &lockfiles)?;
    Ok(py.detach(|| lz_serve::report(&source)))
}

/// Process id, program, start and URL of the running servers of this user.
#[pyfunction]
fn serving_processes(py: Python<'_>) -> Vec<(u32, String, u64, String)> {
    let processes = py.detach(lz_serve::processes);
    processes.into_iter().map(|one| (one.pid, one.program, one.since, one.url)).collect()
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyServer>()?;
    module.add_function(wrap_pyfunction!(serve, module)?)?;
    module.add_function(wrap_pyfunction!(report_html, module)?)?;
    module.add_function(wrap_pyfunction!(serving_processes, module)?)
}
