//! Graphs from Python: `GraphBuilder` builds one node after the other, `CompiledGraph` runs it.

mod builder;
mod compiled;
mod device;
mod size;

use lz_graph::GraphError;
use pyo3::prelude::*;

use crate::error::{graph_import_error, raise, validation_error};
use lz_core::{Reason, ReasonCode};

/// Adds the classes.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<size::SymbolicSize>()?;
    module.add_class::<builder::GraphBuilder>()?;
    module.add_class::<compiled::CompiledGraph>()
}

/// The exception for a graph's error.
#[cold]
fn raise_graph(py: Python<'_>, error: &GraphError) -> PyErr {
    match error {
        GraphError::Run { error: inner, .. } => {
            let raised = raise(py, inner);
            let note = raised.value(py).call_method1("add_note", (format!("in the graph: {error}"),));
            note.map_or_else(|failed| failed, |_| raised)
        }
        GraphError::Input { .. } => {
            let reason = Reason::new(ReasonCode::ShapeMismatch).message(error.to_string());
            validation_error(py, "graph", reason)
        }
        _ => graph_import_error(py, &error.to_string()),
    }
}
