//! How the kernel of a call is selected: by the engine now, by the engine for later calls, or by a plan.

use std::cell::OnceCell;

use lz_engine::engine::Pinned;
use pyo3::prelude::*;

/// How the kernel of a call is selected.
#[derive(Clone, Copy)]
pub enum Selection<'h> {
    /// The engine selects it now.
    Select,
    /// The engine selects it for later calls: nothing runs, and the decision is stored here.
    Plan(&'h OnceCell<PlannedKernel>),
    /// A plan selected it.
    Planned(&'h PlannedKernel),
}

/// The content of a plan.
pub struct PlannedKernel {
    /// The decision.
    pub pinned: Pinned,
    /// The callable that a Python kernel's planner returned, called in its place.
    pub run: Option<Py<PyAny>>,
}
